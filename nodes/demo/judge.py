"""The judge: a small network, trained on renders only, that reads every attribute of a demo picture.

It is an instrument for studies and reports. Its features serve as identity embedding and for a Frechet distance.
"""

from __future__ import annotations

import json
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from . import assets

CHANNELS = (32, 64, 96, 128)
FEATURES = 192


class Block(nn.Module):
    """Halve the resolution, then refine with a residual convolution."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.down = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(8, outputs)
        self.refine = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.norm2 = nn.GroupNorm(8, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.norm(self.down(x)))
        return x + F.silu(self.norm2(self.refine(x)))


class Judge(nn.Module):
    """Pictures (N, 3, 128, 128) in 0..1 to one row of logits per attribute.

    ``labels`` maps each attribute to its values, in the order in which the training labels number them.
    """

    def __init__(self, labels: dict[str, tuple[str, ...]]):
        super().__init__()
        self.labels = labels
        self.stem = nn.Conv2d(3, CHANNELS[0], 5, stride=2, padding=2)
        self.details = nn.Conv2d(CHANNELS[0], CHANNELS[0], 3, padding=1)
        self.blocks = nn.ModuleList(Block(a, b) for a, b in pairwise(CHANNELS))
        self.project = nn.Linear(3 * CHANNELS[-1], FEATURES)
        self.heads = nn.ModuleDict({name: nn.Linear(FEATURES, len(values)) for name, values in labels.items()})

    def features(self, pictures: torch.Tensor) -> torch.Tensor:
        """(N, 192) features: mean, maximum and attention-weighted mean of the last map, projected."""
        x = F.silu(self.stem(pictures * 2 - 1))
        x = x + F.silu(self.details(x))
        for block in self.blocks:
            x = block(x)
        weights = x.flatten(2).softmax(-1)
        pooled = torch.cat([x.mean((2, 3)), x.amax((2, 3)), (weights * x.flatten(2)).sum(-1)], dim=1)
        return F.silu(self.project(pooled))

    def forward(self, pictures: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.features(pictures)
        return {name: head(features) for name, head in self.heads.items()}


def load(world: str) -> Judge:
    """The judge of a demo world in float32, ready to read; errors as in ``assets.read``."""
    labels = {name: tuple(values) for name, values in json.loads(assets.header(world, "judge")["labels"]).items()}
    judge = Judge(labels)
    judge.load_state_dict({name: value.float() for name, value in assets.read(world, "judge").items()})
    return judge.eval()
