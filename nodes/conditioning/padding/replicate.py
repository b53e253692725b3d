"""Noisy replicate padding: copies of the prompt's own tokens in place of padding (arXiv 2411.03177).

With n real tokens in L slots, slot j holds token j mod n. Every copy gets Gaussian noise in proportion to each
channel's deviation over the real tokens, times sqrt(m - 1) for m = ceil(L / n) replications when that is asked for.
That the noise is Gaussian, and its scale, are recollections of the paper that could not be checked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

NOISY, COPIES, ZEROS, STOCK = "noisy copies", "copies", "zeros", "stock"
PADDINGS = (NOISY, COPIES, ZEROS, STOCK)


@dataclass(frozen=True)
class Block:
    """One chunk of one encoder in an encoded prompt: ``rows`` of slots, ``channels``, and ``real`` tokens in front."""

    encoder: str
    rows: slice
    channels: slice
    real: int

    @property
    def slots(self) -> int:
        """L."""
        return self.rows.stop - self.rows.start

    @property
    def replications(self) -> int:
        """m = ceil(L / n)."""
        return math.ceil(self.slots / self.real)


@dataclass(frozen=True)
class Settings:
    """What goes into the padding's slots."""

    padding: str
    strength: float
    automatic: bool

    def scale(self, block: Block) -> float:
        """Noise in standard deviations of a channel: strength, times sqrt(m - 1) when automatic."""
        if self.padding != NOISY or block.replications == 1:
            return 0.0
        return self.strength * (math.sqrt(block.replications - 1) if self.automatic else 1.0)


def padded(embedding: torch.Tensor, blocks: list[Block], settings: Settings, seed: int) -> torch.Tensor:
    """An encoded prompt (1, slots, channels) with its padding replaced; real tokens stay bit for bit.

    Noise is drawn block by block on the CPU in float32, from a private generator.
    """
    if settings.padding == STOCK:
        return embedding
    result, generator = embedding.clone(), torch.Generator().manual_seed(seed)
    for block in blocks:
        part = embedding[:, block.rows, block.channels]
        filled = _filled(part, block, settings, generator)
        result[:, block.rows.start + block.real : block.rows.stop, block.channels] = filled
    return result


def _filled(part: torch.Tensor, block: Block, settings: Settings, generator: torch.Generator) -> torch.Tensor:
    real, missing = part[:, : block.real], block.slots - block.real
    if settings.padding == ZEROS:
        return torch.zeros_like(part[:, block.real :])
    copies = real[:, torch.arange(block.real, block.slots) % block.real]
    scale = settings.scale(block)
    if not scale or not missing:
        return copies
    noise = torch.randn(copies.shape, generator=generator).to(copies.device)
    deviation = real.float().std(dim=1, keepdim=True, correction=0)
    return (copies.float() + scale * deviation * noise).to(copies.dtype)


def describe(blocks: list[Block], settings: Settings, left_alone: str | None) -> str:
    """What was done to each encoder's chunks, in words."""
    if left_alone:
        return f"Left as stock: {left_alone}."
    lines = [f"Padding: {settings.padding}."]
    for block in blocks:
        noise = f", noise {settings.scale(block):.4g} deviations" if settings.padding == NOISY else ""
        lines.append(f"{block.encoder}, slots {block.rows.start} to {block.rows.stop - 1}: {block.real} tokens of "
                     f"{block.slots}, m = {block.replications}{noise}")  # fmt: skip
    return "\n".join(lines)
