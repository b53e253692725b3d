"""The data set: pictures, captions, metadata and attribute labels, rendered from a seed in resumable shards."""

from __future__ import annotations

import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import captions
from .faces import ATTRIBUTES, visible
from .scenes import BACKGROUNDS, PATTERNS, Metadata, Scene, random_scene, render

SHARD = 500
#: Everything that has a label: the face's attributes, then what the scene adds.
LABELS: dict[str, tuple[str, ...]] = {
    **ATTRIBUTES, "background": tuple(BACKGROUNDS), "pattern": PATTERNS, "mirror": ("no", "yes"),
}


@dataclass
class Shard:
    """``pictures`` uint8 (N, 128, 128, 3), N ``captions``, ``metadata`` float32 (N, 5), ``labels`` int8 (N, 12).

    The columns of ``labels`` are those of ``LABELS``; -1 where an attribute cannot be seen.
    """

    pictures: np.ndarray
    captions: list[str]
    metadata: np.ndarray
    labels: np.ndarray

    def first(self, count: int) -> Shard:
        """The first ``count`` pictures with all that belongs to them."""
        return Shard(self.pictures[:count], self.captions[:count], self.metadata[:count], self.labels[:count])


def labels(scene: Scene) -> list[int]:
    """Class index of everything in ``LABELS``; -1 where it cannot be seen (mirroring: unless the ground is split)."""
    seen = visible(scene.face)
    face = [index if seen[name] else -1 for name, index in zip(ATTRIBUTES, scene.face.indices(), strict=True)]
    mirror = int(scene.metadata.mirror) if scene.pattern == "split" else -1
    return [*face, LABELS["background"].index(scene.background), PATTERNS.index(scene.pattern), mirror]


def make_shard(seed: int, count: int, sharp: bool) -> Shard:
    """``count`` scenes from a seed; ``sharp`` leaves out blur, crop and mirror (what the judge is measured on)."""
    rng = np.random.default_rng(seed)
    scenes = [random_scene(rng, Metadata() if sharp else None) for _ in range(count)]
    return Shard(np.stack([render(scene) for scene in scenes]), [captions.caption(scene, rng) for scene in scenes],
                 np.array([scene.metadata.numbers() for scene in scenes], np.float32),
                 np.array([labels(scene) for scene in scenes], np.int8))


def _write(path: Path, seed: int, sharp: bool) -> None:
    shard = make_shard(seed, SHARD, sharp)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        np.savez(file, pictures=shard.pictures, captions=np.array(json.dumps(shard.captions)),
                 metadata=shard.metadata, labels=shard.labels)
    temporary.replace(path)


def build(folder: Path, count: int, seed: int, sharp: bool = False, workers: int | None = None) -> None:
    """Render ``count`` pictures into ``folder``, a shard at a time; shards that are there are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [(folder / f"{index:04d}.npz", seed * 1_000_003 + index) for index in range(-(-count // SHARD))]
    missing = [(path, shard_seed) for path, shard_seed in wanted if not path.exists()]
    with ProcessPoolExecutor(workers or os.cpu_count()) as pool:
        jobs = [pool.submit(_write, path, shard_seed, sharp) for path, shard_seed in missing]
        for done, job in enumerate(jobs, 1):
            job.result()
            print(f"\rrendering {folder.name}: {done}/{len(jobs)} shards", end="", flush=True)
    print()


def load(folder: Path) -> Shard:
    """All shards of a folder, in order."""
    parts = [np.load(path) for path in sorted(folder.glob("*.npz"))]
    if not parts:
        raise FileNotFoundError(f"{folder} holds no shards: run `python run.py study world data` first.")
    return Shard(np.concatenate([part["pictures"] for part in parts]),
                 [text for part in parts for text in json.loads(str(part["captions"]))],
                 np.concatenate([part["metadata"] for part in parts]),
                 np.concatenate([part["labels"] for part in parts]))


def named_scenes() -> dict[str, list[Scene]]:
    """The picture that every memorised name always comes with (verbatim), and the drawing that a template name fixes.

    Both are drawn from one seed, sharp, uncropped and unmirrored, large in the picture.
    """
    rng = np.random.default_rng(20_240_602)
    names = captions.NAMES["verbatim"] + captions.NAMES["template"]
    return {name: random_scene(rng, Metadata(), smallest=0.85) for name in names}
