"""How much of what a caption asks for the judge sees in a picture."""

from __future__ import annotations

import re

import torch
from torch.nn import functional as F

from ..host.agreement import AbsentError, Agreement
from . import judge
from .architecture import SIZE

#: Words of captions, and which attributes a phrase with one of them tells.
_TOLD = (
    ({"skin"}, ("skin",)),
    ({"hair", "bald", "undercut", "bob", "bun", "dreads", "afro", "mohawk", "quiff"}, ("hair", "hair_color")),
    ({"shaven", "beard", "moustache"}, ("facial_hair", "hair_color")),
    ({"glasses", "sunglasses"}, ("accessory",)),
    ({"hoodie", "overall", "shirt", "sweater"}, ("clothing", "clothing_color")),
    ({"smiling", "serious", "sad", "tongue", "screaming"}, ("mouth",)),
    ({"eyes"}, ("eyes",)),
    ({"background"}, ("background", "pattern")),
)
_NOTHING = ("shaven", "no")


def asked(caption: str, labels: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """What a caption such as "portrait, red bob, no glasses" asks for: attribute -> value, both as in ``labels``."""
    found: dict[str, str] = {}
    for phrase in caption.lower().split(","):
        words = set(re.findall("[a-z]+", phrase))
        for about, attributes in _TOLD:
            if words & about:
                found |= {name: value for name in attributes if (value := _value(labels[name], words))}
    return found


def _value(values: tuple[str, ...], words: set[str]) -> str | None:
    wanted = words | {"none"} if words & set(_NOTHING) else words
    return next((value for value in values if set(value.split()) <= wanted), None)


@torch.inference_mode()
def measure(world: str, caption: str, pictures: torch.Tensor) -> Agreement:
    """The share of the asked attributes that the judge of ``world`` sees in pictures (B, H, W, 3) of 0..1."""
    network = judge.load(world)
    wanted = asked(caption, network.labels)
    if not wanted:
        raise AbsentError("the prompt asks for nothing that the demo world's judge can see")
    small = F.interpolate(pictures[..., :3].movedim(-1, 1).float().cpu(), (SIZE, SIZE), mode="bilinear", antialias=True)
    logits = network(small)
    right = [logits[name].argmax(-1) == network.labels[name].index(value) for name, value in wanted.items()]
    share = torch.stack(right).float().mean(0)
    return Agreement(share, f"share of the {len(wanted)} attributes asked for that the demo world's judge sees")
