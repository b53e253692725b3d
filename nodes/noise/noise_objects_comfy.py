"""ComfyUI's NOISE: an object with a `seed` and a `generate_noise(latent)` that samplers call once
before they begin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import comfy.model_sampling
import comfy.sample
import torch

from ..host.evaluate import untouched
from ..host.latent_shapes import LatentView, extended, join, split, view
from ..host.progress import stoppable

if TYPE_CHECKING:
    from ..host.socket_types import ModelPatcher

# (the LATENT, the parts of its noise, numbers of noise samples -> their parts, seed) -> object with
# noise and moved
Pair = Callable[[LatentView, list[torch.Tensor], Callable, int], object]


class SeededNoise:
    """The noise that KSampler draws from a seed for a LATENT with a `batch_index`; global
    generators stay untouched.

    With a `batch_index` KSampler draws image by image. Without one it draws the batch at once,
    which gives other numbers where an image's count of them is no multiple of 16; this class always
    draws image by image.
    """

    def __init__(self, seed: int):
        self.seed = seed

    def generate_noise(self, latent: dict) -> torch.Tensor:
        """The noise for a LATENT, in its dtype, on the CPU."""
        samples = latent["samples"]
        numbers = latent.get("batch_index") or range(len(split(samples)[0]))
        with untouched():
            return comfy.sample.prepare_noise(samples, self.seed, list(numbers))


class TransformedNoise:
    """The noise of another NOISE, or else what stock nodes draw from a seed, changed by
    ``transform`` (noise to noise).

    A copy with another ``seed``, and another ``inner``, is the same for that seed.
    """

    def __init__(
        self, seed: int, transform: Callable[[torch.Tensor], torch.Tensor], inner: Any = None
    ):
        self.seed = inner.seed if inner else seed
        self.inner = inner
        self._transform = transform

    def drawn(self, latent: dict) -> torch.Tensor:
        """The noise before the change, global generators left as stock nodes leave them."""
        return self.inner.generate_noise(latent) if self.inner else stock_noise(latent, self.seed)

    def generate_noise(self, latent: dict) -> torch.Tensor:
        """The changed noise for a LATENT; of video with sound, that of the video is changed."""
        with stoppable():
            drawn = self.drawn(latent)
            first, *others = split(drawn)
            return join([self._transform(first), *others], like=drawn)

    def look(self, latent: dict) -> tuple[torch.Tensor, torch.Tensor]:
        """The noise as drawn and as changed, of a LATENT's first part, without a trace in the
        global generators.
        """
        with untouched():
            return split(self.drawn(latent))[0], split(self.generate_noise(latent))[0]


def stock_noise(latent: dict, seed: int) -> torch.Tensor:
    """What Random Noise and KSampler draw from a seed for a LATENT."""
    return comfy.sample.prepare_noise(latent["samples"], seed, latent.get("batch_index"))


def latent_for_stock_noise(
    patcher: ModelPatcher, latent: dict, seed: int, changed: torch.Tensor
) -> dict | None:
    """A LATENT with which a stock KSampler of a seed starts from the changed noise, at denoise 1.

    KSampler adds its own noise at the first sigma to the latent: what is missing lies in the
    latent. None for models whose first sigma leaves nothing of the latent (flow models), as all are
    whose LATENT has several parts.
    """
    sampling = patcher.get_model_object("model_sampling")
    if isinstance(sampling, comfy.model_sampling.CONST) or len(split(latent["samples"])) > 1:
        return None
    with untouched():
        drawn = stock_noise(latent, seed)
    largest = sampling.sigma_max
    zero = torch.zeros_like(drawn)
    missing = sampling.noise_scaling(largest, changed - drawn, zero, True)
    content = latent["samples"]
    if torch.count_nonzero(content):
        missing = missing + patcher.model.process_latent_in(content)
    return {**latent, "samples": patcher.model.process_latent_out(missing)}


class PairedNoise:
    """NOISE drawn by another NOISE and then paired with the LATENT by `pair`, which gets the LATENT
    in MODEL scale.

    The global generators are left as the other NOISE leaves them when it draws once.
    """

    def __init__(self, inner: Any, pair: Pair, model: ModelPatcher | None = None):
        self.inner = inner
        self.pair = pair
        self.model = model
        self.seed = inner.seed

    def generate_noise(self, latent: dict) -> torch.Tensor:
        """The noise for a LATENT; the other's own, bit for bit, where pairing moves nothing."""
        drawn = self.inner.generate_noise(latent)
        pairing = self._paired(latent, drawn)
        return join(pairing.noise, like=drawn) if pairing.moved else drawn

    def look(self, latent: dict) -> Any:
        """What `pair` gives for a LATENT, without a trace in the global generators."""
        with untouched():
            return self._paired(latent, self.inner.generate_noise(latent))

    def _paired(self, latent: dict, drawn: Any) -> Any:
        with stoppable():
            batch = view(latent, self.model)
            return self.pair(
                batch, split(drawn), lambda numbers: self._draw(latent, numbers), self.seed
            )

    def _draw(self, latent: dict, numbers: list[int]) -> list[torch.Tensor]:
        with untouched():
            return split(self.inner.generate_noise(extended(latent, numbers)))
