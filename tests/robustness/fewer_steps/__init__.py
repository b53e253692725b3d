"""A pack for the server of `run.py fuzz --trainers`: what a trainer samples before or after it
trains takes one step.

How often a trainer samples is no input of these nodes, and costs ten times its own steps.
"""

from __future__ import annotations

import importlib
import sys

from server import PromptServer

#: By module of the pack, the counts of its own samples.
COUNTS = {
    "nodes.neurons.learned_factors_comfy": {"_LATENT_STEPS": 1, "_ANCHORS": 1, "_MEMORIZED": 1},
    "nodes.neurons.prompt_search_comfy": {"_LATENT_STEPS": 1},
    "nodes.weights.learned_space_comfy": {"_STEPS": 1},
}
NODE_CLASS_MAPPINGS: dict = {}
_MENU = ".nodes.menu"


def set_counts(request: dict) -> dict:
    """Called with each prompt, since packs are loaded in any order."""
    for package in [name.removesuffix(_MENU) for name in sys.modules if name.endswith(_MENU)]:
        for name, counts in COUNTS.items():
            module = importlib.import_module(f"{package}.{name}")
            for key, count in counts.items():
                assert isinstance(getattr(module, key), int)
                setattr(module, key, count)
    return request


PromptServer.instance.add_on_prompt_handler(set_counts)
