"""An engine whose pieces do nothing, or wait: what is left of a piece's time is the job's own."""

from __future__ import annotations

import time
from pathlib import Path

PROMPT = {"1": {"class_type": "Wait", "inputs": {"seed": 0, "seconds": 0.0}}}


class Engine:
    """One node, `Wait`, with a seed that does nothing and seconds to wait."""

    def __init__(self, settings):
        self.roots = [Path("/nowhere")]

    def prompt(self, saved: dict) -> dict:
        return saved

    def kinds(self, prompt: dict) -> dict[str, dict[str, str]]:
        return {"Wait": {"seed": "INT", "seconds": "FLOAT"}}

    def files(self, prompt: dict) -> dict[str, str]:
        return {}

    def run(self, prompt: dict, key: str, output: Path) -> dict[str, list[str]]:
        if seconds := prompt["1"]["inputs"]["seconds"]:
            time.sleep(seconds)
        return {}
