"""Seed Variety beside its rivals: how much more do the images of a prompt differ, and what of the
prompt is lost?

Every contender samples the same prompts from the same noise. Variety is measured on the images of
one prompt, over pairs and by the Vendi score (Friedman and Dieng, TMLR 2023, arXiv 2210.02410).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from ..common import host, results
from ..world import captions, dataset, judge
from ..world.autoencoder import CHANNELS
from ..world.scenes import Metadata, random_scene
from . import sampled_images

CFG, STEPS, SEED = 3.0, 10, 7_000_000
#: Attributes that a prompt requests; the others are the seed's.
REQUESTED = ("hair", "hair_color", "clothing", "clothing_color")
_COLUMNS = [index for index, name in enumerate(dataset.LABELS) if name != "mirror"]
#: What is measured on the images of a prompt, with its unit.
MEASURES = {
    "attributes": (
        "fraction of attributes that the judge reads differently, mean over pairs of seeds",
        "fraction",
    ),
    "features": ("1 - cosine of the judge's features, mean over pairs of seeds", "distance"),
    "vendi": ("Vendi score of the judge's features: how many images that differ", "images"),
    "captions": ("fraction of requested attributes that the judge finds", "fraction"),
}


_LOST = "requested attributes that the judge no longer finds, paired by prompt"


def vendi_score(similarity: np.ndarray) -> float:
    """exp(-sum w log w) of the eigenvalues w of K / n, equation 1: n for images that have nothing
    in common, 1 for equal ones. ``similarity``: K (n, n), positive, with ones on its diagonal.
    """
    weights = np.linalg.eigvalsh(similarity / len(similarity))
    weights = weights[weights > 1e-12]
    return float(np.exp(-(weights * np.log(weights)).sum()))


def variety(labels: np.ndarray, features: np.ndarray) -> dict[str, float]:
    """How much the images of one prompt differ: ``labels`` (n, 12), ``features`` (n, channels)."""
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    similarity = (unit @ unit.T).astype(np.float64)
    first, second = np.triu_indices(len(labels), 1)
    differing = labels[first][:, _COLUMNS] != labels[second][:, _COLUMNS]
    return {
        "attributes": float(differing.mean()),
        "features": float((1 - similarity[first, second]).mean()),
        "vendi": vendi_score(similarity),
    }


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How images are sampled, and whether on few prompts and seeds."""

    steps: int
    cfg: float
    quick: bool

    @property
    def prompts(self) -> int:
        return 2 if self.quick else 8

    @property
    def seeds(self) -> int:
        return 4 if self.quick else 6


def measure(quick: bool) -> dict[str, dict]:
    """Every contender's variety and captions, and what it gains and loses against no change."""
    generator, network = sampled_images.load()
    chosen = contenders(generator.model, sampled_images.encoded(generator, [""])[0])
    if quick:
        chosen = {name: chosen[name] for name in ("stock", "annealed, tau1 0.4")}
    settings = Settings(steps=STEPS, cfg=CFG, quick=quick)
    kept = results.Rows("conditioning_variety" + ("_quick" if quick else ""), {"seed": SEED})
    return measured(generator, network, chosen, settings, kept)


def measured(
    generator, network, chosen: Mapping[str, Contender], settings: Settings, kept: results.Rows
) -> dict[str, dict]:
    """The numbers of contenders, of which one is "stock"."""
    scenes = _scenes(settings.prompts)
    found = {}
    for name, contender in chosen.items():
        rows = []
        for number, scene in enumerate(scenes):
            first = SEED + 1000 * number
            read = partial(
                _read,
                generator,
                network,
                contender,
                scene=scene,
                seeds=range(first, first + settings.seeds),
                settings=settings,
            )
            rows.append(kept.row(f"{name}, prompt {number}", read))
        found[name] = {key: np.array([row[key] for row in rows]) for key in MEASURES}
        means = {key: round(float(values.mean()), 3) for key, values in found[name].items()}
        print(name, means, flush=True)
    kept.finished()
    return _numbers(found)


def _numbers(measured: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, dict]:
    numbers = {}
    for name, values in measured.items():
        lost = measured["stock"]["captions"] - values["captions"]
        numbers[f"{name}: captions lost"] = results.bootstrap(lost, _LOST, "fraction")
        for key, (what, unit) in MEASURES.items():
            numbers[f"{name}: {key}"] = results.bootstrap(values[key], what, unit)
            if name != "stock":
                gain = values[key] - measured["stock"][key]
                numbers[f"{name}: {key}, gain"] = results.bootstrap(
                    gain, f"{what}: less the stock model's, paired by prompt", unit
                )
    return numbers


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A MODEL, what it makes of an encoded prompt (1, 77, 128), a conditioning, and the noise
    (1, C, H, W) of a seed; None for KSampler's.
    """

    model: object
    positive: Callable[[torch.Tensor], list] = field(default=lambda text: [[text, {}]])
    noise: Callable[[torch.Tensor, int], torch.Tensor] | None = None


def contenders(model, empty: torch.Tensor) -> dict[str, Contender]:
    """By name; ``empty``: the encoded empty prompt (1, 77, 128)."""
    found = {"stock": Contender(model=model)}
    for tau1 in (0.8, 0.6, 0.4, 0.2):
        found[f"annealed, tau1 {tau1:g}"] = _varied(model, "annealed", 0.25, tau1)
    for tau1 in (0.6, 0.4):
        found[f"annealed_fixed, tau1 {tau1:g}"] = _varied(model, "annealed_fixed", 0.25, tau1)
    for scale in (0.25, 0.5, 1.0):
        found[f"constant, whole run, {scale:g}"] = _varied(model, "constant", scale, 0.0)
    for scale in (1.0, 3.0):
        found[f"constant until 0.6, {scale:g}"] = _varied(model, "constant", scale, 0.6)
    for time in (0.8, 0.6):
        found[f"late prompt, from {time:g}"] = Contender(
            model=model, positive=partial(_late, empty, time)
        )
    for time in (0.8, 0.6):
        found[f"guidance below {time:g}"] = Contender(model=_guided_below(model, time))
    for factor in (1.05, 1.1, 1.2):
        found[f"noise times {factor:g}"] = Contender(model=model, noise=partial(_louder, factor))
    for strength in (0.4, 0.8):
        found[f"random layout, strength {strength:g}"] = Contender(
            model=model, noise=partial(_laid_out, strength)
        )
    return found


def _louder(factor: float, latent: torch.Tensor, seed: int) -> torch.Tensor:
    """KSampler's noise, stronger than the model is trained for."""
    return factor * host.pack("nodes.host.evaluate").noise_for(latent, seed)


def _laid_out(strength: float, latent: torch.Tensor, seed: int) -> torch.Tensor:
    """Composition Noise's lowest frequencies in the order of a random guide of each seed, four by
    four fields of three standard deviations.
    """
    composition = host.pack("nodes.noise.composition")
    noise = host.pack("nodes.host.evaluate").noise_for(latent, seed)
    draws = torch.Generator().manual_seed(seed + 1)
    fields = 3 * torch.randn(1, noise.shape[1], 4, 4, generator=draws)
    guide = torch.nn.functional.interpolate(fields, noise.shape[-2:], mode="bicubic")
    settings = composition.CompositionSettings(strength=strength, cutoff=2.0)
    return composition.compose_noise(settings, noise, guide)


def _varied(model, method: str, scale: float, tau1: float) -> Contender:
    """Seed Variety, as the node sets it."""
    annealing = host.pack("nodes.conditioning.condition_annealing")
    settings = annealing.VarietySettings(
        method=annealing.VarietyMethod(method),
        noise_scale=scale,
        tau1=tau1,
        tau2=max(0.9, tau1),
        seed=SEED,
    )
    annealed = host.pack("nodes.conditioning.condition_annealing_comfy").varied(model, settings)
    return Contender(model=annealed)


def _late(empty: torch.Tensor, time: float, text: torch.Tensor) -> list:
    """The empty prompt until a time, and the prompt from there: stock nodes' way."""
    percent = 1 - time
    return [
        [empty, {"start_percent": 0.0, "end_percent": percent}],
        [text, {"start_percent": percent, "end_percent": 1.0}],
    ]


def _guided_below(model, time: float):
    """Guidance in an interval alone (arXiv 2404.07724): none while the noise is high."""
    time_of = host.pack("nodes.conditioning.condition_annealing_comfy").time_of
    sampling = model.get_model_object("model_sampling")

    def guide(arguments: dict) -> torch.Tensor:
        given, without = arguments["cond"], arguments["uncond"]
        if time_of(sampling, float(arguments["sigma"][0])) > time:
            return given
        return without + arguments["cond_scale"] * (given - without)

    clone = model.clone()
    clone.set_model_sampler_cfg_function(guide)
    return clone


def _scenes(count: int) -> list:
    rng = np.random.default_rng(SEED)
    return [random_scene(rng, Metadata()) for _ in range(count)]


def prompt_of(scene) -> str:
    """A short caption: hair and clothing of a scene."""
    phrases = captions.phrases(scene.face)
    return ", ".join(["portrait", phrases["hair"], phrases["clothing"]])


@torch.inference_mode()
def _read(
    generator, network, contender: Contender, *, scene, seeds: range, settings: Settings
) -> dict[str, float]:
    """The measures of one prompt's images."""
    text, empty = sampled_images.encoded(generator, [prompt_of(scene), ""])
    evaluate = host.pack("nodes.host.evaluate")
    samples = evaluate.sample_seeds(
        contender.model,
        contender.positive(text),
        negative=[[empty, {}]],
        latent={"samples": torch.zeros(1, CHANNELS, 16, 16)},
        seeds=list(seeds),
        steps=settings.steps,
        cfg=settings.cfg,
        draw=contender.noise or evaluate.noise_for,
    )
    images = (generator.vae.decode(samples) * 255).round().to(torch.uint8).numpy()
    labels, features = judge.read(network, images)
    truth = np.array([dataset.labels(scene)])
    truth[:, [name not in REQUESTED for name in dataset.LABELS]] = -1
    found = judge.followed(labels, truth.repeat(len(images), axis=0))
    return {**variety(labels, features), "captions": float(found.mean())}
