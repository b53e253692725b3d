"""Activation statistics of neurons over ordinary prompts: the reference for the z-scores of NeMo.

Finding NeMo (arXiv 2406.02366), section 3.2: mean and standard deviation, over a set of prompts, of
the mean over all tokens of ``|to_v(text embedding)|``. Depends on the text alone, not on noise or
timestep, so no U-Net pass is needed. Of the hidden units of feed-forward layers: the mean over all
tokens that the layer sees, at the first step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ... import kernels

#: Relative L2 distance of two fingerprints of one layer above which they differ: rounding to
#: bfloat16 gives .002, a change of the weights by 1 % gives .01, rounding to float8 .03.
_FINGERPRINT_TOLERANCE = 0.004
#: A fingerprint: for each layer path the fixed projections of its outputs for a fixed input.
Fingerprint = dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class LayerStatistics:
    """Moments of one layer's neurons over prompts: float64 (C,)."""

    mean: torch.Tensor
    squares: torch.Tensor  # sum of squared deviations from the mean
    low: torch.Tensor
    high: torch.Tensor
    peak: torch.Tensor  # largest absolute value of any token of any prompt


@dataclass(frozen=True)
class Statistics:
    """Moments by layer path over ``count`` prompts, and the fingerprint of the model.

    Files of the official code hold neither count nor extremes: ``count`` is then 0, and the
    extremes are NaN.
    """

    count: int
    layers: dict[str, LayerStatistics]
    fingerprint: Fingerprint = field(default_factory=dict)
    source: str = ""

    def __str__(self) -> str:
        neurons = sum(len(one.mean) for one in self.layers.values())
        return (
            f"NEURON_STATISTICS: {neurons} neurons of {len(self.layers)} layers\nover {self.count} "
            "prompts"
        )

    def deviation(self, path: str) -> torch.Tensor:
        """Unbiased standard deviation of each neuron, (C,)."""
        return (self.layers[path].squares / max(self.count - 1, 1)).sqrt()

    def z(self, path: str, activations: torch.Tensor) -> torch.Tensor:
        """The z-score of each activation (C,); 0 where a neuron has never varied."""
        deviation = self.deviation(path)
        return torch.where(
            deviation > 0, (activations.double() - self.layers[path].mean) / deviation, 0.0
        )

    def check(self, layers: Sequence) -> None:
        """Raise ValueError where the statistics do not cover these layers in this width."""
        for layer in layers:
            measured = len(self.layers[layer.path].mean) if layer.path in self.layers else 0
            # a width of 0 is not known
            if not measured or (layer.width and measured != layer.width):
                raise ValueError(
                    f"The statistics do not cover {layer.name} with {layer.width} neurons: they "
                    "belong to another model or other layers. Run Neuron Statistics on this MODEL."
                )


def mean_activations(values: torch.Tensor) -> torch.Tensor:
    """Activation of each neuron on one prompt: mean over tokens of the absolute value; (tokens, C)
    -> (C,).
    """
    return values.float().abs().mean(dim=0)


def moments(values: torch.Tensor) -> LayerStatistics:
    """Moments of a layer's neurons over a batch of prompts (prompts, tokens, C)."""
    return LayerStatistics(*kernels.neuron_moments(values).cpu())


def layer_moments(values: dict[str, torch.Tensor]) -> dict[str, LayerStatistics]:
    """Moments of a batch of prompts: (prompts, tokens, C) by layer path."""
    return {path: moments(of_layer) for path, of_layer in values.items()}


def merge(first: Statistics, second: Statistics) -> Statistics:
    """The statistics of two sets of prompts together (Chan et al. 1979).

    Raises ValueError for different layers, different models, or files without a count.
    """
    if not first.count or not second.count:
        raise ValueError(
            "Statistics without a prompt count (the official .pt) cannot be merged: use them alone."
        )
    if {p: len(s.mean) for p, s in first.layers.items()} != {
        p: len(s.mean) for p, s in second.layers.items()
    }:
        raise ValueError(
            "The statistics cover different layers: measure both with the same model and layers."
        )
    if not same_model(first.fingerprint, second.fingerprint):
        raise ValueError(
            "The statistics belong to different models or LoRAs: measure both with the same MODEL."
        )
    count = first.count + second.count
    merged = {
        path: _merged(a, first.count, second.layers[path], second.count)
        for path, a in first.layers.items()
    }
    sources = dict.fromkeys(filter(None, (first.source, second.source)))
    return Statistics(count, merged, first.fingerprint, "; ".join(sources))


def _merged(a: LayerStatistics, count_a: int, b: LayerStatistics, count_b: int) -> LayerStatistics:
    total = count_a + count_b
    shift = b.mean - a.mean
    return LayerStatistics(
        mean=a.mean + shift * (count_b / total),
        squares=a.squares + b.squares + shift.square() * (count_a * count_b / total),
        low=torch.minimum(a.low, b.low),
        high=torch.maximum(a.high, b.high),
        peak=torch.maximum(a.peak, b.peak),
    )


def fingerprint(outputs: dict[str, torch.Tensor]) -> Fingerprint:
    """Thirty-two fixed random projections of a layer's outputs (rows, C) for a fixed input, by
    layer path.
    """
    result = {}
    for path, values in outputs.items():
        projections = torch.randn(32, values.numel(), generator=torch.Generator().manual_seed(2366))
        result[path] = tuple(
            float(f"{value:.5g}") for value in (projections @ values.float().flatten()).tolist()
        )
    return result


def same_model(first: Fingerprint, second: Fingerprint) -> bool:
    """Whether two fingerprints agree on the layers that both have, up to rounding of the weights to
    16 bits.

    A model in float8 is another one, since that rounding changes more than a small LoRA does.
    """
    return all(
        math.dist(first[path], second[path]) <= _FINGERPRINT_TOLERANCE * math.hypot(*first[path])
        for path in first.keys() & second.keys()
    )
