"""Activations as data: the tensors by ID, the noise level, and what each row is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import torch
from torch.nn import functional as F

_FP16_MAX = torch.finfo(torch.float16).max
#: The setting with the number of frames of each latent; every frame is a row, those of the first
#: latent first.
FRAMES = "frames"
#: The setting with height and width of the positions of each attention map, by ID.
MAP_SIZES = "map_sizes"
#: The setting with the marks of the encoded text (tokens, 4) of the positive ("True") and negative
#: ("False") rows.
TEXT_MARKS = "text_marks"


@dataclass(frozen=True)
class Row:
    """One row of every tensor: the image of the batch, and whether its conditioning was the
    positive one.

    The images of a video are the frames of its latent. ``text_tokens``: how many of the keys of
    attention maps are of this row's text, where maps are among the tensors; the others are zero, so
    that texts of unequal length fit.
    """

    image: int
    conditional: bool = True
    text_tokens: int | None = None


class Weighting(StrEnum):
    """How several activations are joined. Values of the ``weighting`` input."""

    EQUAL = "equal"  # each at unit length, so that none dominates cosine similarity
    RAW = "raw"  # as they are, as in the paper's joint features


@dataclass(frozen=True)
class Activations:
    """Activations by ID in the network's forward order, all with the same rows.

    Features are (rows, channels, height, width), attention maps (rows, heads, positions, keys), on
    the CPU in float16, bfloat16 or float32. ``settings`` holds how they were computed: seed, step
    and so on, as plain numbers and texts.
    """

    tensors: dict[str, torch.Tensor]
    rows: tuple[Row, ...]
    sigma: float
    timestep: float
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        first, *_, last = (*self.tensors, *self.tensors)
        return (
            f"ACTIVATIONS: {len(self.tensors)} IDs at sigma {self.sigma:.4g}, {len(self.rows)} "
            f"rows, {sum(one.nbytes for one in self.tensors.values()) / 2**20:.1f} MiB\n{first} to "
            f"{last}"
        )

    def select(self, ids: Iterable[str]) -> Activations:
        """These IDs alone, in forward order."""
        ids = set(ids)
        return replace(
            self, tensors={id_: value for id_, value in self.tensors.items() if id_ in ids}
        )

    def select_rows(self, rows: list[int]) -> Activations:
        """These rows alone; views of the tensors where the rows follow one another."""
        chosen = (
            slice(rows[0], rows[-1] + 1)
            if rows and rows == [*range(rows[0], rows[-1] + 1)]
            else rows
        )
        return replace(
            self,
            tensors={id_: value[chosen] for id_, value in self.tensors.items()},
            rows=tuple(self.rows[row] for row in rows),
        )

    def computed(self, run: Callable, work: Callable, *beside: torch.Tensor) -> Any:
        """``work(activations, *beside)`` where ``run(work, *tensors)`` does it:
        `host.compute.on_device` for one.
        """

        def moved(*tensors: torch.Tensor) -> Any:
            own = dict(zip(self.tensors, tensors[len(beside) :], strict=True))
            return work(replace(self, tensors=own), *tensors[: len(beside)])

        return run(moved, *beside, *self.tensors.values())

    @property
    def features(self) -> dict[str, torch.Tensor]:
        """All tensors but the attention maps. Raises ValueError when there is none."""
        features = {id_: value for id_, value in self.tensors.items() if not id_.endswith("-map")}
        if not features:
            raise ValueError(
                "These activations are attention maps only. Tap features, such as "
                "up-level1-*-cross-q."
            )
        return features

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the finest feature."""
        sizes = ((value.shape[-2], value.shape[-1]) for value in self.features.values())
        return max(sizes, key=lambda size: size[0] * size[1])

    def joined(
        self, weighting: str = Weighting.EQUAL, size: tuple[int, int] | None = None
    ) -> torch.Tensor:
        """All features as one float32 tensor (rows, channels of all, height, width), each resized
        bilinearly.

        Several features of equal weight are scaled to unit length at each position; a single one
        stays as it is. Without ``size``, at the size of the finest feature.
        """
        size = size or self.grid
        features = [resize(value, size) for value in self.features.values()]
        if weighting == Weighting.EQUAL and len(features) > 1:
            features = [F.normalize(feature, dim=1) for feature in features]
        return torch.cat(features, dim=1)

    def report(self) -> str:
        """Noise level and rows, then one line per tensor: ID, shape and type."""
        lines = [
            f"{len(self.tensors)} activations at sigma {self.sigma:.6f} (timestep "
            f"{self.timestep:g}), {len(self.rows)} rows"
        ]
        for id_, value in self.tensors.items():
            shape = "x".join(map(str, value.shape[1:]))
            dtype = str(value.dtype).removeprefix("torch.")
            lines.append(f"{id_}  {shape}  {dtype}")
        return "\n".join(lines)


def resize(feature: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """A feature (rows, channels, height, width) in float32 at another size, bilinear, corners not
    aligned.
    """
    feature = feature.float()
    if tuple(feature.shape[-2:]) == tuple(size):
        return feature
    return F.interpolate(feature, size=tuple(size), mode="bilinear", align_corners=False)


def values_at(
    feature: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, size: tuple[int, int]
) -> torch.Tensor:
    """Values (P, C) of one row of a feature (C, H, W), resized bilinearly to ``size``, at pixels of
    that size.

    Equal to ``resize`` followed by indexing up to rounding, without the enlarged tensor.
    """
    up, down, vertical = neighbors(rows, size[0], feature.shape[1])
    left, right, horizontal = neighbors(columns, size[1], feature.shape[2])
    feature = feature.float()
    upper = torch.lerp(feature[:, up, left], feature[:, up, right], horizontal)
    lower = torch.lerp(feature[:, down, left], feature[:, down, right], horizontal)
    return torch.lerp(upper, lower, vertical).T


def enlarge(maps: torch.Tensor, side: int) -> torch.Tensor:
    """Maps (P, H, W) at ``side`` x ``side``, bilinear as ``values_at``; constant beyond the outer
    cells' centers.
    """
    positions = torch.arange(side, device=maps.device)
    up, down, vertical = neighbors(positions, side, maps.shape[1])
    left, right, horizontal = neighbors(positions, side, maps.shape[2])
    lines = torch.lerp(maps[:, :, left], maps[:, :, right], horizontal)
    return torch.lerp(lines[:, up], lines[:, down], vertical[:, None])


def neighbors(
    positions: torch.Tensor, length: int, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The two of ``count`` cells around each pixel center of an axis of ``length``, and the
    second's weight.
    """
    place = ((positions.float() + 0.5) * (count / length) - 0.5).clamp(0, count - 1)
    first = place.floor().long()
    return first, (first + 1).clamp_max(count - 1), place - first


def cpu_copy(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A copy on the CPU. Values beyond the range of float16 are clamped to it, so that no infinity
    appears.
    """
    if dtype == torch.float16 and tensor.dtype != torch.float16:
        tensor = tensor.clamp(-_FP16_MAX, _FP16_MAX)
    return tensor.detach().to("cpu", dtype, copy=True)


class CpuCopies:
    """The copies to the CPU that one call of a network makes: into pinned memory and asynchronous
    where it is on CUDA.

    ``wait`` before the first is read. It waits for the device once, and not at all when the copies
    are done.
    """

    def __init__(self):
        self._event: torch.cuda.Event | None = None

    def copy(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """``cpu_copy``, on its way."""
        if not tensor.is_cuda:
            return cpu_copy(tensor, dtype)
        if dtype == torch.float16 and tensor.dtype != torch.float16:
            tensor = tensor.clamp(-_FP16_MAX, _FP16_MAX)
        target = self.empty(tensor, tensor.shape, dtype)
        self.write(target, tensor)
        return target

    def empty(self, source: torch.Tensor, shape: Iterable[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor on the CPU for what is computed where ``source`` is."""
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=source.is_cuda)

    def write(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy into ``empty``'s tensor, or a contiguous part of it. The type is converted on the
        device.
        """
        if not source.is_cuda:
            target.copy_(source)
            return
        target.copy_(source.detach().to(target.dtype).contiguous(), non_blocking=True)
        self._event = self._event or torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(source.device))

    def wait(self) -> None:
        """Until all copies are there."""
        if self._event is not None and not self._event.query():
            self._event.synchronize()
        self._event = None


class DeviceCopies(CpuCopies):
    """The same interface for tensors that are summed where they are: nothing goes to the CPU,
    nothing waits.
    """

    def copy(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A copy in float32: sums of many steps are rounded once, at their end."""
        return tensor.detach().to(torch.float32, copy=True)

    def empty(self, source: torch.Tensor, shape: Iterable[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor in float32 where ``source`` is."""
        return torch.empty(tuple(shape), dtype=torch.float32, device=source.device)

    def write(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)


def mean(batches: Iterable[Activations]) -> Activations:
    """The mean of activations of the same rows, summed in float32, in their own type; settings are
    the last's.
    """
    sums: dict[str, torch.Tensor] = {}
    count = 0
    rows = None
    texts = None
    for last in batches:
        count += 1
        if sums and last.settings.get(TEXT_MARKS) != texts:
            raise ValueError(
                "The recorded steps are of different prompts (a prompt schedule), whose words "
                "have no common map. Record and average steps of one prompt."
            )
        texts = last.settings.get(TEXT_MARKS)
        if sums and last.rows != rows:
            raise ValueError(
                "The recorded steps have different rows. Average fewer steps, or record "
                "conditional rows."
            )
        rows = last.rows
        for id_, value in last.tensors.items():
            if id_ in sums and sums[id_].shape != value.shape:
                raise ValueError(
                    f"{id_} has {' x '.join(map(str, value.shape[2:]))} positions in one recorded "
                    f"step and {' x '.join(map(str, sums[id_].shape[2:]))} in another, because "
                    "another node changes the network's sizes within the run. Record and average "
                    "steps of one size."
                )
            sums[id_] = sums[id_].float() + value if id_ in sums else value
    if count == 1:
        return last
    return replace(
        last,
        tensors={
            id_: cpu_copy(sums[id_] / count, value.dtype) for id_, value in last.tensors.items()
        },
    )
