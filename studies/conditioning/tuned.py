"""The shipped model fine-tuned shortly at 1.5 and 2 times its size, with the noise it was trained
with and with more.

Its own images, enlarged, are what it learns from: the question is only how much noise a larger
image needs.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from ..common import host, results
from ..common.training import Plan, device, train
from ..world.denoiser import alphas_cumprod, diffused
from ..world.scenes import SIZE, Metadata, random_scene, render
from . import resolution, sampled_images
from .trained import FOLDER

BATCH, LEARNING_RATE = 8, 1e-4


def measure(quick: bool) -> dict[str, dict]:
    """Captions obeyed and contrast after equal steps, for both ways to noise, each sampled as it
    was trained.
    """
    generator, network = sampled_images.load()
    sampling, numbers = host.pack("nodes.conditioning.noise_rescale_comfy"), {}
    requested = sampled_images.scenes(5 if quick else 32)
    prompts = sampled_images.encoded(generator, sampled_images.texts(requested))
    for side in (192,) if quick else (192, 256):
        data = _data(generator, side, 20 if quick else 300)
        fractions = []
        for factor, name in ((1.0, "noise as before"), (side / SIZE, "noise rescaled")):
            model = _tuned(generator, data, side, factor, 5 if quick else 100)
            model = model if factor == 1 else sampling.rescaled(model, factor, sampling.RETIMED)
            made = sampled_images.generated(generator, prompts, model, side=side, batch=8)
            label = f"{side / SIZE:g} times, fine-tuned, {name}"
            fractions.append(sampled_images.obeyed(network, resolution.shrunk(made), requested))
            numbers[f"{label}: captions obeyed"] = results.bootstrap(
                fractions[-1], "fraction of requested attributes that the judge finds", "fraction"
            )
            numbers[f"{label}: contrast"] = results.bootstrap(
                made.reshape(len(made), -1).std(1), "deviation of all values of an image", "levels"
            )
        numbers[f"{side / SIZE:g} times, fine-tuned: captions obeyed, gain"] = results.bootstrap(
            fractions[1] - fractions[0],
            "rescaled less as before, same caption and noise",
            "fraction",
        )
    return numbers


@torch.inference_mode()
def _data(generator, side: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Latents (N, 24, side / 8, side / 8) of unit variance and encoded captions (N, 77, 128) of
    enlarged renders.
    """
    rng = np.random.default_rng(31)
    scenes = [random_scene(rng, Metadata()) for _ in range(count)]
    process, latents = generator.model.get_model_object("latent_format").process_in, []
    for start in range(0, count, 20):
        large = [
            np.asarray(
                Image.fromarray(render(scene)).resize((side, side), Image.Resampling.BICUBIC)
            )
            for scene in scenes[start : start + 20]
        ]
        latents.append(
            process(generator.vae.encode(torch.from_numpy(np.stack(large)).float() / 255))
        )
    context = torch.cat(sampled_images.encoded(generator, sampled_images.texts(scenes)))
    return torch.cat(latents).clone(), context.clone()


def noised(
    latents: torch.Tensor, noise: torch.Tensor, alpha: torch.Tensor, factor: float
) -> tuple[torch.Tensor, ...]:
    """Latents at ``factor`` times the sigma that belongs to ``alpha`` (N,), in the
    variance-preserving form; velocity.

    sigma = sqrt((1 - alpha) / alpha); s sigma is the noise of alpha' = 1 / (1 + s^2 sigma^2).
    """
    return diffused(latents, noise, 1 / (1 + factor**2 * (1 - alpha) / alpha))


def _tuned(
    generator, data: tuple[torch.Tensor, torch.Tensor], side: int, factor: float, steps: int
):
    """A MODEL whose denoiser has been trained on, given the timesteps of the noise before it was
    rescaled.
    """
    latents, context = data
    with torch.inference_mode(False):
        network = copy.deepcopy(generator.model.model.diffusion_model).float().to(device())
        network.load_state_dict(
            {name: value.clone() for name, value in network.state_dict().items()}, assign=True
        )
        network.requires_grad_(True)
    architecture, table = (
        host.pack("nodes.demo.architecture"),
        alphas_cumprod(zero_terminal=True).float(),
    )
    vector = architecture.metadata_vector(torch.tensor([Metadata().numbers()]))

    def loss(draw: torch.Generator, progress: float) -> torch.Tensor:
        picks = torch.randint(len(latents), (BATCH,), generator=draw)
        timesteps = torch.randint(0, 1000, (BATCH,), generator=draw)
        noise = torch.randn(latents[picks].shape, generator=draw)
        inputs, velocity = noised(latents[picks], noise, table[timesteps], factor)
        given = [
            value.to(device())
            for value in (inputs, timesteps, context[picks], vector.expand(BATCH, -1))
        ]
        return F.mse_loss(network(*given).float(), velocity.to(device()))

    assets = results.assets_hash(host.ROOT / "assets" / sampled_images.WORLD)[:12]
    plan = Plan(steps=steps, learning_rate=LEARNING_RATE, warmup=10, ema_decay=0.9, seed=17)
    train(network, loss, plan, FOLDER / assets / f"tuned_{side}_{factor:g}_{steps}.pt", every=steps)
    tuned = generator.model.clone()
    tuned.add_object_patch("diffusion_model", network.requires_grad_(False).eval())
    return tuned
