"""The shapes of the table of costs, and random numbers in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from studies.common import host

COUNTED = "counted"


@dataclass(frozen=True)
class Size:
    """A network at an image's size: sides of the latent and of the recommended activations,
    channels of the latter.
    """

    name: str
    architecture: str
    latent: int
    side: int
    channels: int
    pixels: int
    heads: tuple[tuple[int, int, int], ...]  # of its cross-attention: layers, side, heads
    width: int  # of a token


SIZES = (
    Size("SD1.5", "sd15", 64, 32, 640, 512, ((5, 64, 8), (5, 32, 8), (5, 16, 8), (1, 8, 8)), 768),
    Size("SDXL", "sdxl", 128, 64, 640, 1024, ((10, 64, 10), (60, 32, 20)), 2048),
)


@dataclass(frozen=True)
class Row:
    """``make`` gives the node's work and the rival at a size, each a function and its tensors.

    And under COUNTED the work for the count of live tensors, where the node works in a thread.
    ``times``: how often a contender does the work in one turn.
    """

    node: str
    work: str
    rival: str
    make: Callable[[Size], dict[str, tuple]]
    times: int = 1


def module(name: str):
    """A module of the pack's nodes."""
    return host.pack(f"nodes.{name}")


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Gaussian numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def image(side: int) -> torch.Tensor:
    """An IMAGE of noise."""
    return torch.rand(1, side, side, 3, generator=torch.Generator().manual_seed(3))
