"""The judge: a small network, trained on renders only, that reads every attribute of a demo image.

It is an instrument for studies and reports. Its features serve as identity embedding and for a
Frechet distance. It also predicts part masks, key points and the number of faces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from ..common.prompt_alignment import Alignment
from . import assets
from .architecture import SIZE

CHANNELS = (32, 64, 96, 128)
FEATURES = 192
#: What it locates, in the order of its outputs.
PARTS = ("skin", "hair", "facial_hair", "clothing", "accessory", "background")
POINTS = ("left_eye", "right_eye", "nose", "mouth")
#: Side of its masks and heat maps, and the largest number of faces that it counts.
MAP_SIDE = 64
MAX_FACES = 3


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


class Locator(nn.Module):
    """Feature maps of every resolution to part masks, key points and the number of faces."""

    def __init__(self, width: int = 24):
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(channels, width, 1) for channels in CHANNELS)
        self.refine = nn.Conv2d(width, width, 3, padding=1)
        self.maps = nn.Conv2d(width, len(PARTS) + len(POINTS), 1)
        self.faces = nn.Sequential(
            nn.Linear(3 * CHANNELS[-1], 64), nn.SiLU(), nn.Linear(64, MAX_FACES + 1)
        )

    def forward(
        self, maps: list[torch.Tensor], pooled: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits of the parts (N, 6, 64, 64); key points (N, 4, 2), x and y in pixels of 128;
        logits (N, 4) of 0 to 3 faces.
        """
        x = torch.zeros((), device=pooled.device)
        for lateral, level in zip(self.lateral, maps, strict=True):
            x = x + F.interpolate(lateral(level), (MAP_SIDE, MAP_SIDE), mode="bilinear")
        x = F.silu(x)
        parts, heat = self.maps(x + F.silu(self.refine(x))).split((len(PARTS), len(POINTS)), dim=1)
        weights = heat.float().flatten(2).softmax(-1).view_as(heat)
        centers = (torch.arange(MAP_SIDE, device=x.device) + 0.5) * (SIZE / MAP_SIDE)
        points = torch.stack(
            [(weights.sum(2) * centers).sum(-1), (weights.sum(3) * centers).sum(-1)], dim=-1
        )
        return parts, points, self.faces(pooled)


class Judge(nn.Module):
    """Images (N, 3, 128, 128) in 0..1 to one row of logits per attribute.

    ``labels`` maps each attribute to its values, in the order in which the training labels number
    them.
    """

    def __init__(self, labels: dict[str, tuple[str, ...]]):
        super().__init__()
        self.labels = labels
        self.stem = nn.Conv2d(3, CHANNELS[0], 5, stride=2, padding=2)
        self.details = nn.Conv2d(CHANNELS[0], CHANNELS[0], 3, padding=1)
        self.blocks = nn.ModuleList(Block(a, b) for a, b in pairwise(CHANNELS))
        self.project = nn.Linear(3 * CHANNELS[-1], FEATURES)
        self.heads = nn.ModuleDict(
            {name: nn.Linear(FEATURES, len(values)) for name, values in labels.items()}
        )
        self.locator = Locator()

    def _maps(self, images: torch.Tensor) -> list[torch.Tensor]:
        x = F.silu(self.stem(images * 2 - 1))
        maps = [x + F.silu(self.details(x))]
        for block in self.blocks:
            maps.append(block(maps[-1]))
        return maps

    @staticmethod
    def _pooled(x: torch.Tensor) -> torch.Tensor:
        weights = x.flatten(2).softmax(-1)
        return torch.cat([x.mean((2, 3)), x.amax((2, 3)), (weights * x.flatten(2)).sum(-1)], dim=1)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """(N, 192) features: mean, maximum and attention-weighted mean of the last map,
        projected.
        """
        return F.silu(self.project(self._pooled(self._maps(images)[-1])))

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.features(images)
        return {name: head(features) for name, head in self.heads.items()}

    def locate(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Part masks (N, 6, 128, 128) in 0..1, key points (N, 4, 2) in pixels and the number of
        faces int64 (N,).

        Key points mean something where there is one face.
        """
        maps = self._maps(images)
        parts, points, faces = self.locator(maps, self._pooled(maps[-1]))
        masks = F.interpolate(parts.sigmoid(), images.shape[-2:], mode="bilinear")
        return masks, points, faces.argmax(-1)

    def everything(
        self, images: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], tuple[torch.Tensor, ...]]:
        """What ``forward`` returns, and the locator's own outputs: for training."""
        maps = self._maps(images)
        pooled = self._pooled(maps[-1])
        features = F.silu(self.project(pooled))
        return {name: head(features) for name, head in self.heads.items()}, self.locator(
            maps, pooled
        )


def load(world: str) -> Judge:
    """The judge of a demo world in float32, ready to read; errors as in ``assets.read``."""
    labels = {
        name: tuple(values)
        for name, values in json.loads(assets.header(world, "judge")["labels"]).items()
    }
    weights = {name: value.float() for name, value in assets.read(world, "judge").items()}
    judge = Judge(labels)
    judge.load_state_dict(weights)
    return judge.eval()


#: Words of captions, and the attributes that a phrase with one of them sets.
_PHRASES = (
    ({"skin"}, ("skin",)),
    (
        {"hair", "bald", "undercut", "bob", "bun", "dreads", "afro", "mohawk", "quiff"},
        ("hair", "hair_color"),
    ),
    ({"shaven", "beard", "moustache"}, ("facial_hair", "hair_color")),
    ({"glasses", "sunglasses"}, ("accessory",)),
    ({"hoodie", "overall", "shirt", "sweater"}, ("clothing", "clothing_color")),
    ({"smiling", "serious", "sad", "tongue", "screaming"}, ("mouth",)),
    ({"eyes"}, ("eyes",)),
    ({"background"}, ("background", "pattern")),
)
_NEGATIONS = ("shaven", "no")


def read_caption(caption: str, labels: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """What a caption such as "portrait, red bob, no glasses" requests: attribute -> value, both as
    in ``labels``.
    """
    found: dict[str, str] = {}
    for phrase in caption.lower().split(","):
        words = set(re.findall("[a-z]+", phrase))
        for about, attributes in _PHRASES:
            if words & about:
                found |= {
                    name: value for name in attributes if (value := _value(labels[name], words))
                }
    return found


def _value(values: tuple[str, ...], words: set[str]) -> str | None:
    wanted = words | {"none"} if words & set(_NEGATIONS) else words
    return next((value for value in values if set(value.split()) <= wanted), None)


@torch.inference_mode()
def embed(world: str, images: torch.Tensor) -> torch.Tensor:
    """Features (B, 192) of the judge of ``world`` for images (B, H, W, 3) of 0..1."""
    return load(world).features(_scaled(images))


@torch.inference_mode()
def measure_agreements(
    world: str, captions: Sequence[str], images: torch.Tensor
) -> list[Alignment | None]:
    """For each caption the fraction of the requested attributes that the judge of ``world`` finds
    in images (B, H, W, 3) of 0..1; None for one that requests nothing that it can see.
    """
    network = load(world)
    logits = network(_scaled(images))
    found: list[Alignment | None] = []
    for caption in captions:
        wanted = read_caption(caption, network.labels)
        right = [
            logits[name].argmax(-1) == network.labels[name].index(value)
            for name, value in wanted.items()
        ]
        about = (
            f"fraction of the {len(wanted)} requested attributes that the demo world's judge finds"
        )
        found.append(Alignment(torch.stack(right).float().mean(0), about) if right else None)
    return found


@torch.inference_mode()
def read(world: str, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels int64 (B, attributes) that the judge of ``world`` reads in images (B, H, W, 3) of
    0..1, and faces (B,).
    """
    network = load(world)
    scaled = _scaled(images)
    labels = torch.stack([logits.argmax(-1) for logits in network(scaled).values()], dim=1)
    return labels, network.locate(scaled)[2]


def _scaled(images: torch.Tensor) -> torch.Tensor:
    """IMAGE (B, H, W, 3) as the judge reads it, (B, 3, SIZE, SIZE)."""
    return F.interpolate(
        images[..., :3].movedim(-1, 1).float().cpu(), (SIZE, SIZE), mode="bilinear", antialias=True
    )
