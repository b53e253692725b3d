"""Two training runs over the same steps: held-out losses, which can be compared, and training
losses, which cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..loss_curve import running_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_loss_maps(runs: Mapping[str, Mapping]) -> None:
    """Raises ValueError for runs without a name of their own, and for what holds no losses."""
    if len(runs) < 2:
        raise ValueError("Both runs have the same name: give each a name of its own.")
    for name, run in runs.items():
        if not run.get("loss"):
            raise ValueError(f"{name[:60]!r} holds no losses: connect the loss_map of a training.")


def shared_steps(runs: Mapping[str, Mapping]) -> list[tuple[int, list[float]]]:
    """The steps at which every run has a held-out loss, and those losses in the order of the
    runs.
    """
    held_out = [dict(map(tuple, run.get("validation", ()))) for run in runs.values()]
    steps = sorted(set.intersection(*map(set, held_out)))
    return [(int(step), [losses[step] for losses in held_out]) for step in steps]


def draw_comparison(figure: Figure, runs: Mapping[str, Mapping]) -> None:
    """Held-out losses of all runs on the left and running means of their training losses on the
    right.
    """
    held_out, training = figure.subplots(1, 2)
    for name, run in runs.items():
        points = [tuple(point) for point in run.get("validation", ())]
        if points:
            held_out.plot(*zip(*points, strict=True), marker="o", label=name)
        # One loss a batch; the last held-out loss lies at the last step, whatever the accumulation.
        width = points[-1][0] / len(run["loss"]) if points and points[-1][0] else 1.0
        steps = [(number + 1) * width for number in range(len(run["loss"]))]
        training.plot(steps, running_mean(run["loss"]), label=name)
    for axes, title in ((held_out, "Held-out images"), (training, "Training, running mean")):
        axes.set(xlabel="step", ylabel="loss", title=title)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()


def describe_comparison(runs: Mapping[str, Mapping]) -> str:
    """Which run has the lower held-out loss at the last step that both have, and each run's lowest
    one.
    """
    lines = []
    for name, run in runs.items():
        if "finished_at" in run:
            lines.append("{}: finished at {} of {} steps.".format(name, *run["finished_at"]))
        points = [tuple(point) for point in run.get("validation", ())]
        if points:
            step, loss = min(points, key=lambda point: point[1])
            lines.append(
                f"{name}: lowest held-out loss {loss:.5g} at step {int(step)}, last "
                f"{points[-1][1]:.5g}."
            )
        else:
            lines.append(f"{name}: no held-out loss; set held_out in the training.")
    shared = shared_steps(runs)
    if shared:
        step, (first, second) = shared[-1]
        names = list(runs)
        low, high = names if first <= second else names[::-1]
        percent = 100 * abs(first - second) / max(first, second)
        below = sum((a < b) == (first < second) and a != b for _, (a, b) in shared)
        equal = first == second
        lines.append(
            f"At step {step} both have the same held-out loss."
            if equal
            else (
                f"At step {step} {low} is {percent:.2f} % below {high}; so it is at {below} of "
                f"{len(shared)} steps."
            )
        )
        lines.append("One run each is no evidence: repeat both with other seeds.")
    return "\n".join(lines)
