"""Masks: what they do to numbers, what may be done to them, and the files that hold them."""

import errno
import json
import pathlib
import random

import pytest
import torch
from glassbox.nodes.common.atomic_write import WriteError
from glassbox.nodes.neurons import mask_file, mask_operations, neuron_reports
from glassbox.nodes.neurons.mask import (
    CAVEATS,
    NeuronMask,
    SearchRecord,
    channel_factors,
    uniform_scales,
    union,
)
from glassbox.nodes.neurons.neuron_layers import (
    NeuronLayer,
    all_layers,
    feed_forward_layers,
    select_layers,
    value_layers,
)
from torch import nn

A, B = (f"input_blocks.{number}.1.transformer_blocks.0.attn2.to_v" for number in (1, 2))
LAYERS = [NeuronLayer(A, "down", 8), NeuronLayer(B, "down", 8)]
SD1 = [
    NeuronLayer(f"input_blocks.{i}.1.transformer_blocks.0.attn2.to_v", "down", 320)
    for i in range(6)
]
SD1 += [NeuronLayer("middle_block.1.transformer_blocks.0.attn2.to_v", "middle", 1280)]
SD1 += [NeuronLayer("output_blocks.3.1.transformer_blocks.0.attn2.to_v", "up", 1280)]


def mask(*neurons, scale=0.0, searches=()):
    return NeuronMask(uniform_scales(neurons, scale), tuple(searches))


def search_record(prompt, **z):
    """A search with neurons of layer A by number: search_record("cat", n3=5.0)."""
    values = {name[1:]: value for name, value in z.items()}
    return SearchRecord(prompt, {A: tuple(map(int, values))}, True, {"z": {A: values}})


@pytest.mark.parametrize(("strength", "factor"), [(1.0, 0.0), (0.25, 0.75), (2.0, -1.0)])
def test_strength_scales_the_output(strength, factor):
    found = channel_factors(mask((A, 2)), LAYERS, strength)
    assert found.keys() == {A}
    assert found[A].tolist() == [1, 1, factor, 1, 1, 1, 1, 1]


def test_nothing_is_scaled_by_an_empty_mask_or_strength_0():
    assert (
        channel_factors(mask(), LAYERS)
        == {}
        == channel_factors(mask((A, 2)), LAYERS, 0.0)
        == channel_factors(mask((A, 2), scale=1), LAYERS)
    )


@pytest.mark.parametrize("neuron", [("input_blocks.9.1", 0), (A, 8)])
def test_a_mask_of_another_architecture(neuron):
    with pytest.raises(ValueError, match="another architecture"):
        channel_factors(mask(neuron), LAYERS)


def test_each_prompt_has_the_neurons_that_were_found_for_it_and_are_still_masked():
    joined = mask(
        (A, 1),
        (A, 2),
        (B, 3),
        searches=[search_record("cat", n1=5.0, n4=1.0), search_record("dog", n2=3.0)],
    )
    found = joined.by_prompt()
    assert {prompt: one.scales for prompt, one in found.items()} == {
        "cat": {A: {1: 0.0}},
        "dog": {A: {2: 0.0}},
    }
    again = mask(
        (A, 1), (A, 2), searches=[search_record("cat", n1=5.0), search_record("cat", n2=3.0)]
    ).by_prompt()
    assert {prompt: one.scales for prompt, one in again.items()} == {"cat": {A: {1: 0.0, 2: 0.0}}}
    with pytest.raises(ValueError, match="does not say which prompts"):
        mask((A, 1)).by_prompt()


def test_union_intersection_drop():
    one, other = mask((A, 1), (A, 2), scale=0.5), mask((A, 2), (B, 3))
    assert union(one, other).scales == {A: {1: 0.5, 2: 0.0}, B: {3: 0.0}}
    assert mask_operations.intersection(one, other).scales == {A: {2: 0.5}}
    assert mask_operations.subtract(one, other).scales == {A: {1: 0.5}}
    assert one.scales == {A: {1: 0.5, 2: 0.5}}


def test_most_frequent_over_prompts():
    found = mask(
        (A, 1),
        (A, 2),
        (A, 3),
        searches=[search_record("a", n1=9, n2=1), search_record("b", n2=2, n3=3)],
    )
    assert mask_operations.most_frequent(found, 1).neurons == [(A, 2)]
    assert mask_operations.most_frequent(found, 2).neurons == [(A, 1), (A, 2)]
    with pytest.raises(ValueError, match="which prompts"):
        mask_operations.most_frequent(mask((A, 1)), 1)


def test_largest_z():
    found = mask(
        (A, 1),
        (A, 2),
        (A, 3),
        searches=[search_record("a", n1=-9, n2=1), search_record("b", n2=2, n3=3)],
    )
    assert mask_operations.largest_z(found, 2).neurons == [(A, 1), (A, 3)]
    with pytest.raises(ValueError, match="no z"):
        mask_operations.largest_z(mask((A, 1)), 1)


def test_random_control_avoids_the_mask():
    found = mask((A, 1), (A, 2), (A, 3), (B, 0))
    widths = {layer.path: layer.width for layer in LAYERS}
    for seed in range(20):
        control = mask_operations.random_control(found, widths, seed)
        assert {path: len(of) for path, of in control.scales.items()} == {A: 3, B: 1}
        assert not set(control.neurons) & set(found.neurons)
    assert (
        mask_operations.random_control(found, widths, 1).scales
        == mask_operations.random_control(found, widths, 1).scales
    )
    assert (
        mask_operations.random_control(found, widths, 1).scales
        != mask_operations.random_control(found, widths, 2).scales
    )
    with pytest.raises(ValueError, match="only 3 other neurons"):
        mask_operations.random_control(mask(*((A, i) for i in range(5))), widths, 0)


def test_named_neurons():
    found = mask((A, 1), (A, 2), (B, 3))
    assert mask_operations.select_named(found, "input_blocks.1.1 2", keep=True).neurons == [(A, 2)]
    assert mask_operations.select_named(found, "input_blocks.1.1", keep=False).neurons == [(B, 3)]
    assert mask_operations.select_named(found, f"{A} 1,2\n{B}", keep=True).count == 3
    assert mask_operations.select_named(found, " ", keep=False).neurons == found.neurons
    for text, sentence in (
        ("nose", "names no neuron"),
        (f"{A} x", "not a layer and numbers"),
        (" ", "No neuron"),
    ):
        with pytest.raises(ValueError, match=sentence):
            mask_operations.select_named(found, text, keep=True)


def test_named_neurons_are_those_of_the_lines_one_by_one():
    """Against the definition, on random lines of whole layers, parts of paths and numbers, some
    named twice.
    """
    rng = random.Random(0)
    paths = [
        f"{block}.{part}"
        for block in ("input_blocks.1.1", "input_blocks.12.1", "middle")
        for part in "ab"
    ]
    found = mask(*((path, index) for path in paths for index in range(0, 9, 2)))
    for _ in range(40):
        lines = []
        for _ in range(rng.randint(1, 6)):
            head = rng.choice(
                [*paths, "input_blocks", "input_blocks.1", "input_blocks.1.1", "middle"]
            )
            numbers = rng.choice(["", " 0", " 2, 4", " 8 3", " 0,0"])
            lines.append(head + numbers)
        expected = set()
        for line in lines:
            head, _, numbers = line.partition(" ")
            indices = {int(part) for part in numbers.replace(",", " ").split()}
            for path, index in found.neurons:
                if (path == head or path.startswith(f"{head}.")) and (
                    not indices or index in indices
                ):
                    expected.add((path, index))
        kept = mask_operations.select_named(found, "\n".join(lines), keep=True).neurons
        dropped = mask_operations.select_named(found, "\n".join(lines), keep=False).neurons
        assert set(kept) == expected and set(dropped) == set(found.neurons) - expected
        assert kept == [neuron for neuron in found.neurons if neuron in expected]


def test_the_file_reads_back_and_carries_the_caveats(tmp_path):
    found = NeuronMask(
        {A: {1: 0.0, 7: -0.5}},
        (search_record("a cat, ünïcode", n1=5.5),),
        {A: (0.25, -1.5)},
        ("NeMo Localize",),
    )
    mask_file.write(found, tmp_path / "m.json")
    text = (tmp_path / "m.json").read_text(encoding="utf-8")
    assert mask_file.from_json(text, "m.json") == found
    assert json.loads(text)["caveats"] == list(CAVEATS)
    assert [path.name for path in tmp_path.iterdir()] == ["m.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "other", "format_version": 1, "layers": {}, "searches": [], "history": [], '
        '"fingerprint": {}}',
        "[" * 100_000,
    ],
)
def test_other_files_are_refused(text):
    with pytest.raises(ValueError, match="is not a neuron mask"):
        mask_file.from_json(text, "x.json")


_EMPTY = {"layers": {}, "searches": [], "history": [], "fingerprint": {}}
_SEARCH = {"prompt": "p", "converged": True, "neurons": {}}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"layers": None}, "layers = None"),
        ({"layers": {"a": {"-1": 0}}}, "the key '-1' under layers.a"),
        ({"layers": {"a": {"9" * 30: 0}}}, "the key '999"),
        ({"layers": {"a": {"1": float("nan")}}}, "layers.a.1 = nan"),
        ({"fingerprint": {"a": [float("inf")]}}, r"fingerprint.a = \[inf\]"),
        ({"history": [1]}, r"history = \[1\]"),
        ({"searches": [{**_SEARCH, "converged": "yes"}]}, "searches.0.converged = 'yes'"),
        ({"searches": [{**_SEARCH, "neurons": {"a": [1.5]}}]}, r"searches.0.neurons.a = \[1.5\]"),
        ({"searches": [{**_SEARCH, "z": {"a": {"1": "x"}}}]}, "searches.0.z.a.1 = 'x'"),
    ],
)
def test_wrong_values_name_the_file_and_the_key(changes, sentence):
    content = {"format": "glassbox_neuron_mask", "format_version": 1, **_EMPTY, **changes}
    with pytest.raises(ValueError, match=f"^x.json has {sentence}"):
        mask_file.from_json(json.dumps(content), "x.json")


def test_a_full_disk_leaves_the_old_mask(tmp_path, monkeypatch):
    path = tmp_path / "m.json"
    mask_file.write(mask((A, 1)), path)

    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_text", full)
    with pytest.raises(WriteError, match=r"m\.json cannot be written"):
        mask_file.write(mask((A, 2)), path)
    assert mask_file.from_json(path.read_text(encoding="utf-8"), "m.json").neurons == [(A, 1)]
    assert [file.name for file in tmp_path.iterdir()] == ["m.json"]


def test_a_newer_format_version_is_named():
    with pytest.raises(ValueError, match="format version 2 and this Glassbox reads 1"):
        mask_file.from_json('{"format": "glassbox_neuron_mask", "format_version": 2}', "x.json")


TABLE = """Caption;URL;Initial Neurons;Initial SSIM;Refined Neurons;Refined SSIM
The Podcast;http://x;[[221], [], [], [124], [697], [], []];0.188;\
[[221], [], [], [], [], [], []];0.189
A case;http://y;[[7, 25], [], [], [], [], [], [77, 77]];0.61;\
[[25], [], [], [], [], [], [77, 77]];0.6
None;http://z;[[], [], [], [], [], [], []];0;[[], [], [], [], [], [], []];0
"""


def test_the_official_table():
    found = mask_file.from_official_table(TABLE, SD1, "r.csv")
    assert found.scales == {SD1[0].path: {25: 0.0, 221: 0.0}, SD1[6].path: {77: 0.0}}
    assert [search.converged for search in found.searches] == [True, False]  # the third was skipped
    assert found.searches[1].neurons[SD1[6].path] == (77,)
    assert mask_operations.most_frequent(found, 1).count == 1


def test_the_threshold_of_the_official_run_decides_what_converged():
    """The paper's ablation runs with thresholds from .288 to .498; the second search ended at
    .61.
    """
    for threshold, converged in (
        (0.288, [True, False]),
        (0.1, [False, False]),
        (0.61, [True, True]),
    ):
        found = mask_file.from_official_table(TABLE, SD1, "r.csv", threshold)
        assert [search.converged for search in found.searches] == converged


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a;b\n1;2\n",
        "Caption;" + "x" * 200_000 + "\n",
        TABLE.replace("[[221]", "[[x]"),
        TABLE.replace(", []];0.189", "];0"),
    ],
)
def test_other_tables_are_refused(text):
    with pytest.raises(ValueError, match="official result table"):
        mask_file.from_official_table(text, SD1, "r.csv")


def test_the_table_of_a_mask():
    rows = neuron_reports.mask_table(
        mask((A, 1), (A, 2), searches=[search_record("a", n1=9, n3=1)])
    ).splitlines()
    assert rows == ["prompt,layer,neuron,factor,z,activation,selected_by", f"a,{A},1,0.0,9,,"]
    assert len(neuron_reports.mask_table(mask((A, 1))).splitlines()) == 2


class Net(nn.Module):
    """A network with value layers out of the order in which it runs."""

    def __init__(self):
        super().__init__()
        for name in (
            "output_blocks.3.1",
            "middle_block.1",
            "input_blocks.1.1",
            "input_blocks.10.1",
        ):
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
    assert len(select_layers(layers, "down, middle")) == 3
    assert [layer.name for layer in select_layers(layers, "up\ninput_blocks.1.1")] == [
        "input_blocks.1.1",
        "output_blocks.3.1",
    ]
    assert len(select_layers(layers, "input_blocks.*")) == 2
    for text in ("left", "input_blocks.1"):
        with pytest.raises(ValueError, match="No layer matches"):
            select_layers(layers, text)
    with pytest.raises(ValueError, match="No layer is named"):
        select_layers(layers, " , ")


def test_a_network_without_values():
    with pytest.raises(ValueError, match="no cross-attention value layers"):
        value_layers(nn.Linear(2, 2))


def test_scaling_an_output_is_scaling_a_row():
    """Exact for zero and powers of two, close elsewhere; the layer has no bias."""
    layer = nn.Linear(16, 8, bias=False)
    x = torch.randn(5, 7, 16, generator=torch.Generator().manual_seed(0))
    for scale, exact in ((0.0, True), (0.5, True), (-1.0, True), (0.3, False)):
        factor = channel_factors(mask((A, 2), scale=scale), LAYERS)[A]
        scaled = nn.Linear(16, 8, bias=False)
        scaled.weight.data = layer.weight.data * factor[:, None]
        if exact:
            assert torch.equal(layer(x) * factor, scaled(x))
        else:
            assert torch.allclose(layer(x) * factor, scaled(x), atol=1e-6)


def block(**layers):
    """A module with linear layers of these numbers of inputs and outputs; a dot is a level."""
    module = nn.Module()
    for name, size in layers.items():
        parent = module
        *above, last = name.split("_in_")[::-1]
        for part in above:
            if not hasattr(parent, part):
                parent.add_module(part, nn.Module())
            parent = getattr(parent, part)
        parent.add_module(last, nn.Linear(*size))
    return module


ATTENTION = {f"{name}_in_attn": (4, 4) for name in ("q", "k", "v", "o")}


def network_of(**blocks):
    """Two equal blocks of each kind, and an embedding of the timestep outside of any."""
    network = nn.Module()
    for name, layers in blocks.items():
        network.add_module(name, nn.ModuleList([block(**layers), block(**layers)]))
    network.add_module("time_in", block(up=(4, 10), down=(10, 4)))
    return network


def test_layers_of_a_transformer():
    """All narrowing layers of its blocks' feed-forward layers that see the image; those that embed
    inputs are none.
    """
    network = network_of(
        double_blocks=ATTENTION
        | {
            "up_in_img_mlp": (4, 10),
            "down_in_img_mlp": (10, 4),
            "up_in_txt_mlp": (4, 10),
            "down_in_txt_mlp": (10, 4),
        },
        single_blocks={"linear1": (4, 3 * 4 + 6), "linear2": (4 + 6, 4)},
        context_refiner={"up_in_mlp": (4, 10), "down_in_mlp": (10, 4)},
    )
    layers = feed_forward_layers(network)
    assert [(layer.name, layer.width) for layer in layers] == [
        ("double_blocks.0.img_mlp.down", 10),
        ("double_blocks.1.img_mlp.down", 10),
        ("single_blocks.0.linear2", 6),
        ("single_blocks.1.linear2", 6),
    ]
    values = [layer for layer in all_layers(network) if layer not in layers]
    assert [layer.path for layer in values] == [
        f"{blocks}.{number}.text_values"
        for blocks in ("double_blocks", "single_blocks")
        for number in (0, 1)
    ]
    assert {layer.width for layer in values} == {0}  # not known before an evaluation
    assert layers == select_layers(layers, "all")
    assert len(select_layers(layers, "double_blocks.0")) == 1
    with pytest.raises(
        ValueError, match="No layer matches 'down': write all, or one of double_blocks"
    ):
        select_layers(layers, "down, middle")
    with pytest.raises(ValueError, match="no feed-forward layers"):
        all_layers(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("layers", "found"),
    [
        ({"w1_in_ff": (4, 9), "w2_in_ff": (9, 4), "w3_in_ff": (4, 9)}, {"ff.w2": 9}),  # gated
        ({"fc1_in_ff": (4, 18), "fc2_in_ff": (9, 4)}, {"ff.fc2": 9}),  # both in one
        ({"proj_in_0_in_net_in_ff": (4, 9), "2_in_net_in_ff": (9, 4)}, {"ff.net.2": 9}),
        ({"linear1": (4, 3 * 4 + 2 * 6), "linear2": (4 + 6, 4)}, {"linear2": 6}),
        # an attention beside it, without a module of its own
        (
            {"q": (4, 4), "k": (4, 4), "v": (4, 4), "o": (4, 4), "up": (4, 9), "down": (9, 4)},
            {"down": 9},
        ),
        # attentions: as wide as the stream, of wider heads, of fewer keys, with one layer for all
        (ATTENTION, {}),
        ({"q": (4, 8), "k": (4, 8), "v": (4, 8), "o": (8, 4)}, {}),
        ({"q": (4, 8), "k": (4, 2), "v": (4, 2), "o": (8, 4)}, {}),
        ({"qkv": (4, 24), "o": (8, 4)}, {}),
        # projections of a timestep beside a block's layers, and one layer alone
        ({"emb_in_time": (9, 4), **ATTENTION, "up_in_ff": (4, 9), "down_in_ff": (9, 4)},
         {"ff.down": 9}),
        ({"alone": (9, 4)}, {}),
        # experts get some of the tokens each
        ({"w1_in_0_in_experts": (4, 9), "w2_in_0_in_experts": (9, 4)}, {}),
    ],
)  # fmt: skip
def test_feed_forward_layers_are_known_by_their_shapes(layers, found):
    network = network_of(blocks=layers)
    if not found:
        with pytest.raises(ValueError, match="no feed-forward layers in its blocks"):
            feed_forward_layers(network)
        return
    expected = {
        f"blocks.{number}.{path}": width for number in (0, 1) for path, width in found.items()
    }
    assert {layer.path: layer.width for layer in feed_forward_layers(network)} == expected
