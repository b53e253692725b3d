"""What Preview Any and other packs' Display Any show of what is on the wires: two lines, whatever
is in it.
"""

import pytest
import torch
from glassbox.nodes.activations import activations, few_shot, sparse_autoencoder, steering
from glassbox.nodes.neurons import mask, neuron_statistics
from glassbox.nodes.weights import space

_IDS = [f"down-level{number}-repeat0-res-out" for number in range(200)]


def _space():
    numbers, made = (
        torch.randn(2000),
        object.__new__(space.Space),
    )  # without a layout, which is not printed
    fields = {
        "about": {"name": "people"},
        "mean": numbers,
        "basis": torch.randn(50, 2000),
        "members": [f"m{n}" for n in range(90)],
    }
    for name, value in {**fields, "directions": {}}.items():
        object.__setattr__(made, name, value)
    return made


def _made():
    vectors = {id_: torch.randn(320) for id_ in _IDS}
    moments = neuron_statistics.LayerStatistics(*(torch.randn(1280) for _ in range(5)))
    big = torch.randn(2048, 320)
    people = _space()
    yield activations.Activations(vectors, (activations.Row(0),), 1.0, 1.0), "ACTIVATIONS"
    yield steering.SteeringDirection(vectors, "difference of means"), "STEERING_DIRECTION"
    yield (
        few_shot.Segmenter(None, dict.fromkeys(_IDS, 320), 128, ("hair", "skin")),
        "FEW_SHOT_SEGMENTER",
    )
    yield (
        sparse_autoencoder.SparseAutoencoder("mid", 8, big, big, big[0], big[:, 0], big[:, 0]),
        "SPARSE_AUTOENCODER",
    )
    yield mask.NeuronMask({id_: dict.fromkeys(range(300), 0.0) for id_ in _IDS}), "NEURON_MASK"
    yield neuron_statistics.Statistics(100, dict.fromkeys(_IDS, moments)), "NEURON_STATISTICS"
    yield people, "W2W_SPACE"
    yield space.Point(people, torch.randn(50)), "W2W_POINT"


@pytest.mark.parametrize(
    ("one", "kind"), list(_made()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_is_on_the_wires_prints_in_two_lines(one, kind):
    lines = str(one).splitlines()
    assert len(lines) == 2 and lines[0].startswith(f"{kind}: ") and sum(map(len, lines)) < 250
