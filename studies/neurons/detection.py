"""Does the score separate memorized names from ordinary captions and from control names?"""

from __future__ import annotations

import numpy as np

from ..common import host, results
from .world import World

_MEASURED = ("text_norm", "sharpness", "anisotropy")
_STEPS = 10  # of sampling, for Bright Ending
#: Rows of the network that a detector needs for a prompt and noise sample.
_COST = {"score": 1, "text norm": 1, "sharpness": 5, "alignment": 1, "anisotropy": 2}
_COST |= {"bright ending": 2 * _STEPS, "local norm": 2 * _STEPS}


def measure(quick: bool) -> dict[str, dict]:
    """Scores by kind, AUROC and cost of the score and of other detectors, threshold and false
    positives.
    """
    world = World(seeds=2 if quick else 10, ordinary=10 if quick else 80)
    kinds = {**world.names, "ordinary": world.ordinary}
    detectors = {**dict.fromkeys(_MEASURED, True), "bright_ending_steps": _STEPS}
    rows = {kind: world.detected(texts, **detectors) for kind, texts in kinds.items()}
    columns = [name.replace(" ", "_") for name in _COST]
    found = {
        kind: np.array([[float(row[name]) for name in columns] for row in one])
        for kind, one in rows.items()
    }
    numbers = {}
    for column, (what, by_seed) in enumerate(_COST.items()):
        numbers[f"cost of the {what}"] = results.number(
            by_seed,
            1,
            "rows",
            "rows of the network for a prompt and noise sample, those of the empty prompt in "
            "noise left out",
        )
        for kind, values in found.items():
            numbers[f"{what}, {kind}"] = results.bootstrap(
                values[:, column], f"mean {what} of {kind} prompts", what
            )
        for kind, against in (
            ("verbatim", "ordinary"),
            ("verbatim", "control"),
            ("template", "ordinary"),
        ):
            pair = found[kind][:, column], found[against][:, column]
            numbers[f"AUROC of the {what}, {kind} against {against}"] = _auroc(
                *pair, f"{what}: {kind} over {against}"
            )
    normal = found["ordinary"][:, 0].tolist()
    threshold = host.pack("nodes.neurons.score_threshold").calibrate(
        normal, 1.0, found["verbatim"][:, 0].tolist()
    )
    fraction, low, high = threshold.false_positives
    numbers["threshold"] = results.bootstrap(
        np.array(normal),
        "mean and one deviation of ordinary scores",
        "SSIM",
        lambda rows: float(rows.mean() + rows.std(ddof=1)),
    )
    what = "ordinary captions over the others' threshold (paper: 11.6 %)"
    numbers["false positives"] = results.number(
        fraction, len(normal), "fraction", what, (low, high)
    )
    for kind in ("verbatim", "template", "control"):
        numbers[f"found, {kind}"] = results.fraction(
            found[kind][:, 0] > threshold.value, f"{kind} names over the threshold"
        )
    return numbers


def _auroc(positive: np.ndarray, negative: np.ndarray, what: str) -> dict:
    rows = np.array([(1, value) for value in positive] + [(0, value) for value in negative])
    return results.bootstrap(rows, what, "AUROC", area_under_curve)


def area_under_curve(rows: np.ndarray) -> float:
    """AUROC of rows (label 1 or 0, value) by pairs, quick enough for thousands of draws; 1 where a
    kind is missing.
    """
    positive, negative = (rows[rows[:, 0] == label, 1] for label in (1, 0))
    if not (len(positive) and len(negative)):
        return 1.0
    return float(np.mean((positive[:, None] > negative) + (positive[:, None] == negative) / 2))
