"""The check of a user's own checkpoint."""

from __future__ import annotations

import json

import pytest

from tools.launcher import check, environment, paths
from tools.launcher.errors import LaunchError


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
    monkeypatch.setattr(paths, "OUT", tmp_path / "out")
    monkeypatch.setattr(environment, "needs_cpu", lambda: False)
    (tmp_path / "models").mkdir()
    file = tmp_path / "models" / "mine.safetensors"
    file.write_bytes(b"weights")
    return file


@pytest.mark.parametrize(
    ("kind", "code", "printed"), [("Sample", 0, "works"), ("Fail", 1, "FAILED: Fail (node 1)")]
)
def test_every_family_is_run_and_reported(
    checkpoint, stand_in, tmp_path, monkeypatch, capsys, kind, code, printed
):
    prompt = {"1": {"class_type": kind, "inputs": {}}}
    monkeypatch.setattr(check, "FAMILIES", {"a": lambda name: prompt, "b": lambda name: prompt})
    results, write = [], check.report
    monkeypatch.setattr(check, "report", lambda *given: results.extend(given[-1]) or write(*given))
    assert check.run(stand_in, checkpoint, None) == code
    report = (tmp_path / "out" / "check_mine.md").read_text()
    assert report in capsys.readouterr().out
    assert report.count(printed) == 2
    assert "- Checkpoint: mine.safetensors, 0.00 GB\n" in report
    assert "- Device: cuda:0 Card, 8.0 GB\n" in report
    assert [(result.family, result.card_memory) for result in results] == [
        ("a", 2e9),
        ("b", 2e9),
    ]  # 6 of 8 GB are free
    assert all(result.memory > 1e6 for result in results)
    (entry,) = json.loads((tmp_path / "host" / "check_paths.yaml").read_text()).values()
    assert entry == {
        "base_path": str(tmp_path / "host" / "check_models"),
        "checkpoints": ".",
        "is_default": True,
    }


def test_report_names_the_model_and_no_folder(checkpoint):
    log = (
        "got prompt\nmodel weight dtype torch.float16, manual cast: None\nmodel_type "
        "EPS\nRequested to load SDXL\n"
    )
    stats = {
        "system": {"comfyui_version": "0.3.75", "pytorch_version": "2.13.0", "ram_total": 16e9},
        "devices": [{"name": "cpu", "type": "cpu", "vram_total": 16e9, "vram_free": 1e9}],
    }
    results = [
        check.Result("host", 1.25, 2_500_000_000, 0),
        check.Result("noise", 2, 0, 0, f"no {checkpoint} there"),
    ]
    text = check.report(checkpoint, stats, log + log, results)
    assert (
        "- Model: model weight dtype torch.float16, manual cast: None; model_type EPS; Requested "
        "to load SDXL\n" in text
    )
    assert "host    1.2      2.5          -          works\n" in text
    assert "FAILED: no .../mine.safetensors there" in text and str(checkpoint.parent) not in text


def test_a_prompt_is_completed_with_defaults():
    info = {
        "input": {
            "required": {"steps": ["INT", {"default": 4}], "model": ["MODEL"], "seed": ["INT", {}]}
        }
    }
    prompt = {
        "1": {"class_type": "Train", "inputs": {"model": ["2", 0], "seed": 9}},
        "2": {"class_type": "Unknown", "inputs": {}},
    }
    assert check.completed(prompt, {"Train": info}) == {
        "1": {"class_type": "Train", "inputs": {"steps": 4, "model": ["2", 0], "seed": 9}},
        "2": prompt["2"],
    }


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
