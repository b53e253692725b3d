"""The data of the neuron chart on the canvas."""

import json

from glassbox.nodes.neurons import neuron_reports
from glassbox.nodes.neurons.mask import NeuronMask, SearchRecord

_A, _B = (f"input_blocks.{number}.1.transformer_blocks.0.attn2.to_v" for number in (1, 2))


def _search(z: dict) -> SearchRecord:
    return SearchRecord(
        "a prompt",
        {path: tuple(map(int, of_layer)) for path, of_layer in z.items()},
        True,
        {"z": z},
    )


def test_each_neuron_has_its_largest_z():
    searches = (_search({_A: {"3": 2.0, "5": -6.0}}), _search({_A: {"3": -4.5}}))
    chart = neuron_reports.mask_chart(NeuronMask({_A: {3: 0.0, 5: 0.5}, _B: {7: 0.0}}, searches))
    assert chart == {
        "neurons": [[_A, 3, 0.0, -4.5], [_A, 5, 0.5, -6.0], [_B, 7, 0.0, None]],
        "count": 3,
    }
    json.dumps(chart, allow_nan=False)


def test_a_large_mask_shows_the_1000_largest_z():
    z = {_A: {str(index): float(index) for index in range(1500)}}
    chart = neuron_reports.mask_chart(
        NeuronMask({_A: dict.fromkeys(range(1500), 0.0)}, (_search(z),))
    )
    assert chart["count"] == 1500
    assert [index for _, index, _, _ in chart["neurons"]] == [*range(500, 1500)]


def test_an_empty_mask_has_an_empty_chart():
    assert neuron_reports.mask_chart(NeuronMask({})) == {"neurons": [], "count": 0}
