"""Activations as data: what was tapped, at which noise level, and what each row is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch.nn import functional as F

HALF_MAX = torch.finfo(torch.float16).max
#: The setting that says how many frames each latent had; every frame is a row, those of the first latent first.
FRAMES = "frames"


@dataclass(frozen=True)
class Row:
    """One row of every tensor: which image of the batch, and whether it saw the positive conditioning.

    The images of a video are its frames in the latent.
    """

    image: int
    conditional: bool = True


@dataclass(frozen=True)
class Activations:
    """Tapped activations: ID to tensor in the network's forward order, all with the same rows.

    Features are (rows, channels, height, width), attention maps (rows, heads, positions, keys), on the CPU in float16
    or float32. ``settings`` holds how they were made: seed, step and the like, as plain numbers and texts.
    """

    tensors: dict[str, torch.Tensor]
    rows: tuple[Row, ...]
    sigma: float
    timestep: float
    settings: dict[str, object] = field(default_factory=dict)

    def chosen(self, ids: Iterable[str]) -> Activations:
        """These IDs alone, in forward order."""
        ids = set(ids)
        return replace(self, tensors={id_: value for id_, value in self.tensors.items() if id_ in ids})

    def only_rows(self, rows: list[int]) -> Activations:
        """These rows alone."""
        return replace(
            self,
            tensors={id_: value[rows] for id_, value in self.tensors.items()},
            rows=tuple(self.rows[row] for row in rows),
        )

    @property
    def features(self) -> dict[str, torch.Tensor]:
        """The tensors that are pictures of channels: all but attention maps. Raises ValueError when there is none."""
        features = {id_: value for id_, value in self.tensors.items() if not is_map(id_)}
        if not features:
            raise ValueError(
                "These activations are attention maps only: tap others, such as up-level1-*-cross-q, for this node."
            )
        return features

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the finest feature."""
        return max((tuple(value.shape[-2:]) for value in self.features.values()), key=lambda size: size[0] * size[1])

    def stacked(self, size: tuple[int, int] | None = None) -> torch.Tensor:
        """All features in one float32 tensor (rows, channels of all, height, width), each resized bilinearly.

        As in the paper, no feature is normalised. Without ``size``, the finest feature's.
        """
        size = size or self.grid
        return torch.cat([resized(value, size) for value in self.features.values()], dim=1)

    def report(self) -> str:
        """One line a tensor: ID, shape and type."""
        level = f"sigma {self.sigma:.6f} (timestep {self.timestep:g})"
        head = f"{len(self.tensors)} activations at {level}, {len(self.rows)} rows"
        lines = [
            f"{id_}  {'x'.join(map(str, value.shape[1:]))}  {str(value.dtype).removeprefix('torch.')}"
            for id_, value in self.tensors.items()
        ]
        return "\n".join([head, *lines])


def is_map(id_: str) -> bool:
    """Whether an ID names attention probabilities."""
    return id_.endswith("-map")


def resized(feature: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """A feature (rows, channels, height, width) in float32 at another size, bilinearly, corners not aligned."""
    feature = feature.float()
    if tuple(feature.shape[-2:]) == tuple(size):
        return feature
    return F.interpolate(feature, size=tuple(size), mode="bilinear", align_corners=False)


def values_at(feature: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Values (P, C) of one row of a feature (C, H, W), enlarged bilinearly to ``size``, at rows and columns of it.

    Equal to ``resized`` followed by indexing, but for rounding, without the enlarged tensor.
    """
    up, down, vertical = _neighbours(rows, size[0], feature.shape[1])
    left, right, horizontal = _neighbours(columns, size[1], feature.shape[2])
    feature = feature.float()
    upper = torch.lerp(feature[:, up, left], feature[:, up, right], horizontal)
    lower = torch.lerp(feature[:, down, left], feature[:, down, right], horizontal)
    return torch.lerp(upper, lower, vertical).T


def _neighbours(positions: torch.Tensor, length: int, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The two of ``count`` cells around each pixel centre of an axis of ``length``, and the second's weight."""
    place = ((positions.float() + 0.5) * (count / length) - 0.5).clamp_min(0)
    first = place.floor().long().clamp_max(count - 1)
    return first, (first + 1).clamp_max(count - 1), place - first


def stored(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A copy on the CPU. What half precision cannot hold is clamped to its range, so that no infinity appears."""
    if dtype == torch.float16 and tensor.dtype != torch.float16:
        tensor = tensor.clamp(-HALF_MAX, HALF_MAX)
    return tensor.detach().to("cpu", dtype, copy=True)


class Mean:
    """The running mean of activations of the same rows, over draws of the noise."""

    def __init__(self):
        self._count, self._sums, self._last = 0, {}, None

    def add(self, activations: Activations) -> None:
        self._count, self._last = self._count + 1, activations
        if self._count == 1:
            self._sums = activations.tensors
            return
        self._sums = {id_: self._sums[id_].float() + value for id_, value in activations.tensors.items()}

    def result(self) -> Activations:
        """The mean in the type of what was added; the settings are those of the last."""
        if self._count == 1:
            return self._last
        means = {id_: stored(value / self._count, self._last.tensors[id_].dtype) for id_, value in self._sums.items()}
        return replace(self._last, tensors=means)
