"""`run.py test`: the style check, then all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from . import comfyui, paths

# The browser waits for servers most of the time. A file's tests stay together: they share a canvas or a ComfyUI.
_IN_TWO = ("--numprocesses=2", "--dist=loadfile")


def run(arguments: Sequence[str]) -> int:
    """Run ruff, then pytest with the further arguments; pytest's closing line comes last.

    Without arguments, all tests run, in two processes that share the cores.
    """
    comfyui.newest_front_end()
    style = _python("ruff", "check", ".")
    if not arguments:
        arguments = _IN_TWO
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // 2)))
    tests = _python("pytest", *arguments)
    return tests or style


def _python(module: str, *arguments: str) -> int:
    """Run a module in this environment from the repository's folder, which stays off sys.path."""
    return subprocess.run([sys.executable, "-P", "-m", module, *arguments], cwd=paths.ROOT).returncode
