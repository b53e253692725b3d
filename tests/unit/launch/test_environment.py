"""The virtual environment: made, filled, checked and mended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch import environment, paths, pip, setup
from launch.errors import LaunchError


@pytest.fixture
def venv(tmp_path, monkeypatch) -> Path:
    """The environment's place, empty, in a temporary folder."""
    folder = tmp_path / ".venv"
    monkeypatch.setattr(paths, "VENV", folder)
    monkeypatch.setattr(paths, "LOGS", tmp_path / "logs")
    return folder


@pytest.fixture
def pip_calls(monkeypatch) -> list[tuple[str, ...]]:
    """Collects what pip is asked for instead of running it."""
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(pip, "install", lambda *arguments: calls.append(arguments))
    return calls


def _pretend_installed(venv: Path, name: str, version: str) -> None:
    library = "Lib/site-packages" if os.name == "nt" else "lib/python3.11/site-packages"
    info = venv / library / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _make_lists(root: Path, monkeypatch) -> Path:
    monkeypatch.setattr(paths, "ROOT", root)
    (root / "requirements.txt").write_text("ours\n")
    (root / "requirements-dev.txt").write_text("tests\n")
    (root / "comfyui").mkdir()
    (root / "comfyui" / "requirements.txt").write_text("torch\naiohttp\n")
    return root / "comfyui"


def test_a_half_made_environment_is_made_anew(venv, capsys):
    python = paths.venv_python()
    python.parent.mkdir(parents=True)
    python.write_text("not a program")
    (venv / "half").write_text("")
    environment.make_venv()
    assert "broken or half-made" in capsys.readouterr().out
    assert subprocess.run([str(python), "-c", "import pip"]).returncode == 0
    assert not (venv / "half").exists()
    environment.make_venv()
    assert capsys.readouterr().out == ""


def test_the_running_environment_is_never_deleted(venv, monkeypatch):
    venv.mkdir()
    monkeypatch.setattr(sys, "prefix", str(venv))
    with pytest.raises(LaunchError, match=r"start run\.py with the system's Python"):
        environment.discard("It is broken")
    assert venv.exists()


def test_torch_is_installed_only_where_it_is_missing(venv, pip_calls, tmp_path, monkeypatch):
    comfyui = _make_lists(tmp_path, monkeypatch)
    _pretend_installed(venv, "torch", "2.9.1+cu130")
    environment.install(comfyui, developer=False)
    assert pip_calls[0] == ("--no-deps", "torchvision==0.24.*")
    assert not any("torch==" in argument for call in pip_calls for argument in call)
    assert "torch==2.9.1+cu130" in (venv / "glassbox" / "constraints.txt").read_text()


def test_an_old_torch_is_one_sentence(venv, pip_calls, tmp_path, monkeypatch):
    comfyui = _make_lists(tmp_path, monkeypatch)
    _pretend_installed(venv, "torch", "2.4.1")
    with pytest.raises(LaunchError, match=r"PyTorch 2\.4\.1 in \.venv is too old, ComfyUI needs 2\.7 or newer"):
        environment.install(comfyui, developer=False)
    assert pip_calls == []


def test_steps_are_skipped_until_their_list_changes(venv, pip_calls, tmp_path, monkeypatch):
    comfyui = _make_lists(tmp_path, monkeypatch)
    _pretend_installed(venv, "torch", "2.13.0")
    _pretend_installed(venv, "torchvision", "0.28.0")
    environment.install(comfyui, developer=True)
    assert len(pip_calls) == 3
    environment.install(comfyui, developer=True)
    assert len(pip_calls) == 3
    (tmp_path / "requirements.txt").write_text("ours\nmore\n")
    environment.install(comfyui, developer=True)
    assert len(pip_calls) == 4


def test_a_failed_step_is_done_again(venv, pip_calls, tmp_path, monkeypatch):
    comfyui = _make_lists(tmp_path, monkeypatch)
    _pretend_installed(venv, "torch", "2.13.0")
    _pretend_installed(venv, "torchvision", "0.28.0")

    def fail(*arguments):
        raise LaunchError("no network")

    with monkeypatch.context() as broken:
        broken.setattr(pip, "install", fail)
        with pytest.raises(LaunchError, match="no network"):
            environment.install(comfyui, developer=False)
    environment.install(comfyui, developer=False)
    assert len(pip_calls) == 2


@pytest.mark.parametrize("line", ["torch", "torch>=2.7", "Torchvision==0.28", "torchaudio ; python_version < '4'"])
def test_comfyuis_list_never_moves_torch(line):
    assert environment.comfyui_requirements(f"aiohttp>=3\n{line}\ntorchsde\n#note\n").split() == [
        "aiohttp>=3", "torchsde", "#note", "requests",
    ]  # fmt: skip


def test_pip_failure_is_one_sentence_with_the_log(venv):
    environment.make_venv()
    with pytest.raises(
        LaunchError, match=r"pip download failed \(the package index cannot be reached.*pip\.log"
    ) as caught:
        pip.run("download", "--no-index", "--find-links", str(venv / "nothing"), "a-package-that-is-not-there")
    assert "\n" not in str(caught.value)
    assert "a-package-that-is-not-there" in pip.log_path().read_text()


def _answer(monkeypatch, *answers):
    rest = iter(answers)
    monkeypatch.setattr(environment, "_probe", lambda: next(rest))


def test_lost_files_are_mended(venv, pip_calls, monkeypatch):
    damaged = {"damaged": ["numpy==2.4.0"], "error": None, "accelerator": None}
    _answer(monkeypatch, damaged, {"damaged": [], "error": None, "accelerator": "cuda"})
    assert environment.check() is None
    assert pip_calls == [("--ignore-installed", "--no-deps", "numpy==2.4.0")]
    assert json.loads((venv / "glassbox" / "probe.json").read_text())["accelerator"] == "cuda"


def test_an_environment_that_stays_broken_is_one_sentence(venv, pip_calls, tmp_path, monkeypatch):
    comfyui = _make_lists(tmp_path, monkeypatch)
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(setup, "_set_up", lambda developer: venv.mkdir(exist_ok=True) or comfyui)
    monkeypatch.setattr(environment, "check", lambda: "torch does not import: bad magic")
    with pytest.raises(LaunchError, match=r"does not work, though it is new \(torch does not import: bad magic\)"):
        setup.ensure(developer=False)
