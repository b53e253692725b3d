"""What one call of a network stands for: conditionings, their rows and images, their area of the latent, the true step.

``nodes/host/hooks.py`` makes a ``Call`` of every call and hands it to whoever hooks the network; nobody counts rows by
himself. What cannot be known is None, and asking for it raises ValueError with one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

#: Conditionings of guiders that hold the positive prompt (reference: the same prompt with other size metadata).
POSITIVE = ("positive", "reference")
_SAME = 1e-5  # relative difference of noise levels that are the same but for rounding

#: Why the place of what the network sees in the image is unknown.
TILED = (
    "Another node on the MODEL evaluates tiles or context windows, whose place in the image is not known (such as "
    "Tiled Diffusion). Connect the MODEL from before that node, or leave the node out"
)


@dataclass(frozen=True)
class Area:
    """Which rectangle of the latent the network sees: its first row and column, its sides, and those of the latent."""

    begin: tuple[int, int]
    size: tuple[int, int]
    of: tuple[int, int]

    @property
    def whole(self) -> bool:
        """Whether that is all of the latent."""
        return self.size == self.of

    def cut(self, mask: torch.Tensor) -> torch.Tensor:
        """The area's part of masks (M, H, W) over the whole image, at their own resolution where its edges allow it."""
        if self.whole:
            return mask
        if any(edge * side % of for side, edge, of in self._edges(mask)):
            mask = torch.nn.functional.interpolate(mask.float()[:, None], size=self.of, mode="area")[:, 0]
        (_, top, _), (_, left, _), (_, bottom, _), (_, right, _) = (
            (side, edge * side // of, of) for side, edge, of in self._edges(mask)
        )
        return mask[:, top:bottom, left:right]

    def _edges(self, mask: torch.Tensor) -> list[tuple[int, int, int]]:
        """The mask's side, the latent's row or column, and the latent's side, of the area's four edges."""
        ends = [begin + size for begin, size in zip(self.begin, self.size, strict=True)]
        edges = zip(mask.shape[-2:], self.of, self.begin, ends, strict=True)
        both = [((side, begin, of), (side, end, of)) for side, of, begin, end in edges]
        return [one[0] for one in both] + [one[1] for one in both]


#: All of a latent of any size.
WHOLE = Area((0, 0), (1, 1), (1, 1))


@dataclass(frozen=True)
class Part:
    """The rows of a call that belong to one conditioning.

    ``role``: the conditioning's name in the guider. ``rows``: an index of the call's rows, one after the other for the
    images of the batch; None where it is not known which they are. ``area``: what the rows see of the latent, None
    where that is not known. ``text``: the encoded prompt as the network is given it, (images, tokens, channels).
    """

    role: str | None
    rows: slice | torch.Tensor | None
    area: Area | None
    text: torch.Tensor | None = None

    @property
    def side(self) -> bool | None:
        """True for the guider's positive conditioning, False for its negative one, None for any other."""
        return {"positive": True, "negative": False}.get(self.role or "")

    @property
    def positive(self) -> bool:
        """Whether it is the positive prompt, with whatever metadata."""
        return self.role in POSITIVE


@dataclass(frozen=True)
class Call:
    """One call of a network at a noise level.

    ``parts``: empty outside of a sampling run. ``rows``: how many the network is given. ``schedule``: the noise levels
    of the run, empty outside of one. ``compiled``: whether the network runs through torch.compile, where hooks are
    ignored or not as its graphs were made before.
    """

    network: nn.Module
    parts: tuple[Part, ...]
    rows: int
    sigma: float
    schedule: tuple[float, ...]
    compiled: bool = False

    @property
    def step(self) -> tuple[int, int]:
        """The step of the run that the call is in, from 0, and how many there are; (0, 1) without a schedule."""
        return step_of(self.sigma, self.schedule)

    def split(self, tensor: torch.Tensor) -> Iterator[tuple[Part, torch.Tensor]]:
        """Each part with its rows of a tensor inside the network.

        Raises ValueError when the tensor has other rows than the call, or it is not known which are whose.
        """
        self.require(len(tensor))
        for part in self.parts:
            if part.rows is None:
                raise ValueError(f"{TILED}: it is not known which rows belong to which prompt.")
            yield part, tensor[part.rows]

    def require(self, count: int) -> None:
        """Raise ValueError unless a tensor inside the network has as many rows as the call."""
        if count != self.rows:
            raise ValueError(
                f"Inside the network there are {count} rows where it was called with {self.rows}, because "
                "another node on the MODEL multiplies rows inside attention (attention couple, regional prompts) or "
                "tiles tokens (HyperTile), so which prompt a row belongs to is not known. Connect the MODEL from "
                "before that node, or leave the node out."
            )

    def where(self, chosen: Sequence[bool], count: int) -> torch.Tensor:
        """Which of a tensor's ``count`` rows are of the chosen parts, bool (count,); ValueError as in ``split``.

        All or none of the parts are all or none of the rows, however many there are; outside of a run, all.
        """
        if all(chosen) or not any(chosen):
            return torch.full((count,), all(chosen))
        result = torch.zeros(count, dtype=torch.bool)
        for (part, _), is_chosen in zip(self.split(result), chosen, strict=True):
            result[part.rows] = is_chosen
        return result


def step_of(sigma: float, levels: tuple[float, ...]) -> tuple[int, int]:
    """The step that a noise level is in, from 0, and how many steps the schedule has; (0, 1) without one.

    Counted in the direction of sampling: of rising levels (FlipSigmas) the lowest is the first.
    """
    if len(levels) < 2:
        return 0, 1
    if levels[0] < levels[-1]:
        begun = sum(level <= sigma * (1 + _SAME) for level in levels[:-1])
    else:
        begun = sum(level >= sigma * (1 - _SAME) for level in levels[:-1])  # between two steps is in the earlier one
    return max(begun - 1, 0), len(levels) - 1


def is_on_schedule(sigma: float, levels: tuple[float, ...]) -> bool:
    """Whether a noise level is that at which its step begins; True without a schedule."""
    return len(levels) < 2 or abs(levels[step_of(sigma, levels)[0]] - sigma) <= _SAME * sigma
