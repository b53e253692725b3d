"""Layer ablation: which layers carry a memorized prompt.

Finding NeMo (arXiv 2406.02366), appendix C.8, chose in this way the seven layers that it searches
in SD1.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from .memorization_score import (
    Predict,
    PromptScore,
    noise_difference,
    pairwise_similarity,
    similarity,
)
from .neuron_layers import BlockPart, NeuronLayer

#: Layers count as carrying the prompt from this fraction of the strongest layer's effect on.
_MIN_EFFECT = 0.25


@dataclass(frozen=True)
class LayerEffect:
    """The effect of silencing some layers: the score between seeds that is left, and the similarity
    to the untouched network at the same seed.
    """

    name: str
    layers: tuple[NeuronLayer, ...]
    score: float
    same_seed: float


def layer_groups(layers: list[NeuronLayer]) -> list[tuple[str, list[NeuronLayer]]]:
    """What is silenced in turn: the parts of the U-Net, down with middle as the paper searches
    them, and each layer.
    """
    by_part = {part: [layer for layer in layers if layer.part == part] for part in BlockPart}
    down, middle, up = (by_part[part] for part in (BlockPart.DOWN, BlockPart.MIDDLE, BlockPart.UP))
    parts = {
        "down": down,
        "middle": middle,
        "down, middle": [*down, *middle],
        "up": up,
        "all": layers,
    }
    return [
        *((name, part) for name, part in parts.items() if part),
        *((layer.name, [layer]) for layer in layers),
    ]


def ablate_layers(
    predict: Predict,
    noise: torch.Tensor,
    layers: list[NeuronLayer],
    with_progress: Callable[[Iterable], Iterator] = iter,
) -> tuple[float, list[LayerEffect]]:
    """The score of the untouched network and the effect of each of ``layer_groups``; one batch
    each.
    """
    untouched = noise_difference(predict(noise), noise)
    effects = []
    for name, silenced in with_progress(layer_groups(layers)):
        factors = {layer.path: torch.zeros(layer.width) for layer in silenced}
        masked = noise_difference(predict(noise, factors), noise)
        left = PromptScore(pairwise_similarity(masked)).value
        effects.append(
            LayerEffect(name, tuple(silenced), left, float(similarity(masked, untouched).max()))
        )
    return PromptScore(pairwise_similarity(untouched)).value, effects


def average_effects(
    results: list[tuple[float, list[LayerEffect]]],
) -> tuple[float, list[LayerEffect]]:
    """The mean over several prompts."""
    count = len(results)
    rows = zip(*(effects for _, effects in results), strict=True)
    averaged = [
        LayerEffect(
            row[0].name,
            row[0].layers,
            sum(e.score for e in row) / count,
            sum(e.same_seed for e in row) / count,
        )
        for row in rows
    ]
    return sum(score for score, _ in results) / count, averaged


def suggest_layers(effects: list[LayerEffect]) -> list[NeuronLayer]:
    """The layers that change the first step most when silenced alone: those to search with NeMo
    Localize.

    Only layers of the part that has nearly the effect of silencing everything: the paper's (down
    and middle) if it has, else up, else all.
    """
    by_name = {effect.name: effect for effect in effects}
    required = 0.8 * (1 - by_name["all"].same_seed)
    enough = [
        name
        for name in ("down, middle", "up")
        if name in by_name and 1 - by_name[name].same_seed >= required
    ]
    part = by_name[enough[0] if enough else "all"].layers
    alone = {layer.path: 1 - by_name[layer.name].same_seed for layer in part}
    least = _MIN_EFFECT * max(alone.values())
    return [layer for layer in part if alone[layer.path] >= least]
