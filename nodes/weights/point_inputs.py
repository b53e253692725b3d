"""Names and inputs that several nodes of the family share, as the keywords of ComfyUI's input
classes.
"""

from __future__ import annotations

CATEGORY = "Glassbox/Weights"
PAPER = "weights2weights (arXiv 2406.09413)"
COMPONENTS_MAX = 100_000

POINT_TOOLTIP = "Point of a space, from W2W Sample, W2W Edit or another W2W node."
STRENGTH = {
    "id": "strength",
    "default": 1.0,
    "min": -100.0,
    "max": 100.0,
    "step": 0.01,
    "tooltip": (
        "Strength of the change. 0 returns the model unchanged, 1 gives the model of the point."
    ),
}
START = {
    "id": "start_percent",
    "default": 0.0,
    "min": 0.0,
    "max": 1.0,
    "step": 0.001,
    "tooltip": (
        "Start of the interval in which the change acts; 0 is the start of sampling. Delayed "
        "injection: the paper's T corresponds to 1 - T / 999, so T 800 is 0.199. Let another W2W "
        "Apply with the unedited point end here."
    ),
}
END = {
    "id": "end_percent",
    "default": 1.0,
    "min": 0.0,
    "max": 1.0,
    "step": 0.001,
    "tooltip": "End of the interval in which the change acts; 1 includes the last step.",
}
PRESERVED = {
    "id": "preserved_directions",
    "default": "",
    "tooltip": (
        "Comma-separated directions to preserve: every edit is made orthogonal to them (debiasing)."
    ),
}
