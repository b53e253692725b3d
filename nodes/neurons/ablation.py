"""Which value layers carry a memorised prompt: each is silenced in turn, and the parts of the U-Net whole.

Finding NeMo (arXiv 2406.02366), appendix C.8, did so to choose the seven layers that it searches in SD1.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from .layers import DOWN, MIDDLE, UP, ValueLayer
from .memorization import Predict, Score, difference, pairwise, similarity

#: Layers count as carrying the prompt from this share of the strongest layer's effect on.
_SHARE = 0.25


@dataclass(frozen=True)
class Effect:
    """What silencing some layers did: the score between seeds that is left, and likeness to the open network."""

    name: str
    layers: tuple[ValueLayer, ...]
    score: float
    same_seed: float


def groups(layers: list[ValueLayer]) -> list[tuple[str, list[ValueLayer]]]:
    """What is silenced in turn: the parts of the U-Net, down with middle as the paper searches them, and each layer."""
    parts = {
        "down": [layer for layer in layers if layer.part == DOWN],
        "middle": [layer for layer in layers if layer.part == MIDDLE],
        "down, middle": [layer for layer in layers if layer.part != UP],
        "up": [layer for layer in layers if layer.part == UP],
        "all": layers,
    }
    return [*((name, part) for name, part in parts.items() if part), *((layer.name, [layer]) for layer in layers)]


def measure(
    predict: Predict,
    noise: torch.Tensor,
    layers: list[ValueLayer],
    tracked: Callable[[Iterable], Iterator] = iter,
) -> tuple[float, list[Effect]]:
    """The score of the open network and the effect of each of ``groups``; one batch of evaluations for each."""
    untouched = difference(predict(noise), noise)
    effects = []
    for name, silenced in tracked(groups(layers)):
        factors = {layer.path: torch.zeros(layer.width) for layer in silenced}
        blocked = difference(predict(noise, factors), noise)
        left, same = Score(pairwise(blocked)).value, float(similarity(blocked, untouched).max())
        effects.append(Effect(name, tuple(silenced), left, same))
    return Score(pairwise(untouched)).value, effects


def mean(results: list[tuple[float, list[Effect]]]) -> tuple[float, list[Effect]]:
    """The mean over several prompts."""
    count = len(results)
    rows = zip(*(effects for _, effects in results), strict=True)
    averaged = [
        Effect(row[0].name, row[0].layers, sum(e.score for e in row) / count, sum(e.same_seed for e in row) / count)
        for row in rows
    ]
    return sum(score for score, _ in results) / count, averaged


def suggestion(effects: list[Effect]) -> list[ValueLayer]:
    """The layers that change the first step most when silenced alone: those to search with NeMo Localize.

    Only layers of the part that does nearly all that silencing everything does: the paper's (down and middle) if it
    does, else up, else all.
    """
    by_name = {effect.name: effect for effect in effects}
    wanted = 0.8 * (1 - by_name["all"].same_seed)
    enough = [name for name in ("down, middle", "up") if name in by_name and 1 - by_name[name].same_seed >= wanted]
    part = by_name[enough[0] if enough else "all"].layers
    alone = {layer.path: 1 - by_name[layer.name].same_seed for layer in part}
    least = _SHARE * max(alone.values())
    return [layer for layer in part if alone[layer.path] >= least]
