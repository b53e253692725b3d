"""Activations that are saved come back as they were."""

import pytest
import torch
from glassbox.nodes.activations import files
from glassbox.nodes.activations.features import Activations, Row


@pytest.fixture
def activations():
    tensors = {"up-b": torch.randn(2, 3, 4, 5).half(), "down-a": torch.randn(2, 1, 2, 2).transpose(2, 3)}
    return Activations(tensors, (Row(0), Row(0, False)), 0.25, 51.0, {"seed": 3, "preset": "list"})


def test_there_and_back(activations, tmp_path):
    files.write(activations, tmp_path / "a.safetensors")
    found = files.read(tmp_path / "a.safetensors")
    assert (found.rows, found.sigma, found.timestep) == (activations.rows, 0.25, 51.0)
    assert found.settings == activations.settings
    assert list(found.tensors) == ["up-b", "down-a"]
    assert all(torch.equal(found.tensors[id_], value) for id_, value in activations.tensors.items())
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_failed_write_leaves_no_file(activations, tmp_path):
    activations.settings["bad"] = object()
    with pytest.raises(TypeError):
        files.write(activations, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


def test_other_files_are_refused(tmp_path):
    from safetensors.torch import save_file

    other = tmp_path / "other.safetensors"
    save_file({"a": torch.zeros(1)}, other)
    with pytest.raises(ValueError, match="holds no activations"):
        files.read(other)
    other.write_bytes(b"not a file of this kind")
    with pytest.raises(ValueError, match="cannot be read"):
        files.read(other)
