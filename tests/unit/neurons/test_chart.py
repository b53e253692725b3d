"""What the chart of a mask is drawn from."""

import json

from glassbox.nodes.neurons import chart
from glassbox.nodes.neurons.mask import Finding, NeuronMask

_A, _B = (f"input_blocks.{number}.1.transformer_blocks.0.attn2.to_v" for number in (1, 2))


def _finding(z: dict) -> Finding:
    return Finding("a prompt", {path: tuple(map(int, of_layer)) for path, of_layer in z.items()}, True, {"z": z})


def test_each_neuron_has_its_largest_z():
    findings = (_finding({_A: {"3": 2.0, "5": -6.0}}), _finding({_A: {"3": -4.5}}))
    told = chart.outline(NeuronMask({_A: {3: 0.0, 5: 0.5}, _B: {7: 0.0}}, findings))
    assert told == {"neurons": [[_A, 3, 0.0, -4.5], [_A, 5, 0.5, -6.0], [_B, 7, 0.0, None]], "count": 3}
    json.dumps(told, allow_nan=False)


def test_of_very_many_the_largest_are_told():
    z = {_A: {str(index): float(index) for index in range(1500)}}
    told = chart.outline(NeuronMask({_A: dict.fromkeys(range(1500), 0.0)}, (_finding(z),)))
    assert told["count"] == 1500
    assert [index for _, index, _, _ in told["neurons"]] == [*range(500, 1500)]


def test_an_empty_mask_has_an_empty_chart():
    assert chart.outline(NeuronMask({})) == {"neurons": [], "count": 0}
