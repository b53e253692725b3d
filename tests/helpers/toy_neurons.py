"""A small random network with three value layers, as a plain function, and the official rules: to
test searches on.
"""

from __future__ import annotations

import math

import torch
from glassbox.nodes.neurons.memorization_score import noise_difference, similarity
from glassbox.nodes.neurons.neuron_layers import NeuronLayer

LAYERS = (
    NeuronLayer("input_blocks.1.1.transformer_blocks.0.attn2.to_v", "down", 24),
    NeuronLayer("input_blocks.2.1.transformer_blocks.0.attn2.to_v", "down", 16),
    NeuronLayer("middle_block.1.transformer_blocks.0.attn2.to_v", "middle", 20),
)


class Toy:
    """``predict(noise, factors)``: an image that the neurons make together, over what depends on
    the noise.
    """

    def __init__(self, side: int = 16, channels: int = 2, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(*shape, generator=generator)

        self.values = {
            layer.path: draw(layer.width) * (draw(layer.width) > 0.8) * 3 for layer in LAYERS
        }
        self.weights = {layer.path: draw(layer.width, channels * side * side) for layer in LAYERS}
        self.mix = draw(channels, channels, 3, 3) / 5
        self.shape = (channels, side, side)

    def __call__(self, noise: torch.Tensor, factors: dict | None = None) -> torch.Tensor:
        generated = torch.zeros(len(noise), *self.shape)
        for path, values in self.values.items():
            factor = (factors or {}).get(path, torch.ones(1, len(values)))
            of_layer = (values * factor) @ self.weights[path]
            generated = (generated + of_layer.view(-1, *self.shape)).tanh() * 2
        return noise + torch.conv2d(noise, self.mix, padding=1) + generated

    @property
    def z(self) -> list[torch.Tensor]:
        return [self.values[layer.path] * 1.5 for layer in LAYERS]

    @property
    def activations(self) -> list[torch.Tensor]:
        return [self.values[layer.path].abs() for layer in LAYERS]

    def noise(self, rows: int = 4) -> torch.Tensor:
        return torch.randn((rows, *self.shape), generator=torch.Generator().manual_seed(1))


def transcription(predict, layers, all_z, activations, noise: torch.Tensor, threshold: float):
    """The official rules one after another: scripts 3's loop and the refinement, without any
    cleverness.

    Returns the trace (theta, k, neurons listed, score), the initial and the refined neurons.
    """
    untouched = noise_difference(predict(noise), noise)

    def mem(chosen):
        factors = {}
        for layer, indices in zip(layers, chosen, strict=True):
            factor = torch.ones(len(noise), layer.width)
            factor[:, indices] = 0
            factors[layer.path] = factor
        blocked = noise_difference(predict(noise, factors), noise)
        return float(similarity(blocked, untouched).max())

    theta, k, ssim, trace, reference = 5.0, 0, 1.0, [], threshold
    while ssim > threshold:
        chosen = []
        for z, activation in zip(all_z, activations, strict=True):
            over = [i for i, value in enumerate(z.tolist()) if abs(value) > theta]
            top = activation.topk(math.ceil(k * min(len(z) / 320, 1))).indices.tolist()
            chosen.append(over + top)
        ssim = mem(chosen)
        trace.append((theta, k, sum(map(len, chosen)), ssim))
        if ssim > threshold:
            theta, k = (theta - 0.25 if theta > 1 else theta), k + 1
            if theta == 1 or k >= 1280:
                reference = ssim
                break
    initial, kept = [list(c) for c in chosen], [list(c) for c in chosen]
    for layer in reversed(range(len(layers))):
        if kept[layer]:
            without = [[] if i == layer else c for i, c in enumerate(kept)]
            if mem(without) < reference:
                kept = without
    for layer in reversed(range(len(layers))):
        for index in list(kept[layer]):
            without = [list(c) for c in kept]
            without[layer].remove(index)
            if mem(without) < reference:
                kept = without
    return trace, initial, kept
