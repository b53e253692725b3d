"""Are known neurons found exactly, and is all else left alone? A gradient, the paper's search, and
|z| > 5.

Ten planted names. The gradient's set is what NeMo Localize finds with the method *attribution* and
its defaults; the search goes to the paper's target. A row forward and backward counts as three.
Similarity, labels and faces are what images of the name have of the memorized one. Whether these
images are whole is seen by the judge's confidence, and by their Fréchet distance to images of the
generic prompt, over all names. Beside each way stand the generic prompt, the model that the plant
was made from, and the model with exactly the planted neurons silent; captions are ordinary ones
under each mask.
"""

from __future__ import annotations

import numpy as np

from ..common import host, results
from ..common.similarity import frechet
from ..world import judge
from . import attribution, planted
from .masks import alignment
from .world import LAYERS, WORLD, silencing

CAPTIONS, IMAGES = 8, 4
#: First noise seeds of two sets of images of the generic prompt, which show the distance's floor.
GENERIC_SEEDS = (3000, 4000)
UNITS = {
    "precision": ("fraction", "found neurons that were planted"),
    "recall": ("fraction", "planted neurons that were found"),
    "F1": ("fraction", "of found and planted neurons"),
    "neurons": ("neurons", "found"),
    "rows": ("rows", "of the network for a name, forward and backward as three"),
    "similarity": ("SSIM", "to the memorized image"),
    "labels": ("fraction", "labels of the memorized image that are read"),
    "faces": ("fraction", "images with one face"),
    "confidence": ("probability", "largest of each attribute by the judge"),
    "captions": ("fraction", "attributes of ordinary captions that are read"),
}


def measure(quick: bool) -> dict[str, dict]:
    """Every number, as means over names; each name is kept on the disk as it is done."""
    world = planted.World(*((4, 12) if quick else (10, 24)))
    names, statistics, base = (
        list(world.planted),
        world.statistics(LAYERS),
        planted.Base(seeds=2, ordinary=2),
    )
    kept = results.Rows(
        "neurons_known" + "_quick" * quick, {"images": IMAGES, "captions": CAPTIONS}
    )
    rows = {}
    for text in names[4:5] if quick else names:
        rows[text] = kept.row(text, lambda text=text: _row(world, base, text, statistics, quick))
        f1 = {way: row["F1"] for way, row in rows[text].items() if "F1" in row}
        print(text, f1, flush=True)
    numbers = {}
    of_generic, again = (
        generic_features(world, IMAGES * len(rows), seed) for seed in GENERIC_SEEDS
    )
    numbers["generic prompt: distance to generic"] = distance(again, of_generic)
    for way in next(iter(rows.values())):
        for what in next(iter(rows.values()))[way]:
            if what != "features":
                values = np.array([row[way][what] for row in rows.values()], dtype=float)
                unit, counted = UNITS[what]
                numbers[f"{way}: {what}"] = results.bootstrap(values, counted, unit)
        if way != "generic prompt":
            numbers[f"{way}: distance to generic"] = distance(_features(rows, way), of_generic)
    kept.finished()
    return numbers


def generic_features(world, count: int, seed: int) -> np.ndarray:
    """The judge's features (count, 192) of images of the generic prompt, each of its own noise."""
    network = host.pack("nodes.demo.judge").load(WORLD)
    prompt = world.encode(attribution.GENERIC)
    return judge.read(network, world.generate(world.model, prompt, count, seed=seed))[1]


def distance(features: np.ndarray, of_generic: np.ndarray) -> dict:
    return results.number(
        frechet(features, of_generic),
        len(of_generic),
        "Frechet",
        "judge's features of images of all names, and of as many of the generic prompt",
    )


def _features(rows: dict[str, dict], way: str) -> np.ndarray:
    """The judge's features (names x images, 192) of a way."""
    return np.concatenate([np.array(row[way]["features"]) for row in rows.values()])


def masks(world, text: str, statistics) -> dict[str, tuple[object, int]]:
    """The mask of each way for a name, and the rows of the network that it took."""
    z = planted.sizes(world, text, statistics)
    over = silencing(neuron for neuron in z if z[neuron] > planted.THETA)
    return {
        "gradient": attribution.localized(world, text, statistics, method="attribution"),
        "NeMo": attribution.localized(world, text, statistics),
        f"|z| > {planted.THETA:g}": (over, 1),
    }


def seen(world, model, text: str, prompt: str, count: int) -> dict:
    """What images of a prompt have of a name's portrait, and the judge's features (count, 192)."""
    images = world.generate(model, world.encode(prompt), count)
    features = judge.read(host.pack("nodes.demo.judge").load(WORLD), images)[1]
    return world.remains(images, text) | {"features": features.round(3).tolist()}


def _row(world, base, text: str, statistics, quick: bool) -> dict:
    true = world.planted[text]

    def seen_here(world, model, prompt: str) -> dict:
        return seen(world, model, text, prompt, count=2 if quick else IMAGES)

    row = {
        "base model": seen_here(base, base.model, text),
        "untouched": seen_here(world, world.model, text)
        | {"captions": float(np.mean(alignment(world, world.model, CAPTIONS)))},
        "generic prompt": seen_here(world, world.model, attribution.GENERIC),
        "planted neurons": seen_here(world, world.masked(silencing(true)), text),
    }
    for way, (mask, rows) in masks(world, text, statistics).items():
        found, model = set(mask.neurons), world.masked(mask)
        hits = len(found & true)
        row[way] = {
            "precision": hits / max(len(found), 1),
            "recall": hits / len(true),
            "F1": 2 * hits / (len(found) + len(true)),
            "neurons": len(found),
            "rows": rows,
            **seen_here(world, model, text),
            "captions": float(np.mean(alignment(world, model, CAPTIONS))),
        }
    return row
