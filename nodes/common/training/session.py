"""What a training sees of the model: `nodes/host/training/trainer.py` makes one of a MODEL, tests
one of a formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch


class Session(Protocol):
    """A model that is evaluated with gradients, its images and their conditions; valid while the
    work on it runs.

    `latents`: the images as the model sees them, each (1, C, ...), on the CPU. `device`: where the
    model computes. `sampling`: ComfyUI's model_sampling, or something with its `sigma_max` and
    `percent_to_sigma`.
    """

    latents: list[torch.Tensor]
    device: torch.device
    sampling: Any

    def sigma(self, percent: float) -> float:
        """The noise level at a fraction of the sampling range: 0 is pure noise, 1 is none."""

    def noised(
        self, latent: torch.Tensor, noise: torch.Tensor, sigmas: torch.Tensor
    ) -> torch.Tensor:
        """The latent (B, C, ...) with noise at the levels `sigmas` (B,), as the model is trained to
        see it.
        """

    def clean(self, latent: torch.Tensor) -> torch.Tensor:
        """What a perfect model would predict for this latent."""

    def as_latent(self, latent: torch.Tensor) -> torch.Tensor:
        """A latent of the model's scale as a VAE decodes it."""

    def rows_at_once(self, count: int, shape: Sequence[int], *, gradients: bool = True) -> int:
        """How many of `count` latents of a shape (C, ...) fit in free memory; at least 1, and 1 for
        a network that takes no more.
        """

    def reload(self) -> None:
        """Bring the model back to its device after another model, such as a VAE, has run."""

    def denoised(
        self,
        noised: torch.Tensor,
        sigmas: torch.Tensor,
        rows: Sequence[int],
        against: Sequence[int] | None = None,
        cfg: float = 1.0,
        images: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """The model's prediction (B, C, ...) of the clean latent with the conditions `rows`, one
        per image; CFG against other ones. `images`: the numbers of the images whose sound they
        have, without which they are those of the conditions.
        """
