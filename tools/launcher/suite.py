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
_ENDED = (
    0,
    1,
)  # all is well, or something was found; other codes say that it was stopped or could not start


def run(arguments: Sequence[str]) -> int:
    """Run ruff, mypy and pytest, and return 0 when all of them pass; pytest's closing line comes
    last.

    `--all` includes the tests marked slow. Other arguments go to pytest; without any, two processes
    share the cores. Each of the three is announced with the time that it took when it was last run
    so.
    """
    comfyui.newest_front_end()
    # mypy needs the pack as a package with a name that Python can import.
    (paths.CACHE / "typed").mkdir(parents=True, exist_ok=True)
    comfyui.link(paths.ROOT, paths.CACHE / "typed" / "glassbox")
    failed = [_run_module(*check) for check in _CHECKS]
    options = [argument for argument in arguments if argument != _ALL]
    selection = () if _ALL in arguments or "-m" in options else ("-m", "not slow")
    if not options:
        options = [*_TWO_PROCESSES, _SLOWEST]
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // 2)))
    return _run_module("pytest", *selection, *options) or max(failed)


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
