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
from .labeled_faces import TEXT, LabeledFaces, drawn

RECIPE = 50  # the paper's t
_SIDE, _EPOCHS = (
    16,
    3,
)  # of the single activations' segmentation: every ID has the same small budget
_SET_SIDE, _SET_EPOCHS = 24, 3
#: Sets whose joined activations are compared. The demo model is none of the paper's: ours is by
#: analogy, and the legacy set is what lies between modules, as in the paper's baselines.
LEGACY = ("up-level0-upsampler-out", "up-level1-upsampler-out", "up-level2-repeat2-vit-out")


@dataclass
class Found:
    """Everything that was measured, by ID, set name and t."""

    ids: list[str] = field(default_factory=list)
    hits: dict[int, dict[str, np.ndarray]] = field(
        default_factory=dict
    )  # t -> ID -> (pairs, points)
    set_hits: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    miou: dict[str, float] = field(default_factory=dict)
    set_miou: dict[str, np.ndarray] = field(default_factory=dict)  # (splits,)
    quality: dict[str, object] = field(default_factory=dict)
    guess: np.ndarray | None = None
    filters: dict[str, set[str]] = field(default_factory=dict)
    sets: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Tapper:
    """The demo model, and its activations on images."""

    def __init__(self, world: str):
        self.model, clip, self._vae = (
            host.pack(f"nodes.demo.{name}").load(world)
            for name in ("denoiser", "text_encoder", "autoencoder")
        )
        self._positive = clip.encode_from_tokens_scheduled(clip.tokenize(TEXT))
        self._nodes = host.pack("nodes.activations.tap_comfy")
        self._keep = host.pack("nodes.activations.tap").TapSettings
        selection = host.pack("nodes.activations.select_ids")
        self.entries = host.pack("nodes.activations.catalog_unet").catalog(
            self.model.model.diffusion_model
        )
        self.chosen = selection.select(self.entries, selection.Preset.ALL_FEATURES)

    @torch.inference_mode()
    def latent(self, faces: LabeledFaces) -> dict:
        return {"samples": self._vae.encode(faces.images)}

    def draws(self, latent: dict, t: float, seed: int, count: int, dtype=torch.float16):
        """Activations of all IDs but attention maps, draw by draw."""
        sigma = self._nodes.sigma_of(self.model, self.entries, "paper_t", t)
        keep = self._keep(dtype=dtype)
        with torch.inference_mode():
            yield from self._nodes.tap_noise_samples(
                self.model, self._positive, latent, sigma, self.chosen, keep, seed, count
            )


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
    """The general rule, and SDXL's published list read by ID: the demo has its three levels, with
    one block each.
    """
    selection, published = (
        host.pack(f"nodes.activations.{name}") for name in ("select_ids", "paper_tables")
    )
    ids = {entry.id for entry in entries}
    return {
        "general rule": set(selection.general_filter(entries)),
        "SDXL's list": ids & set(published.flagged("sdxl", "filter")),
    }


def _sets(entries: list) -> dict[str, tuple[str, ...]]:
    selection = host.pack("nodes.activations.select_ids")
    return {"ours by analogy": tuple(selection.recommended(entries, None)), "legacy": LEGACY}


def _correspondence(tapper: Tapper, found: Found, size, seed: int) -> None:
    faces = drawn(size.faces, seed)
    latent = tapper.latent(faces)
    found.guess = scores.same_place_hits(faces).numpy()
    for t in size.levels:
        started = time.perf_counter()
        tapped = next(iter(tapper.draws(latent, t, seed, 1)))
        found.hits[t] = {
            id_: scores.hits(value, faces).numpy() for id_, value in tapped.tensors.items()
        }
        found.set_hits[t] = {
            name: scores.hits(tapped.select(ids).joined(), faces).numpy()
            for name, ids in found.sets.items()
        }
        print(f"correspondence at t = {t}: {time.perf_counter() - started:.0f} s", flush=True)


def _segmentation(tapper: Tapper, found: Found, size, seed: int) -> None:
    faces, started = drawn(size.trained + size.tested, seed), time.perf_counter()
    tapped = next(iter(tapper.draws(tapper.latent(faces), RECIPE, seed, 1)))
    for id_ in found.ids:
        values = scores.part_scores(tapped.select([id_]), faces, size.trained, _SIDE, seed, _EPOCHS)
        found.miou[id_] = float(values.mean())
    print(f"segmentation by single activations: {time.perf_counter() - started:.0f} s", flush=True)
    for name, ids in found.sets.items():
        found.set_miou[name] = np.array(
            [
                _split_score(tapped.select(ids), faces, size.trained, seed, split)
                for split in range(size.splits)
            ]
        )
    print(f"segmentation with sets: {time.perf_counter() - started:.0f} s", flush=True)


def _split_score(tapped, faces: LabeledFaces, trained: int, seed: int, split: int) -> float:
    """Mean IoU with another choice of the images that are learned from, as in the paper's five
    splits.
    """
    order = np.random.default_rng(split).permutation(len(faces.images)).tolist()
    values = scores.part_scores(
        tapped.select_rows(order), faces[order], trained, _SET_SIDE, seed + split, _SET_EPOCHS
    )
    return float(values.mean())


def _quality(tapper: Tapper, found: Found, size, seed: int) -> None:
    quality, started = host.pack("nodes.activations.quality"), time.perf_counter()
    latent = tapper.latent(drawn(size.tested, seed))
    sums = {id_: quality.NoiseStatistics() for id_ in found.ids}
    for tapped in tapper.draws(latent, RECIPE, seed, size.draws, torch.float32):
        for id_, value in tapped.tensors.items():
            sums[id_].add(value)
    found.quality = {id_: quality.measure(sums.pop(id_), latent["samples"]) for id_ in found.ids}
    print(f"quality: {time.perf_counter() - started:.0f} s", flush=True)


def write_table(found: Found, path: Path) -> None:
    """All scores as CSV, one line an ID in forward order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    levels = sorted(found.hits)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                "id",
                *(f"pck_t{t}" for t in levels),
                "miou",
                "noise",
                "granularity",
                "locality",
                *(name.replace(" ", "_") for name in found.filters),
            ]
        )
        for id_ in found.ids:
            one = found.quality[id_]
            numbers = [found.hits[t][id_].mean() for t in levels] + [found.miou[id_]]
            numbers += [one.noise, one.granularity, one.locality]
            writer.writerow(
                [
                    id_,
                    *(f"{number:.4f}" for number in numbers),
                    *(int(id_ in kept) for kept in found.filters.values()),
                ]
            )
