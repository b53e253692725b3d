"""Patterns of a PEFT configuration: PEFT's own choice, bounded work, or one sentence."""

import json
import re
import time

import members
import pytest
import torch
from glassbox.nodes.common import lora_reader, peft_files
from glassbox.nodes.common.headers import HeaderError, Section
from glassbox.nodes.common.layer_patterns import MOST_STEPS, LayerPatterns
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

_LAYERS = (
    "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q",
    "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k",
    "down_blocks.10.attentions.1.transformer_blocks.0.ff.net.0.proj",
    "mid_block.attentions.0.proj_in",
    "single_transformer_blocks.12.attn.to_v",
    "to_q",
)


def _patterns(values: dict) -> LayerPatterns:
    return LayerPatterns(Section({"alpha_pattern": values}, "ada.safetensors"), "alpha_pattern")


def _peft_choice(values: dict, layer: str) -> float | None:
    """peft.utils.other.get_pattern_key, for patterns that are safe to run."""
    for pattern, value in values.items():
        if re.match(rf"(.*\.)?({pattern})$", layer):
            return value
    return None


_PIECES = st.sampled_from(
    [
        *("attn1", "attn2", "to_q", "to_k", "blocks", "down_blocks", "o", "0", "1?"),
        *(r"\.", r"\.", r"\d", r"\d+", ".*", ".+", r"\w*", "[0-9]", "[qkv]", "[a-z_]*"),
        *("(to_q|to_k)", "(?:attn|proj_in)", "(a|(b|t)tn1)", "to_v|attn1"),
    ]
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "^"]),
            st.lists(_PIECES, min_size=1, max_size=5),
            st.sampled_from(["", "$"]),
        ),
        max_size=4,
    ),
    st.sampled_from(_LAYERS),
)
def test_simple_patterns_choose_as_peft_does(pieces, layer):
    # PEFT puts a pattern into a group, where "^" is part of the first alternative and "$" of the
    # last alone.
    texts = ["".join(middle) for _, middle, _ in pieces]
    values = {
        (text if "|" in text else f"{first}{text}{last}"): float(place)
        for place, ((first, _, last), text) in enumerate(zip(pieces, texts, strict=True))
    }
    assert _patterns(values).value(layer) == _peft_choice(values, layer)


@pytest.mark.parametrize(
    ("pattern", "layer", "matches"),
    [
        ("attn1.to_q", _LAYERS[0], True),
        ("ttn1.to_q", _LAYERS[0], False),
        ("^attn1.to_q", _LAYERS[0], False),
        ("^to_q", _LAYERS[-1], True),
        (r".*attn2\.(to_k|to_v)", _LAYERS[1], True),
        ("transformer_blocks", _LAYERS[0], False),
    ],
)
def test_names_match_by_their_end(pattern, layer, matches):
    assert (_patterns({pattern: 3.0}).value(layer) is not None) is matches


def test_the_first_pattern_that_matches_counts():
    values = {r".*\.to_q": 1.0, "attn1.to_q": 2.0, "to_k": 3.0, ".*to_k": 4.0}
    assert _patterns(values).value(_LAYERS[0]) == 1.0
    assert _patterns(values).value(_LAYERS[1]) == 3.0


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"(\w+\.?)+!", "(a*)*", "((a|b)+)", "a{9}", "(", ")", "[", "[^a]", "a**"),
        *(r"\b", r"\1", "(?=a)", "\\", "*", "x" * 300 + "*"),
    ],
)
def test_other_patterns_are_one_sentence(pattern):
    with pytest.raises(
        HeaderError, match=r"^ada.safetensors has the alpha_pattern .* neither a layer's name"
    ):
        _patterns({pattern: 8.0})


def _steps(patterns: LayerPatterns, layers: list[str]) -> int:
    for layer in layers:
        patterns.value(layer)
    return patterns._steps


@pytest.mark.parametrize(
    "body", [r"\w*" * 60 + "!", "(a|a|aa)" * 30 + "!", ".*" * 100 + "!", "a?" * 100 + "a" * 50]
)
def test_the_work_of_a_pattern_is_at_most_its_length_times_the_layer(body):
    name = "a" * 200
    steps = _steps(_patterns({body: 1.0}), [name])
    assert steps <= 4 * len(body) * (len(name) + 1) + len(body)
    assert _steps(_patterns({body: 1.0}), [name] * 5) == steps  # a layer is matched once


def test_patterns_that_take_too_long_altogether_are_one_sentence():
    patterns = _patterns({".*" * 120 + str(number): 1.0 for number in range(2000)})
    with pytest.raises(HeaderError, match="too long to compare"):
        for number in range(1000):
            patterns.value(f"blocks.{number}." + "a" * 100)
    assert patterns._steps < MOST_STEPS + 10**6


@pytest.mark.parametrize("owner", ["unet", "transformer"])
def test_a_hostile_expression_in_a_header_ends_at_once(tmp_path, owner):
    path = tmp_path / "evil.safetensors"
    about = {
        f"{owner}.r": 2,
        f"{owner}.lora_alpha": 8,
        f"{owner}.alpha_pattern": {r"(\w+\.?)+!": 8},
    }
    save_file(
        members.diffusers(members.factors(3, rank=2)),
        path,
        {"lora_adapter_metadata": json.dumps(about)},
    )
    began = time.process_time()
    with pytest.raises(HeaderError, match=r"^evil.safetensors has the alpha_pattern"):
        lora_reader.read(path)
    assert time.process_time() - began < 5  # a regular expression needs centuries


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"lora_alpha": float("nan")}, "lora_alpha = nan"),
        ({"lora_alpha": float("inf")}, "lora_alpha = inf"),
        ({"lora_alpha": 10**400}, "lora_alpha = 1000"),
        ({"lora_alpha": [1]}, r"lora_alpha = \[1\]"),
        ({"lora_alpha": "x"}, "lora_alpha = 'x'"),
        ({"lora_alpha": True}, "lora_alpha = True"),
        ({"use_rslora": "yes"}, "use_rslora = 'yes'"),
        ({"use_rslora": 1}, "use_rslora = 1"),
        ({"use_dora": "no"}, "use_dora = 'no'"),
        ({"r": 0}, "r = 0"),
        ({"r": 2.5}, "r = 2.5"),
        ({"alpha_pattern": []}, r"alpha_pattern = \[\]"),
        ({"alpha_pattern": {"attn1.to_q": {}}}, "alpha_pattern.attn1.to_q = {}"),
        ({"rank_pattern": {"attn1.to_q": "many"}}, "rank_pattern.attn1.to_q = 'many'"),
        ({"rank_pattern": {r"(\w+\.?)+!": 8}}, "the rank_pattern"),
    ],
)
@pytest.mark.parametrize("place", ["header", "folder"])
def test_other_values_name_the_file_and_the_key(tmp_path, values, named, place):
    made = members.factors(3, rank=2)
    if place == "folder":
        path = members.write_peft_folder(tmp_path / "evil", made, alpha=4)
        content = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, **values}
        (path / "adapter_config.json").write_text(json.dumps(content))
    else:
        path = tmp_path / "evil.safetensors"
        about = {f"unet.{key}": value for key, value in values.items()}
        save_file(members.diffusers(made), path, {"lora_adapter_metadata": json.dumps(about)})
    with pytest.raises(HeaderError, match=rf"^evil\S* has {named}"):
        lora_reader.read(path)


@pytest.mark.parametrize(
    ("values", "alpha"),
    [
        ({"peft_type": "OFT", "r": 0, "oft_block_size": 32}, None),
        ({"peft_type": "LOKR", "r": 8, "alpha": 16}, 16.0),
        ({"peft_type": "LOHA", "r": 8}, 8.0),
        ({"peft_type": "LORA", "r": 4, "lora_alpha": 12}, 12.0),
        ({"r": 4}, 8.0),
    ],
)
def test_a_folder_has_the_alpha_of_its_kind(tmp_path, values, alpha):
    """PEFT's defaults by kind: alpha 8 of LoRA, LoHa and LoKr, none of OFT, which writes the rank
    0.
    """
    (tmp_path / "adapter_config.json").write_text(json.dumps(values))
    found = peft_files.folder_config(tmp_path / "adapter_model.safetensors")
    assert peft_files.adapter_config(found, "ada").alpha == alpha


def test_null_counts_as_no_value(tmp_path):
    path = tmp_path / "ada.safetensors"
    about = {"unet.lora_alpha": 8, "unet.alpha_pattern": None, "unet.use_rslora": None, "unet.r": 2}
    save_file(
        members.diffusers(members.factors(3, rank=2)),
        path,
        {"lora_adapter_metadata": json.dumps(about)},
    )
    assert {factors.scale for factors in lora_reader.read(path).layers.values()} == {4.0}


def test_patterns_know_a_layer_by_its_name_in_the_file():
    layer = "base_model.model.context_refiner.0.feed_forward.w1"
    tensors = {
        f"{layer}.lora_A.weight": torch.ones(2, 8),
        f"{layer}.lora_B.weight": torch.ones(8, 2),
    }
    config = {"r": 2, "lora_alpha": 4, "alpha_pattern": {"feed_forward.w1": 10}}
    assert [
        factors.scale for factors in lora_reader.parse_tensors(tensors, config).layers.values()
    ] == [5.0]
