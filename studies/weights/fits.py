"""Which way of fitting a direction finds the attribute in members that it has not seen, and
repeats.

`python run.py study weights fits` writes ``studies/results/weights_fits.json``. Every label of the
collected space with twenty members or more on either side; members are drawn at random, the rest
are held out. Labels of one attribute are averaged, and intervals are over the five attributes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from ..common import host, results
from ..world.release import ASSETS
from .release import FILE
from .setup import COMPONENTS

SEED, DRAWS, SIZES, FEWEST = 20261124, 10, (64, 256), 20
#: The attribute that each label is of.
ATTRIBUTE = (
    dict.fromkeys(("dark skin", "pale skin"), "skin")
    | dict.fromkeys(("beard", "moustache"), "facial_hair")
    | dict.fromkeys(("round glasses", "sunglasses"), "accessory")
    | dict.fromkeys(("bald", "long hair", "afro"), "hair")
    | dict.fromkeys(("dark hair", "bright hair", "red hair", "pink hair"), "hair_color")
)


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes fewer draws of members."""
    space = host.pack("nodes.weights.space_file").read(FILE)
    directions = host.pack("nodes.weights.directions")
    rows = space.coefficients[:, :COMPONENTS].double().numpy()
    labels = {
        name: column.numpy() > 0.5
        for name, column in space.labels.items()
        if set(column.tolist()) <= {0.0, 1.0}
    }
    labels = {
        name: held for name, held in labels.items() if min(held.sum(), (~held).sum()) >= FEWEST
    }
    methods = [
        method for method in directions.FitMethod if method != directions.FitMethod.MOST_RELIABLE
    ]
    numbers = {}
    for size in SIZES:
        found = {method: [] for method in [*methods, "permuted labels"]}
        for place, held in enumerate(labels.values()):
            scores = np.array(
                [
                    _scores(directions, rows, held, size, [place, draw], methods)
                    for draw in _draws(quick)
                ]
            )
            for method, values in zip(found, scores.T, strict=True):
                found[method].append(values.mean())
        for method, values in found.items():
            what = (
                f"held-out members with the label and without; {len(_draws(quick))} draws; "
                "interval over attributes"
            )
            numbers[f"{size} members, {method}: AUROC"] = results.bootstrap(
                _by_attribute(labels, values), what, "AUROC"
            )
        first = np.array(found[directions.FitMethod.LEAST_SQUARES])
        for method in methods[1:]:
            numbers[f"{size} members, {method} less least_squares: AUROC"] = results.bootstrap(
                _by_attribute(labels, np.array(found[method]) - first), "paired by label", "AUROC"
            )
    for method in methods:
        cosines = [
            directions.split_half(rows, held.astype(float), method, permutations=0)[0]
            for held in labels.values()
        ]
        numbers[f"{method}: split-half reliability"] = results.bootstrap(
            _by_attribute(labels, cosines),
            "cosine of directions of two halves of all members; interval over attributes",
            "cosine",
        )
    command = "python run.py study weights fits" + (" --quick" if quick else "")
    return results.write(
        "weights_fits_quick" if quick else "weights_fits", command, SEED, ASSETS, numbers
    )


def _by_attribute(labels, values) -> np.ndarray:
    """The mean over the labels of each attribute."""
    attributes = [ATTRIBUTE[name] for name in labels]
    groups = {
        one: [value for other, value in zip(attributes, values, strict=True) if other == one]
        for one in attributes
    }
    return np.array([np.mean(group) for group in groups.values()])


def _draws(quick: bool) -> range:
    return range(2 if quick else DRAWS)


def _scores(
    directions, rows: np.ndarray, held: np.ndarray, size: int, draw: list[int], methods: list
) -> list[float]:
    """AUROC on the members left out by each method, and by least squares on permuted labels."""
    generator = np.random.default_rng([SEED, size, *draw])
    classes = [generator.permutation(np.flatnonzero(side)) for side in (held, ~held)]
    share = max(4, round(size * held.mean()))  # members with the label, as in the whole
    chosen = np.concatenate([classes[0][:share], classes[1][: size - share]])
    left = np.setdiff1d(np.arange(len(held)), chosen)
    center = rows[chosen].mean(axis=0)
    target = held[chosen] - held[chosen].mean()
    fits = [directions.fit_normal(rows[chosen] - center, target, method) for method in methods]
    wrong = generator.permutation(target)
    fits.append(
        directions.fit_normal(rows[chosen] - center, wrong, directions.FitMethod.LEAST_SQUARES)
    )
    return [roc_auc_score(held[left], rows[left] @ normal) for normal in fits]
