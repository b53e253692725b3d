"""Pictures of many models at once, and what the judge reads in them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from ..common.training import device
from ..world import dataset, judge
from .grouped import Population, adapted
from .population import Trainer

STEPS, CFG = 15, 3.0
PROMPT = "portrait"


@dataclass
class Painter:
    """Paints with a demo world's model, whose layers take the factors of a population."""

    generator: object
    trainer: Trainer

    @torch.no_grad()
    def paint(
        self,
        flats: torch.Tensor,
        prompts: list[str],
        seed: int,
        batch: int = 32,
        later: torch.Tensor | None = None,
        from_timestep: float = 0.0,
    ) -> np.ndarray:
        """Pictures uint8 (n, 128, 128, 3) of n models (n, D), each with its prompt; picture i has noise of seed + i.

        ``later`` (n, D) takes over at timesteps up to ``from_timestep``: delayed injection.
        """
        pictures = []
        for first in range(0, len(flats), batch):
            part = slice(first, first + batch)
            noise = torch.cat([_noise(seed + first + row) for row in range(len(flats[part]))])
            switched = None if later is None else later[part]
            latent = self._sample(flats[part], prompts[part], noise, switched, from_timestep)
            pictures.append(self._decode(latent))
        return np.concatenate(pictures)

    def _sample(self, flats, prompts, noise, later, from_timestep) -> torch.Tensor:
        """Euler steps on ComfyUI's "normal" schedule with CFG, as KSampler makes them."""
        import comfy.samplers

        sampling = self.generator.model.model.model_sampling
        sigmas = comfy.samplers.calculate_sigmas(sampling, "normal", STEPS).to(device())
        contexts = [self._contexts(texts) for texts in (prompts, [""] * len(prompts))]
        x = (noise.to(device()) * (1 + sigmas[0] ** 2) ** 0.5).float()
        populations = [self._population(one) for one in (flats, later) if one is not None]
        for sigma, following in pairwise(sigmas):
            timestep = float(sampling.timestep(sigma))
            population = populations[-1 if timestep <= from_timestep else 0]
            with adapted(self.trainer.network, population):
                kind, nothing = (self._noise_of(x, sigma, timestep, context) for context in contexts)
            x = x + (following - sigma) * (nothing + CFG * (kind - nothing))
        return x

    def _noise_of(self, x, sigma, timestep, context) -> torch.Tensor:
        """The noise in x by the network's answer, whatever it predicts."""
        sampling, rows = self.generator.model.model.model_sampling, len(x)
        times, vector = torch.full((rows,), timestep, device=device()), self.trainer.vector.expand(rows, -1)
        with torch.autocast(device().type, torch.bfloat16):
            answer = self.trainer.network(sampling.calculate_input(sigma, x), times, context, vector)
        return (x - sampling.calculate_denoised(sigma, answer.float(), x)) / sigma

    def _population(self, flats: torch.Tensor) -> Population:
        population = Population(self.trainer.layout, len(flats), 0, device())
        population.flat.data.copy_(flats)
        return population

    def _contexts(self, prompts: list[str]) -> torch.Tensor:
        return self.generator.condition(prompts)[0][0].to(device())

    def _decode(self, latent: torch.Tensor) -> np.ndarray:
        pictures = self.generator.vae.decode(self.generator.model.model.process_latent_out(latent.cpu()))
        return (pictures * 255).round().clamp(0, 255).to(torch.uint8).numpy()


def shares(network, pictures: np.ndarray, faces: list) -> dict[str, np.ndarray]:
    """For each identity attribute, whether the judge reads in picture i what face i has; unseen ones left out."""
    from ..world.faces import ATTRIBUTES, IDENTITY, visible

    predicted, _ = judge.read(network, pictures)
    columns = list(dataset.LABELS)
    found = {}
    for name in IDENTITY:
        column, rows = columns.index(name), [row for row, face in enumerate(faces) if visible(face)[name]]
        truth = [ATTRIBUTES[name].index(getattr(faces[row], name)) for row in rows]
        found[name] = predicted[rows, column] == np.array(truth)
    return found


def _noise(seed: int) -> torch.Tensor:
    return torch.randn(1, 8, 16, 16, generator=torch.Generator().manual_seed(seed))
