"""Activations that are saved come back as they were."""

import json

import documents
import pytest
import repository
import torch
from glassbox.nodes.activations import activations_file
from glassbox.nodes.activations.activations import Activations, Row


@pytest.fixture
def activations():
    tensors = {
        "up-b": torch.randn(2, 3, 4, 5).half(),
        "down-a": torch.randn(2, 1, 2, 2).transpose(2, 3),
    }
    return Activations(
        tensors, (Row(0), Row(0, False)), 0.25, 51.0, {"seed": 3, "preset": "custom_ids"}
    )


def test_there_and_back(activations, tmp_path):
    activations_file.write(activations, tmp_path / "a.safetensors")
    found = activations_file.read(tmp_path / "a.safetensors")
    assert (found.rows, found.sigma, found.timestep) == (activations.rows, 0.25, 51.0)
    assert found.settings == activations.settings
    assert list(found.tensors) == ["up-b", "down-a"]
    assert all(torch.equal(found.tensors[id_], value) for id_, value in activations.tensors.items())
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_numpy_reads_an_export(activations, tmp_path):
    import numpy as np

    activations.tensors["c"] = torch.ones(2, 1, 1, 1, dtype=torch.bfloat16)
    activations_file.write_npz(activations, tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as found:
        assert set(found) == {
            *activations.tensors,
            "row_image",
            "row_conditional",
            "sigma",
            "timestep",
        }
        assert found["row_conditional"].tolist() == [True, False] and float(found["sigma"]) == 0.25
        for id_, value in activations.tensors.items():
            assert torch.equal(torch.from_numpy(found[id_]).to(value.dtype), value)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_a_failed_write_leaves_no_file(activations, tmp_path):
    activations.settings["bad"] = object()
    with pytest.raises(TypeError):
        activations_file.write(activations, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"activations": "{"}, "has activations = .*, which must be JSON"),
        ({"activations": "[" * 100_000}, "has activations = .*, which must be JSON"),
        ({"activations": "[]"}, "which must be a JSON object"),
        ({"activations": '{"ids": ["a"]}'}, r"has no activations\.rows"),
        ({"rows": [{"image": 0}]}, "for 1 rows"),
        ({"rows": [{"position": 0}, {"position": 1}]}, r"has no activations\.rows\.0\.image"),
        (
            {"rows": [{"image": -1}, {"image": 1}]},
            r"rows\.0\.image = -1, which must be a whole number",
        ),
        ({"sigma": float("nan")}, r"activations\.sigma = nan, which must be a finite number"),
        ({"sigma": "x"}, r"activations\.sigma = 'x', which must be a finite number"),
        (
            {"settings": {"map_sizes": {"a": [4]}}},
            r"settings\.map_sizes\.a = \[4\], which must be a list of 2",
        ),
        ({"settings": {"frames": 0}}, r"settings\.frames = 0, which must be a whole number"),
        (
            {"settings": {"text_marks": {"True": [[1.0], [1, 2]]}}},
            r"text_marks\.True\.1 = \[1, 2\]",
        ),
        ({"ids": []}, "no tensor"),
        ({"ids": ["b"]}, "has no tensor 'b'"),
        ({"tensor": torch.zeros(2)}, "has shape \\(2,\\)"),
        ({"tensor": torch.full((2, 1, 1, 1), torch.nan)}, "not finite"),
        ({"tensor": torch.zeros(2, 1, 1, 1, dtype=torch.int64)}, "type torch.int64"),
        ({"format_version": "2"}, "has format version 2"),
    ],
)
def test_damaged_files_are_refused_with_one_sentence(tmp_path, changes, reason):
    from safetensors.torch import save_file

    header = {
        "ids": ["a"],
        "rows": [{"image": 0}, {"image": 1}],
        "sigma": 0.2,
        "timestep": 50.0,
        "settings": {},
    }
    header |= {key: value for key, value in changes.items() if key in header}
    metadata = {
        "format": "glassbox activations",
        "format_version": "1",
        "activations": json.dumps(header),
    }
    metadata |= {key: value for key, value in changes.items() if key in metadata}
    path = tmp_path / "damaged.safetensors"
    save_file({"a": changes.get("tensor", torch.zeros(2, 1, 1, 1))}, path, metadata)
    with pytest.raises(ValueError, match=reason) as caught:
        activations_file.read(path)
    assert str(caught.value).startswith("damaged.safetensors ") and len(str(caught.value)) < 400


def test_other_files_are_refused(tmp_path):
    from safetensors.torch import save_file

    other = tmp_path / "other.safetensors"
    save_file({"a": torch.zeros(1)}, other)
    with pytest.raises(ValueError, match="holds no activations"):
        activations_file.read(other)
    other.write_bytes(b"not a file of this kind")
    with pytest.raises(ValueError, match="cannot be read"):
        activations_file.read(other)


def test_the_documented_reader_reads_a_file(activations, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    activations_file.write(activations, tmp_path / "activations_00001_.safetensors")
    (program,) = documents.python(repository.ROOT / "web" / "docs" / "GBX_SaveActivations.md")
    found = {}
    exec(compile(program, "GBX_SaveActivations.md", "exec"), found)
    assert list(found["features"]) == list(activations.tensors) and found["about"]["sigma"] == 0.25
