"""`run.py test --both-hosts`: the same tests on the oldest ComfyUI that the pack supports, then on
the newest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from . import comfyui, paths

BOTH = "--both-hosts"


def run(arguments: Sequence[str]) -> int:
    """Run `run.py test` with the other arguments on each host, one after the other, and return 0
    where the tests pass on both.

    Each run makes the environment fit its ComfyUI, so their requirements never mix.
    """
    others = [argument for argument in arguments if argument != BOTH]
    newest = str(comfyui.newest())
    oldest_environment = {
        name: value for name, value in os.environ.items() if name != "COMFYUI_DIR"
    }
    environments = {
        f"the oldest ComfyUI, {comfyui.VERSION}": oldest_environment,
        f"the ComfyUI in {newest}": {**oldest_environment, "COMFYUI_DIR": newest},
    }
    codes = {}
    for host, environment in environments.items():
        print(f"Testing on {host} ...", flush=True)
        codes[host] = subprocess.run(
            [sys.executable, str(paths.ROOT / "run.py"), "test", *others], env=environment
        ).returncode
    for host, code in codes.items():
        print(f"On {host}: {'passed' if code == 0 else f'failed (exit code {code})'}.", flush=True)
    return max(codes.values(), key=abs)
