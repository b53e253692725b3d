"""The flat vector is that of the official release: 64 modules, 99,648 numbers, alphabetical, alpha
27.
"""

import ast
import csv

import pytest
import repository
import torch
from glassbox.nodes.common import lora_keys, lora_reader
from glassbox.nodes.weights import lora_writer
from glassbox.nodes.weights.flat_layout import Layout


@pytest.fixture(scope="module")
def table():
    with open(
        repository.ROOT / "tests" / "data" / "weights" / "layout_sd15.csv", newline=""
    ) as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def official(table):
    """A model of the release: numbers counted through, by its own keys, with the adapter's name
    baked in.
    """
    flat = torch.arange(99_648, dtype=torch.float32)
    tensors = {}
    for row in table:
        key = row["key"].replace(".weight", ".identity1.weight")
        start, count = int(row["offset"]), int(row["numel"])
        tensors[key] = flat[start : start + count].view(ast.literal_eval(row["shape"]))
    return flat, tensors


@pytest.fixture(scope="module")
def layout(official):
    lora = lora_reader.parse_tensors(official[1], {"r": 1, "lora_alpha": 27})
    shapes = {
        name: (tuple(one.down.shape), tuple(one.up.shape)) for name, one in lora.layers.items()
    }
    return Layout.of(shapes, 1, 27.0)


def test_the_sd15_layout_is_that_of_weight_dimensions(layout, table):
    assert (len(layout.slots), layout.size, layout.scale) == (64, 99_648, 27.0)
    rows = [
        (int(row["offset"]), int(row["numel"]), ast.literal_eval(row["shape"])) for row in table
    ]
    assert [row[:3] for row in layout.rows()] == rows
    assert [f"base_model.model.{row[3]}" for row in layout.rows()] == [row["key"] for row in table]
    blocks = [slot.offset for slot in layout.slots if slot.layer.endswith("attn1.to_q")]
    assert blocks == [
        0,
        3008,
        6016,
        11264,
        16512,
        26240,
        35968,
        45696,
        55424,
        65152,
        74880,
        80128,
        85376,
        90624,
        93632,
        96640,
    ]
    cross = sum(slot.end - slot.offset for slot in layout.slots if ".attn2." in slot.layer)
    assert (cross, layout.size - cross) == (49_728, 49_920)


def test_flatten_and_unflatten_are_exact(layout, official):
    """Keys and values of the official `save_model_w2w` with difference 0."""
    flat, tensors = official
    lora = lora_reader.parse_tensors(tensors, {"r": 1, "lora_alpha": 27})
    assert torch.equal(layout.flatten(lora.layers), flat)
    layers = layout.unflatten(flat)
    assert all(
        torch.equal(layers[name].down, one.down) and torch.equal(layers[name].up, one.up)
        for name, one in lora.layers.items()
    )


def test_an_exported_point_has_kohya_keys_and_alpha_27(layout, official):
    tensors = lora_writer.to_tensors(layout.unflatten(official[0]))
    stem = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
    assert len(tensors) == 3 * 64
    assert torch.equal(tensors[f"{stem}.lora_down.weight"], official[0][:320].view(1, 320))
    assert torch.equal(tensors[f"{stem}.lora_up.weight"], official[0][320:640].view(320, 1))
    assert float(tensors[f"{stem}.alpha"]) == 27


def test_layers_of_an_original_checkpoint_are_the_same(layout):
    """ComfyUI's trainer names layers by the original code: all 64 come out under their diffusers
    names.
    """
    places = {
        f"down_blocks.{level}.attentions.{index}": f"input_blocks.{3 * level + index + 1}.1"
        for level in range(3)
        for index in range(2)
    }
    places |= {
        f"up_blocks.{level}.attentions.{index}": f"output_blocks.{3 * level + index}.1"
        for level in range(1, 4)
        for index in range(3)
    }
    places["mid_block.attentions.0"] = "middle_block.1"
    for slot in layout.slots:
        block = ".".join(slot.layer.split(".")[: 3 if slot.layer.startswith("mid") else 4])
        original = f"diffusion_model.{places[block]}{slot.layer.removeprefix(block)}"
        assert lora_keys.canonical(original) == slot.layer


def test_the_layout_survives_json(layout):
    assert Layout.from_json(layout.to_json()) == layout


def test_another_scale_goes_into_up(layout, official):
    lora = lora_reader.parse_tensors(official[1], {"r": 1, "lora_alpha": 54})
    layers = layout.unflatten(layout.flatten(lora.layers))
    name = layout.slots[5].layer
    torch.testing.assert_close(layers[name].matrices()[0], lora.layers[name].matrices()[0])
    assert layers[name].scale == 27
