"""How active each neuron is on ordinary prompts: the reference that tells which neurons stand out on another prompt.

Finding NeMo (arXiv 2406.02366), section 3.2: mean and deviation, over a set of prompts, of the mean over all tokens of
``|to_v(text embedding)|``. Depends on the text alone, not on noise or timestep, so no U-Net pass is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from ... import kernels

#: Rounding weights to float8 (e4m3) moves a fingerprint of the demo model by .003, to bfloat16 by .0003.
_FINGERPRINT_TOLERANCE = 0.005


@dataclass(frozen=True)
class LayerStatistics:
    """Moments of one layer's neurons over prompts: float64 (C,)."""

    mean: torch.Tensor
    squares: torch.Tensor  # sum of squared deviations from the mean
    low: torch.Tensor
    high: torch.Tensor


@dataclass(frozen=True)
class Statistics:
    """Moments by layer path over ``count`` prompts, and which model they are of: ``fingerprint`` is the
    mean size of each layer's answer to a fixed input.

    Files of the official code say neither count nor extremes: ``count`` is then 0 and ``low``, ``high`` are NaN.
    """

    count: int
    layers: dict[str, LayerStatistics]
    fingerprint: dict[str, float] = field(default_factory=dict)
    source: str = ""

    def deviation(self, path: str) -> torch.Tensor:
        """Unbiased standard deviation of each neuron, (C,)."""
        return (self.layers[path].squares / max(self.count - 1, 1)).sqrt()

    def z(self, path: str, activations: torch.Tensor) -> torch.Tensor:
        """How many deviations each activation (C,) lies from the mean; 0 where a neuron has never varied."""
        deviation = self.deviation(path)
        return torch.where(deviation > 0, (activations.double() - self.layers[path].mean) / deviation, 0.0)

    def check(self, layers: list) -> None:
        """Raise ValueError when these are not the statistics of a network with these layers."""
        for layer in layers:
            if layer.path not in self.layers or len(self.layers[layer.path].mean) != layer.width:
                raise ValueError(
                    f"The statistics do not cover {layer.name} with {layer.width} neurons: they are of another model "
                    "or "
                    "of other layers, so make them with Neuron Statistics on this MODEL."
                )


def activations(values: torch.Tensor) -> torch.Tensor:
    """Activation of each neuron on one prompt: mean over tokens of the absolute value; (tokens, C) -> (C,)."""
    return values.float().abs().mean(dim=0)


def measure(values: dict[str, torch.Tensor]) -> dict[str, LayerStatistics]:
    """Statistics of a batch of prompts: (prompts, tokens, C) by layer path."""
    return {path: LayerStatistics(*kernels.neuron_moments(of_layer).cpu()) for path, of_layer in values.items()}


def merge(first: Statistics, second: Statistics) -> Statistics:
    """The statistics of two sets of prompts together (Chan et al. 1979).

    Raises ValueError for different layers, different models, or files without a count.
    """
    if not first.count or not second.count:
        raise ValueError("Statistics without a number of prompts (the official .pt) cannot be merged: use them alone.")
    if {p: len(s.mean) for p, s in first.layers.items()} != {p: len(s.mean) for p, s in second.layers.items()}:
        raise ValueError("These statistics are of different layers: measure both with the same model and layers.")
    if not same_model(first.fingerprint, second.fingerprint):
        raise ValueError("These statistics are of different models or LoRAs: measure both with the same MODEL.")
    count = first.count + second.count
    merged = {path: _merged(a, first.count, second.layers[path], second.count) for path, a in first.layers.items()}
    sources = dict.fromkeys(filter(None, (first.source, second.source)))
    return Statistics(count, merged, first.fingerprint, "; ".join(sources))


def _merged(a: LayerStatistics, count_a: int, b: LayerStatistics, count_b: int) -> LayerStatistics:
    total, shift = count_a + count_b, b.mean - a.mean
    return LayerStatistics(
        a.mean + shift * (count_b / total),
        a.squares + b.squares + shift.square() * (count_a * count_b / total),
        torch.minimum(a.low, b.low),
        torch.maximum(a.high, b.high),
    )


def same_model(first: dict[str, float], second: dict[str, float]) -> bool:
    """Whether two fingerprints agree where both say something; how weights are rounded does not matter.

    A model that is trained on a little has nearly the same fingerprint: agreement is no proof.
    """
    shared = first.keys() & second.keys()
    return all(math.isclose(first[path], second[path], rel_tol=_FINGERPRINT_TOLERANCE) for path in shared)
