"""Do features of a sparse autoencoder mean one attribute? `python run.py study activations sparse
[--quick] [--steer]`.

The demo model's autoencoder (`... sparse --train` makes it) reads rendered faces. For each value of
each attribute the unit with the largest AUROC on one half of the images is scored on the other
half; for each part of the face the unit and threshold with the largest IoU likewise. Beside the
features: single channels and principal components, both in both directions, an autoencoder with
random directions, and shuffled labels.

``--steer``: does Sparse Feature Steering reach an attribute? The features that a phrase of the
prompt raises most, on seeds of their own, are added while a caption without the phrase is sampled,
and the judge reads the images; beside it the same noise without them, and the phrase in the prompt.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional as F

from ..common import host, results
from ..world.autoencoder import CHANNELS
from ..world.captions import caption
from ..world.faces import ATTRIBUTES
from ..world.scenes import Metadata, masks, random_scene, render
from . import labeled_faces, measure
from .steering import CFG, STEPS, Steered
from .steering import caption as caption_of

SEED, TRAINING_SEED = 20_260, 20_261
#: Mean differences steer here, in the first block, and not late in the network: in a pilot on five
#: seeds, at strengths 2 and 5, the skin was reached in four and four, along that of
#: up-level2-repeat0-vit-out in none.
ID = "down-level0-repeat0-vit-out"
ASSET = "avatars-v2-sparse-autoencoder.safetensors"
PROMPTS, FEATURES, K, BATCHES, BATCH = 48, 256, 16, 768, 128
#: A unit means a value when it separates its images this well, and a value needs so many images in
#: each half.
SEPARATED, FEWEST = 0.9, 3
_QUANTILES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
#: Attribute, its value, the part of the caption, and the phrase that names it.
TARGETS = (
    ("background", "green", "background", "plain green background"),
    ("clothing_color", "red", "clothing", "red hoodie"),
    ("skin", "black", "skin", "black skin"),
    ("hair_color", "pink", "hair", "short pink hair"),
)
#: How many features are added at once, and how often their usual value.
STEERED = ((1, 1.0), (3, 1.0), (1, 4.0))
_CHOOSING = range(100, 104)  # seeds that the features are chosen on


def train() -> str:
    """Train the demo model's autoencoder on captions of random faces, and write it into the output
    folder.
    """
    rng = np.random.default_rng(TRAINING_SEED)
    prompts = "\n".join(caption(random_scene(rng), rng) for _ in range(PROMPTS))
    world = host.pack("nodes.demo.assets").worlds()[0]
    model, clip = (
        host.pack(f"nodes.demo.{name}").load(world) for name in ("denoiser", "text_encoder")
    )
    node = host.pack("nodes.activations.nodes_train_autoencoder").TrainSparseAutoencoder
    with torch.inference_mode():
        _, file, _, report = node.execute(
            model,
            clip,
            {"samples": torch.zeros(1, CHANNELS, 16, 16)},
            ID,
            prompts,
            "",
            FEATURES,
            K,
            BATCHES,
            BATCH,
            4e-3,
            100,
            TRAINING_SEED,
            STEPS,
            CFG,
            "glassbox/avatars-v2-sparse-autoencoder",
        ).result
    print(report)
    return file


def drawn(count: int, seed: int) -> tuple[torch.Tensor, dict[str, np.ndarray], torch.Tensor]:
    """Images (N, 128, 128, 3), the index of each attribute's value (N,), and part masks (N, parts,
    128, 128).
    """
    rng = np.random.default_rng(seed)
    scenes = [random_scene(rng, Metadata()) for _ in range(count)]
    images = torch.from_numpy(np.stack([render(scene) for scene in scenes])).float() / 255
    values = np.array([scene.face.indices() for scene in scenes])
    parts = [
        torch.from_numpy(np.stack([masks(scene)[name] for name in labeled_faces.PARTS]))
        for scene in scenes
    ]
    return images, dict(zip(ATTRIBUTES, values.T, strict=True)), torch.stack(parts).float()


def units(feature: torch.Tensor, autoencoder) -> dict[str, torch.Tensor]:
    """Maps (N, units, H, W) of each contender, from an activation (N, C, H, W)."""
    points = feature.movedim(1, -1).flatten(0, -2)
    generator = torch.Generator().manual_seed(SEED)
    random = F.normalize(torch.randn(autoencoder.encoder.shape, generator=generator), dim=1)
    active = host.pack("nodes.activations.sparse_autoencoder").ActiveFeatures.of
    centered = points - points.mean(0)
    components = torch.linalg.eigh(centered.T @ centered)[1]
    found = {
        "features": autoencoder.encode(points),
        "channels": torch.cat([centered, -centered], 1),
        "principal components": torch.cat([centered @ components, -centered @ components], 1),
        "random directions": active(centered @ random.T, autoencoder.k).dense(len(random)),
    }
    shape = (len(feature), *feature.shape[2:], -1)
    return {name: value.view(shape).movedim(-1, 1) for name, value in found.items()}


def auroc(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """AUROC of each column of ``scores`` (N, units) for labels (N,), ties as one half (Mann and
    Whitney's U).
    """
    positive, negative = scores[labels], scores[~labels]
    difference = positive[:, None] - negative[None]
    return ((difference > 0) + 0.5 * (difference == 0)).mean((0, 1))


def separations(
    peaks: np.ndarray, truth: dict[str, np.ndarray]
) -> dict[tuple[str, int], tuple[int, float]]:
    """For each value of each attribute the best unit on the first half of the images, and its AUROC
    on the second.
    """
    half, found = len(peaks) // 2, {}
    for name, indices in truth.items():
        for value in range(len(ATTRIBUTES[name])):
            labels = indices == value
            if min(labels[:half].sum(), labels[half:].sum()) >= FEWEST:
                unit = int(auroc(peaks[:half], labels[:half]).argmax())
                found[name, value] = unit, float(auroc(peaks[half:, [unit]], labels[half:])[0])
    return found


def part_iou(maps: torch.Tensor, parts: torch.Tensor) -> np.ndarray:
    """IoU per image of the second half and part (N / 2, parts), of the best unit and threshold on
    the first half.
    """
    half, size = len(maps) // 2, maps.shape[2:]
    truth = F.interpolate(parts, size=size, mode="area") > 0.5
    values, quantiles = maps[:half], torch.tensor(_QUANTILES)
    thresholds = torch.quantile(
        values.transpose(0, 1).flatten(1), quantiles, dim=1
    )  # (quantiles, units)
    masks = [values > row[:, None, None] for row in thresholds]
    found = []
    for number in range(parts.shape[1]):
        iou = torch.stack([_iou(mask, truth[:half, number, None]).mean(0) for mask in masks])
        level, unit = divmod(int(iou.argmax()), iou.shape[1])
        found.append(
            _iou(maps[half:, unit] > thresholds[level, unit], truth[half:, number]).numpy()
        )
    return np.stack(found, 1)


def _iou(found: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Of masks (..., H, W); 1 where both are empty."""
    union = (found | truth).sum((-2, -1))
    return torch.where(union > 0, (found & truth).sum((-2, -1)) / union.clamp_min(1), 1.0)


def main(argv: Sequence[str]) -> int:
    """Measure, write, and print where."""
    parser = argparse.ArgumentParser(
        prog="run.py study activations sparse", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="80 images instead of 400")
    parser.add_argument(
        "--train", action="store_true", help="train the autoencoder instead, into the output folder"
    )
    parser.add_argument(
        "--steer", action="store_true", help="steer by features instead; quick: one target, 5 seeds"
    )
    options = parser.parse_args(argv)
    host.prepare()
    if options.train:
        print(train())
        return 0
    assets = host.pack("nodes.demo.assets")
    world, count = assets.worlds()[0], 80 if options.quick else 400
    autoencoder = host.pack("nodes.activations.autoencoder_file").read(assets.ASSETS / ASSET)
    name, command = "activations_sparse", "python run.py study activations sparse"
    numbers = {}
    if options.steer:
        name, command = f"{name}_steering", f"{command} --steer"
        steer(world, *((TARGETS[:1], 5) if options.quick else (TARGETS, 50)), autoencoder, numbers)
    else:
        read_faces(world, count, autoencoder, numbers)
    for entry, number in numbers.items():
        print(f"{entry}: {number['value']:.3f}", flush=True)
    if options.quick:
        name, command = f"{name}_quick", f"{command} --quick"
    print(
        results.write(name, command, SEED, (assets.ASSETS / world, assets.ASSETS / ASSET), numbers)
    )
    return 0


def read_faces(world: str, count: int, autoencoder, numbers: dict) -> None:
    """What the units of each contender separate, and which parts they find."""
    tapper = measure.Tapper(world)
    tapper.chosen = [entry for entry in tapper.entries if entry.id == ID]
    images, truth, parts = drawn(count, SEED)
    tapped = []
    for first in range(0, count, 20):
        latent = {"samples": tapper._vae.encode(images[first : first + 20])}
        tapped.append(
            next(
                iter(tapper.draws(latent, measure.RECIPE, SEED + first, 1, torch.float32))
            ).tensors[ID]
        )
    feature = torch.cat(tapped)
    points = feature.movedim(1, -1).flatten(0, -2)
    training = host.pack("nodes.activations.autoencoder_training")
    explained = training.explained_variance(autoencoder, points)
    numbers["explained variance of rendered faces"] = results.number(
        explained, count, "fraction", "at t = 50, other images"
    )
    shuffled = np.random.default_rng(SEED).permutation(count)
    what = (
        f"attribute values whose best unit of {count // 2} images has AUROC {SEPARATED} on "
        f"{count - count // 2} others"
    )
    maps = units(feature, autoencoder)
    maps["features, shuffled labels"] = maps["features"]
    for name, one in maps.items():
        labels = (
            {key: value[shuffled] for key, value in truth.items()} if "shuffled" in name else truth
        )
        found = separations(one.amax((2, 3)).numpy(), labels)
        scores = np.array([score for _, score in found.values()])
        numbers[f"{name}: values with a unit"] = results.fraction(scores >= SEPARATED, what)
        numbers[f"{name}: AUROC"] = results.bootstrap(
            scores, "mean over attribute values, best unit, other images", "AUROC"
        )
        if "shuffled" not in name:
            numbers[f"{name}: part IoU"] = results.bootstrap(
                part_iou(one, parts).mean(1),
                "mean over five parts, best unit and threshold, over other images",
                "IoU",
            )


def steer(
    world: str, targets: Sequence[tuple[str, str, str, str]], count: int, autoencoder, numbers: dict
) -> None:
    """How often adding features reaches an attribute, and what else changes, on the seeds 0, 1,
    ...
    """
    steered = Steered(world)
    node = host.pack("nodes.activations.nodes_sparse_autoencoder").SparseFeatureSteering
    for attribute, value, part, phrase in targets:
        wanted, label = steered.judge.labels[attribute].index(value), f"{attribute} {value}"
        text, named = caption_of(0, part, ""), caption_of(0, part, phrase)
        raised = mean_features(steered, autoencoder, named) - mean_features(
            steered, autoencoder, text
        )
        strongest = raised.argsort(descending=True).tolist()
        plain = steered.read(text, count)
        what = f"seeds in which the judge reads {label}"
        numbers[f"{label}: plain"] = results.fraction(plain[attribute] == wanted, what)
        numbers[f"{label}: the prompt"] = results.fraction(
            steered.read(named, count)[attribute] == wanted, what
        )
        for features, strength in STEERED:
            strengths = "\n".join(f"{number} = {strength}" for number in strongest[:features])
            given = (steered.model, autoencoder, strengths, "add", 0.0, 1.0, "conditional")
            found = steered.read_latents(
                steered.sample(node.execute(*given).result[0], text, range(count))
            )
            entry = f"{label}: {features} features, strength {strength:g}".replace(
                "1 features", "1 feature"
            )
            numbers[entry] = results.fraction(found[attribute] == wanted, what)
            others = np.mean(
                [found[other] != plain[other] for other in plain if other != attribute], 0
            )
            numbers[f"{entry}, other attributes changed"] = results.bootstrap(
                others,
                "fraction of the other attributes that the judge reads differently, over seeds",
                "fraction",
            )


@torch.inference_mode()
def mean_features(steered: Steered, autoencoder, text: str) -> torch.Tensor:
    """The mean value (features,) while a text is sampled, over steps, seeds and positions."""
    node = host.pack("nodes.activations.nodes_record").ActivationRecorder
    given = (steered.model, "custom_ids", ID, "all", "conditional", 1, "fp32")
    model, recorder = node.execute(*given).result
    run = recorder.run_of(steered.sample(model, text, _CHOOSING))
    return torch.stack(
        [autoencoder.maps(snapshot.activations).mean((0, 2, 3)) for snapshot in run.snapshots]
    ).mean(0)
