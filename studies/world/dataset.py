"""The data set: images, captions, metadata and attribute labels, rendered from a seed in resumable
shards.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import captions
from .faces import ATTRIBUTES, PARTS, visible
from .scenes import (
    BACKGROUNDS,
    PATTERNS,
    Metadata,
    Scene,
    keypoints,
    masks,
    random_group,
    random_scene,
    render,
    render_group,
)

SHARD = 500
#: Everything that has a label: the face's attributes, then what the scene adds.
LABELS: dict[str, tuple[str, ...]] = {
    **ATTRIBUTES,
    "background": tuple(BACKGROUNDS),
    "pattern": PATTERNS,
    "mirror": ("no", "yes"),
}


@dataclass
class Shard:
    """``images`` uint8 (N, 128, 128, 3), N ``captions``, ``metadata`` float32 (N, 5), ``labels``
    int8 (N, 12).

    The columns of ``labels`` are those of ``LABELS``; -1 where an attribute cannot be seen.
    """

    images: np.ndarray
    captions: list[str]
    metadata: np.ndarray
    labels: np.ndarray

    def first(self, count: int) -> Shard:
        """The first ``count`` images with all that belongs to them."""
        return Shard(
            self.images[:count], self.captions[:count], self.metadata[:count], self.labels[:count]
        )


def labels(scene: Scene) -> list[int]:
    """Class index of everything in ``LABELS``; -1 where it cannot be seen (mirroring: unless the
    ground is split).
    """
    seen = visible(scene.face)
    face = [
        index if seen[name] else -1
        for name, index in zip(ATTRIBUTES, scene.face.indices(), strict=True)
    ]
    mirror = int(scene.metadata.mirror) if scene.pattern == "split" else -1
    return [
        *face,
        LABELS["background"].index(scene.background),
        PATTERNS.index(scene.pattern),
        mirror,
    ]


def make_shard(seed: int, count: int, sharp: bool) -> Shard:
    """``count`` scenes from a seed; ``sharp`` leaves out blur, crop and mirror (what the judge is
    measured on).
    """
    rng = np.random.default_rng(seed)
    scenes = [random_scene(rng, Metadata() if sharp else None) for _ in range(count)]
    return Shard(
        np.stack([render(scene) for scene in scenes]),
        [captions.caption(scene, rng) for scene in scenes],
        np.array([scene.metadata.numbers() for scene in scenes], np.float32),
        np.array([labels(scene) for scene in scenes], np.int8),
    )


def scenes(count: int, seed: int) -> list[Scene]:
    """What the first ``count`` images of the ordinary shards that ``build`` makes from ``seed``
    show.
    """
    result: list[Scene] = []
    for index in range(-(-count // SHARD)):
        rng = np.random.default_rng(seed * 1_000_003 + index)
        result += [random_scene(rng) for _ in range(SHARD)]
    return result[:count]


#: Side of the part masks that the judge learns.
MASK_SIDE = 64
#: How many of the judge's truth scenes have no face, one face, two and three.
FACES = (0.1, 0.55, 0.2, 0.15)


@dataclass
class Truth:
    """``images`` uint8 (N, 128, 128, 3), visible parts ``masks`` uint8 (N, 6, 64, 64), key points
    float32 (N, 4, 2) in pixels (NaN where an image has other than one face), ``faces`` int8 (N,),
    ``labels`` int8 (N, 12) as in ``Shard``.
    """

    images: np.ndarray
    masks: np.ndarray
    points: np.ndarray
    faces: np.ndarray
    labels: np.ndarray


def make_truth(seed: int, count: int) -> Truth:
    """``count`` scenes with 0 to 3 faces from a seed."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(count):
        scene, faces = random_scene(rng), int(rng.choice(len(FACES), p=FACES))
        if faces == 1:
            image, parts = render(scene), masks(scene)
            points, row = np.array(list(keypoints(scene).values()), np.float32), labels(scene)
        else:
            image, parts = render_group(random_group(rng, faces), scene)
            points, row = np.full((4, 2), np.nan, np.float32), [-1] * len(LABELS)
        small = np.stack([parts[name] for name in (*PARTS, "background")])
        small = small.reshape(len(small), MASK_SIDE, 2, MASK_SIDE, 2).mean((2, 4))
        rows.append(
            (
                image,
                (small * 255).round().astype(np.uint8),
                points,
                np.int8(faces),
                np.array(row, np.int8),
            )
        )
    return Truth(*(np.stack(column) for column in zip(*rows, strict=True)))


def load_truth(folder: Path) -> Truth:
    """All truth shards of a folder, in order."""
    return Truth(
        **{
            name: np.concatenate([part[name] for part in _shards(folder)])
            for name in Truth.__dataclass_fields__
        }
    )


def _write(path: Path, seed: int, kind: str) -> None:
    shard = (
        make_truth(seed, SHARD)
        if kind == "truth"
        else make_shard(seed, SHARD, sharp=kind == "sharp")
    )
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        np.savez(
            file,
            **{
                name: np.array(json.dumps(value)) if name == "captions" else value
                for name, value in vars(shard).items()
            },
        )
    temporary.replace(path)


def build(
    folder: Path, count: int, seed: int, kind: str = "ordinary", workers: int | None = None
) -> None:
    """Render ``count`` images into ``folder``, a shard at a time; shards that are there are kept.

    ``kind``: "ordinary", "sharp" (no blur, crop or mirror) or "truth" (0 to 3 faces with masks and
    key points).
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [
        (folder / f"{index:04d}.npz", seed * 1_000_003 + index)
        for index in range(-(-count // SHARD))
    ]
    missing = [(path, shard_seed) for path, shard_seed in wanted if not path.exists()]
    with ProcessPoolExecutor(workers or os.cpu_count()) as pool:
        jobs = [pool.submit(_write, path, shard_seed, kind) for path, shard_seed in missing]
        for done, job in enumerate(jobs, 1):
            job.result()
            print(f"\rrendering {folder.name}: {done}/{len(jobs)} shards", end="", flush=True)
    print()


def load(folder: Path, count: int | None = None) -> Shard:
    """The first ``count`` images of a folder, in order; absent: all."""
    parts = _shards(folder)[: None if count is None else -(-count // SHARD)]
    return Shard(
        np.concatenate([part["images"] for part in parts]),
        [text for part in parts for text in json.loads(str(part["captions"]))],
        np.concatenate([part["metadata"] for part in parts]),
        np.concatenate([part["labels"] for part in parts]),
    ).first(count)


def _shards(folder: Path) -> list:
    parts = [np.load(path) for path in sorted(folder.glob("*.npz"))]
    if not parts:
        raise FileNotFoundError(
            f"{folder} holds no shards: run `python run.py study world train data` first."
        )
    return parts


def named_scenes() -> dict[str, list[Scene]]:
    """The image that every memorized name always comes with (verbatim), and the drawing that a
    template name fixes.

    Both are drawn from one seed, sharp, uncropped and unmirrored, large in the image.
    """
    rng = np.random.default_rng(20_240_602)
    names = captions.NAMES["verbatim"] + captions.NAMES["template"]
    return {name: random_scene(rng, Metadata(), smallest=0.85) for name in names}
