"""Noise on a prompt's embedding, so that seeds of one prompt give images that differ more.

Condition annealing (CADS: Sadat et al., ICLR 2024, arXiv 2310.17347): while the
composition forms the prompt is replaced by noise, and comes back before the details do. With t from
1, pure noise, to 0, clean, and gamma(t) as in ``annealing``:

    y_hat     = sqrt(gamma) y + s sqrt(1 - gamma) n
    y_scaled  = (y_hat - mean(y_hat)) / std(y_hat) std(y) + mean(y)
    y_final   = psi y_scaled + (1 - psi) y_hat

The paper's y is one vector (a class, a pose). A prompt has a vector for each token, whose sizes
differ a hundredfold in some language models, so that mean and std are each token's own and n is
measured in the token's std. For one vector of unit std that is the paper's formula.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from enum import StrEnum

import torch

_SMALLEST = 1e-12


class VarietyMethod(StrEnum):
    """Values of the ``method`` input: what the noise does over a run."""

    ANNEALED = "annealed"
    ANNEALED_FIXED = "annealed_fixed"
    CONSTANT = "constant"


@dataclass(frozen=True, kw_only=True)
class VarietySettings:
    """``noise_scale``: s. ``tau1``, ``tau2``: times from 0, clean, to 1, pure noise. ``psi``: the
    fraction of the rescaled embedding.

    Raises ValueError where tau1 exceeds tau2.
    """

    method: VarietyMethod
    noise_scale: float
    tau1: float
    tau2: float
    seed: int
    psi: float = 1.0

    def __post_init__(self):
        if self.tau1 > self.tau2:
            raise ValueError(
                f"tau1 is {self.tau1:g} and tau2 {self.tau2:g}: set tau1 to at most tau2, since "
                "the prompt is whole below tau1 and noise above tau2."
            )

    @property
    def is_off(self) -> bool:
        """Whether nothing changes at any time."""
        return self.noise_scale == 0 or self.tau1 >= 1

    def gamma(self, time: float) -> float:
        """What is left of the prompt at a time; 1 leaves it as it is.

        Under ``CONSTANT`` 0 stands for the noise, which is of one size while it acts.
        """
        if self.method == VarietyMethod.CONSTANT:
            return 1.0 if time <= self.tau1 else 0.0
        return annealing(time, self.tau1, self.tau2)

    def changed(self, embedding: torch.Tensor, noise: torch.Tensor, time: float) -> torch.Tensor:
        """An embedding (..., channels) at a time, with normal noise of its shape."""
        if self.method == VarietyMethod.CONSTANT:
            return add_noise(embedding, noise, self.noise_scale)
        return anneal(
            embedding, noise, gamma=self.gamma(time), scale=self.noise_scale, psi=self.psi
        )


def annealing(time: float, tau1: float, tau2: float) -> float:
    """gamma(t): 1 up to tau1, 0 from tau2 on, and a straight line between them."""
    if time <= tau1:
        return 1.0
    if time >= tau2:
        return 0.0
    return (tau2 - time) / (tau2 - tau1)


def anneal(
    embedding: torch.Tensor, noise: torch.Tensor, *, gamma: float, scale: float, psi: float
) -> torch.Tensor:
    """An embedding (..., channels) with normal noise of its shape: y_final of this file's first
    lines.
    """
    mean, std = _statistics(embedding)
    noised = math.sqrt(gamma) * embedding + scale * math.sqrt(1 - gamma) * std * noise
    mean_noised, std_noised = _statistics(noised)
    rescaled = (noised - mean_noised) / std_noised.clamp(min=_SMALLEST) * std + mean
    return psi * rescaled + (1 - psi) * noised


def add_noise(embedding: torch.Tensor, noise: torch.Tensor, scale: float) -> torch.Tensor:
    """y + s std(y) n, the rival without an end and without a rescale."""
    return embedding + scale * _statistics(embedding)[1] * noise


def draw_noise(shape: tuple[int, ...], key: tuple[int | str, ...]) -> torch.Tensor:
    """Normal noise in float32 that belongs to a key of numbers and names: the same on every machine
    and without a trace in the global generators.
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest, "little"))
    return torch.randn(shape, generator=generator)


def describe(settings: VarietySettings, sigmas: tuple[float, float]) -> str:
    """One sentence on what a run does; ``sigmas``: the noise levels at tau2 and at tau1."""
    if settings.is_off:
        reason = "noise_scale is 0" if settings.noise_scale == 0 else "tau1 is 1"
        return f"The prompt is left as it is: {reason}."
    end = f"{100 * (1 - settings.tau1):.3g} % of sampling (sigma {sigmas[1]:.3g})"
    if settings.method == VarietyMethod.CONSTANT:
        return (
            f"Noise of {settings.noise_scale:g} standard deviations is added to each token of the "
            f"positive prompt for the first {end}; seed {settings.seed}."
        )
    drawn = "new at each step" if settings.method == VarietyMethod.ANNEALED else "drawn once"
    return (
        f"Noise, {drawn}, stands for the positive prompt for the first "
        f"{100 * (1 - settings.tau2):.3g} % of sampling (sigma {sigmas[0]:.3g}); the prompt is "
        f"whole again after {end}; seed {settings.seed}."
    )


def _statistics(embedding: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of each token (..., 1)."""
    mean = embedding.mean(dim=-1, keepdim=True)
    return mean, embedding.std(dim=-1, keepdim=True, correction=0)
