"""Masks: what they do to numbers, what may be done to them, and the files that hold them."""

import json

import pytest
import torch
from glassbox.nodes.neurons import edits, mask_files, words
from glassbox.nodes.neurons.layers import ValueLayer, choose, value_layers
from glassbox.nodes.neurons.mask import CAVEATS, Finding, NeuronMask, factors, of_neurons
from torch import nn

A, B = (f"input_blocks.{number}.1.transformer_blocks.0.attn2.to_v" for number in (1, 2))
LAYERS = [ValueLayer(A, "down", 8), ValueLayer(B, "down", 8)]
SD1 = [ValueLayer(f"input_blocks.{i}.1.transformer_blocks.0.attn2.to_v", "down", 320) for i in range(6)]
SD1 += [ValueLayer("middle_block.1.transformer_blocks.0.attn2.to_v", "middle", 1280)]
SD1 += [ValueLayer("output_blocks.3.1.transformer_blocks.0.attn2.to_v", "up", 1280)]


def mask(*neurons, scale=0.0, findings=()):
    return NeuronMask(of_neurons(neurons, scale), tuple(findings))


def finding(prompt, **z):
    """A finding with neurons of layer A by number: finding("cat", n3=5.0)."""
    values = {name[1:]: value for name, value in z.items()}
    return Finding(prompt, {A: tuple(map(int, values))}, True, {"z": {A: values}})


@pytest.mark.parametrize(("strength", "factor"), [(1.0, 0.0), (0.25, 0.75), (2.0, -1.0)])
def test_strength_scales_the_output(strength, factor):
    found = factors(mask((A, 2)), LAYERS, strength)
    assert found.keys() == {A}
    assert found[A].tolist() == [1, 1, factor, 1, 1, 1, 1, 1]


def test_nothing_is_scaled_by_an_empty_mask_or_strength_0():
    assert factors(mask(), LAYERS) == {} == factors(mask((A, 2)), LAYERS, 0.0) == factors(mask((A, 2), scale=1), LAYERS)


@pytest.mark.parametrize("neuron", [("input_blocks.9.1", 0), (A, 8)])
def test_a_mask_of_another_architecture(neuron):
    with pytest.raises(ValueError, match="another architecture"):
        factors(mask(neuron), LAYERS)


def test_union_intersection_drop():
    one, other = mask((A, 1), (A, 2), scale=0.5), mask((A, 2), (B, 3))
    assert edits.union(one, other).scales == {A: {1: 0.5, 2: 0.0}, B: {3: 0.0}}
    assert edits.intersection(one, other).scales == {A: {2: 0.5}}
    assert edits.drop(one, other).scales == {A: {1: 0.5}}
    assert one.scales == {A: {1: 0.5, 2: 0.5}}


def test_most_frequent_over_prompts():
    found = mask((A, 1), (A, 2), (A, 3), findings=[finding("a", n1=9, n2=1), finding("b", n2=2, n3=3)])
    assert edits.most_frequent(found, 1).neurons == [(A, 2)]
    assert edits.most_frequent(found, 2).neurons == [(A, 1), (A, 2)]
    with pytest.raises(ValueError, match="which prompts"):
        edits.most_frequent(mask((A, 1)), 1)


def test_largest_z():
    found = mask((A, 1), (A, 2), (A, 3), findings=[finding("a", n1=-9, n2=1), finding("b", n2=2, n3=3)])
    assert edits.strongest(found, 2).neurons == [(A, 1), (A, 3)]
    with pytest.raises(ValueError, match="no z"):
        edits.strongest(mask((A, 1)), 1)


def test_random_control_avoids_the_mask():
    found = mask((A, 1), (A, 2), (A, 3), (B, 0))
    widths = {layer.path: layer.width for layer in LAYERS}
    for seed in range(20):
        control = edits.random_control(found, widths, seed)
        assert {path: len(of) for path, of in control.scales.items()} == {A: 3, B: 1}
        assert not set(control.neurons) & set(found.neurons)
    assert edits.random_control(found, widths, 1).scales == edits.random_control(found, widths, 1).scales
    assert edits.random_control(found, widths, 1).scales != edits.random_control(found, widths, 2).scales
    with pytest.raises(ValueError, match="only 3 other neurons"):
        edits.random_control(mask(*((A, i) for i in range(5))), widths, 0)


def test_named_neurons():
    found = mask((A, 1), (A, 2), (B, 3))
    assert edits.named(found, "input_blocks.1.1 2", keep=True).neurons == [(A, 2)]
    assert edits.named(found, "input_blocks.1.1", keep=False).neurons == [(B, 3)]
    assert edits.named(found, f"{A} 1,2\n{B}", keep=True).count == 3
    assert edits.named(found, " ", keep=False).neurons == found.neurons
    for text, sentence in (("nose", "names no neuron"), (f"{A} x", "not a layer and numbers"), (" ", "No neuron")):
        with pytest.raises(ValueError, match=sentence):
            edits.named(found, text, keep=True)


def test_the_file_reads_back_and_carries_the_caveats(tmp_path):
    found = NeuronMask({A: {1: 0.0, 7: -0.5}}, (finding("a cat, ünïcode", n1=5.5),), {A: 0.25}, ("NeMo Localize",))
    mask_files.write(found, tmp_path / "m.json")
    text = (tmp_path / "m.json").read_text(encoding="utf-8")
    assert mask_files.from_text(text, "m.json") == found
    assert json.loads(text)["read this"] == list(CAVEATS)
    assert [path.name for path in tmp_path.iterdir()] == ["m.json"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "glassbox neuron mask 1"}', '{"format": "glassbox neuron mask 2"}',
             '{"format": "glassbox neuron mask 1", "layers": {"a": {"-1": 0}}, "findings": [], "history": [], '
             '"model fingerprint": {}}',
             '{"format": "glassbox neuron mask 1", "layers": {"a": {"1": NaN}}, "findings": [], "history": [], '
             '"model fingerprint": {}}'],
)  # fmt: skip
def test_other_files_are_refused(text):
    with pytest.raises(ValueError, match="is no neuron mask"):
        mask_files.from_text(text, "x.json")


TABLE = """Caption;URL;Initial Neurons;Initial SSIM;Refined Neurons;Refined SSIM
The Podcast;http://x;[[221], [], [], [124], [697], [], []];0.188;[[221], [], [], [], [], [], []];0.189
A case;http://y;[[7, 25], [], [], [], [], [], [77, 77]];0.61;[[25], [], [], [], [], [], [77, 77]];0.6
None;http://z;[[], [], [], [], [], [], []];0;[[], [], [], [], [], [], []];0
"""


def test_the_official_table():
    found = mask_files.from_official(TABLE, SD1, "r.csv")
    assert found.scales == {SD1[0].path: {25: 0.0, 221: 0.0}, SD1[6].path: {77: 0.0}}
    assert [entry.converged for entry in found.findings] == [True, False, True]
    assert found.findings[1].neurons[SD1[6].path] == (77,)
    assert edits.most_frequent(found, 1).count == 1


@pytest.mark.parametrize(
    "text", ["", "a;b\n1;2\n", TABLE.replace("[[221]", "[[x]"), TABLE.replace(", []];0.189", "];0")]
)
def test_other_tables_are_refused(text):
    with pytest.raises(ValueError, match="official result table"):
        mask_files.from_official(text, SD1, "r.csv")


def test_the_table_of_a_mask():
    rows = words.mask_table(mask((A, 1), (A, 2), findings=[finding("a", n1=9, n3=1)])).splitlines()
    assert rows == ["prompt,layer,neuron,factor,z,activation,why", f"a,{A},1,0.0,9,,"]
    assert len(words.mask_table(mask((A, 1))).splitlines()) == 2


class Net(nn.Module):
    """A network with value layers out of the order in which it runs."""

    def __init__(self):
        super().__init__()
        for name in ("output_blocks.3.1", "middle_block.1", "input_blocks.1.1", "input_blocks.10.1"):
            parent = self
            for part in f"{name}.transformer_blocks.0.attn2".split("."):
                if not hasattr(parent, part):
                    parent.add_module(part, nn.Module())
                parent = getattr(parent, part)
            parent.to_v = nn.Linear(3, 4)


def test_layers_are_found_and_chosen():
    layers = value_layers(Net())
    assert [layer.part for layer in layers] == ["down", "down", "middle", "up"]
    assert [layer.name for layer in layers][-1] == "output_blocks.3.1"
    assert len(choose(layers, "down, middle")) == 3
    assert [layer.name for layer in choose(layers, "up\ninput_blocks.1.1")] == ["input_blocks.1.1", "output_blocks.3.1"]
    assert len(choose(layers, "input_blocks.*")) == 2
    for text in ("left", "input_blocks.1"):
        with pytest.raises(ValueError, match="No value layer is called"):
            choose(layers, text)
    with pytest.raises(ValueError, match="No layer is named"):
        choose(layers, " , ")


def test_a_network_without_values():
    with pytest.raises(ValueError, match="no cross-attention values"):
        value_layers(nn.Linear(2, 2))


def test_scaling_an_output_is_scaling_a_row():
    """Exact for zero and powers of two, close elsewhere; the layer has no bias."""
    layer = nn.Linear(16, 8, bias=False)
    x = torch.randn(5, 7, 16, generator=torch.Generator().manual_seed(0))
    for scale, exact in ((0.0, True), (0.5, True), (-1.0, True), (0.3, False)):
        factor = factors(mask((A, 2), scale=scale), LAYERS)[A]
        scaled = nn.Linear(16, 8, bias=False)
        scaled.weight.data = layer.weight.data * factor[:, None]
        if exact:
            assert torch.equal(layer(x) * factor, scaled(x))
        else:
            assert torch.allclose(layer(x) * factor, scaled(x), atol=1e-6)
