"""The part of a sampling run that percents name, as noise levels."""

from __future__ import annotations


def sigmas_of(patcher, start_percent: float, end_percent: float) -> tuple[float, float]:
    """The noise levels from which and to which a patch acts; 0 and 1 leave nothing of the run out."""
    sampling = patcher.get_model_object("model_sampling")
    first = float("inf") if start_percent <= 0 else float(sampling.percent_to_sigma(start_percent))
    last = 0.0 if end_percent >= 1 else float(sampling.percent_to_sigma(end_percent))
    return first, last
