"""Files of LoRAs at their edges: metadata that is there or not, and a folder that is there already."""

import json
from pathlib import Path
from types import SimpleNamespace

import members
import pytest
from glassbox.nodes.common import lora_reader
from glassbox.nodes.weights import lora_writer
from safetensors.torch import save_file


def test_the_metadata_of_a_file(tmp_path):
    made = members.kohya(members.factors(1))
    save_file(made, tmp_path / "with.safetensors", {"ss_base_model_version": "sd_v1", "ss_network_dim": "4"})
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
    monkeypatch.setattr(lora_writer, "peft_package", lambda: SimpleNamespace(LoraConfig=LoraConfig))
    layers = {name: lora_reader.Factors(down, up) for name, (down, up) in members.factors(1).items()}
    lora_writer.write_peft(layers, tmp_path / "new" / "adapter")
    before = (tmp_path / "new" / "adapter" / "adapter_model.safetensors").read_bytes()
    other = {name: lora_reader.Factors(down, up) for name, (down, up) in members.factors(2).items()}
    with pytest.raises(FileExistsError):
        lora_writer.write_peft(other, tmp_path / "new" / "adapter")
    assert (tmp_path / "new" / "adapter" / "adapter_model.safetensors").read_bytes() == before
