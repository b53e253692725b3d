"""`run.py test`: the style check, then all tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from . import comfyui, paths


def run(arguments: Sequence[str]) -> int:
    """Run ruff, then pytest with the further arguments; pytest's closing line comes last."""
    comfyui.newest_front_end()
    style = _python("ruff", "check", ".")
    tests = _python("pytest", *arguments)
    return tests or style


def _python(module: str, *arguments: str) -> int:
    """Run a module in this environment from the repository's folder, which stays off sys.path."""
    return subprocess.run([sys.executable, "-P", "-m", module, *arguments], cwd=paths.ROOT).returncode
