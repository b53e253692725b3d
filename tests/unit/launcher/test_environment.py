"""The virtual environment: made, filled, checked and repaired."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.launcher import environment, paths, uv
from tools.launcher.errors import LaunchError


@pytest.fixture
def venv(tmp_path, monkeypatch) -> Path:
    """The environment's place, empty, in a temporary folder."""
    folder = tmp_path / ".venv"
    monkeypatch.setattr(paths, "VENV", folder)
    monkeypatch.setattr(paths, "LOGS", tmp_path / "logs")
    return folder


@pytest.fixture
def installed(venv, monkeypatch) -> list[str]:
    """Collects the requirements of each installation instead of running uv."""
    lists: list[str] = []
    monkeypatch.setattr(
        uv, "install", lambda *arguments: lists.append(Path(arguments[-1]).read_text())
    )
    return lists


@pytest.fixture
def comfyui(tmp_path, monkeypatch) -> Path:
    """A ComfyUI with its list of requirements, and the pack's lists."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    (tmp_path / "requirements.txt").write_text("ours\n")
    (tmp_path / "requirements-dev.txt").write_text("tests\n")
    (tmp_path / "comfyui").mkdir()
    (tmp_path / "comfyui" / "requirements.txt").write_text("torch\naiohttp\n")
    return tmp_path / "comfyui"


def _pretend_installed(venv: Path, name: str, version: str) -> None:
    library = "Lib/site-packages" if os.name == "nt" else "lib/python3.11/site-packages"
    info = venv / library / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_half_made_environment_is_made_again(venv, monkeypatch, capsys):
    python = paths.venv_python()
    python.parent.mkdir(parents=True)
    python.write_text("not a program")
    (venv / "half").write_text("")
    bootstraps = []
    monkeypatch.setattr(uv, "bootstrap", lambda: bootstraps.append(1))
    environment.make_venv()
    assert "broken or half-made" in capsys.readouterr().out
    assert subprocess.run([str(python), "-c", "import pip"]).returncode == 0
    assert not (venv / "half").exists()
    environment.make_venv()  # nothing is left to do but uv, which is still missing
    assert capsys.readouterr().out == "" and len(bootstraps) == 2


def test_running_environment_is_never_deleted(venv, monkeypatch):
    venv.mkdir()
    monkeypatch.setattr(sys, "prefix", str(venv))
    with pytest.raises(LaunchError, match=r"start run\.py with the system's Python"):
        environment.discard("It is broken")
    assert venv.exists()


def test_everything_is_installed_at_once(installed, comfyui):
    environment.install(comfyui, developer=True)
    assert [wanted.split() for wanted in installed] == [
        [
            f"torch=={environment.TORCH}",
            "torchvision==0.28.*",
            "aiohttp",
            "requests",
            "ours",
            "tests",
        ]
    ]


def test_installed_torch_stays(venv, installed, comfyui):
    _pretend_installed(venv, "torch", "2.9.1+cu130")
    environment.install(comfyui, developer=False)
    assert installed[0].split() == [
        "torch==2.9.1+cu130",
        "torchvision==0.24.*",
        "aiohttp",
        "requests",
        "ours",
    ]


def test_old_torch_is_one_sentence(venv, installed, comfyui):
    _pretend_installed(venv, "torch", "2.4.1")
    with pytest.raises(
        LaunchError, match=r"PyTorch 2\.4\.1 in \.venv is too old, ComfyUI needs 2\.7 or newer"
    ):
        environment.install(comfyui, developer=False)
    assert installed == []


def test_copy_without_tests_is_one_sentence(installed, comfyui):
    (paths.ROOT / "requirements-dev.txt").unlink()
    environment.install(comfyui, developer=False)
    with pytest.raises(LaunchError, match="comes without tests and studies"):
        environment.install(comfyui, developer=True)


def test_installation_is_skipped_until_a_list_changes(installed, comfyui):
    for developer in (False, False, True, True, False):  # what tests need stays once it is there
        environment.install(comfyui, developer)
    assert len(installed) == 2
    (paths.ROOT / "requirements.txt").write_text("ours\nmore\n")
    environment.install(comfyui, developer=False)
    assert len(installed) == 3 and "tests" in installed[2]


def test_installation_is_done_whatever_build_of_torch_came(venv, comfyui, monkeypatch):
    calls = []

    def install(*arguments):
        calls.append(arguments)
        _pretend_installed(venv, "torch", "2.13.0+cpu")

    monkeypatch.setattr(uv, "install", install)
    for _ in range(2):
        environment.install(comfyui, developer=False)
    assert len(calls) == 1


def test_failed_installation_is_repeated(installed, comfyui, monkeypatch):
    def fail(*arguments):
        raise LaunchError("no network")

    with monkeypatch.context() as broken:
        broken.setattr(uv, "install", fail)
        with pytest.raises(LaunchError, match="no network"):
            environment.install(comfyui, developer=False)
    environment.install(comfyui, developer=False)
    assert len(installed) == 1


@pytest.mark.parametrize(
    "line", ["torch", "torch>=2.7", "Torchvision==0.28", "torchaudio ; python_version < '4'"]
)
def test_comfyuis_list_never_moves_torch(line):
    listed = environment.comfyui_requirements(f"aiohttp>=3\n{line}\ntorchsde\n#note\n")
    assert listed.split() == ["aiohttp>=3", "torchsde", "#note", "requests"]


def _probe_finds(monkeypatch, *findings):
    rest = iter(findings)
    monkeypatch.setattr(environment, "_probe", lambda: next(rest))


def test_lost_files_are_repaired_from_the_index(venv, monkeypatch):
    calls = []
    monkeypatch.setattr(uv, "install", lambda *arguments: calls.append(arguments))
    healthy = {"damaged": [], "error": None, "accelerator": "cuda"}
    _probe_finds(
        monkeypatch, {"damaged": ["numpy", "scipy"], "error": None, "accelerator": None}, healthy
    )
    assert environment.check() is None
    assert calls[0][:5] == (
        "--no-cache",
        "--reinstall-package",
        "numpy",
        "--reinstall-package",
        "scipy",
    )
    assert json.loads((venv / "glassbox" / "probe.json").read_text()) == healthy


def test_nameless_damage_is_a_problem(installed, monkeypatch):
    _probe_finds(monkeypatch, {"damaged": [None], "error": None, "accelerator": None})
    assert environment.check() == "a package has lost files"
    assert installed == []


def test_environment_that_stays_broken_is_one_sentence(venv, comfyui, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(
        environment, "_fill", lambda developer: venv.mkdir(exist_ok=True) or comfyui
    )
    monkeypatch.setattr(environment, "check", lambda: "torch does not import: bad magic")
    with pytest.raises(
        LaunchError, match=r"does not work, though it is new \(torch does not import: bad magic\)"
    ):
        environment.ensure(developer=False)
