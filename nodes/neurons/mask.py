"""A neuron mask: which value neurons are scaled, by how much, and where that comes from.

Finding NeMo (arXiv 2406.02366), section 3: a memorised prompt is kept from replicating by setting its neurons to 0. The
official code scales a neuron's output, which is the same as scaling its row of ``to_v``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch

from .layers import ValueLayer

#: What reports and pages say wherever a mask is made or used.
CAVEATS = (
    "A mask blocks one way from a prompt to a picture; it does not remove the picture from the model.",
    "Paraphrases and other text embeddings can bring the picture back: take no mask for a guarantee or a proof of "
    "deletion.",
    "A mask belongs to the checkpoint, the statistics and the threshold that it was found with: find it again after a "
    "LoRA or a merge.",
    "Found neurons vary with seeds and precision, a search may end without converging, and about one ordinary prompt "
    "in "
    "nine gets a mask too (paper: 11.6 %).",
    "Template memorisation, where only parts of a picture return, is often blocked in part only.",
)

Scales = dict[str, dict[int, float]]


@dataclass(frozen=True)
class Finding:
    """What was found for one prompt: neurons by layer, whether the search converged, and what was measured."""

    prompt: str
    neurons: dict[str, tuple[int, ...]]
    converged: bool
    details: dict = field(default_factory=dict)


@dataclass(frozen=True)
class NeuronMask:
    """Factor of each masked neuron by layer path (0 switches it off), and the findings that it was made from."""

    scales: Scales
    findings: tuple[Finding, ...] = ()
    fingerprint: dict[str, float] = field(default_factory=dict)
    history: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many neurons are masked."""
        return sum(len(of_layer) for of_layer in self.scales.values())

    @property
    def neurons(self) -> list[tuple[str, int]]:
        """Layer path and index of each masked neuron."""
        return [(path, index) for path, of_layer in self.scales.items() for index in of_layer]

    def with_scales(self, scales: Scales, step: str) -> NeuronMask:
        """The same origin with other neurons; ``step`` says in words what was done."""
        return replace(self, scales=tidy(scales), history=(*self.history, step))


def tidy(scales: Scales) -> Scales:
    """Layers without neurons left out, neurons in ascending order."""
    return {path: dict(sorted(of_layer.items())) for path, of_layer in scales.items() if of_layer}


def of_neurons(neurons: Iterable[tuple[str, int]], scale: float = 0.0) -> Scales:
    """Scales that give each neuron the same factor."""
    scales: Scales = {}
    for path, index in neurons:
        scales.setdefault(path, {})[index] = scale
    return tidy(scales)


def factors(mask: NeuronMask, layers: list[ValueLayer], strength: float = 1.0) -> dict[str, torch.Tensor]:
    """Factor of every channel (C,) by layer path, 1 + strength (scale - 1); layers that nothing changes are left out.

    Raises ValueError for a layer or a neuron that the network does not have.
    """
    widths = {layer.path: layer.width for layer in layers}
    result = {}
    for path, of_layer in mask.scales.items():
        if path not in widths:
            raise ValueError(f"This MODEL has no layer {path}: the mask was made for another architecture.")
        if max(of_layer) >= widths[path]:
            raise ValueError(
                f"{path} has {widths[path]} neurons here and the mask names number {max(of_layer)}: it was made for "
                "another architecture."
            )
        factor = torch.ones(widths[path])
        for index, scale in of_layer.items():
            factor[index] = 1 + strength * (scale - 1)
        if bool((factor != 1).any()):
            result[path] = factor
    return result
