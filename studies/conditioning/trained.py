"""Small models trained with constant metadata and with the cosine gate, and with copies of the
prompt as padding.

The paper's comparisons, at equal steps. Low-level metadata (size) enters as gamma(t) E_l(size),
added to the time embedding; high-level metadata (crop, mirror) enters ungated, as in arXiv
2411.03177 as far as its formula is known to us. The models with noisy copies in place of the text
model's own padding have the constant weight.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from ..common import host, results
from ..common.similarity import frechet
from ..common.training import Plan, device, reset_parameters, train
from ..world import dataset, judge
from ..world.autoencoder import CHANNELS
from ..world.denoiser import alphas_cumprod, diffused
from ..world.measure import sharpness
from ..world.scenes import BACKGROUNDS, MAX_CROP, Metadata, render
from . import crop, padding, sampled_images

FOLDER, WORLD = host.ROOT / ".cache" / "conditioning", host.ROOT / ".cache" / "world"
IMAGES, BATCH, NO_CAPTION, CFG, STEPS = 3_000, 24, 0.1, 3.0, 20
#: Exponents of the cosine; 0 is the constant weight of the paper's baseline.
EXPONENTS, SEEDS = (0.0, 2.0, 8.0), (11, 12)
#: Noise on the copies that pad, in deviations of the prompt's tokens; drawn once for each caption.
STRENGTH = 0.02
_FEATURES = 64
_NETWORK = {
    "image_size": 16,
    "in_channels": CHANNELS,
    "out_channels": CHANNELS,
    "model_channels": 32,
    "channel_mult": (1, 2, 2),
    "num_res_blocks": [1, 1, 1],
    "transformer_depth": [0, 1, 1],
    "transformer_depth_middle": 1,
    "transformer_depth_output": [0, 0, 1, 1, 1, 1],
    "num_heads": -1,
    "num_head_channels": 32,
    "use_spatial_transformer": True,
    "context_dim": 128,
    "use_linear_in_transformer": False,
    "num_classes": "sequential",
    "adm_in_channels": 3 * _FEATURES,
    "legacy": False,
}


class Denoiser(torch.nn.Module):
    """ComfyUI's U-Net, and a gated embedding of the original size beside its time embedding."""

    def __init__(self, exponent: float):
        super().__init__()
        import comfy.ops
        from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

        self.unet = UNetModel(
            **_NETWORK, dtype=torch.float32, operations=comfy.ops.disable_weight_init
        )
        width = 4 * _NETWORK["model_channels"]
        self.size = torch.nn.Sequential(
            torch.nn.Linear(2 * _FEATURES, width), torch.nn.SiLU(), torch.nn.Linear(width, width)
        )
        self.exponent = exponent
        reset_parameters(self)

    def forward(self, noised, timesteps, context, metadata):
        vector = host.pack("nodes.demo.architecture").metadata_vector(metadata)
        low, high = vector[:, : 2 * _FEATURES], vector[:, 2 * _FEATURES :]
        gamma = torch.cos(math.pi / 2 * timesteps / 999).clamp(min=0) ** self.exponent
        given = gamma[:, None] * self.size(low)
        options = {"patches": {"emb_patch": [lambda emb, _channels, _options: emb + given.to(emb)]}}
        return self.unet(noised, timesteps, context, high, transformer_options=options)


class Data:
    """Latents of unit variance, encoded captions and metadata of the training images."""

    def __init__(self, generator, count: int):
        dataset.build(WORLD / "train", count, seed=1)
        shards = [
            np.load(path)
            for path in sorted((WORLD / "train").glob("*.npz"))[: -(-count // dataset.SHARD)]
        ]
        texts = [text for shard in shards for text in json.loads(str(shard["captions"]))]
        self.metadata = torch.from_numpy(np.concatenate([shard["metadata"] for shard in shards]))
        self.folder = (
            FOLDER
            / f"{results.assets_hash(host.ROOT / 'assets' / sampled_images.WORLD)[:12]}_{count}"
        )
        cache = self.folder / "latents.pt"
        if not cache.exists():
            _encode(generator, np.concatenate([shard["images"] for shard in shards]), texts, cache)
        state = torch.load(cache, weights_only=True)
        self.latents, self.context, self.nothing = (
            state["latents"],
            state["context"],
            state["nothing"],
        )
        self.texts = texts

    def repadded(self, generator) -> Data:
        """The same with noisy copies of each caption as its padding."""
        made = copy.copy(self)
        made.context = torch.cat(
            padding.repadded(generator, self.texts, "noisy_copies", STRENGTH)
        ).half()
        made.folder = self.folder / "repadded"
        return made

    def batch(self, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        """Latents, timesteps, encoded captions and metadata."""
        picks = torch.randint(len(self.latents), (BATCH,), generator=generator)
        context = self.context[picks].float()
        context[torch.rand(BATCH, generator=generator) < NO_CAPTION] = self.nothing.float()
        timesteps = torch.randint(0, 1000, (BATCH,), generator=generator)
        return self.latents[picks].float(), timesteps, context, self.metadata[picks]


@torch.inference_mode()
def _encode(generator, images: np.ndarray, texts: list[str], cache: Path) -> None:
    process, latents = generator.model.get_model_object("latent_format").process_in, []
    for start in range(0, len(images), 50):
        part = torch.from_numpy(images[start : start + 50]).float() / 255
        latents.append(process(generator.vae.encode(part)).half())
        print(f"\rencoding {start + len(part)}/{len(images)}", end="", flush=True)
    print()
    context, nothing = _contexts(generator, texts), sampled_images.encoded(generator, [""])
    cache.parent.mkdir(parents=True, exist_ok=True)
    state = {"latents": torch.cat(latents), "context": context.half(), "nothing": nothing[0].half()}
    torch.save({name: value.clone() for name, value in state.items()}, cache)


def _contexts(generator, texts: list[str], batch: int = 50) -> torch.Tensor:
    """Encoded captions (N, 77, 128): many at a time, as the chunks of one long prompt, which do not
    see each other.
    """
    parts = []
    for start in range(0, len(texts), batch):
        chunks = [
            chunk
            for text in texts[start : start + batch]
            for chunk in generator.clip.tokenize(text)["l"]
        ]
        parts.append(
            generator.clip.encode_from_tokens({"l": chunks})[0].unflatten(0, (len(chunks), -1))
        )
    return torch.cat(parts)


def trained(data: Data, exponent: float, seed: int, steps: int) -> Denoiser:
    """A network trained on velocity, from fresh weights; goes on where it was stopped."""
    torch.manual_seed(seed)
    network, table = Denoiser(exponent).to(device()), alphas_cumprod().float()

    def loss(generator: torch.Generator, progress: float) -> torch.Tensor:
        latents, timesteps, context, metadata = data.batch(generator)
        noised, velocity = diffused(
            latents, torch.randn(latents.shape, generator=generator), table[timesteps]
        )
        given = [value.to(device()) for value in (noised, timesteps, context, metadata)]
        return F.mse_loss(network(*given).float(), velocity.to(device()))

    plan = Plan(steps=steps, learning_rate=1.5e-3, warmup=50, ema_decay=0.99, seed=seed)
    checkpoint = data.folder / f"gate_{exponent:g}_{seed}_{steps}.pt"
    return train(network, loss, plan, checkpoint, every=steps)


@torch.inference_mode()
def sampled(
    network: Denoiser, generator, context: torch.Tensor, nothing: torch.Tensor, requested: Metadata
) -> np.ndarray:
    """DDIM samples uint8 (N, 128, 128, 3) given one metadata; the same noise for every model and
    metadata.
    """
    noise = torch.randn(len(context), CHANNELS, 16, 16, generator=torch.Generator().manual_seed(5))
    table, x = alphas_cumprod().float(), noise
    times = torch.linspace(999, 0, STEPS + 1).round().long()
    metadata = torch.tensor([requested.numbers()], dtype=torch.float32).expand(2 * len(x), -1)
    both = torch.cat([context, nothing.expand(len(x), -1, -1)]).float()
    for now, then in itertools.pairwise(times):
        now_alpha, then_alpha = table[now], table[then] if then else torch.tensor(1.0)
        rows = torch.cat([x, x]).to(device()), now.expand(2 * len(x)).to(device())
        conditional, unconditional = (
            network(*rows, both.to(device()), metadata.to(device())).float().cpu().chunk(2)
        )
        velocity = unconditional + CFG * (conditional - unconditional)
        clean = now_alpha.sqrt() * x - (1 - now_alpha).sqrt() * velocity
        noise = now_alpha.sqrt() * velocity + (1 - now_alpha).sqrt() * x
        x = then_alpha.sqrt() * clean + (1 - then_alpha).sqrt() * noise
    latent = generator.model.get_model_object("latent_format").process_out(x)
    return (generator.vae.decode(latent) * 255).round().to(torch.uint8).numpy()


def measure(quick: bool) -> dict[str, dict]:
    """For every model: content change with the requested size; size, crop, mirror, captions obeyed;
    Frechet.
    """
    generator, network = sampled_images.load()
    data = Data(generator, 200 if quick else IMAGES)
    requested = sampled_images.scenes(8 if quick else 64)
    texts = sampled_images.texts(requested)
    context, probes = (
        torch.cat(sampled_images.encoded(generator, texts)),
        Probes(generator, 6 if quick else 48),
    )
    real = judge.read(
        network, np.stack([render(scene) for scene in sampled_images.scenes(100 if quick else 600)])
    )[1]
    numbers = {}

    def measured(name: str, data: Data, exponent: float, context: torch.Tensor) -> None:
        pairs, probed = [], []
        for seed in SEEDS[:1] if quick else SEEDS:
            made = trained(data, exponent, seed, 30 if quick else 900)
            generate = functools.partial(sampled, made, generator, nothing=data.nothing)
            pairs.append(
                [
                    generate(context=context, requested=Metadata(original=side))
                    for side in (Metadata().original, 32)
                ]
            )
            probed.append(probes.read(network, generate))
        full, blurred = (np.concatenate(part) for part in zip(*pairs, strict=True))
        numbers.update(_scores(name, network, real, full, blurred, requested * len(pairs)))
        shifts, mirrored = (np.concatenate(part) for part in zip(*probed, strict=True))
        numbers[f"{name}: crop, shift"] = results.bootstrap(
            shifts,
            f"pixels that the person moves left when a crop of {MAX_CROP} is requested",
            "pixels",
        )
        numbers[f"{name}: mirror obeyed"] = results.fraction(
            mirrored, "the judge sees the requested side of a split ground"
        )

    for exponent in EXPONENTS[::2] if quick else EXPONENTS:
        measured("constant" if exponent == 0 else f"cosine {exponent:g}", data, exponent, context)
    rows = torch.cat(padding.repadded(generator, texts, "noisy_copies", STRENGTH))
    measured("constant, padded with noisy copies", data.repadded(generator), 0.0, rows)
    trainings = 1 if quick else len(SEEDS)  # the independent units; images of one network are not
    return {
        name: results.number(
            one["value"],
            trainings,
            one["unit"],
            f"{one['what']}; n counts trainings, {one['n']} images",
        )
        for name, one in numbers.items()
    }


class Probes:
    """Captions that show whether a crop (plain grounds) and a mirror (split grounds) are obeyed."""

    def __init__(self, generator, count: int):
        plain = [replace(scene, pattern="plain") for scene in sampled_images.scenes(count)]
        colors = itertools.islice(itertools.cycle(BACKGROUNDS), count)
        split = [f"portrait, split {color} background" for color in colors]
        self.plain, self.split = (
            torch.cat(sampled_images.encoded(generator, texts))
            for texts in (sampled_images.texts(plain), split)
        )

    def read(self, network, generate) -> tuple[np.ndarray, np.ndarray]:
        """Pixels (N,) that an requested crop moves the person; whether each image (2 N,) has the
        requested side.
        """
        cut = [
            crop.place(
                generate(context=self.plain, requested=Metadata(crop_top=crop.TOP, crop_left=left))
            )
            for left in (0, MAX_CROP)
        ]
        column = list(dataset.LABELS).index("mirror")
        seen = [
            judge.read(
                network, generate(context=self.split, requested=Metadata(mirror=bool(side)))
            )[0][:, column]
            == side
            for side in (0, 1)
        ]
        return cut[0] - cut[1], np.concatenate(seen)


def _scores(
    name: str, network, real: np.ndarray, full: np.ndarray, blurred: np.ndarray, requested: list
) -> dict:
    """What is measured on images of both sides, against the features of renders."""
    numbers = sampled_images.content_change(network, full, blurred, name)
    numbers[f"{name}: blur"] = results.bootstrap(
        sharpness(blurred) / sharpness(full), "sharpness at size 32 over 128", "ratio"
    )
    numbers[f"{name}: captions obeyed"] = results.bootstrap(
        sampled_images.obeyed(network, full, requested),
        "fraction of requested attributes found at size 128",
        "fraction",
    )
    numbers[f"{name}: Frechet distance"] = {
        "value": frechet(judge.read(network, full)[1], real),
        "n": len(full),
        "unit": "distance",
        "what": f"{len(full)} images against {len(real)} renders in judge features",
    }
    return numbers
