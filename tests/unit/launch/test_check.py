"""The check of a user's own checkpoint."""

from __future__ import annotations

import json

import pytest

from launch import check, environment, paths
from launch.errors import LaunchError


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(LaunchError, match=r"There is no checkpoint file .*model\.safetensors"):
        check.checked(tmp_path / "model.safetensors")


def test_a_file_of_another_kind_is_one_sentence(tmp_path):
    (tmp_path / "model.txt").write_text("")
    with pytest.raises(LaunchError, match=r"model\.txt is no checkpoint"):
        check.checked(tmp_path / "model.txt")


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "HOST", tmp_path / "host")
    monkeypatch.setattr(environment, "needs_cpu", lambda: False)
    (tmp_path / "models").mkdir()
    file = tmp_path / "models" / "mine.safetensors"
    file.write_bytes(b"weights")
    return file


@pytest.mark.parametrize(("kind", "code", "said"), [("Paint", 0, "works"), ("Fail", 1, "FAILED: Fail (node 1)")])
def test_every_family_is_run_and_told(checkpoint, stand_in, tmp_path, monkeypatch, capsys, kind, code, said):
    prompt = {"1": {"class_type": kind, "inputs": {}}}
    monkeypatch.setattr(check, "FAMILIES", {"a": lambda name: prompt, "b": lambda name: prompt})
    assert check.run(stand_in, checkpoint, None) == code
    assert capsys.readouterr().out.count(said) == 2
    (entry,) = json.loads((tmp_path / "host" / "check_paths.yaml").read_text()).values()
    assert entry == {"base_path": str(tmp_path / "host" / "check_models"), "checkpoints": ".", "is_default": True}


def test_a_prompt_is_completed_with_defaults():
    info = {"input": {"required": {"steps": ["INT", {"default": 4}], "model": ["MODEL"], "seed": ["INT", {}]}}}
    prompt = {"1": {"class_type": "Train", "inputs": {"model": ["2", 0], "seed": 9}}, "2": {"class_type": "Unknown",
              "inputs": {}}}  # fmt: skip
    assert check.completed(prompt, {"Train": info}) == {
        "1": {"class_type": "Train", "inputs": {"steps": 4, "model": ["2", 0], "seed": 9}}, "2": prompt["2"],
    }  # fmt: skip


def test_comfyui_is_shown_the_checkpoint_alone(checkpoint):
    (checkpoint.parent / "a_large_tree" / "below").mkdir(parents=True)
    for _ in range(2):  # a second run finds what the first has left
        folder = check._folder_of_its_own(checkpoint)
        assert [path.name for path in folder.iterdir()] == [checkpoint.name]
        assert (folder / checkpoint.name).read_bytes() == checkpoint.read_bytes()


def test_without_links_the_folder_of_the_checkpoint_serves(checkpoint, monkeypatch):
    def refuse(*_):
        raise OSError("a privilege is missing")

    monkeypatch.setattr(check.os, "symlink", refuse)
    monkeypatch.setattr(check.os, "link", refuse)
    assert check._folder_of_its_own(checkpoint) == checkpoint.parent
