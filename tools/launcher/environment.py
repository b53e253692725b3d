"""The virtual environment in `.venv`: made, filled by uv, checked at every start, and repaired when
damaged.
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
from pathlib import Path

from . import comfyui, paths, uv
from .errors import LaunchError

TORCH = "2.13.0"  # installed where there is none; a torch that is already there stays
OLDEST_TORCH = (2, 7)
_TORCHVISION_AHEAD = 15  # torchvision 0.(n + 15) belongs to torch 2.n
_TORCH_FAMILY = {"torch", "torchvision", "torchaudio"}


def ensure(developer: bool) -> Path:
    """Set up the environment and return ComfyUI's folder; what is done already is skipped.

    `developer` adds what tests and studies need.
    """
    paths.CACHE.mkdir(parents=True, exist_ok=True)
    paths.remove_leftovers(paths.CACHE)
    folder = _fill(developer)
    if problem := check():
        discard(f"The environment in .venv does not work ({problem})")
        folder = _fill(developer)
        if problem := check():
            raise LaunchError(
                f"The environment in .venv does not work, though it is new ({problem})."
            )
    comfyui.prepare_base()
    return folder


def _fill(developer: bool) -> Path:
    make_venv()
    folder = comfyui.locate()
    install(folder, developer)
    return folder


def make_venv() -> None:
    """Make the virtual environment with pip and uv, or make it again when its Python or pip does
    not run.
    """
    if not _runs("pip"):
        if paths.VENV.exists():
            discard(f"{paths.VENV.name} is broken or half-made")
        print("Making a virtual environment in .venv (some seconds) ...", flush=True)
        made = subprocess.run(
            [sys.executable, "-m", "venv", str(paths.VENV)], capture_output=True, text=True
        )
        if made.returncode:
            reason = " ".join((made.stdout + made.stderr).split())
            raise LaunchError(f"The virtual environment {paths.VENV} could not be made: {reason}")
    if not _runs("uv"):
        uv.bootstrap()


def _runs(module: str) -> bool:
    code = f"import sys, {module}; sys.exit(sys.version_info < (3, 11))"
    try:
        return (
            subprocess.run(
                [str(paths.venv_python()), "-P", "-c", code], capture_output=True
            ).returncode
            == 0
        )
    except OSError:
        return False


def discard(reason: str) -> None:
    """Delete the virtual environment and print why; raises LaunchError when this very process runs
    in it.
    """
    if paths.inside_venv():
        raise LaunchError(
            f"{reason}: start run.py with the system's Python, so that .venv can be made again."
        )
    print(f"{reason}: making it again.", flush=True)
    shutil.rmtree(paths.VENV)


def install(comfyui_folder: Path, developer: bool) -> None:
    """Install what ComfyUI and the pack need, unless the note of the last installation says that it
    is done.
    """
    developer = developer or (_notes() / "developer").is_file()  # once installed, they stay
    done, requirements = _notes() / "installed", _requirements(comfyui_folder, developer)
    if done.is_file() and done.read_text() == _hash(requirements):
        return
    print(
        "Installing PyTorch, what ComfyUI and the pack need (the first time, some minutes) ...",
        flush=True,
    )
    paths.write_atomically(_notes() / "requirements.txt", requirements)
    uv.install("--requirements", str(_notes() / "requirements.txt"))
    if developer:
        paths.write_atomically(_notes() / "developer", "")
    # With the build of torch that is installed now, such as 2.13.0+cpu.
    paths.write_atomically(done, _hash(_requirements(comfyui_folder, developer)))


def _requirements(comfyui_folder: Path, developer: bool) -> str:
    """All requirements as one list; raises LaunchError where they cannot be met."""
    torch = installed_version("torch") or TORCH
    major, minor = (int(part) for part in torch.split(".")[:2])
    if (major, minor) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise LaunchError(
            f"PyTorch {torch} in .venv is too old, ComfyUI needs {oldest} or newer: delete .venv "
            "and run this again."
        )
    lists = [
        paths.ROOT / name
        for name in ("requirements.txt", *(["requirements-dev.txt"] if developer else []))
    ]
    if not all(path.is_file() for path in lists):
        raise LaunchError(
            "This copy of the pack comes without tests and studies: clone the repository to run "
            "them."
        )
    return "\n".join(
        [
            f"torch=={torch}",
            f"torchvision==0.{minor + _TORCHVISION_AHEAD}.*",
            comfyui_requirements((comfyui_folder / "requirements.txt").read_text("utf-8")),
            *(path.read_text("utf-8") for path in lists),
        ]
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def comfyui_requirements(text: str) -> str:
    """ComfyUI's own requirements without the torch family, whose versions the launcher sets, and
    with requests.
    """
    lines = [
        line
        for line in text.splitlines()
        if re.split(r"[^\w-]", line.strip())[0].lower() not in _TORCH_FAMILY
    ]
    return "\n".join([*lines, "requests"])


def installed_version(package: str) -> str | None:
    """The version of a package in the virtual environment, or None; this process need not run in
    it.
    """
    folders = [
        str(path)
        for path in (
            *paths.VENV.glob("lib*/python*/site-packages"),
            paths.VENV / "Lib/site-packages",
        )
    ]
    found = next(iter(importlib.metadata.distributions(name=package, path=folders)), None)
    return found.version if found else None


def check() -> str | None:
    """Check the whole environment, repair packages that have lost files, and note which device
    torch computes on.

    Returns what is still wrong, or None.
    """
    found = _probe()
    if (
        found["damaged"] and None not in found["damaged"]
    ):  # None: a package that has lost its name, too
        print(
            f"Repairing packages that have lost files ({', '.join(found['damaged'])}) ...",
            flush=True,
        )
        again = [part for name in found["damaged"] for part in ("--reinstall-package", name)]
        # Without the cache: its files may be the very ones that are damaged, since uv links them.
        uv.install("--no-cache", *again, "--requirements", str(_notes() / "requirements.txt"))
        found = _probe()
    problem = (
        f"{found['damaged'][0] or 'a package'} has lost files"
        if found["damaged"]
        else found["error"]
    )
    if problem is None:
        paths.write_atomically(_notes() / "probe.json", json.dumps(found))
    return problem


def _probe() -> dict:
    script = Path(__file__).with_name("probe.py")
    answer = subprocess.run(
        [str(paths.venv_python()), "-P", str(script)], capture_output=True, text=True
    )
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["it crashed"])[-1]
        return {"damaged": [], "error": last, "accelerator": None}
    return json.loads(answer.stdout.splitlines()[-1])


@functools.cache
def needs_cpu() -> bool:
    """Whether torch finds no accelerator on this machine, so that ComfyUI needs --cpu."""
    note = _notes() / "probe.json"
    found = json.loads(note.read_text()) if note.is_file() else _probe()
    return found["accelerator"] is None


def _notes() -> Path:
    return paths.VENV / "glassbox"
