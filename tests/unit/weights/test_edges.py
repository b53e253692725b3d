"""Files of LoRAs at their edges: metadata that is there or not, and a folder that is there
already.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import members
import pytest
import torch
from glassbox.nodes.common import lora_reader
from glassbox.nodes.weights import lora_writer
from safetensors.torch import save_file


def test_the_metadata_of_a_file(tmp_path):
    made = members.kohya(members.factors(1))
    save_file(
        made,
        tmp_path / "with.safetensors",
        {"ss_base_model_version": "sd_v1", "ss_network_dim": "4"},
    )
    save_file(made, tmp_path / "without.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no tensors")
    found = {path.stem: lora_reader.read_metadata(path) for path in tmp_path.iterdir()}
    assert found == {
        "with": {"ss_base_model_version": "sd_v1", "ss_network_dim": "4"},
        "without": {},
        "broken": {},
    }


class LoraConfig:
    """A stand-in for peft's: what is written is the pack's own part."""

    def __init__(self, **settings):
        self.settings = settings

    def save_pretrained(self, folder):
        Path(folder, "adapter_config.json").write_text(json.dumps(self.settings))


def test_an_adapter_folder_is_never_written_over(tmp_path, monkeypatch):
    monkeypatch.setattr(
        lora_writer.peft_files, "package", lambda: SimpleNamespace(LoraConfig=LoraConfig)
    )
    layers = {
        name: lora_reader.Factors(down, up) for name, (down, up) in members.factors(1).items()
    }
    lora_writer.write_peft(layers, tmp_path / "new" / "adapter")
    before = (tmp_path / "new" / "adapter" / "adapter_model.safetensors").read_bytes()
    other = {name: lora_reader.Factors(down, up) for name, (down, up) in members.factors(2).items()}
    with pytest.raises(FileExistsError):
        lora_writer.write_peft(other, tmp_path / "new" / "adapter")
    assert (tmp_path / "new" / "adapter" / "adapter_model.safetensors").read_bytes() == before


@pytest.mark.parametrize("ending", [".pt", ".bin", ".ckpt"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_lora_of_plain_tensors_in_an_older_file_reads_as_a_safetensors_one(
    tmp_path, ending, nested
):
    tensors = members.kohya(members.factors(4, 2), 1.0)
    save_file(tensors, tmp_path / "new.safetensors")
    torch.save(
        {"state_dict": {**tensors, "epoch": 3}} if nested else tensors, tmp_path / f"old{ending}"
    )
    new, old = (
        lora_reader.read(tmp_path / name).layers for name in ("new.safetensors", f"old{ending}")
    )
    assert new.keys() == old.keys() == members.LAYERS.keys()
    for name in new:
        assert torch.equal(torch.mm(*new[name].matrices()), torch.mm(*old[name].matrices()))
