"""Noise assigned to images in training: how far samples of handwritten digits are from the data, by
sampling steps.
"""

from __future__ import annotations

from .sheet import Bars

EULER, STEPS = (2, 4, 20), (250, 500, 1000)
WAYS = {"noise at random": "vanilla", "nearest of 4": "nearest 4", "assigned noise": "assign"}
COLORS = ("#888888", "#4c78a8", "#e66101")
BARS = tuple(
    Bars(
        name,
        "noise_digits",
        {str(at): f"digits, {mode}, Frechet, {euler} Euler steps, step {at}" for at in STEPS},
    )
    for euler in EULER
    for name, mode in WAYS.items()
)


def make():
    """The figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    every = figure.subplots(1, len(EULER), sharey=True)
    for place, axes in enumerate(every):
        for measured, color in zip(
            BARS[place * len(WAYS) : (place + 1) * len(WAYS)], COLORS, strict=True
        ):
            numbers = list(measured.numbers().values())
            axes.plot(
                STEPS,
                [number["value"] for number in numbers],
                "o-",
                color=color,
                label=measured.title,
            )
            axes.vlines(
                STEPS,
                [one["low"] for one in numbers],
                [one["high"] for one in numbers],
                color=color,
            )
        axes.set(
            title=f"{EULER[place]} sampling steps",
            xlabel="training steps",
            xticks=STEPS,
            ylim=(0, None),
        )
        axes.grid(alpha=0.3)
    every[0].set_ylabel("Fréchet distance from the data")
    every[-1].legend()
    return figure
