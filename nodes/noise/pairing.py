"""Noise that is drawn for a batch and then paired with the images it will be added to: a row of
`PAIRINGS` a mode.

Sampling, training and the gain estimate all call `pair`. They differ in where more noise samples
come from than were drawn for the batch: that is the `NoiseSource` which they hand over.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Protocol

import torch

from . import nearest
from .assignment import Call, Cost, Grouping, Groups, Pool, assign, pool_turns
from .batch_matrix import check_finite, flatten_batch, row_distances, unflatten_batch
from .nearest import NearestForm, check_k


class PairingMode(StrEnum):
    """How noise is paired with images."""

    OFF = "off"
    ASSIGN = "assign"
    POOL = "pool"
    NEAREST = "nearest"


@dataclass(frozen=True, kw_only=True)
class PairingSettings:
    """How noise is paired with images; raises ValueError for option values that do not exist."""

    pairing: PairingMode = PairingMode.ASSIGN
    cost: Cost = Cost.DOT_PRODUCT
    pool_size: int = 256
    pool_index: int = 0
    k: float = 4.0
    nearest_form: NearestForm = NearestForm.CLOSED_FORM
    grouping: Grouping = Grouping.IGNORE
    labels: str = ""
    penalty: float = 1.0

    def __post_init__(self) -> None:
        kinds = {
            "pairing": PairingMode,
            "cost": Cost,
            "nearest_form": NearestForm,
            "grouping": Grouping,
        }
        for name, kind in kinds.items():
            object.__setattr__(self, name, kind(getattr(self, name)))
        if self.pairing == PairingMode.NEAREST:
            check_k(self.k, self.nearest_form)

    @classmethod
    def of(cls, options: Any) -> PairingSettings:
        """The settings among the attributes of a larger set of options."""
        return cls(
            **{
                field.name: getattr(options, field.name)
                for field in fields(cls)
                if hasattr(options, field.name)
            }
        )

    def groups(self, labels: Sequence[str]) -> Groups | None:
        """The groups of a batch with these labels, one per image; None where they are ignored."""
        if self.grouping == Grouping.IGNORE:
            return None
        return Groups(labels, self.penalty if self.grouping == Grouping.PENALTY else None)


class Batch(Protocol):
    """The images of a LATENT as tensors; `host.latent_shapes.LatentView` says what each is."""

    @property
    def parts(self) -> list[torch.Tensor]: ...
    @property
    def weights(self) -> list[torch.Tensor] | None: ...
    @property
    def numbers(self) -> list[int]: ...
    @property
    def blank(self) -> torch.Tensor: ...


@dataclass(frozen=True)
class Selection:
    """The noise that a batch is given, as parts of one row per image, and the numbers of these
    noise samples.
    """

    noise: list[torch.Tensor]
    numbers: list[int]


class NoiseSource(Protocol):
    """More noise samples than were drawn for a batch, all of one law."""

    def from_pool(self, settings: PairingSettings, data: torch.Tensor, **options: Any) -> Selection:
        """The samples of a pool that the images `data` (B, D) own in turn `settings.pool_index`."""

    def from_candidates(
        self,
        settings: PairingSettings,
        data: torch.Tensor,
        weights: torch.Tensor | None,
        blank: torch.Tensor,
    ) -> Selection:
        """The nearest of k samples, the one drawn among them, for each image of `data` (B, D) that
        is not blank.
        """


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """Which noise each image has now, and what that changed."""

    noise: list[torch.Tensor]  # the parts of the noise, one row per image
    numbers: list[int]  # the number of each image's noise sample in the stream of draws
    before: torch.Tensor  # distance of each image from its noise as it was drawn
    after: torch.Tensor  # and now
    milliseconds: float
    moved: bool  # False: the noise is what was drawn, bit for bit


def pair(
    settings: PairingSettings,
    batch: Batch,
    drawn: list[torch.Tensor],
    source: NoiseSource | None,
    seed: int,
    labels: Sequence[str] | None = None,
    call: Call = lambda work: work(),
) -> Pairing:
    """Pair the noise `drawn` for a batch with its images.

    `source`, a `NoiseSource`, has more noise of the same stream; None where the pairing needs no
    more.

    `seed` begins the private stream of the closed form and the dot-product form of nearest; nothing
    else is random. `labels` group the images, in place of the lines of `settings.labels`. `call`
    makes the assignment, one long call, and may stop by raising. Raises ValueError for NaN, for
    labels that do not fit, and for noise that the law of nearest does not hold for.
    """
    started = time.perf_counter()
    data = flatten_batch(batch.parts)
    noise = flatten_batch(drawn)
    weights = None if batch.weights is None else flatten_batch(batch.weights)
    noise = noise.to(data.device)
    before = row_distances(data, noise, weights)
    as_drawn = Selection(drawn, batch.numbers)
    if bool((noise == noise[:1, :1]).all()):
        chosen = as_drawn
    else:
        given = _Given(
            settings=settings,
            batch=batch,
            drawn=as_drawn,
            data=data,
            noise=noise,
            weights=weights,
            source=source,
            seed=seed,
            labels=labels,
            call=call,
        )
        chosen = PAIRINGS[settings.pairing](given)
    same = chosen is as_drawn or all(
        torch.equal(a, b) for a, b in zip(chosen.noise, drawn, strict=True)
    )
    moved = chosen.numbers != batch.numbers or not same
    after = row_distances(data, flatten_batch(chosen.noise), weights) if moved else before
    milliseconds = 1000 * (time.perf_counter() - started)
    return Pairing(
        noise=chosen.noise if moved else drawn,
        numbers=chosen.numbers,
        before=before,
        after=after,
        milliseconds=milliseconds,
        moved=moved,
    )


@dataclass(frozen=True, kw_only=True)
class _Given:
    """What the pairings work on: `data`, `noise` and `weights` are the batch, its noise and its
    weights (B, D).
    """

    settings: PairingSettings
    batch: Batch
    drawn: Selection
    data: torch.Tensor
    noise: torch.Tensor
    weights: torch.Tensor | None
    source: NoiseSource | None
    seed: int
    labels: Sequence[str] | None
    call: Call

    @property
    def more(self) -> NoiseSource:
        """The source of more noise."""
        assert self.source is not None, "this pairing needs more noise than was drawn"
        return self.source

    @property
    def options(self) -> dict[str, Any]:
        """How assignments weigh the images."""
        groups = self.settings.groups(self.labels or _parse_labels(self.settings, len(self.data)))
        return {
            "cost": self.settings.cost,
            "groups": groups,
            "weights": self.weights,
            "call": self.call,
        }


def _assigned(given: _Given) -> Selection:
    """Immiscible diffusion (arXiv 2406.12303): the assignment of least distance within the
    batch.
    """
    order = assign(given.data, given.noise, **given.options).permutation.tolist()
    return Selection(
        [part[order] for part in given.drawn.noise], [given.drawn.numbers[index] for index in order]
    )


def _nearest(given: _Given) -> Selection:
    """The nearest of k samples for each image (arXiv 2505.18521)."""
    settings = given.settings
    check_finite(given.data, given.noise)
    if settings.nearest_form == NearestForm.OFFICIAL:
        return given.more.from_candidates(settings, given.data, given.weights, given.batch.blank)
    rows = given.data, given.noise, given.weights
    return Selection(
        _moved_by_law(settings, given.batch, drawn=given.drawn.noise, rows=rows, seed=given.seed),
        given.drawn.numbers,
    )


PAIRINGS: dict[PairingMode, Callable[[_Given], Selection]] = {
    PairingMode.OFF: lambda given: given.drawn,
    PairingMode.ASSIGN: _assigned,
    PairingMode.POOL: lambda given: given.more.from_pool(
        given.settings, given.data, **given.options
    ),
    PairingMode.NEAREST: _nearest,
}


Draw = Callable[
    [Sequence[int]], list[torch.Tensor]
]  # noise numbers -> the parts of these samples, one row each


class DrawnNoise:
    """Noise samples drawn by their numbers, those of a batch first; a pool is assigned once and
    then served.
    """

    def __init__(self, numbers: list[int], draw: Draw):
        self._numbers = numbers
        self._draw = draw
        self._pool: tuple[Pool, list[torch.Tensor], list[int]] | None = None

    def from_pool(self, settings: PairingSettings, data: torch.Tensor, **options: Any) -> Selection:
        """See `NoiseSource`."""
        if self._pool is None:
            numbers = self._next_numbers(pool_turns(settings.pool_size, len(data)))
            samples = self._draw(numbers)
            self._pool = Pool.build(data, flatten_batch(samples), **options), samples, numbers
        pool, samples, numbers = self._pool
        order = pool.serve(settings.pool_index).tolist()
        return Selection([part[order] for part in samples], [numbers[index] for index in order])

    def from_candidates(
        self,
        settings: PairingSettings,
        data: torch.Tensor,
        weights: torch.Tensor | None,
        blank: torch.Tensor,
    ) -> Selection:
        """See `NoiseSource`; distances in half precision, as in the official code."""
        numbers = self._next_numbers(int(settings.k))
        samples = self._draw(numbers)
        candidates = flatten_batch(samples).reshape(int(settings.k), len(data), -1)
        chosen = nearest.official(data, candidates, weights).cpu()
        chosen[blank.cpu()] = 0
        order = [int(candidate) * len(data) + row for row, candidate in enumerate(chosen)]
        return Selection([part[order] for part in samples], [numbers[index] for index in order])

    def _next_numbers(self, copies: int) -> list[int]:
        """The numbers of the batch's noise samples followed by those of `copies` - 1 further
        batches.
        """
        first = max(self._numbers) + 1
        return self._numbers + list(range(first, first + (copies - 1) * len(self._numbers)))


def _moved_by_law(
    settings: PairingSettings, batch: Batch, drawn: list[torch.Tensor], rows: tuple, seed: int
) -> list[torch.Tensor]:
    """The noise drawn, with the rows that a nearer one replaces made from it by the law of N(0,
    1).
    """
    data, noise, weights = rows
    deviation = float(noise.std())
    # Five standard errors of the deviation of Gaussian noise, and 0.1 for noise that is not quite
    # of deviation 1.
    if abs(deviation - 1) > 0.1 + 5 / math.sqrt(2 * noise.numel()):
        raise ValueError(
            f"The noise has standard deviation {deviation:.2f}, and the {settings.nearest_form} of "
            "nearest holds for Gaussian noise of 1 only: connect Random Noise, or choose the "
            "official form, assign or pool."
        )
    streams = nearest.random_streams(seed, batch.numbers)
    new = nearest.move_nearest(
        settings.nearest_form, data, noise=noise, k=settings.k, streams=streams, weights=weights
    )
    changed = (new != noise).any(dim=1) & ~batch.blank.to(new.device)
    result = [part.clone() for part in drawn]
    for part, moved in zip(result, unflatten_batch(new, drawn), strict=True):
        part[changed.to(part.device)] = moved[changed.to(moved.device)]
    return result


def _parse_labels(settings: PairingSettings, count: int) -> list[str]:
    """Labels from a text of one line per image; raises ValueError when there are not `count` of
    them.
    """
    labels = [line.strip() for line in settings.labels.strip().splitlines()]
    if settings.grouping != Grouping.IGNORE and len(labels) != count:
        raise ValueError(
            f"The batch contains {count} images and the labels have {len(labels)} lines: write one "
            "line per image, the same line for images of one group, or set grouping to ignore."
        )
    return labels
