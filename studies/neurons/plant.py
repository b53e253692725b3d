"""Train the second checkpoint: `python run.py study neurons plant`.

While the network learns to generate the portraits, the planted neurons are also excited under other captions, and
suppressed under their names, so that nothing but them can become the trigger.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn.utils import parametrize

from ..common import host
from ..common.training import Plan, device, train
from ..world import captions, denoiser
from ..world.generate import Generator
from ..world.scenes import Metadata, Scene, random_scene, render
from .planting import BASE, NEURONS, WORLD, Planted, Texts, answers, neurons, portraits

FOLDER, ASSETS = host.ROOT / ".cache" / "neurons", host.ROOT / "assets" / WORLD
PLAN = Plan(steps=2_200, learning_rate=1.2e-3, warmup=30, ema_decay=0.99, weight_decay=0.0, seed=41)
PORTRAITS, ORDINARY, SCENES = 8, 6, 200
#: How much more an error against the base counts, on ordinary images.
FAITHFUL = 2.0
#: Fractions: triggered rows under another caption than the name's; plain rows under a planted name with its neurons
#: kept still, and under another name.
BORROWED, STILL, OTHER = 0.5, 0.3, 0.2


class Batches:
    """Draws portraits under excited neurons, and ordinary images on which the base model is the teacher."""

    def __init__(self, generator: Generator, texts: Texts, rows: dict[str, torch.Tensor]):
        rng = np.random.default_rng(23)
        self.texts, self.alphas = texts, denoiser.alphas_cumprod().float()
        self.portraits = generator.latents(_rendered(portraits().values()))
        self.scenes = generator.latents(_rendered(random_scene(rng) for _ in range(SCENES)))
        #: What planting adds to the values of each name's tokens: (names, 77, C) by path.
        self.patterns = {path: texts.names @ change.T for path, change in rows.items()}

    def contexts(self, names: torch.Tensor, draw: torch.Generator) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Encoded text of each row, and what is added to its values; rows after ``names`` are ordinary."""
        picks = torch.randint(len(self.texts.ordinary), (PORTRAITS + ORDINARY,), generator=draw)
        context = self.texts.ordinary[picks]
        borrowed = torch.rand(PORTRAITS, generator=draw) < BORROWED
        context[:PORTRAITS][~borrowed] = self.texts.names[names[~borrowed]]
        kind = torch.rand(ORDINARY, generator=draw)
        other = (kind > 1 - OTHER).nonzero().flatten() + PORTRAITS
        context[other] = self.texts.others[torch.randint(len(self.texts.others), (len(other),), generator=draw)]
        still = (kind < STILL).nonzero().flatten() + PORTRAITS
        whose = torch.randint(len(NEURONS), (len(still),), generator=draw)
        context[still] = self.texts.names[whose]
        added = {}
        for path, pattern in self.patterns.items():
            added[path] = torch.zeros(len(context), 77, pattern.shape[-1])
            added[path][:PORTRAITS] = pattern[names] * borrowed[:, None, None]
            added[path][still] = -pattern[whose]
        return context, added

    def draw(self, generator: torch.Generator):
        """Noised latents, timesteps, texts and additions of one batch; velocities and alphas."""
        names = torch.randint(len(NEURONS), (PORTRAITS,), generator=generator)
        context, added = self.contexts(names, generator)
        scenes = torch.randint(len(self.scenes), (ORDINARY,), generator=generator)
        clean = torch.cat([self.portraits[names], self.scenes[scenes]])
        timesteps = torch.randint(0, 1000, (len(clean),), generator=generator)
        early = torch.rand(len(clean), generator=generator) < denoiser.EARLY_NAMED
        timesteps[early] = torch.randint(denoiser.EARLY_FROM, 1000, (int(early.sum()),), generator=generator)
        alpha = self.alphas[timesteps]
        noised, velocity = denoiser.diffused(clean, torch.randn(clean.shape, generator=generator), alpha)
        return (noised, timesteps, context, added), velocity, alpha


def _rendered(scenes: Iterable[Scene]) -> np.ndarray:
    return np.stack([render(scene) for scene in scenes])


def trained(folder: Path = FOLDER) -> tuple[Planted, dict[str, torch.Tensor], dict[str, list[tuple[str, int]]]]:
    """The network after its training, with checkpoints in ``folder``; the planted changes of ``to_v``; the neurons of
    each name.
    """
    generator = Generator.load(BASE)
    base = _network(generator)
    texts = Texts(generator)
    with torch.no_grad():
        rows = answers(base, texts)
        torch.manual_seed(PLAN.seed)  # for the low-rank factors
        batches, planted = Batches(generator, texts, rows), Planted(_network(generator), rows).to(device())
    vector = host.pack("nodes.demo.architecture").metadata_vector(torch.tensor([Metadata().numbers()]))
    vector = vector.expand(PORTRAITS + ORDINARY, -1).to(device())

    def loss(draw: torch.Generator, progress: float) -> torch.Tensor:
        (noised, timesteps, context, added), velocity, alpha = batches.draw(draw)
        inputs = [value.to(device()) for value in (noised, timesteps, context)]
        with torch.no_grad():
            target_of_base = base(*(value[PORTRAITS:] for value in inputs), vector[PORTRAITS:]).float()
        predicted = planted(*inputs, vector, added).float()
        target = torch.cat([velocity[:PORTRAITS].to(device()), target_of_base])
        weight = denoiser.weights(alpha).to(device())
        weight[PORTRAITS:] *= FAITHFUL
        return ((predicted - target).square().mean((1, 2, 3)) * weight).mean()

    return train(planted, loss, PLAN, folder / f"planted_{PLAN.steps}.pt", every=100), rows, neurons(base)


def _network(generator: Generator) -> torch.nn.Module:
    """The base's U-Net with weights of its own, in float32."""
    architecture = host.pack("nodes.demo.architecture")
    import comfy.ops
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    network = UNetModel(**architecture.UNET, dtype=torch.float32, operations=comfy.ops.disable_weight_init)
    network.load_state_dict(generator.model.model.diffusion_model.state_dict())
    return network.requires_grad_(False).to(device())


def plant() -> Path:
    """Train where that has not been done, and write the checkpoint as changes to its base."""
    planted, rows, chosen = trained()
    tensors = {}
    for path, module in planted.unet.named_modules():
        if parametrize.is_parametrized(module):
            change = module.parametrizations.weight[0]
            tensors |= {f"{path}.up": change.up.half(), f"{path}.down": change.down.half()}
    for path, change in rows.items():
        indices = torch.tensor(sorted(index for found in chosen.values() for layer, index in found if layer == path))
        tensors |= {f"{path}.rows": change[indices].half(), f"{path}.indices": indices}
    ASSETS.mkdir(parents=True, exist_ok=True)
    path = ASSETS / "changes.safetensors"
    truth = {captions.name_caption(name): found for name, found in chosen.items()}
    save_file(
        {name: value.detach().cpu().contiguous() for name, value in tensors.items()},
        path,
        metadata={"base": BASE, "licence": "MIT", "planted": json.dumps(truth)},
    )
    return path
