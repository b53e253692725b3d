"""A small random network with three value layers, as a plain function: what the searches are tested on."""

from __future__ import annotations

import torch
from glassbox.nodes.neurons.layers import ValueLayer

LAYERS = (
    ValueLayer("input_blocks.1.1.transformer_blocks.0.attn2.to_v", "down", 24),
    ValueLayer("input_blocks.2.1.transformer_blocks.0.attn2.to_v", "down", 16),
    ValueLayer("middle_block.1.transformer_blocks.0.attn2.to_v", "middle", 20),
)


class Toy:
    """``predict(noise, factors)``: a picture that the neurons paint together, over what depends on the noise."""

    def __init__(self, side: int = 16, channels: int = 2, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(*shape, generator=generator)

        self.values = {layer.path: draw(layer.width) * (draw(layer.width) > 0.8) * 3 for layer in LAYERS}
        self.weights = {layer.path: draw(layer.width, channels * side * side) for layer in LAYERS}
        self.mix = draw(channels, channels, 3, 3) / 5
        self.shape = (channels, side, side)

    def __call__(self, noise: torch.Tensor, factors: dict | None = None) -> torch.Tensor:
        painted = torch.zeros(len(noise), *self.shape)
        for path, values in self.values.items():
            factor = (factors or {}).get(path, torch.ones(1, len(values)))
            of_layer = (values * factor) @ self.weights[path]
            painted = (painted + of_layer.view(-1, *self.shape)).tanh() * 2
        return noise + torch.conv2d(noise, self.mix, padding=1) + painted

    @property
    def z(self) -> list[torch.Tensor]:
        return [self.values[layer.path] * 1.5 for layer in LAYERS]

    @property
    def activations(self) -> list[torch.Tensor]:
        return [self.values[layer.path].abs() for layer in LAYERS]

    def noise(self, rows: int = 4) -> torch.Tensor:
        return torch.randn((rows, *self.shape), generator=torch.Generator().manual_seed(1))
