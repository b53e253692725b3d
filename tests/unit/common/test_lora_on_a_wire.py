"""A LoRA from a wire, or from the file of a name."""

import members
import pytest
import torch
from glassbox.nodes.common import lora_reader
from glassbox.nodes.common.lora_reader import NONE, resolve_lora
from safetensors.torch import save_file


@pytest.fixture
def folder(tmp_path):
    save_file(members.kohya(members.factors(1)), tmp_path / "first.safetensors")
    return tmp_path


def resolved(folder, name, wire):
    return resolve_lora(name, wire, lambda chosen: folder / chosen)


def downs(lora):
    return [factors.down for factors in lora.layers.values()]


def test_the_wire_goes_before_the_file(folder):
    wire = members.kohya(members.factors(2))
    lora, name = resolved(folder, "first.safetensors", wire)
    assert name == "LoRA"
    expected = downs(lora_reader.parse_tensors(wire))
    assert len(expected) == len(members.LAYERS)
    assert all(map(torch.equal, downs(lora), expected))


def test_without_a_wire_the_file_counts(folder):
    lora, name = resolved(folder, "first.safetensors", None)
    assert name == "first"
    expected = downs(lora_reader.read(folder / "first.safetensors"))
    assert all(map(torch.equal, downs(lora), expected))


def test_neither_is_a_sentence(folder):
    with pytest.raises(ValueError, match="There is no LoRA: choose a file, or connect one"):
        resolved(folder, NONE, None)


def test_a_wire_without_layers_is_a_sentence(folder):
    with pytest.raises(ValueError, match=r"^The LoRA on the wire "):
        resolved(folder, "first.safetensors", {"something.else": torch.zeros(2)})
