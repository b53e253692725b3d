"""Are known neurons found exactly, and is all else left alone? A gradient, the paper's search, and
|z| > 5.

Ten planted names. The gradient's set is that of NeMo Localize's stopping rule *fraction*: no score
is read, so that it takes four rows forward and backward. Which fraction was fitted on the other
five names (study `attribution`). The search goes to the paper's target. A row forward and backward
counts as three. Similarity, labels and faces are what images of the name have of the memorized one,
beside those of a generic prompt, of the model that the plant was made from, and with exactly the
planted neurons silenced; captions are ordinary ones under each mask.
"""

from __future__ import annotations

import numpy as np

from ..common import results
from . import attribution, planted
from .masks import alignment
from .world import LAYERS, silencing

#: Of the largest attribution, for the first five names and the others: each fitted on the other
#: half. The ranking is the best of four on all ten names.
FRACTIONS = (0.08, 0.08)
RANKING, CAPTIONS, IMAGES = "dot_z", 8, 4
UNITS = {
    "precision": ("fraction", "found neurons that were planted"),
    "recall": ("fraction", "planted neurons that were found"),
    "F1": ("fraction", "of found and planted neurons"),
    "neurons": ("neurons", "found"),
    "rows": ("rows", "of the network for a name, forward and backward as three"),
    "similarity": ("SSIM", "to the memorized image"),
    "labels": ("fraction", "labels of the memorized image that are read"),
    "faces": ("fraction", "images with one face"),
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
        "neurons_known" + "_quick" * quick, {"fractions": FRACTIONS, "ranking": RANKING}
    )
    rows = {}
    for text in names[4:5] if quick else names:
        rows[text] = kept.row(text, lambda text=text: _row(world, base, text, statistics, quick))
        print(text, rows[text], flush=True)
    numbers = {}
    for way in next(iter(rows.values())):
        for what in next(iter(rows.values()))[way]:
            values = np.array([row[way][what] for row in rows.values()], dtype=float)
            numbers[f"{way}: {what}"] = results.bootstrap(values, UNITS[what][1], UNITS[what][0])
    kept.finished()
    return numbers


def masks(world, text: str, statistics) -> dict[str, tuple[object, int]]:
    """The mask of each way for a name, and the rows of the network that it took."""
    fraction = FRACTIONS[list(world.planted).index(text) * 2 // len(world.planted)]
    how = {
        "method": "attribution",
        "ranking": RANKING,
        "stopping_rule": "fraction",
        "fraction": fraction,
    }
    z = planted.sizes(world, text, statistics)
    over = silencing(neuron for neuron in z if z[neuron] > planted.THETA)
    return {
        "gradient": attribution.localized(world, text, statistics, **how),
        "NeMo": attribution.localized(world, text, statistics),
        f"|z| > {planted.THETA:g}": (over, 1),
    }


def _row(world, base, text: str, statistics, quick: bool) -> dict:
    true = world.planted[text]

    def seen(world, model, prompt: str) -> dict:
        return world.left(model, text, prompt, 2 if quick else IMAGES)

    row = {
        "base model": seen(base, base.model, text),
        "untouched": seen(world, world.model, text)
        | {"captions": float(np.mean(alignment(world, world.model, CAPTIONS)))},
        "generic prompt": seen(world, world.model, attribution.GENERIC),
        "planted neurons": seen(world, world.masked(silencing(true)), text),
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
            **seen(world, model, text),
            "captions": float(np.mean(alignment(world, model, CAPTIONS))),
        }
    return row
