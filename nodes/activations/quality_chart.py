"""The three measured properties of activations as a table and as bars on a figure."""

from __future__ import annotations

from .quality import Quality

_TITLES = (
    ("noise", "Diffusion noise: share of variance"),
    ("granularity", "Granularity: mean spatial frequency"),
    ("locality", "Locality: beyond that of the latent"),
)
_KEPT, _DROPPED = "#e66101", "#b8c4d0"
_INCHES, _SMALL, _MOST_NAMES = 0.16, 6, 120


def table(found: dict[str, Quality], kept: set[str]) -> str:
    """One line an activation: ID, noise share, granularity, locality, and whether the filter keeps it."""
    width = max(map(len, found))
    lines = [f"{'ID':{width}}  noise  granularity  locality"]
    for id_, quality in found.items():
        numbers = f"{quality.noise:5.3f}  {quality.granularity:11.3f}  {quality.locality:8.3f}"
        lines.append(f"{id_:{width}}  {numbers}{'  kept' if id_ in kept else ''}")
    return "\n".join(lines)


def draw(figure, found: dict[str, Quality], kept: set[str], title: str) -> None:
    """Three rows of bars on a matplotlib figure, IDs in forward order; those that the filter keeps stand out."""
    places, colours = range(len(found)), [_KEPT if id_ in kept else _DROPPED for id_ in found]
    axes = figure.subplots(3, 1, sharex=True)
    for axis, (name, label) in zip(axes, _TITLES, strict=True):
        axis.bar(places, [getattr(quality, name) for quality in found.values()], color=colours, width=0.8)
        axis.set_title(label, loc="left", fontsize=10)
        axis.grid(axis="y", alpha=0.3)
        axis.margins(x=0.005)
    axes[0].legend(handles=_handles(), fontsize=8, loc="upper center", ncol=2)
    step = -(-len(found) // _MOST_NAMES)
    axes[-1].set_xticks(list(places)[::step], list(found)[::step], rotation=90, fontsize=_SMALL)
    figure.suptitle(title, fontsize=11)


def width(count: int) -> int:
    """Pixels that a figure of so many activations needs."""
    return max(700, min(round(count * _INCHES * 100), round(_MOST_NAMES * _INCHES * 100)))


def _handles() -> list:
    from matplotlib.patches import Patch

    return [Patch(color=_KEPT, label="kept by the filter"), Patch(color=_DROPPED, label="dropped")]
