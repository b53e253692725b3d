"""Reports and figures of a space and of a point in it, all computed from the space's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .projection import nearest_members
from .space import Form, Point, Space

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ENOUGH = 0.95
_EXACT = 1e-3  # relative, of what members' changes may lose by storage without a remark
_MORE = " Part of some members is missing: set a larger rank, or 0."
_FACTOR = 3
_UNEQUAL = (
    " They differ by more than 3: the first components show strength of training more than "
    "content; set norm to equal."
)
_BROUGHT = (
    "; all are brought to {:.3g}, and strength |dW| / {:.3g} in W2W Apply gives a member's own."
)
_SHOWN = 5  # members of a group that are named
_HISTOGRAMS = 12  # components whose coefficients are plotted
# the fraction of members that the warning would name; the least to measure it on
_FALSE_ALARMS = 0.05
_FEWEST = 8


def describe_space(space: Space) -> str:
    """Members, numbers, components, and what building lost, as text."""
    explained = space.explained
    count = len(space.members)
    size = space.layout.size
    updates = space.form == Form.WEIGHT_UPDATES
    half = int((explained.cumsum(0) < 0.5 * explained.sum()).sum()) + 1
    lines = [
        f"{space.name}: {count:,} members ({space.about.get('base', 'unknown')}), "
        f"{len(space.layout.slots)} layers, rank {space.layout.rank}, {size:,} numbers, form "
        f"{space.form}"
        + ("" if updates or space.about.get("standardized", True) else ", not standardized")
        + ".",
        f"{space.components} components explain {100 * float(explained.sum()):.1f} % of the "
        f"members' variance; half of that is in the first {half}.",
        f"Stored as {space.about.get('storage', 'float32')}" + _storage_error(space) + ".",
    ]
    if space.kept is not None:
        low = float(space.kept.min())
        high = float(space.kept.max())
        what = (
            f"A common basis of up to {space.layout.rank} vectors"
            if updates
            else f"Rank {space.layout.rank}"
        )
        lines.append(
            f"{what} keeps {100 * float(space.kept.mean()):.1f} % of a member's change on average "
            f"({100 * low:.1f} to {100 * high:.1f} %)."
            + (_MORE if updates and low < _ENOUGH else "")
        )
    lines += [
        f"Left out on average: {why}, {100 * part:.2f} %."
        for why, part in space.about.get("lost", {}).items()
    ]
    if norms := space.about.get("norms"):
        low = min(norms)
        high = max(norms)
        common = space.common_norm
        lines.append(
            f"|dW| of the members: {low:.3g} to {high:.3g}"
            + (_BROUGHT.format(common, common) if common else ".")
            + ("" if high <= _FACTOR * max(low, 1e-300) or common else _UNEQUAL)
        )
    lines += [
        f"{first} and {second} have the same weights."
        for first, second in space.about.get("twins", [])
    ]
    lines += [
        f"Near copies, one member for directions: {', '.join(group[:_SHOWN])}"
        + (f" and {len(group) - _SHOWN} more." if len(group) > _SHOWN else ".")
        for group in space.groups
    ]
    lines += [space.about["bases"]] if "bases" in space.about else []
    if reused := space.about.get("reused"):
        lines.append(f"Not read again: {len(reused)} members of the file before.")
    lines += [
        f"Skipped: {name}: {reason}" for name, reason in space.about.get("skipped", {}).items()
    ]
    if space.labels:
        lines.append(f"Labels: {', '.join(space.labels)}.")
    if space.directions:
        lines.append(f"Directions: {', '.join(space.directions)}.")
    return "\n".join(lines)


def describe_members(space: Space, shown: int = 10) -> str:
    """What its rank and then the components keep of each member: the members that lose most, and
    the mean.
    """
    inside = space.coefficients.double().square().sum(dim=1)
    if space.squares is None:
        return ""
    fractions = inside / space.squares.double().clamp_min(1e-30)
    worst = fractions.argsort()[:shown].tolist()
    lines = [
        f"{space.components} components keep {100 * float(fractions.mean()):.1f} % of a member on "
        "average; least:"
    ]
    rank = torch.ones(len(space.members)) if space.kept is None else space.kept
    for row in worst:
        kept = (
            f"components {100 * float(fractions[row]):.1f} %, rank {100 * float(rank[row]):.1f} %"
        )
        lines.append(f"  {space.members[row]}: {kept}")
    return "\n".join(lines)


def describe_point(point: Point) -> str:
    """Where a point lies: its length against the members', and the members nearest to it."""
    space = point.space
    known = point.coefficients[: point.space.known]
    mean, deviation = space.spread
    scores = (known - mean) / deviation.clamp_min(1e-30)
    lengths = space.coefficients.norm(dim=1)
    far = scores.abs().topk(min(3, len(scores)))
    near = [f"  {name}: cosine {value:+.3f}" for name, value in nearest_members(point, 5)]
    unusual = ", ".join(f"PC {int(row) + 1} ({float(scores[row]):+.2f})" for row in far.indices)
    return "\n".join(
        [
            f"{point.name}: length {float(known.norm()):.2f}; members {float(lengths.mean()):.2f} "
            f"on average, {float(lengths.min()):.2f} to {float(lengths.max()):.2f}.",
            f"Root mean square coefficient {float(scores.square().mean().sqrt()):.2f} standard "
            f"deviations; most extreme {unusual}.",
            "Nearest members:",
            *near,
        ]
    )


def warn_outside(point: Point) -> str:
    """A sentence where an inverted point moves the weaker components more than 95 % of the members
    do.

    The measure is the root mean square of the second half of the known coefficients, in the
    members' standard deviations: people of the space differ in the first components, other styles
    need all of them. Each member is measured against the others alone. Empty for points inside, and
    for spaces of under eight members.
    """
    space = point.space
    members = space.coefficients.double()
    half = space.known // 2
    if len(members) < _FEWEST:
        return ""
    limit = float(_weaker_half(members, half).quantile(1 - _FALSE_ALARMS))
    mean = members.mean(dim=0)
    variance = members.var(dim=0)
    centered = point.coefficients[: space.known].double() - mean
    reached = float((centered.square() / variance.clamp_min(1e-30))[half:].mean().sqrt())
    if reached <= limit:
        return ""
    return (
        f"Its weaker components lie {reached:.2f} standard deviations from the mean, and those of "
        f"95 % of the members under {limit:.2f}: the image may show what the space does not hold, "
        "such as another style or no single face. Expect weak edits."
    )


def _weaker_half(members: torch.Tensor, half: int) -> torch.Tensor:
    """For each member (n,) the root mean square of its coefficients from ``half`` on, in deviations
    of the others.
    """
    count = len(members)
    apart = (members - members.mean(dim=0)).square() * count / (count - 1)
    others = ((count - 1) * members.var(dim=0) - apart) / (count - 2)
    squares = apart * count / (count - 1) / others.clamp_min(1e-30)
    return squares[:, half:].mean(dim=1).sqrt()


def draw_spectrum(figure: Figure, space: Space) -> None:
    """Explained variance of each component and in sum."""
    explained = (100 * space.explained).numpy()
    numbers = range(1, len(explained) + 1)
    axes, total = figure.subplots(1, 2)
    axes.bar(numbers, explained, color="tab:blue", width=1.0)
    axes.set(xlabel="component", ylabel="variance explained, %", title="Each component")
    total.plot(numbers, explained.cumsum(), color="tab:blue")
    total.set(
        xlabel="components",
        ylabel="variance explained, %",
        ylim=(0, 100),
        title="The first components together",
    )
    total.grid(alpha=0.3)
    for one in (axes, total):
        one.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(f"{space.name}: {len(space.members):,} members")


def draw_point(figure: Figure, point: Point) -> None:
    """The point's first coefficients on the members' histograms, and its cosine to every member."""
    space = point.space
    grid = figure.add_gridspec(3, 6)
    for number in range(min(_HISTOGRAMS, space.known)):
        axes = figure.add_subplot(grid[number // 6, number % 6])
        axes.hist(space.coefficients[:, number].numpy(), bins=24, color="0.75")
        axes.axvline(float(point.coefficients[number]), color="tab:red", linewidth=2)
        axes.set_title(f"PC {number + 1}", fontsize=9)
        axes.set_yticks([])
        axes.tick_params(labelsize=7)
    axes = figure.add_subplot(grid[2, :])
    if point.coefficients.any():
        cosines = sorted(
            (value for _, value in nearest_members(point, len(space.members))), reverse=True
        )
        axes.plot(range(1, len(cosines) + 1), cosines, color="tab:red", marker=".", markersize=3)
        axes.axhline(0, color="0.6", linewidth=0.8)
        axes.set(xlabel="members, most similar first", ylabel="cosine")
    else:
        axes.set_axis_off()
        axes.text(
            0.5,
            0.5,
            "The mean of the space lies in no direction: no cosines to its members.",
            ha="center",
        )
    figure.suptitle(f"{point.name}: coefficients (red) and the members'")


def _storage_error(space: Space) -> str:
    error = space.about.get("storage_error")
    if not error:
        return ""
    much = "; that is more than 1e-3, and float32 is exact" if error["members"] > _EXACT else ""
    return (
        f" (relative error {error['basis']:.1e} of the basis, {error['members']:.1e} of rebuilt "
        f"members{much})"
    )
