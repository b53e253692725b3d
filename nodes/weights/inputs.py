"""Names and inputs that several nodes of the family share, as the keywords of ComfyUI's input classes."""

from __future__ import annotations

CATEGORY = "glassbox/weights"
PAPER = "weights2weights (arXiv 2406.09413)"
SEED_MAX = 0xFFFFFFFFFFFFFFFF

POINT_TOOLTIP = "A model in a space, of W2W Sample, W2W Edit and the like."
STRENGTH = {
    "id": "strength", "default": 1.0, "min": -100.0, "max": 100.0, "step": 0.01,
    "tooltip": "How much of the change to add; 0 gives the MODEL itself, 1 is the model that the point stands for.",
}  # fmt: skip
START = {
    "id": "start_percent", "default": 0.0, "min": 0.0, "max": 1.0, "step": 0.001,
    "tooltip": "From which part of the run on (0 is its start). Delayed injection: the paper's T is 1 - T / 999 here, "
    "so T 800 is 0.199. Another Apply of the unedited point may end where this one starts.",
}  # fmt: skip
END = {
    "id": "end_percent", "default": 1.0, "min": 0.0, "max": 1.0, "step": 0.001,
    "tooltip": "Until which part of the run; 1 includes its last step.",
}  # fmt: skip
KEEP = {
    "id": "keep", "default": "",
    "tooltip": "Directions to hold still, apart by commas: every edit is made orthogonal to them (debiasing).",
}  # fmt: skip
