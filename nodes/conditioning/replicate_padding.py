"""Noisy replicate padding: copies of the prompt's own tokens in place of padding (arXiv
2411.03177).

With n real tokens in L slots, slot j contains token j mod n. Every copy gets Gaussian noise in
proportion to each channel's deviation over the real tokens, optionally times sqrt(m - 1) for m =
ceil(L / n) replications. Where each formula comes from: docs/conditioning.md, "Provenance".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch


class Padding(StrEnum):
    """What fills the slots behind a prompt."""

    NOISY_COPIES = "noisy_copies"
    COPIES = "copies"
    ZEROS = "zeros"
    STOCK = "stock"


@dataclass(frozen=True)
class PromptChunk:
    """One chunk of one encoder in an encoded prompt: `rows` of slots, `channels`, and `real` tokens
    in front.
    """

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


@dataclass(frozen=True, kw_only=True)
class PaddingSettings:
    """What goes into the slots of the padding."""

    padding: Padding
    strength: float
    scale_by_copies: bool

    def scale(self, chunk: PromptChunk) -> float:
        """Noise in standard deviations of a channel: strength, times sqrt(m - 1) with
        `scale_by_copies`.
        """
        if self.padding != Padding.NOISY_COPIES or chunk.replications == 1:
            return 0.0
        return self.strength * (math.sqrt(chunk.replications - 1) if self.scale_by_copies else 1.0)


def replace_padding(
    embedding: torch.Tensor, chunks: list[PromptChunk], settings: PaddingSettings, seed: int
) -> torch.Tensor:
    """An encoded prompt (1, slots, channels) with its padding replaced; real tokens stay bit for
    bit.

    Noise is drawn chunk by chunk on the CPU in float32, from a private generator.
    """
    if settings.padding == Padding.STOCK:
        return embedding
    result = embedding.clone()
    generator = torch.Generator().manual_seed(seed)
    for chunk in chunks:
        part = embedding[:, chunk.rows, chunk.channels]
        filled = _fill(part, chunk, settings, generator)
        result[:, chunk.rows.start + chunk.real : chunk.rows.stop, chunk.channels] = filled
    return result


def _fill(
    part: torch.Tensor, chunk: PromptChunk, settings: PaddingSettings, generator: torch.Generator
) -> torch.Tensor:
    real = part[:, : chunk.real]
    missing = chunk.slots - chunk.real
    if settings.padding == Padding.ZEROS:
        return torch.zeros_like(part[:, chunk.real :])
    copies = real[:, torch.arange(chunk.real, chunk.slots) % chunk.real]
    scale = settings.scale(chunk)
    if not scale or not missing:
        return copies
    noise = torch.randn(copies.shape, generator=generator).to(copies.device)
    deviation = real.float().std(dim=1, keepdim=True, correction=0)
    return (copies.float() + scale * deviation * noise).to(copies.dtype)


def describe_padding(
    chunks: list[PromptChunk], settings: PaddingSettings, unchanged_because: str | None
) -> str:
    """What was done to each encoder's chunks, as text."""
    if unchanged_because:
        return f"Unchanged: {unchanged_because}."
    if all(chunk.real == chunk.slots for chunk in chunks):
        return (
            "This text encoder pads nothing here: the node has no effect. Its prompts of any "
            "length end with their last token, as the model was trained."
        )
    lines = [f"Padding: {settings.padding}."]
    for chunk in chunks:
        is_noisy = settings.padding == Padding.NOISY_COPIES
        noise = f", noise {settings.scale(chunk):.4g} deviations" if is_noisy else ""
        lines.append(
            f"{chunk.encoder}, slots {chunk.rows.start} to {chunk.rows.stop - 1}: {chunk.real} "
            f"tokens of {chunk.slots}, m = {chunk.replications}{noise}"
        )
    return "\n".join(lines)
