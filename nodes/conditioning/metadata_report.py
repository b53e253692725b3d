"""The size metadata that a model is conditioned on at each step, and its gate, as text and as
figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .metadata_schedule import GateMode, GateSchedule, half_weight
from .size_metadata import Values, format_metadata

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIELDS = {
    "width": "original width",
    "height": "original height",
    "crop_w": "crop left",
    "crop_h": "crop top",
    "target_width": "target width",
    "target_height": "target height",
    "mirror": "mirror",
}


@dataclass(frozen=True)
class Step:
    """One evaluation of the model: its sigma and its noise fraction u."""

    sigma: float
    u: float


@dataclass(frozen=True, kw_only=True)
class PromptMetadata:
    """One conditioning: its metadata, the image's (width, height) in pixels, its role, and a name
    to show.

    `implicit`: target sides that follow the original size, because the conditioning does not set
    them; `explicit`: the fields that it sets. It takes part at sigmas from `first` down to `last`.
    """

    values: Values
    canvas: tuple[int, int]
    role: str
    name: str
    implicit: frozenset[str] = frozenset()
    explicit: frozenset[str] = frozenset()
    first: float = math.inf
    last: float = 0.0

    def is_active(self, step: Step) -> bool:
        """Whether the model is given this conditioning at a step."""
        return self.last <= step.sigma <= self.first


def values_at(
    prompt: PromptMetadata, schedules: Sequence[GateSchedule], u: float
) -> tuple[Values, float]:
    """The metadata at a noise fraction, and the product of the gates that act on this prompt.

    In mode "embedding" it is the network's embedding that moves; the blended numbers stand for it.
    """
    values = prompt.values
    weight = 1.0
    for schedule in schedules:
        if schedule.applies(prompt.role, prompt.explicit):
            gate = schedule.weight(u)
            values = schedule.gated(values, prompt.canvas, gate, prompt.implicit)
            weight = weight * gate
    return values, weight


def describe_schedule(schedule: GateSchedule, steps: Sequence[Step]) -> str:
    """Metadata Schedule's settings and the gate at every step."""
    half = half_weight(schedule.curve, schedule.exponent)
    when = "always open" if half is None else f"one half at {100 * half:.1f} % of the timesteps"
    size = (schedule.reference_width, schedule.reference_height)
    towards = f"{size[0]} x {size[1]}" if any(size) else "the size of the image"
    lines = [
        f"Gate {schedule.curve}, exponent {schedule.exponent:g}: {when}.",
        f"Acts on {schedule.fields} of {schedule.apply_to}, mode {schedule.mode}; the reference of "
        f"the closed gate is {towards}.",
    ]
    return "\n".join(
        [
            *lines,
            *(
                f"{_place(index, step)}  gate {schedule.weight(step.u):.3f}"
                for index, step in enumerate(steps)
            ),
        ]
    )


def describe_conditioning(
    model: str,
    prompts: Sequence[PromptMetadata],
    schedules: Sequence[GateSchedule],
    steps: Sequence[Step],
) -> str:
    """The metadata of each prompt at each step at which it takes part; one line where it never
    changes.
    """
    lines = [
        f"{model} is conditioned on, for an image of {prompts[0].canvas[0]} x "
        f"{prompts[0].canvas[1]}:"
    ]
    for prompt in prompts:
        acting = [index for index, step in enumerate(steps) if prompt.is_active(step)]
        acted = [values_at(prompt, schedules, steps[index].u) for index in acting]
        if all(weight == 1 for _, weight in acted):
            lines.append(
                f"{prompt.name}: {format_metadata(prompt.values)}, {_when(acting, len(steps))}."
            )
            continue
        lines.append(f"{prompt.name}: set to {format_metadata(prompt.values)}.")
        lines += [
            f"{_place(index, steps[index])}  gate {weight:.3f}  {format_metadata(values)}"
            for index, (values, weight) in zip(acting, acted, strict=True)
        ]
    if any(schedule.mode == GateMode.EMBEDDING for schedule in schedules):
        lines.append(
            "Mode embedding moves the network's embedding of these numbers; numbers between stand "
            "for it."
        )
    return "\n".join(lines)


def _when(acting: Sequence[int], count: int) -> str:
    if len(acting) == count:
        return "at every step"
    return f"at steps {acting[0] + 1} to {acting[-1] + 1}" if acting else "at no step"


def _place(index: int, step: Step) -> str:
    return f"step {index + 1:2d}  sigma {step.sigma:8.3f}  t {1000 * step.u:5.0f}"


def draw_gate(figure: Figure, schedule: GateSchedule, steps: Sequence[Step]) -> None:
    """The gate over the noise fraction, and the steps of a sampling run on it."""
    axes = figure.add_subplot()
    places = [index / 400 for index in range(401)]
    axes.plot(places, [schedule.weight(u) for u in places], color="tab:blue", label="gate")
    axes.scatter(
        [step.u for step in steps],
        [schedule.weight(step.u) for step in steps],
        color="tab:orange",
        zorder=3,
        label=f"the {len(steps)} steps",
    )
    half = half_weight(schedule.curve, schedule.exponent)
    if half is not None:
        axes.axvline(half, color="0.6", linestyle=":", label=f"one half at {half:.2f}")
    axes.set(
        xlim=(1.02, -0.02),
        ylim=(-0.03, 1.05),
        ylabel="weight of the metadata",
        xlabel="noise fraction u: sampling runs from left to right",
        title=f"Gate {schedule.curve}, exponent {schedule.exponent:g}, on {schedule.fields}",
    )
    axes.legend(loc="upper left")


def draw_conditioning(
    figure: Figure,
    prompts: Sequence[PromptMetadata],
    schedules: Sequence[GateSchedule],
    steps: Sequence[Step],
) -> None:
    """The numbers that the model is given over the steps, one panel per prompt, and the product of
    its gates.
    """
    panels = figure.subplots(len(prompts), 1, sharex=True, squeeze=False)[:, 0]
    numbers = range(1, len(steps) + 1)
    for axes, prompt in zip(panels, prompts, strict=True):
        values_of_steps = [values_at(prompt, schedules, step.u) for step in steps]
        for index, name in enumerate(name for name in _FIELDS if name in prompt.values):
            shown = [
                values[name] if prompt.is_active(step) else math.nan
                for step, (values, _) in zip(steps, values_of_steps, strict=True)
            ]
            axes.plot(
                numbers,
                shown,
                marker=".",
                linewidth=2.5,
                linestyle=("-", (0, (2, 2)))[index % 2],
                label=_FIELDS[name],
            )
        axes.set(ylabel="pixels", title=f"Size metadata: {prompt.name}")
        gate = axes.twinx()
        gate.fill_between(numbers, [weight for _, weight in values_of_steps], color="0.9", zorder=0)
        gate.set(ylim=(0, 1.05), ylabel="gate")
        axes.set_zorder(gate.get_zorder() + 1)
        axes.patch.set_visible(False)
        axes.legend(loc="center left", bbox_to_anchor=(1.08, 0.5), fontsize="small")
    panels[-1].set(xlabel="step")
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
