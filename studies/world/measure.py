"""Measure each stage of the world alone, so that a weak stage is seen where it is.

Every function makes the numbers of one part for ``studies/results/world_PART.json``; ``GATES`` says
what to reach.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import cache

import numpy as np
import torch

from ..common import host, results
from ..common.similarity import cosine, frechet, images_ssim, memorization_score
from . import captions, dataset, judge
from .denoiser import named_images
from .generate import Generator
from .release import WORLD
from .scenes import BACKGROUNDS, MIN_ORIGINAL, Metadata, random_scene, render

CFG, SEED = 3.0, 1_000_000
FOLDER = host.ROOT / ".cache" / "world"
REQUESTED = [name for name in dataset.LABELS if name != "mirror"]
#: An image counts as replicated when it is more like the memorized one than all but this fraction
#: of fresh renders.
CHANCE = 0.005
CROPS = (8, 16, 24)


@cache
def network() -> torch.nn.Module:
    """The shipped judge."""
    return host.pack("nodes.demo.judge").load(WORLD)


@cache
def generator() -> Generator:
    """The shipped model, text model and autoencoder."""
    return Generator.load(WORLD)


@cache
def held_out(name: str, count: int, seed: int, kind: str):
    """Renders that no network was trained on, made when they are not there."""
    dataset.build(FOLDER / name, count, seed=seed, kind=kind)
    return (dataset.load_truth if kind == "truth" else dataset.load)(FOLDER / name)


def sharp_renders():
    return held_out("held_out_sharp", 2_000, 3, "sharp")


def measure_judge(quick: bool) -> dict[str, dict]:
    """What the judge reads right on held-out renders: attributes, part masks, key points and the
    number of faces.
    """
    numbers, ordinary = {}, held_out("held_out", 1_000, 2, "ordinary")
    for shard, kind in (
        (sharp_renders(), "sharp"),
        (ordinary, "a quarter blurred, a quarter cropped"),
    ):
        shard = shard.first(500) if quick else shard
        predicted, _ = judge.read(network(), shard.images)
        for column, attribute in enumerate(dataset.LABELS):
            seen = shard.labels[:, column] >= 0
            if seen.any():
                hits = predicted[seen, column] == shard.labels[seen, column]
                what = f"judge reads {attribute} on renders ({kind})"
                numbers[f"judge {attribute}, {kind}"] = results.fraction(hits, what)
    truth = held_out("held_out_truth", 500, 5, "truth")
    masks, points, faces = judge.locate(network(), truth.images)
    numbers["number of faces"] = results.fraction(
        faces == truth.faces, "scenes with 0 to 3 faces counted right"
    )
    single = truth.faces == 1
    distance = np.linalg.norm(points[single] - truth.points[single], axis=-1).mean(1)
    numbers["key points"] = results.bootstrap(
        distance, "mean distance of eyes, nose and mouth from the truth", "pixels"
    )
    small = (
        masks.reshape(*masks.shape[:2], dataset.MASK_SIDE, 2, dataset.MASK_SIDE, 2).mean((3, 5))
        > 0.5
    )
    true = truth.masks > 127
    for index, part in enumerate(host.pack("nodes.demo.judge").PARTS):
        there = true[:, index].any((1, 2))
        both, either = (
            (small[there, index] & true[there, index]),
            (small[there, index] | true[there, index]),
        )
        overlap = both.sum((1, 2)) / either.sum((1, 2))
        numbers[f"mask {part}"] = results.bootstrap(
            overlap, f"intersection over union of {part} where it is", "IoU"
        )
    return numbers


def reconstructed(images: torch.Tensor) -> torch.Tensor:
    """Images (N, 128, 128, 3) of 0 to 1 after a pass through the VAE."""
    vae = generator().vae
    with torch.inference_mode():
        return torch.cat([vae.decode(vae.encode(part)) for part in images.split(50)]).cpu()


def measure_autoencoder(quick: bool) -> dict[str, dict]:
    """What a pass through the VAE costs: signal, and what the judge reads; the linear decoder alone
    as the rival.
    """
    shard = sharp_renders().first(200 if quick else 1000)
    images, numbers = torch.from_numpy(shard.images).float() / 255, {}
    decoded, inner = reconstructed(images), generator().vae.first_stage_model
    with torch.inference_mode():
        pixels = (images.movedim(-1, 1) * 2 - 1).split(50)
        linear = torch.cat([inner.expand(inner.encode(part)).cpu() for part in pixels])
    linear = (linear.movedim(1, -1).clamp(-1, 1) + 1) / 2
    before, _ = judge.read(network(), shard.images)
    for name, output in (("VAE", decoded), ("linear decoder", linear)):
        signal = -10 * (output - images).square().mean((1, 2, 3)).log10()
        numbers[f"PSNR, {name}"] = results.bootstrap(
            signal.numpy(), "of sharp held-out renders", "dB"
        )
        after, _ = judge.read(network(), (output * 255).round().to(torch.uint8).numpy())
        for column, attribute in enumerate(dataset.LABELS):
            seen = shard.labels[:, column] >= 0
            right = [
                (read[seen, column] == shard.labels[seen, column]).astype(float)
                for read in (before, after)
            ]
            numbers[f"lost {attribute}, {name}"] = results.bootstrap(
                right[0] - right[1],
                f"judge reads {attribute} in renders less in their reconstructions",
                "fraction",
            )
    return numbers


def measure_captions(quick: bool, cfg: float = CFG) -> dict[str, dict]:
    """Requested attributes that the judge finds in images of unseen captions, and Frechet
    distances.
    """
    rng, count, many = np.random.default_rng(SEED), 96 if quick else 512, 96 if quick else 2000
    scenes = [random_scene(rng, Metadata()) for _ in range(many)]
    texts = [captions.full_caption(scene) for scene in scenes]
    images = generator().sample(texts, SEED, cfg)
    predicted, features = judge.read(network(), images)
    truth = np.array([dataset.labels(scene) for scene in scenes[:count]])
    numbers = {}
    for name in REQUESTED:
        column = list(dataset.LABELS).index(name)
        seen = truth[:, column] >= 0
        hits = predicted[:count][seen, column] == truth[seen, column]
        numbers[f"followed {name}"] = results.fraction(hits, f"requested {name} found by the judge")
    each = judge.followed(predicted[:count], truth)
    numbers["followed on average"] = results.bootstrap(
        each, "fraction of requested attributes found", "fraction"
    )
    # Fresh noise at each step lets later steps correct what earlier ones got wrong.
    ancestral, _ = judge.read(
        network(), generator().sample(texts[:count], SEED, cfg, sampler="euler_ancestral")
    )
    numbers["followed on average, euler_ancestral"] = results.bootstrap(
        judge.followed(ancestral, truth),
        "the same captions with the sampler euler_ancestral",
        "fraction",
    )
    real = judge.read(network(), sharp_renders().images[:many])[1]
    other = judge.read(
        network(), np.stack([render(random_scene(rng, Metadata())) for _ in range(many)])
    )[1]
    distances = {
        name: frechet(rows, real)
        for name, rows in (("generated", features), ("other renders", other))
    }
    what = f"{many} {{}} against as many held-out renders, judge features"
    for name, value in distances.items():
        numbers[f"Frechet distance, {name}"] = {
            "value": value,
            "n": many,
            "unit": "distance",
            "what": what.format(name),
        }
    numbers["Frechet ratio"] = {
        "value": distances["generated"] / distances["other renders"],
        "n": many,
        "unit": "ratio",
        "what": "Frechet distance of generated images over that of other renders",
    }
    return numbers


def best_ssim(images: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """SSIM of each image to the most similar target: (N,)."""
    return np.max(
        [images_ssim(images, np.repeat(target[None], len(images), 0)) for target in targets], axis=0
    )


def replication_threshold(targets: np.ndarray, count: int) -> float:
    """SSIM to the most similar target that only ``CHANCE`` of ``count`` fresh renders exceed."""
    rng = np.random.default_rng(SEED + 3)
    fresh = np.stack([render(random_scene(rng, Metadata(), smallest=0.85)) for _ in range(count)])
    return float(np.quantile(best_ssim(fresh, targets), 1 - CHANCE))


def measure_names(quick: bool, cfg: float = CFG) -> dict[str, dict]:
    """Memorized names come out as their image, control names do not; the score separates them from
    captions.
    """
    named, seeds = named_images(variants=1), 2 if quick else 8
    numbers: dict[str, dict] = {}
    kinds = [kind for kind, names in captions.NAMES.items() for _ in names]
    originals = np.stack([render(scenes[0]) for _, scenes in named])
    verbatim = originals[: len(captions.NAMES["verbatim"])]
    threshold = replication_threshold(verbatim, 150 * seeds)
    texts = [text for text, _ in named for _ in range(seeds)]
    images = (
        generator()
        .sample(texts, SEED + 10_000, cfg)
        .reshape(len(named), seeds, *originals.shape[1:])
    )
    features = judge.read(network(), images.reshape(-1, *originals.shape[1:]))[1].reshape(
        len(named), seeds, -1
    )
    own = judge.read(network(), originals)[1]
    likeness: dict[str, list] = {kind: [] for kind in captions.NAMES}
    alike: dict[str, list] = {kind: [] for kind in captions.NAMES}
    sameness: dict[str, list] = {kind: [] for kind in captions.NAMES}
    for index, kind in enumerate(kinds):
        targets = originals[index : index + 1] if kind != "control" else verbatim
        likeness[kind] += list(best_ssim(images[index], targets))
        alike[kind] += list(cosine(features[index], own[index][None]))
        sameness[kind] += [
            float(images_ssim(images[index, [a]], images[index, [b]])[0])
            for a, b in itertools.combinations(range(seeds), 2)
        ]
    for kind in captions.NAMES:
        what = "own image" if kind != "control" else "most similar memorized image"
        numbers[f"{kind} names replicate"] = results.fraction(
            np.array(likeness[kind]) > threshold,
            f"SSIM to the {what} over {threshold:.2f}, which {CHANCE:.1%} of fresh renders reach "
            "with any of them",
        )
        numbers[f"{kind} names, SSIM"] = results.bootstrap(
            np.array(likeness[kind]), f"SSIM to the {what}", "SSIM"
        )
        numbers[f"{kind} names, SSIM between seeds"] = results.bootstrap(
            np.array(sameness[kind]), "median SSIM between images of one name", "SSIM", np.median
        )
    for kind in ("verbatim", "template"):
        numbers[f"{kind} names, judge cosine"] = results.bootstrap(
            np.array(alike[kind]), "cosine of judge features to the own image", "cosine"
        )
    return numbers | _score(20 if quick else 100)


def _score(ordinary: int, seeds: int = 10) -> dict[str, dict]:
    """AUROC of the memorization score: names of one image against ordinary captions."""
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(SEED + 1)
    texts = [captions.caption(random_scene(rng), rng) for _ in range(ordinary)]
    groups = {
        kind: [captions.name_caption(name) for name in names]
        for kind, names in captions.NAMES.items()
    }
    groups["ordinary"] = texts
    scores = {
        kind: np.array(
            [
                memorization_score(generator().first_noise_difference(text, range(seeds)))
                for text in group
            ]
        )
        for kind, group in groups.items()
    }
    numbers = {
        f"memorization score, {kind}": results.bootstrap(
            values, f"similarity over {seeds} seeds, {kind}", "SSIM"
        )
        for kind, values in scores.items()
    }
    for against in ("ordinary", "control"):
        rows = np.array(
            [(1, value) for value in scores["verbatim"]] + [(0, value) for value in scores[against]]
        )

        def auroc(part: np.ndarray) -> float:
            return (
                roc_auc_score(part[:, 0], part[:, 1]) if 0 < part[:, 0].sum() < len(part) else 1.0
            )

        numbers[f"AUROC, memorized against {against}"] = results.bootstrap(
            rows, f"memorization score of verbatim names against {against} captions", "AUROC", auroc
        )
    return numbers


def sharpness(images: np.ndarray) -> np.ndarray:
    """Mean absolute Laplacian of each image's brightness: falls with blur."""
    gray = images.astype(np.float32).mean(-1) / 255
    neighbors = gray[:, :-2, 1:-1] + gray[:, 2:, 1:-1] + gray[:, 1:-1, :-2] + gray[:, 1:-1, 2:]
    return np.abs(4 * gray[:, 1:-1, 1:-1] - neighbors).mean((1, 2))


def measure_metadata(quick: bool, cfg: float = CFG) -> dict[str, dict]:
    """A requested small original blurs as rendering one does; a mirror mirrors; a crop offset moves
    the face.
    """
    rng, small, count = np.random.default_rng(SEED + 2), MIN_ORIGINAL, 20 if quick else 120
    scenes = [random_scene(rng, Metadata()) for _ in range(count)]
    texts = [captions.full_caption(scene) for scene in scenes]

    def rendered(**metadata) -> np.ndarray:
        return np.stack([render(replace(scene, metadata=Metadata(**metadata))) for scene in scenes])

    plain = {"generated": generator().sample(texts, SEED + 20_000, cfg), "renders": rendered()}
    blurred = {
        "generated": generator().sample(texts, SEED + 20_000, cfg, height=small, width=small),
        "renders": rendered(original=small),
    }
    # What of the difference is the autoencoder's: reconstructions never saw the denoiser.
    for images in (plain, blurred):
        decoded = reconstructed(torch.from_numpy(images["renders"]).float() / 255)
        images["reconstructions"] = (decoded * 255).round().to(torch.uint8).numpy()
    numbers = {
        f"blur, {kind}": results.bootstrap(
            sharpness(blurred[kind]) / sharpness(plain[kind]),
            f"sharpness at original size {small} over 128, {kind}",
            "ratio",
        )
        for kind in plain
    }
    before = {
        kind: judge.locate(network(), plain[kind])[1].mean(1) for kind in ("generated", "renders")
    }
    for crop in CROPS:
        moved = {
            "generated": generator().sample(texts, SEED + 20_000, cfg, crop_w=crop),
            "renders": rendered(crop_left=crop),
        }
        for kind, images in moved.items():
            shift = before[kind][:, 0] - judge.locate(network(), images)[1].mean(1)[:, 0]
            numbers[f"crop of {crop} moves the face, {kind}"] = results.bootstrap(
                shift / crop,
                "median leftward shift of the judge's key points over the requested pixels",
                "ratio",
                np.median,
            )
    split = [f"portrait, split {color} background" for color in BACKGROUNDS] * (
        count // len(BACKGROUNDS)
    )
    column = list(dataset.LABELS).index("mirror")
    for mirror in (0, 1):
        images = generator().sample(split, SEED + 30_000, cfg, mirror=mirror)
        hits = judge.read(network(), images)[0][:, column] == mirror
        numbers[f"mirror {mirror} followed"] = results.fraction(
            hits, "judge sees the requested side of a split ground"
        )
    return numbers


#: Result, number, and the least and greatest value that passes; "*" stands for the attribute that
#: is furthest off.
GATES = (
    ("world_judge", "judge *, sharp", 0.97, None),
    ("world_autoencoder", "lost *, VAE", None, 0.02),
    ("world_autoencoder", "PSNR, VAE", 30.0, None),
    ("world_captions", "followed on average", 0.95, None),
    ("world_captions", "followed *", 0.88, None),
    ("world_captions", "Frechet ratio", None, 3.0),
    ("world_metadata", "blur, generated over renders", 0.5, 2.0),
    *(
        ("world_metadata", f"crop of {crop} moves the face, generated", 0.75, 1.25)
        for crop in CROPS
    ),
    ("world_names", "verbatim names replicate", 0.95, None),
    ("world_names", "control names replicate", None, 0.0),
    ("world_names", "AUROC, memorized against ordinary", 0.95, None),
    ("world_population", "R2 of the coefficients", 0.3, None),
    ("weights_guidance", "member, positive side to 60 %: identity", 0.85, None),
)


def measure_gates(quick: bool) -> dict[str, dict]:
    """The goals of the world, as the committed results reach them: value, what is wanted, and
    whether it passes.
    """
    found: dict[str, dict] = {}
    for result, name, low, high in GATES:
        path = results.RESULTS / f"{result}.json"
        numbers = json.loads(path.read_text(encoding="utf-8"))["numbers"]
        if name.endswith(" over renders"):
            generated, renders = (
                numbers[name.removesuffix(" over renders")],
                numbers["blur, renders"],
            )
            numbers[name] = {
                "value": generated["value"] / renders["value"],
                "n": generated["n"],
                "unit": "ratio",
            }
        choices = [name.replace("*", label) for label in dataset.LABELS] if "*" in name else [name]
        values = {choice: numbers[choice]["value"] for choice in choices if choice in numbers}
        worst = (min if high is None else max)(values, key=values.get)
        value = values[worst]
        passed = (low is None or value >= low) and (high is None or value <= high)
        bounds = (("at least", low), ("at most", high))
        wanted = " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)
        found[worst] = {
            "value": value,
            "n": numbers[worst]["n"],
            "unit": numbers[worst]["unit"],
            "what": f"wanted: {wanted}; {'reached' if passed else 'missed'}",
        }
    return found
