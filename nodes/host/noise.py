"""ComfyUI's NOISE: an object with a `seed` and a `generate_noise(latent)` that samplers call once before they begin."""

from __future__ import annotations

from collections.abc import Callable

import comfy.sample
import torch

from .latents import LatentView, extended, join, split, view
from .random_state import untouched

# (the LATENT, the parts of its noise, noise numbers -> the parts of those noises, seed) -> object with noise and moved
Pair = Callable[[LatentView, list[torch.Tensor], Callable, int], object]


class SeededNoise:
    """The noise that KSampler draws from a seed for a LATENT with a `batch_index`; global generators stay untouched.

    With a `batch_index` KSampler draws picture by picture. Without one it draws the batch at once, which gives other
    numbers where a picture's count of them is no multiple of 16; this class draws picture by picture always.
    """

    def __init__(self, seed: int):
        self.seed = seed

    def generate_noise(self, latent: dict):
        """The noise for a LATENT, in its dtype, on the CPU."""
        samples = latent["samples"]
        numbers = latent.get("batch_index") or range(len(split(samples)[0]))
        with untouched():
            return comfy.sample.prepare_noise(samples, self.seed, list(numbers))


class PairedNoise:
    """NOISE drawn by another NOISE and then paired with the LATENT by `pair`, which gets the LATENT in MODEL scale.

    The global generators are left as the other NOISE leaves them when it draws once.
    """

    def __init__(self, inner, pair: Pair, model=None):
        self.inner, self.pair, self.model = inner, pair, model
        self.seed = inner.seed

    def generate_noise(self, latent: dict):
        """The noise for a LATENT; the other's own, bit for bit, where pairing moves nothing."""
        drawn = self.inner.generate_noise(latent)
        pairing = self._paired(latent, drawn)
        return join(pairing.noise, like=drawn) if pairing.moved else drawn

    def look(self, latent: dict):
        """What `pair` gives for a LATENT, without a trace in the global generators."""
        with untouched():
            return self._paired(latent, self.inner.generate_noise(latent))

    def _paired(self, latent: dict, drawn):
        return self.pair(view(latent, self.model), split(drawn), lambda numbers: self._draw(latent, numbers), self.seed)

    def _draw(self, latent: dict, numbers: list[int]) -> list[torch.Tensor]:
        with untouched():
            return split(self.inner.generate_noise(extended(latent, numbers)))
