"""Inputs that several nodes of the family share, as the keywords of ComfyUI's input classes."""

from __future__ import annotations

import torch

from . import selection

CATEGORY = "glassbox/activations"
PAPER = "Not All Diffusion Model Activations Have Been Evaluated as Discriminative Features (arXiv 2410.03558)"
PRECISIONS = {"half": torch.float16, "full": torch.float32}

PRESET = {
    "id": "preset",
    "options": list(selection.PRESETS),
    "default": selection.BEST,
    "tooltip": "Which activations. 'best for this model' is the paper's set for SD1.5/SD2.1 and SDXL and ours by "
    "analogy elsewhere; the sets named Ours and Legacy are the paper's; 'the list below' reads the next input.",
}
IDS = {
    "id": "ids",
    "default": "",
    "multiline": True,
    "tooltip": "For 'the list below': IDs or wildcards apart by commas or lines, such as up-level1-*-cross-q. "
    "Activation Catalog lists all. IDs that end in -map are attention probabilities: large, so name only the "
    "ones you need.",
}
POOL = {
    "id": "pool",
    "default": 1,
    "min": 1,
    "max": 64,
    "tooltip": "Average squares of this many positions a side before the copy: 2 needs a quarter of the memory.",
}
PRECISION = {
    "id": "precision",
    "options": list(PRECISIONS),
    "tooltip": "half: float16, as in the paper's code. full: float32, twice the memory, for measurements.",
}
