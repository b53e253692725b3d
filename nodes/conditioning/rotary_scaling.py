"""Rotary positions for larger images, scaled by the timestep: DyPE, arXiv 2510.20766.

A transformer with rotary positions (RoPE) turns channel pair d of a token at position p by the
angle p θ_d, with θ_d = base^(-2d / D). With s times as many tokens per side than in training, the
slow pairs reach angles that they never had. Lower frequencies keep them inside. DyPE does so by a
factor that follows the denoising: s^κ(t) in place of s, with κ(t) = λ_s t^λ_t, strong at pure noise
(t = 1), where the layout is decided, and none at clean data, where details are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch

#: Turns over the trained length below which YaRN interpolates fully, and above which not at all
#: (arXiv 2309.00071).
_FEWEST_TURNS = 1.0
_MOST_TURNS = 32.0


class RotaryMethod(StrEnum):
    """How frequencies are lowered for s times as many tokens per side."""

    NTK = "ntk"
    BY_PARTS = "by_parts"
    INTERPOLATION = "interpolation"


@dataclass(frozen=True, kw_only=True)
class RotarySettings:
    """`strength` λ_s and `exponent` λ_t of κ(t); the paper has 2 and 2. `base`: pixels per side in
    training.
    """

    method: RotaryMethod
    strength: float
    exponent: float
    base: int

    def factor(self, side: int, noise: float) -> float:
        """s^κ(t) for `side` pixels along an axis, s times the base, and the noise fraction t; 1 up
        to the base.
        """
        return max(side / self.base, 1.0) ** (self.strength * noise**self.exponent)


def lower_frequencies(
    frequencies: torch.Tensor, factor: float, settings: RotarySettings, unit: float
) -> torch.Tensor:
    """The frequencies θ (D / 2,) of one axis, from the fastest to the slowest, lowered for a factor
    s.

    `interpolation` θ / s; `ntk` θ_d / s^(2d / (D - 2)), which keeps the fastest and divides the
    slowest by s: the base is then base s^(D / (D - 2)); `by_parts` r θ + (1 - r) θ / s, with r from
    0 to 1 as the turns over the trained length, length θ / 2π, go from 1 to 32 (NTK-by-parts of
    YaRN), where the trained length is `base` / `unit` and `unit` the pixels that one step of the
    positions stands for. A factor of 1 changes nothing in any of them.
    """
    match RotaryMethod(settings.method):
        case RotaryMethod.INTERPOLATION:
            return frequencies / factor
        case RotaryMethod.NTK:
            place = torch.linspace(
                0, 1, len(frequencies), dtype=frequencies.dtype, device=frequencies.device
            )
            return frequencies / factor**place
    turns = settings.base / unit * frequencies / (2 * math.pi)
    kept = ((turns - _FEWEST_TURNS) / (_MOST_TURNS - _FEWEST_TURNS)).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / factor


def lowered(
    settings: RotarySettings, frequencies: torch.Tensor, *, side: int, noise: float, unit: float
) -> torch.Tensor | None:
    """The frequencies (D / 2,) of an axis of `side` pixels at a fraction of noise, fastest first;
    None where they stay as they are.
    """
    factor = settings.factor(side, noise)
    return None if factor == 1 else lower_frequencies(frequencies, factor, settings, unit)


def rotations(angles: torch.Tensor) -> torch.Tensor:
    """Rotation matrices (..., 2, 2) float32 [[cos, -sin], [sin, cos]] of angles (...)."""
    cosine = angles.cos()
    sine = angles.sin()
    return torch.stack([cosine, -sine, sine, cosine], dim=-1).unflatten(-1, (2, 2)).float()


def describe_rotary(settings: RotarySettings) -> str:
    """The factors over the run at two sizes, as text."""
    lines = [
        f"Rotary positions ({settings.method}): frequencies lowered by s^κ(t) with κ(t) = "
        f"{settings.strength:g} t^{settings.exponent:g}, where a side is s times as long as "
        f"{settings.base} pixels."
    ]
    for ratio in (1.5, 2.0):
        side = round(ratio * settings.base)
        factors = ", ".join(
            f"{settings.factor(side, noise):.3g} at {noise:g}" for noise in (1.0, 0.75, 0.5, 0.25)
        )
        lines.append(f"{side} px: by {factors} of the noise.")
    return "\n".join(lines)
