"""What a model is told at each step, and the gate that decides it, in words and as figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from . import gates
from .metadata import Values, described
from .schedule import EMBEDDING, Schedule

_FIELDS = {
    "width": "original width", "height": "original height", "crop_w": "crop left", "crop_h": "crop top",
    "target_width": "target width", "target_height": "target height", "mirror": "mirror",
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One evaluation of the model: its sigma and its share u of noise."""

    sigma: float
    u: float


@dataclass(frozen=True)
class Prompt:
    """One conditioning: what it tells, the picture's (width, height) in pixels, its role, and a name to show.

    ``unsaid``: target sides that follow the original size, because the conditioning does not say them. It takes part
    at sigmas from ``first`` down to ``last``.
    """

    values: Values
    canvas: tuple[int, int]
    role: str
    name: str
    unsaid: frozenset[str] = frozenset()
    first: float = math.inf
    last: float = 0.0

    def acts(self, step: Step) -> bool:
        """Whether the model is told this conditioning at a step."""
        return self.last <= step.sigma <= self.first


def values_at(prompt: Prompt, schedules: Sequence[Schedule], u: float) -> tuple[Values, float]:
    """The metadata at a share of noise, and the product of the gates that act on this prompt.

    In mode "embedding" it is the network's embedding that moves; the blended numbers stand for it.
    """
    values, weight = prompt.values, 1.0
    for schedule in schedules:
        if schedule.applies(prompt.role):
            gate = schedule.weight(u)
            values, weight = schedule.told(values, prompt.canvas, gate, prompt.unsaid), weight * gate
    return values, weight


def describe_schedule(schedule: Schedule, steps: Sequence[Step]) -> str:
    """Metadata Schedule's settings and the gate at every step."""
    half = gates.half_weight(schedule.curve, schedule.exponent)
    when = "always open" if half is None else f"one half at {100 * half:.1f} % of the noise's time"
    size = (schedule.reference_width, schedule.reference_height)
    towards = f"{size[0]} x {size[1]}" if any(size) else "the picture's own size"
    lines = [
        f"Gate {schedule.curve}, exponent {schedule.exponent:g}: {when}.",
        f"Acts on {schedule.fields} of {schedule.apply_to}, as {schedule.mode}; closed, it tells {towards}.",
    ]
    return "\n".join([*lines, *(f"{_place(index, step)}  gate {schedule.weight(step.u):.3f}"
                                for index, step in enumerate(steps))])  # fmt: skip


def describe_told(model: str, prompts: Sequence[Prompt], schedules: Sequence[Schedule], steps: Sequence[Step]) -> str:
    """What each prompt tells the model at each step at which it takes part; one line where it never changes."""
    lines = [f"{model} is told, for a picture of {prompts[0].canvas[0]} x {prompts[0].canvas[1]}:"]
    for prompt in prompts:
        acting = [index for index, step in enumerate(steps) if prompt.acts(step)]
        told = [values_at(prompt, schedules, steps[index].u) for index in acting]
        if all(weight == 1 for _, weight in told):
            lines.append(f"{prompt.name}: {described(prompt.values)}, {_when(acting, len(steps))}.")
            continue
        lines.append(f"{prompt.name}: asked {described(prompt.values)}.")
        lines += [f"{_place(index, steps[index])}  gate {weight:.3f}  {described(values)}"
                  for index, (values, weight) in zip(acting, told, strict=True)]  # fmt: skip
    if any(schedule.mode == EMBEDDING for schedule in schedules):
        lines.append("Mode embedding moves the network's embedding of these numbers; numbers between stand for it.")
    return "\n".join(lines)


def _when(acting: Sequence[int], count: int) -> str:
    if len(acting) == count:
        return "at every step"
    return f"at steps {acting[0] + 1} to {acting[-1] + 1}" if acting else "at no step"


def _place(index: int, step: Step) -> str:
    return f"step {index + 1:2d}  sigma {step.sigma:8.3f}  t {1000 * step.u:5.0f}"


def draw_gate(figure, schedule: Schedule, steps: Sequence[Step]) -> None:
    """The gate over the share of noise, and where the steps of a sampling run stand on it."""
    axes = figure.add_subplot()
    places = [index / 400 for index in range(401)]
    axes.plot(places, [schedule.weight(u) for u in places], color="tab:blue", label="gate")
    axes.scatter([step.u for step in steps], [schedule.weight(step.u) for step in steps], color="tab:orange",
                 zorder=3, label=f"the {len(steps)} steps")  # fmt: skip
    half = gates.half_weight(schedule.curve, schedule.exponent)
    if half is not None:
        axes.axvline(half, color="0.6", linestyle=":", label=f"one half at {half:.2f}")
    axes.set(xlim=(1.02, -0.02), ylim=(-0.03, 1.05), ylabel="how much of the asked metadata is told",
             xlabel="share of noise in training time: sampling runs from left to right",
             title=f"Gate {schedule.curve}, exponent {schedule.exponent:g}, on {schedule.fields}")  # fmt: skip
    axes.legend(loc="upper left")


def draw_told(figure, prompts: Sequence[Prompt], schedules: Sequence[Schedule], steps: Sequence[Step]) -> None:
    """The told numbers over the steps, one panel a prompt; below each the product of its gates."""
    panels = figure.subplots(len(prompts), 1, sharex=True, squeeze=False)[:, 0]
    numbers = range(1, len(steps) + 1)
    for axes, prompt in zip(panels, prompts, strict=True):
        told = [values_at(prompt, schedules, step.u) for step in steps]
        for index, name in enumerate(name for name in _FIELDS if name in prompt.values):
            shown = [values[name] if prompt.acts(step) else math.nan
                     for step, (values, _) in zip(steps, told, strict=True)]  # fmt: skip
            axes.plot(numbers, shown, marker=".", linewidth=2.5,
                      linestyle=("-", (0, (2, 2)))[index % 2], label=_FIELDS[name])  # fmt: skip
        axes.set(ylabel="pixels", title=f"What the model is told: {prompt.name}")
        gate = axes.twinx()
        gate.fill_between(numbers, [weight for _, weight in told], color="0.9", zorder=0)
        gate.set(ylim=(0, 1.05), ylabel="gate")
        axes.set_zorder(gate.get_zorder() + 1)
        axes.patch.set_visible(False)
        axes.legend(loc="center left", bbox_to_anchor=(1.08, 0.5), fontsize="small")
    panels[-1].set(xlabel="step")
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
