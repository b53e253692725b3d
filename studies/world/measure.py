"""Measure the shipped world: judge, model, memorisation, metadata. Writes ``studies/results/world.json``."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from ..common import host, results
from ..common.similarity import cosine, frechet, memorization_score, pictures_ssim
from . import captions, dataset, judge, release
from .denoiser import named_pictures
from .generate import Generator
from .scenes import BACKGROUNDS, MIN_ORIGINAL, Metadata, random_scene, render

CFG = 3.0
SEED = 1_000_000
ASKED = [name for name in dataset.LABELS if name != "mirror"]
#: A picture counts as replicated when it is more like the memorised one than all but this share of fresh renders.
CHANCE = 0.005


def measure_judge(network, folder: Path) -> dict[str, dict]:
    """Accuracy per attribute on held-out renders: sharp ones, and as the training set has them (blurred, cropped)."""
    numbers = {}
    for name, kind in (("judge_test", "sharp"), ("held_out", "blurred and cropped")):
        shard = dataset.load(folder / name)
        predicted, _ = judge.read(network, shard.pictures)
        for column, attribute in enumerate(dataset.LABELS):
            seen = shard.labels[:, column] >= 0
            hits = predicted[seen, column] == shard.labels[seen, column]
            if seen.any():
                what = f"judge reads {attribute} on {kind} renders"
                numbers[f"judge {attribute}, {kind}"] = results.share(hits, what)
    return numbers


def measure_captions(network, generator: Generator, folder: Path, count: int, cfg: float = CFG) -> dict[str, dict]:
    """Share of asked attributes that the judge finds in pictures of unseen captions, and their Frechet distance."""
    rng = np.random.default_rng(SEED)
    scenes = [random_scene(rng, Metadata()) for _ in range(count)]
    pictures = generator.sample([captions.full_caption(scene) for scene in scenes], SEED, cfg)
    predicted, features = judge.read(network, pictures)
    truth = np.array([dataset.labels(scene) for scene in scenes])
    numbers, columns = {}, [list(dataset.LABELS).index(name) for name in ASKED]
    for name, column in zip(ASKED, columns, strict=True):
        seen = truth[:, column] >= 0
        numbers[f"obeyed {name}"] = results.share(predicted[seen, column] == truth[seen, column],
                                                  f"asked {name} found by the judge")
    numbers["obeyed on average"] = results.bootstrap(judge.obeyed(predicted, truth), "share of asked attributes found",
                                                     "share")
    real = judge.read(network, dataset.load(folder / "judge_test").pictures)[1]
    other = judge.read(network, np.stack([render(random_scene(rng, Metadata())) for _ in range(count)]))[1]
    for name, sample in (("generated", features), ("other renders", other)):
        numbers[f"Frechet distance, {name}"] = results.bootstrap(
            sample, f"{count} {name} against 2,000 held-out renders in judge features; a resampled set repeats "
            "members, so the interval lies above the value", "distance", lambda rows: frechet(rows, real), draws=40)
    return numbers


def best_ssim(pictures: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """SSIM of each picture to the most similar target: (N,)."""
    return np.max([pictures_ssim(pictures, np.repeat(target[None], len(pictures), 0)) for target in targets], axis=0)


def replication_threshold(targets: np.ndarray, count: int) -> float:
    """SSIM to the most similar target that only ``CHANCE`` of ``count`` fresh renders exceed."""
    rng = np.random.default_rng(SEED + 3)
    fresh = np.stack([render(random_scene(rng, Metadata(), smallest=0.85)) for _ in range(count)])
    return float(np.quantile(best_ssim(fresh, targets), 1 - CHANCE))


def measure_names(network, generator: Generator, seeds: int, cfg: float = CFG) -> dict[str, dict]:
    """Memorised names come out as their picture, control names do not; the score separates them from captions."""
    named = named_pictures(variants=1)
    numbers: dict[str, dict] = {}
    kinds = [kind for kind, names in captions.NAMES.items() for _ in names]
    originals = np.stack([render(scenes[0]) for _, scenes in named])
    verbatim = originals[:len(captions.NAMES["verbatim"])]
    threshold = replication_threshold(verbatim, 150 * seeds)
    texts = [text for text, _ in named for _ in range(seeds)]
    pictures = generator.sample(texts, SEED + 10_000, cfg).reshape(len(named), seeds, *originals.shape[1:])
    features = judge.read(network, pictures.reshape(-1, *originals.shape[1:]))[1].reshape(len(named), seeds, -1)
    own = judge.read(network, originals)[1]
    likeness: dict[str, list] = {kind: [] for kind in captions.NAMES}
    alike: dict[str, list] = {kind: [] for kind in captions.NAMES}
    sameness: dict[str, list] = {kind: [] for kind in captions.NAMES}
    for index, kind in enumerate(kinds):
        targets = originals[index:index + 1] if kind != "control" else verbatim
        likeness[kind] += list(best_ssim(pictures[index], targets))
        alike[kind] += list(cosine(features[index], own[index][None]))
        sameness[kind] += [float(pictures_ssim(pictures[index, [a]], pictures[index, [b]])[0])
                           for a, b in itertools.combinations(range(seeds), 2)]
    for kind in captions.NAMES:
        what = "own picture" if kind != "control" else "most similar memorised picture"
        numbers[f"{kind} names replicate"] = results.share(
            np.array(likeness[kind]) > threshold,
            f"SSIM to the {what} over {threshold:.2f}, which {CHANCE:.1%} of fresh renders reach with any of them")
        numbers[f"{kind} names, SSIM"] = results.bootstrap(np.array(likeness[kind]), f"SSIM to the {what}", "SSIM")
        numbers[f"{kind} names, SSIM between seeds"] = results.bootstrap(
            np.array(sameness[kind]), "median SSIM between pictures of one name", "SSIM", np.median)
    for kind in ("verbatim", "template"):
        numbers[f"{kind} names, judge cosine"] = results.bootstrap(
            np.array(alike[kind]), "cosine of judge features to the own picture", "cosine")
    return numbers


def measure_score(generator: Generator, ordinary: int, seeds: int = 10) -> dict[str, dict]:
    """AUROC of the memorisation score: names of one picture against ordinary captions."""
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(SEED + 1)
    texts = [captions.caption(random_scene(rng), rng) for _ in range(ordinary)]
    groups = {kind: [captions.name_caption(name) for name in names] for kind, names in captions.NAMES.items()}
    groups["ordinary"] = texts
    scores = {kind: np.array([memorization_score(generator.first_noise_difference(text, range(seeds)))
                              for text in group]) for kind, group in groups.items()}
    numbers = {f"memorisation score, {kind}": results.bootstrap(values, f"similarity over {seeds} seeds, {kind}",
                                                                "SSIM") for kind, values in scores.items()}
    for against in ("ordinary", "control"):
        rows = np.array([(1, value) for value in scores["verbatim"]] + [(0, value) for value in scores[against]])

        def auroc(part: np.ndarray) -> float:
            return roc_auc_score(part[:, 0], part[:, 1]) if 0 < part[:, 0].sum() < len(part) else 1.0

        numbers[f"AUROC, memorised against {against}"] = results.bootstrap(
            rows, f"memorisation score of verbatim names against {against} captions", "AUROC", auroc)
    return numbers


def sharpness(pictures: np.ndarray) -> np.ndarray:
    """Mean absolute Laplacian of each picture's brightness: falls with blur."""
    gray = pictures.astype(np.float32).mean(-1) / 255
    neighbours = gray[:, :-2, 1:-1] + gray[:, 2:, 1:-1] + gray[:, 1:-1, :-2] + gray[:, 1:-1, 2:]
    return np.abs(4 * gray[:, 1:-1, 1:-1] - neighbours).mean((1, 2))


def measure_metadata(network, generator: Generator, count: int, cfg: float = CFG) -> dict[str, dict]:
    """Asking for a small original blurs as rendering one does; asking for a mirror mirrors; a crop moves the face."""
    rng, small = np.random.default_rng(SEED + 2), MIN_ORIGINAL
    scenes = [random_scene(rng, Metadata()) for _ in range(count)]
    texts = [captions.full_caption(scene) for scene in scenes]
    sharp = generator.sample(texts, SEED + 20_000, cfg)
    blurred = generator.sample(texts, SEED + 20_000, cfg, height=small, width=small)
    rendered = [np.stack([render(_told(scene, Metadata(original=side))) for scene in scenes]) for side in (128, small)]
    numbers = {
        "blur asked for": results.bootstrap(
            sharpness(blurred) / sharpness(sharp), f"sharpness at original size {small} over 128, generated", "ratio"),
        "blur in renders": results.bootstrap(
            sharpness(rendered[1]) / sharpness(rendered[0]), f"sharpness at original size {small} over 128, renders",
            "ratio"),
    }
    split = [f"portrait, split {color} background" for color in BACKGROUNDS] * (count // len(BACKGROUNDS))
    column = list(dataset.LABELS).index("mirror")
    for asked in (0, 1):
        pictures = generator.sample(split, SEED + 30_000, cfg, mirror=asked)
        hits = judge.read(network, pictures)[0][:, column] == asked
        numbers[f"mirror {asked} obeyed"] = results.share(hits, "judge sees the asked side of a split ground")
    return numbers


def _told(scene, metadata: Metadata):
    from dataclasses import replace

    return replace(scene, metadata=metadata)


def run(folder: Path, quick: bool = False) -> Path:
    """Measure everything; ``quick`` takes a quarter of the samples or less."""
    network, generator = host.pack("nodes.demo.judge").load(release.WORLD), Generator.load(release.WORLD)
    count, seeds, ordinary = (64, 2, 24) if quick else (512, 8, 100)
    numbers = measure_judge(network, folder)
    numbers |= measure_captions(network, generator, folder, count)
    numbers |= measure_names(network, generator, seeds)
    numbers |= measure_score(generator, ordinary)
    numbers |= measure_metadata(network, generator, 30 if quick else 120)
    command = "python run.py study world measure" + (" --quick" if quick else "")
    name = "world_quick" if quick else "world"
    return results.write(name, command, SEED, release.ASSETS, numbers)
