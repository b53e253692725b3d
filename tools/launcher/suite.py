"""`run.py test`: the style and type checks, then the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from . import comfyui, paths
from .console import Durations

# The browser waits for servers most of the time. A file's tests stay together: they share a canvas
# or a ComfyUI.
_TWO_PROCESSES = ("--numprocesses=2", "--dist=loadfile")
_SLOWEST = "--durations=30"
_CHECKS = (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",))
_ALL = "--all"
_ENDURANCE = "--endurance"
#: For tests/conftest.py: which third of the tests of endurance is run.
TURN = "GLASSBOX_ENDURANCE_TURN"
TURNS = 3
_ENDED = (
    0,
    1,
)  # all is well, or something was found; other codes say that it was stopped or could not start


def run(arguments: Sequence[str]) -> int:
    """Run ruff, mypy and pytest, and return 0 when all of them pass; pytest's closing line comes
    last.

    `--all` includes the tests marked slow, and of those marked endurance a third: which one, the
    commit decides. `--endurance` includes all of them. Other arguments go to pytest; without any,
    two processes share the cores. Each of the three is announced with the time that it took when it
    was last run so.
    """
    comfyui.newest_front_end()
    # mypy needs the pack as a package with a name that Python can import.
    (paths.CACHE / "typed").mkdir(parents=True, exist_ok=True)
    comfyui.link(paths.ROOT, paths.CACHE / "typed" / "glassbox")
    failed = [_run_module(*check) for check in _CHECKS]
    options = [argument for argument in arguments if argument not in (_ALL, _ENDURANCE)]
    every = _ALL in arguments or _ENDURANCE in arguments
    selection = () if every or "-m" in options else ("-m", "not slow")
    if not options:
        if _ENDURANCE not in arguments:
            os.environ[TURN] = str(_turn())
        options = [*_TWO_PROCESSES, _SLOWEST]
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // 2)))
    return _run_module("pytest", *selection, *options) or max(failed)


def _turn() -> int:
    """The third of the tests of endurance that belongs to this commit; 0 where git is absent."""
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    try:
        commit = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True)
        return int(commit.stdout, 16) % TURNS
    except (OSError, ValueError):
        return 0


def _run_module(module: str, *arguments: str) -> int:
    """Run a module in this environment from the repository's folder, which stays off sys.path."""
    name = " ".join((module, *arguments))
    durations = Durations(paths.DURATIONS)
    print(f"Running {name}{durations.last(name)} ...", flush=True)
    start = time.monotonic()
    code = subprocess.run(
        [sys.executable, "-P", "-m", module, *arguments], cwd=paths.ROOT
    ).returncode
    if code in _ENDED:
        durations.keep(name, time.monotonic() - start)
    return code
