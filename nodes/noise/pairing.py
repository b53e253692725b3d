"""NOISE that is drawn by another NOISE and then paired with the pictures it will be added to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from . import groups, nearest
from .assignment import assign
from .pool import Pool, turns
from .rows import distances, parts, rows
from .settings import ASSIGN, NEAREST, OFF, POOL, Settings

# Standard deviation of Gaussian noise in a batch, give or take: what moves noise by the law of N(0, 1) checks it.
_UNIT = (0.9, 1.1)


class View(Protocol):
    """A LATENT as the method sees it; see `host.latents.LatentView`."""

    parts: list[torch.Tensor]
    weights: list[torch.Tensor] | None
    numbers: list[int]
    blank: torch.Tensor


Draw = Callable[[Sequence[int]], list[torch.Tensor]]  # noise numbers -> the parts of their noises, one a row


@dataclass(frozen=True)
class Pairing:
    """Which noise each picture has now, and what that changed."""

    noise: list[torch.Tensor]  # the parts of the noise, one row a picture
    numbers: list[int]  # the number of each picture's noise in the stream of draws
    before: torch.Tensor  # distance of each picture from its noise as it was drawn
    after: torch.Tensor  # and now
    solver: str
    milliseconds: float
    moved: bool  # False: the noise is what was drawn, bit for bit


def pair(settings: Settings, view: View, drawn: list[torch.Tensor], draw: Draw, seed: int) -> Pairing:
    """Pair the noise `drawn` for a batch with its pictures; `draw` gives more noises of the same stream.

    `seed` begins the private stream of the closed form and the dot-product form of nearest; nothing else is random.
    """
    started = time.perf_counter()
    data, noise = rows(view.parts), rows(drawn)
    weights = None if view.weights is None else rows(view.weights)
    noise = noise.to(data.device)
    before = distances(data, noise, weights)
    if settings.mode == OFF or bool((noise == noise[:1, :1]).all()):
        new, numbers, solver = drawn, view.numbers, "none"
    elif settings.mode == NEAREST and settings.form != nearest.OFFICIAL:
        new, numbers, solver = _moved(settings, view, drawn, (data, noise, weights), seed), view.numbers, settings.form
    else:
        choose = {ASSIGN: _assigned, POOL: _pooled, NEAREST: _nearest}[settings.mode]
        new, numbers, solver = choose(settings, view, drawn, draw, (data, weights))
    moved = numbers != view.numbers or any(not torch.equal(a, b) for a, b in zip(new, drawn, strict=True))
    after = distances(data, rows(new), weights) if moved else before
    return Pairing(new, numbers, before, after, solver, 1000 * (time.perf_counter() - started), moved)


def _assigned(settings: Settings, view: View, drawn: list[torch.Tensor], draw: Draw, batch: tuple):
    data, weights = batch
    result = assign(data, rows(drawn), **_options(settings, len(data)), weights=weights)
    order = result.permutation.tolist()
    return [part[order] for part in drawn], [view.numbers[index] for index in order], result.solver


def _pooled(settings: Settings, view: View, drawn: list[torch.Tensor], draw: Draw, batch: tuple):
    data, weights = batch
    numbers = _more(view.numbers, turns(settings.pool_size, len(data)))
    noises = draw(numbers)
    pool = Pool.build(data, rows(noises), **_options(settings, len(data)), weights=weights)
    order = pool.serve(settings.turn).tolist()
    if order == list(range(len(data))):
        return drawn, view.numbers, pool.assignment.solver
    return [part[order] for part in noises], [numbers[index] for index in order], pool.assignment.solver


def _nearest(settings: Settings, view: View, drawn: list[torch.Tensor], draw: Draw, batch: tuple):
    data, weights = batch
    count = len(data)
    numbers = _more(view.numbers, int(settings.k))
    noises = draw(numbers)
    chosen = nearest.official(data, rows(noises).reshape(int(settings.k), count, -1), weights).cpu()
    chosen[view.blank.cpu()] = 0
    order = [int(candidate) * count + row for row, candidate in enumerate(chosen)]
    if order == list(range(count)):
        return drawn, view.numbers, nearest.OFFICIAL
    return [part[order] for part in noises], [numbers[index] for index in order], nearest.OFFICIAL


def _moved(settings: Settings, view: View, drawn: list[torch.Tensor], batch: tuple, seed: int) -> list[torch.Tensor]:
    """The noise drawn, with the rows that a nearer one replaces made from it by the law of N(0, 1)."""
    data, noise, weights = batch
    if not _UNIT[0] < float(noise.std()) < _UNIT[1]:
        raise ValueError(
            f"The noise has standard deviation {float(noise.std()):.2f}, and the {settings.form} of nearest holds for "
            "Gaussian noise of 1 only: link Random Noise, or choose the official form, assign or pool."
        )
    streams = nearest.streams(seed, view.numbers)
    if settings.form == nearest.DOT:
        new = nearest.dot_form(data, noise, settings.k, streams, weights)
    else:
        new = nearest.closed_form(data, noise, int(settings.k), streams, weights)
    changed = (new != noise).any(dim=1) & ~view.blank.to(new.device)
    result = [part.clone() for part in drawn]
    for part, moved in zip(result, parts(new, drawn), strict=True):
        part[changed.to(part.device)] = moved[changed.to(moved.device)]
    return result


def _options(settings: Settings, count: int) -> dict:
    grouped = groups.make(settings.grouping, settings.labels, settings.penalty, count)
    return {"cost": settings.cost, "groups": grouped, "solver": settings.solver}


def _more(numbers: list[int], copies: int) -> list[int]:
    """The numbers of a batch's noises followed by those of `copies` - 1 further batches."""
    first = max(numbers) + 1
    return numbers + list(range(first, first + (copies - 1) * len(numbers)))
