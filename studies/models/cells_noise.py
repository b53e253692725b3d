"""Cells of the noise family: what each node must do on a network."""

from __future__ import annotations

import re
from typing import Any

import torch

from .subject import PROMPT, Subject, batch, demand, first_part, relative


class _Noise:
    """Stock's noise of a seed, as Random Noise gives it."""

    def __init__(self, seed: int = 5):
        self.seed = seed

    def generate_noise(self, latent: dict):
        import comfy.sample

        return comfy.sample.prepare_noise(latent["samples"], self.seed, None)


def _parts(samples: Any) -> list[torch.Tensor]:
    return list(samples.unbind()) if getattr(samples, "is_nested", False) else [samples]


def _equal(one: Any, other: Any) -> bool:
    pairs = zip(_parts(one), _parts(other), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


def immiscible_noise(subject: Subject) -> str:
    """Off is stock's noise, an assignment permutes it, the nearest one changes it."""
    latents = batch(subject, 3)
    stock = _Noise().generate_noise(latents)

    def paired(pairing: str, inner: _Noise | None = None, **more: Any):
        noise = subject.run(
            "ImmiscibleNoise",
            noise=inner or _Noise(),
            latent=latents,
            pairing=pairing,
            model=subject.model,
            **more,
        )[0]
        return noise.generate_noise(latents)

    demand(_equal(paired("off"), stock), "Pairing off changes the noise.")
    others = [_Noise(seed) for seed in (5, 6)]  # one may be the nearest of 64 already
    is_stock = [
        _equal(paired("nearest", inner=other, k=64.0), other.generate_noise(latents))
        for other in others
    ]
    demand(not all(is_stock), "The nearest noise is stock's.")
    for part, drawn in zip(_parts(paired("assign")), _parts(stock), strict=True):
        for image in part:
            demand(any(torch.equal(image, one) for one in drawn), "It is no permutation.")
    return "off bit-equal, an assignment permutes"


def immiscible_latent_batch(subject: Subject) -> str:
    """The latent keeps its shape and the seed's noise is paired."""
    latent = subject.run(
        "ImmiscibleLatentBatch",
        latent=batch(subject, 2),
        seed=1,
        pairing="nearest",
        model=subject.model,
    )[0]
    shapes = [part.shape for part in _parts(latent["samples"])]
    expected = [part.shape for part in _parts(batch(subject, 2)["samples"])]
    demand(shapes == expected, "The latent has another shape.")
    return "shape kept"


def estimated_gain(subject: Subject) -> str:
    """Pairing never makes noise less alike."""
    report = subject.run(
        "ImmiscibleNoise",
        noise=_Noise(),
        latent=batch(subject, 4),
        gain_batch_size=2,
        pool_size=8,
        model=subject.model,
    )[2]
    estimated = report.partition("Estimated gain")[2]
    gains = [float(number) for number in re.findall(r": (-?[\d.]+) %", estimated)]
    demand(len(gains) == 3, "The report has no three gains.")
    demand(all(gain >= -1e-6 for gain in gains), f"A gain is negative: {gains}.")
    return "gains " + ", ".join(f"{gain:.2g}" for gain in gains)


def composition_noise(subject: Subject) -> str:
    """Strength 0 is the seed's noise; the values stay, and their order follows the guide."""

    def composed(strength: float, **more: Any):
        noise = subject.run(
            "CompositionNoise",
            latent=subject.empty,
            seed=3,
            strength=strength,
            model=subject.model,
            **more,
        )[0]
        return noise.generate_noise(subject.empty)

    off = composed(0.0, guide=subject.latent)
    moved = composed(0.8, guide=subject.latent)
    first, second = first_part(off), first_part(moved)
    demand(not torch.equal(first, second), "The guide changes nothing.")
    error = abs(float(second.norm() / first.norm()) - 1)
    demand(error < 1e-4, f"The norm of the noise changes by {error:.2g}.")
    guide = first_part(subject.latent["samples"])
    nearer = float((second * guide).sum() - (first * guide).sum())
    demand(nearer > 0, "The noise is no more like the guide.")
    for part, other in zip(_parts(off)[1:], _parts(moved)[1:], strict=True):
        demand(torch.equal(part, other), "The noise of the sound changes.")
    return "norm kept, more like the guide, strength 0 is the seed's noise"


def flow_edit(subject: Subject) -> str:
    """One prompt for both leaves the image, another one changes it."""

    def edited(target: list) -> list[torch.Tensor]:
        made = subject.run(
            "FlowEdit",
            model=subject.model,
            source=subject.positive,
            target=target,
            negative=subject.negative,
            latent=subject.latent,
            steps=2,
            source_cfg=2.0,
            target_cfg=2.0,
        )[0]
        return _parts(made["samples"])

    original = _parts(subject.latent["samples"])
    for part, before in zip(edited(subject.positive), original, strict=True):
        error = float((part - before).abs().max() / before.abs().max())
        demand(error < 1e-4, f"The same prompt changes the image by {error:.2g}.")
    changed = edited(subject.negative)
    demand(all(bool(part.isfinite().all()) for part in changed), "The result is not finite.")
    error = float((changed[0] - original[0]).abs().max() / original[0].abs().max())
    demand(error > 1e-4, "Another prompt changes nothing.")
    return f"the same prompt leaves the image, another one changes it by {error:.2g}"


def seed_scout_layout(subject: Subject) -> str:
    """The seed of an image is the most like it."""

    def scouted(reference: torch.Tensor):
        return subject.run(
            "SeedScout",
            model=subject.model,
            positive=subject.positive,
            negative=subject.negative,
            vae=subject.vae,
            latent=subject.empty,
            ranking="layout_likeness",
            reference=reference,
            count=3,
            keep=3,
            steps=1,
            batch_size=3,
            cfg=1.0,
        )[:2]

    generator = torch.Generator().manual_seed(0)
    reference = torch.rand(1, subject.side, subject.side, 3, generator=generator)
    seeds, images = scouted(reference)
    frames = len(images) // len(_list(seeds))
    last = _list(seeds)[-1]
    best = _list(scouted(images[-frames:][:1])[0])[0]
    demand(best == last, f"The image of seed {last} is found to be that of {best}.")
    return "an image's own seed is first"


def _list(value: Any) -> list:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def seed_scout_words(subject: Subject) -> str:
    """Seeds that were tried, with the words' coverage."""
    seeds = subject.run(
        "SeedScout",
        model=subject.model,
        positive=subject.positive,
        negative=subject.negative,
        vae=subject.vae,
        latent=subject.empty,
        ranking="word_coverage",
        prompt=PROMPT,
        words="cat",
        count=2,
        keep=2,
        steps=1,
        batch_size=2,
        cfg=1.0,
        seed=4,
        clip=subject.text_encoder,
    )[0]
    demand(sorted(_list(seeds)) == [4, 5], f"The seeds are {seeds}.")
    return "seeds ranked by the word's coverage"


def train_lora(subject: Subject) -> str:
    """The file through Load LoRA is the trained MODEL."""
    import comfy.sd

    model, lora, *_ = subject.run(
        "TrainLoraImmiscible",
        model=subject.model,
        latents=subject.latent,
        positive=subject.positive,
        steps=2,
        rank=2,
        precision="fp32",
        lora_precision="fp32",
        pairing="nearest",
        learning_rate=1e-2,
    )
    trained = subject.changed(model)
    loaded = subject.sample(comfy.sd.load_lora_for_models(subject.model, None, lora, 1.0, 0)[0])
    error = relative(loaded, trained, subject.plain)
    demand(error < 1e-3, f"The file through Load LoRA differs by {error:.2g} of the change.")
    return f"{len(lora)} tensors, the file within {error:.1g}"


CELLS = {
    "ImmiscibleNoise": immiscible_noise,
    "ImmiscibleLatentBatch": immiscible_latent_batch,
    "ImmiscibleNoise (gain)": estimated_gain,
    "CompositionNoise": composition_noise,
    "FlowEdit": flow_edit,
    "SeedScout (layout_likeness)": seed_scout_layout,
    "SeedScout (word_coverage)": seed_scout_words,
    "TrainLoraImmiscible": train_lora,
}
