"""Tap every activation of the demo model on rendered faces, and score each."""

from __future__ import annotations

import csv
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ..common import host
from . import scores
from .pictures import TEXT, Pictures, drawn

RECIPE = 50  # the paper's t
_SIDE, _EPOCHS = 16, 3  # of the single activations' segmentation: every ID has the same small budget
_SET_SIDE, _SET_EPOCHS = 24, 3
#: Sets whose joined activations are compared. The demo model is none of the paper's: ours is by analogy, and the legacy
#: set is what lies between modules, as in the paper's baselines.
LEGACY = ("up-level0-upsampler-out", "up-level1-upsampler-out", "up-level2-repeat2-vit-out")


@dataclass
class Found:
    """Everything that was measured, by ID, set name and t."""

    ids: list[str] = field(default_factory=list)
    hits: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)  # t -> ID -> (pairs, points)
    set_hits: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    miou: dict[str, float] = field(default_factory=dict)
    set_miou: dict[str, np.ndarray] = field(default_factory=dict)  # (splits,)
    quality: dict[str, object] = field(default_factory=dict)
    guess: np.ndarray | None = None
    filters: dict[str, set[str]] = field(default_factory=dict)
    sets: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Tapper:
    """The demo model, and its activations on pictures."""

    def __init__(self, world: str):
        self.model, clip, self._vae = (host.pack(f"nodes.demo.{name}").load(world)
                                       for name in ("model", "text", "autoencoder"))  # fmt: skip
        self._positive = clip.encode_from_tokens_scheduled(clip.tokenize(TEXT))
        self._nodes = host.pack("nodes.activations.tapping.nodes")
        self._keep = host.pack("nodes.activations.tap").Keep
        selection = host.pack("nodes.activations.selection")
        self.entries = host.pack("nodes.activations.catalog").catalog(self.model.model.diffusion_model)
        self.chosen = selection.select(self.entries, selection.ALL_BUT_MAPS)

    @torch.inference_mode()
    def latent(self, pictures: Pictures) -> dict:
        return {"samples": self._vae.encode(pictures.images)}

    def draws(self, latent: dict, t: float, seed: int, count: int, dtype=torch.float16):
        """Activations of all IDs but attention maps, draw by draw."""
        sigma = self._nodes.sigma_of(self.model, self.entries, "t of the paper", t)
        keep = self._keep(dtype=dtype)
        with torch.inference_mode():
            yield from self._nodes.tap_draws(self.model, self._positive, latent, sigma, self.chosen, keep, seed, count)


def run(world: str, size, seed: int) -> Found:
    """Measure everything; prints how far it is."""
    tapper, found = Tapper(world), Found()
    found.ids = [entry.id for entry in tapper.chosen]
    found.filters, found.sets = _filters(tapper.entries), _sets(tapper.entries)
    _correspondence(tapper, found, size, seed)
    _segmentation(tapper, found, size, seed + 1)
    _quality(tapper, found, size, seed + 2)
    return found


def _filters(entries: list) -> dict[str, set[str]]:
    """The general rule, and SDXL's published list read by ID: the demo has its three levels, with one block each."""
    selection, published = (host.pack(f"nodes.activations.{name}") for name in ("selection", "published"))
    ids = {entry.id for entry in entries}
    return {"general rule": set(selection.general_filter(entries)),
            "SDXL's list": ids & set(published.flagged("sdxl", "filter"))}  # fmt: skip


def _sets(entries: list) -> dict[str, tuple[str, ...]]:
    selection = host.pack("nodes.activations.selection")
    return {"ours by analogy": tuple(selection.best(entries)), "legacy": LEGACY}


def _correspondence(tapper: Tapper, found: Found, size, seed: int) -> None:
    pictures = drawn(size.pictures, seed)
    latent = tapper.latent(pictures)
    found.guess = scores.same_place_hits(pictures).numpy()
    for t in size.levels:
        started = time.perf_counter()
        tapped = next(iter(tapper.draws(latent, t, seed, 1)))
        found.hits[t] = {id_: scores.hits(value, pictures).numpy() for id_, value in tapped.tensors.items()}
        found.set_hits[t] = {name: scores.hits(tapped.chosen(ids).stacked(), pictures).numpy()
                             for name, ids in found.sets.items()}  # fmt: skip
        print(f"correspondence at t = {t}: {time.perf_counter() - started:.0f} s", flush=True)


def _segmentation(tapper: Tapper, found: Found, size, seed: int) -> None:
    pictures, started = drawn(size.trained + size.tested, seed), time.perf_counter()
    tapped = next(iter(tapper.draws(tapper.latent(pictures), RECIPE, seed, 1)))
    for id_ in found.ids:
        values = scores.part_scores(tapped.chosen([id_]), pictures, size.trained, _SIDE, seed, _EPOCHS)
        found.miou[id_] = float(values.mean())
    print(f"segmentation by single activations: {time.perf_counter() - started:.0f} s", flush=True)
    for name, ids in found.sets.items():
        found.set_miou[name] = np.array(
            [_split_score(tapped.chosen(ids), pictures, size.trained, seed, split) for split in range(size.splits)]
        )
    print(f"segmentation with sets: {time.perf_counter() - started:.0f} s", flush=True)


def _split_score(tapped, pictures: Pictures, trained: int, seed: int, split: int) -> float:
    """Mean IoU with another choice of the pictures that are learned from, as in the paper's five splits."""
    order = np.random.default_rng(split).permutation(len(pictures.images)).tolist()
    values = scores.part_scores(tapped.only_rows(order), pictures[order], trained, _SET_SIDE, seed + split, _SET_EPOCHS)
    return float(values.mean())


def _quality(tapper: Tapper, found: Found, size, seed: int) -> None:
    quality, started = host.pack("nodes.activations.quality"), time.perf_counter()
    latent = tapper.latent(drawn(size.tested, seed))
    sums = {id_: quality.Draws() for id_ in found.ids}
    for tapped in tapper.draws(latent, RECIPE, seed, size.draws, torch.float32):
        for id_, value in tapped.tensors.items():
            sums[id_].add(value)
    found.quality = {id_: quality.measured(sums.pop(id_), latent["samples"]) for id_ in found.ids}
    print(f"quality: {time.perf_counter() - started:.0f} s", flush=True)


def write_table(found: Found, path: Path) -> None:
    """All scores as CSV, one line an ID in forward order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    levels = sorted(found.hits)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *(f"pck_t{t}" for t in levels), "miou", "noise", "granularity", "locality",
                         *(name.replace(" ", "_") for name in found.filters)])  # fmt: skip
        for id_ in found.ids:
            one = found.quality[id_]
            numbers = [found.hits[t][id_].mean() for t in levels] + [found.miou[id_]]
            numbers += [one.noise, one.granularity, one.locality]
            writer.writerow([id_, *(f"{number:.4f}" for number in numbers),
                             *(int(id_ in kept) for kept in found.filters.values())])  # fmt: skip
