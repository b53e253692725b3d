"""The virtual environment in `.venv`: made, filled step by step, checked on every start, and mended when broken.

A step that has succeeded leaves a stamp, the hash of all that it depends on, and is skipped while that is unchanged.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from . import paths, pip
from .errors import LaunchError

TORCH = "2.13.0"  # installed where there is none; a torch that is already there stays
OLDEST_TORCH = (2, 7)
_TORCHVISION_AHEAD = 15  # torchvision 0.(n + 15) belongs to torch 2.n
_TORCH_FAMILY = {"torch", "torchvision", "torchaudio"}
_FINDINGS = "probe.json"
_HEALTHY = "import sys, pip; sys.exit(sys.version_info < (3, 11))"


def make_venv() -> None:
    """Make the virtual environment, or make it anew when its Python or pip does not run."""
    if _runs(paths.venv_python()):
        return
    if paths.VENV.exists():
        discard(f"{paths.VENV.name} is broken or half-made")
    with _told("Making a virtual environment in .venv (some seconds)"):
        made = subprocess.run([sys.executable, "-m", "venv", str(paths.VENV)], capture_output=True, text=True)
    if made.returncode or not _runs(paths.venv_python()):
        reason = " ".join((made.stdout + made.stderr).split()) or "its Python does not run"
        raise LaunchError(f"The virtual environment {paths.VENV} could not be made: {reason}")


def discard(reason: str) -> None:
    """Delete the virtual environment, saying why; raises LaunchError when this very process runs in it."""
    if paths.inside_venv():
        raise LaunchError(f"{reason}: start run.py with the system's Python, so that .venv can be made anew.")
    print(f"{reason}: making it anew.", flush=True)
    shutil.rmtree(paths.VENV)


def _runs(python: Path) -> bool:
    try:
        return subprocess.run([str(python), "-P", "-c", _HEALTHY], capture_output=True).returncode == 0
    except OSError:
        return False


def install(comfyui: Path, developer: bool) -> None:
    """Install what the ComfyUI at `comfyui` and the pack need, and for `developer` what tests and studies need too."""
    if installed_version("torch") is None:
        with _told(f"Installing PyTorch {TORCH} (the largest part: up to some minutes)"):
            pip.install(f"torch=={TORCH}")
    torch = _checked_torch()
    if installed_version("torchvision") is None:
        with _told("Installing torchvision"):
            pip.install("--no-deps", f"torchvision==0.{torch[1] + _TORCHVISION_AHEAD}.*")
    wanted = comfyui_requirements((comfyui / "requirements.txt").read_text("utf-8"))
    _install_list("comfyui", wanted, "Installing what ComfyUI needs (its canvas is large: about a minute)")
    _install_list("pack", (paths.ROOT / "requirements.txt").read_text("utf-8"), "Installing what the pack needs")
    if developer:
        wanted = (paths.ROOT / "requirements-dev.txt").read_text("utf-8")
        _install_list("developer", wanted, "Installing what tests and studies need")


def comfyui_requirements(text: str) -> str:
    """ComfyUI's own requirements less the torch family, which the steps before have settled, plus requests."""
    lines = [line for line in text.splitlines() if re.split(r"[^\w-]", line.strip())[0].lower() not in _TORCH_FAMILY]
    return "\n".join([*lines, "requests", ""])


def _checked_torch() -> tuple[int, int]:
    """Major and minor version of the installed torch; raises LaunchError when it is too old for ComfyUI."""
    version = installed_version("torch")
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise LaunchError(
            f"PyTorch {version} in .venv is too old, ComfyUI needs {oldest} or newer: delete .venv and run this again."
        )
    return major, minor


def _install_list(name: str, requirements: str, told: str) -> None:
    """Install a list of requirements unless its stamp says that it is done; torch stays as it is."""
    constraints = "".join(
        f"{package}=={version}\n"
        for package in ("torch", "torchvision")
        if (version := installed_version(package)) is not None
    )
    key = hashlib.sha256(f"{requirements}\n{constraints}".encode()).hexdigest()
    stamp = _notes() / f"{name}.stamp"
    if stamp.is_file() and stamp.read_text() == key:
        return
    wanted, fixed = _notes() / f"{name}.txt", _notes() / "constraints.txt"
    paths.write_atomically(wanted, requirements)
    paths.write_atomically(fixed, constraints)
    with _told(told):
        pip.install("--requirement", str(wanted), "--constraint", str(fixed))
    paths.write_atomically(stamp, key)


def installed_version(package: str) -> str | None:
    """The version of a package in the virtual environment, or None; this process need not run in it."""
    folders = [str(path) for path in (*paths.VENV.glob("lib*/python*/site-packages"), paths.VENV / "Lib/site-packages")]
    found = next(iter(importlib.metadata.distributions(name=package, path=folders)), None)
    return found.version if found else None


def check() -> str | None:
    """Check the whole environment, mend packages that have lost files, and note which device torch computes on.

    Returns what is still wrong, or None.
    """
    found = _probe()
    if found["damaged"]:
        with _told(f"Mending packages that have lost files ({', '.join(found['damaged'])})"):
            pip.install("--ignore-installed", "--no-deps", *found["damaged"])
        found = _probe()
    trouble = f"{found['damaged'][0]} has lost files" if found["damaged"] else found["error"]
    if trouble is None:
        paths.write_atomically(_notes() / _FINDINGS, json.dumps(found))
    return trouble


def _probe() -> dict:
    script = Path(__file__).with_name("probe.py")
    answer = subprocess.run([str(paths.venv_python()), "-P", str(script)], capture_output=True, text=True)
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["it crashed"])[-1]
        return {"damaged": [], "error": last, "accelerator": None}
    return json.loads(answer.stdout.splitlines()[-1])


@functools.cache
def needs_cpu() -> bool:
    """Whether torch finds no accelerator on this machine, so that ComfyUI must be told to use the CPU."""
    note = _notes() / _FINDINGS
    found = json.loads(note.read_text()) if note.is_file() else _probe()
    return found["accelerator"] is None


def _notes() -> Path:
    return paths.VENV / "glassbox"


class _told:  # noqa: N801, reads as a verb in a with statement
    """Prints a line when a long step begins, and how long it took when it has succeeded."""

    def __init__(self, line: str):
        self.line = line

    def __enter__(self) -> None:
        print(f"{self.line} ...", flush=True)
        self.start = time.monotonic()

    def __exit__(self, kind, *rest) -> None:
        if kind is None:
            print(f"  done in {time.monotonic() - self.start:.0f} s", flush=True)
