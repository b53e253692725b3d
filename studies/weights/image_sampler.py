"""Images of many models at once, and what the judge reads in them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from ..common.training import device
from ..world.autoencoder import CHANNELS
from .grouped import Population, adapted
from .population import Trainer

STEPS, CFG = 20, 3.0
#: What the demo's workflows take.
ANCESTRAL = {"steps": 30, "ancestral": True}


@dataclass
class ImageSampler:
    """Generates with a demo world's model, whose layers take the factors of a population."""

    generator: object
    trainer: Trainer

    @torch.no_grad()
    def sample(
        self,
        flats: torch.Tensor,
        prompts: list[str],
        seed: int,
        batch: int = 32,
        later: torch.Tensor | None = None,
        from_timestep: float = 0.0,
        layout=None,
        one_sided: bool = False,
        guided_until: float = 0.0,
        then_both: bool = False,
        steps: int = STEPS,
        ancestral: bool = False,
    ) -> np.ndarray:
        """Images uint8 (n, 128, 128, 3) of n models (n, D), each with its prompt; image i has noise
        of seed + i.

        ``later`` (n, D) takes over at timesteps up to ``from_timestep``: delayed injection.
        ``layout`` is that of the factors when it is not the space's own. ``one_sided`` leaves the
        negative side of CFG to the base model. Below the timestep ``guided_until`` the positive
        side counts alone, or ``then_both`` sides with the factors. ``ancestral``: Euler ancestral
        steps.
        """
        images = []
        for first in range(0, len(flats), batch):
            part = slice(first, first + batch)
            noise = _Noise(range(seed + first, seed + first + len(flats[part])))
            switched = None if later is None else later[part]
            models = [
                self._population(one, layout) for one in (flats[part], switched) if one is not None
            ]
            sides = (from_timestep, one_sided, guided_until, then_both)
            latent = self._sample(models, prompts[part], noise, steps, ancestral, *sides)
            images.append(self._decode(latent))
        return np.concatenate(images)

    def _sample(
        self,
        models: list[Population],
        prompts,
        noise: _Noise,
        steps,
        ancestral,
        from_timestep,
        one_sided,
        until,
        then_both=False,
    ) -> torch.Tensor:
        """Euler steps, or Euler ancestral ones, on ComfyUI's "normal" schedule with CFG, as
        KSampler makes them.
        """
        import comfy.samplers
        from comfy.k_diffusion.sampling import get_ancestral_step

        sampling = self.generator.model.model.model_sampling
        sigmas = comfy.samplers.calculate_sigmas(sampling, "normal", steps).to(device())
        contexts = [self.contexts(texts) for texts in (prompts, [""] * len(prompts))]
        x = (noise.draw().to(device()) * (1 + sigmas[0] ** 2) ** 0.5).float()
        for sigma, following in pairwise(sigmas):
            timestep = float(sampling.timestep(sigma))
            population = models[-1 if timestep <= from_timestep else 0]
            with adapted(self.trainer.network, population):
                negative = positive = self._noise_of(x, sigma, timestep, contexts[0])
                guided = timestep >= until
                both_sides = not one_sided if guided else then_both
                if both_sides:
                    negative = self._noise_of(x, sigma, timestep, contexts[1])
            if one_sided and guided:
                negative = self._noise_of(x, sigma, timestep, contexts[1])
            down, up = get_ancestral_step(sigma, following) if ancestral else (following, 0.0)
            x = x + (down - sigma) * (negative + CFG * (positive - negative))
            if up:
                x = x + up * noise.draw().to(device())
        return x

    def _noise_of(self, x, sigma, timestep, context) -> torch.Tensor:
        """The noise in x by the network's answer, whatever it predicts."""
        sampling = self.generator.model.model.model_sampling
        times = torch.full((len(x),), timestep, device=device())
        answer = self.trainer.predict(sampling.calculate_input(sigma, x), times, context)
        return (x - sampling.calculate_denoised(sigma, answer, x)) / sigma

    def _population(self, flats: torch.Tensor, layout) -> Population:
        population = Population(layout or self.trainer.layout, len(flats), 0, device())
        population.flat.data.copy_(flats)
        return population

    def contexts(self, prompts: list[str]) -> torch.Tensor:
        """The text model's answers (n, 77, 128)."""
        return self.generator.condition(prompts)[0][0].to(device())

    def _decode(self, latent: torch.Tensor) -> np.ndarray:
        images = self.generator.vae.decode(
            self.generator.model.model.process_latent_out(latent.cpu())
        )
        return (images * 255).round().clamp(0, 255).to(torch.uint8).numpy()


class _Noise:
    """Noise of a batch (n, channels, 16, 16), each image's from a seed of its own."""

    def __init__(self, seeds: range):
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def draw(self) -> torch.Tensor:
        return torch.stack(
            [torch.randn(CHANNELS, 16, 16, generator=one) for one in self._generators]
        )
