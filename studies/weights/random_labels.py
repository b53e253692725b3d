"""The gate of W2W Fit Directions: how often a random label of people with near copies counts as a
direction.

People are independent random vectors, in a folder with one to three files each: checkpoints of one
training, of a cosine of .96, as two of the real files have it. Each person gets a random label,
half of them 1.
"""

from __future__ import annotations

import numpy as np
import torch

from ..common import host, results
from ..world.release import ASSETS

SETTINGS = tuple((count, copies) for count in (20, 60) for copies in (1, 2, 3))
DRAWS = 100
SEED = 0


def run(quick: bool):
    """Draw labels in every setting and write the results file."""
    numbers = {}
    for count, copies in SETTINGS:
        draws = 10 if quick else DRAWS
        hits = np.array([passed(*people(count, copies, SEED + draw)) for draw in range(draws)])
        what = (
            "random labels that count as a direction, of independent draws of people and labels; "
            "most_reliable"
        )
        numbers[f"{count} people, {copies} files each"] = results.fraction(hits, what)
        print(count, copies, int(hits.sum()), flush=True)
    name = f"weights_random_labels{'_quick' if quick else ''}"
    return results.write(name, "python run.py study weights random_labels", SEED, ASSETS, numbers)


def people(count, copies, seed, alike=0.96, size=2000, planted=0.0):
    """A space of people with near copies of a cosine, from PCA, and a random label for each person.

    ``planted``: how far apart the two sides of the label lie, in lengths of a person.
    """
    generator = np.random.default_rng(seed)
    label = np.repeat(generator.permutation(np.arange(count) % 2), copies).astype(np.float32)
    base = np.repeat(generator.normal(size=(count, size)), copies, axis=0)
    base += planted * np.outer(label, generator.normal(size=size))
    noise = generator.normal(size=base.shape) * (1 / alike - 1) ** 0.5
    rows = base + (noise if copies > 1 else 0)
    names = [f"p{number // copies} {number % copies}" for number in range(len(rows))]
    space_of, grouping = host.pack("nodes.weights.space"), host.pack("nodes.weights.member_groups")
    layout = host.pack("nodes.weights.flat_layout").Layout.of({}, 1, 1.0)
    mean = rows.mean(axis=0)
    centered = rows - mean
    gram = centered @ centered.T
    groups = grouping.find_groups(names, np.triu(gram), centered @ mean, float(mean @ mean))
    left, values, _ = np.linalg.svd(centered, full_matrices=False)
    kept = len(rows) - 1
    space = space_of.Space(
        layout, torch.zeros(0), torch.zeros(0), torch.zeros(kept, 0),
        torch.from_numpy(left[:, :kept] * values[:kept]).float(), tuple(names),
        torch.from_numpy(values).float(),
        about={"groups": groups},
    )  # fmt: skip
    return space, torch.from_numpy(label)


def passed(space, label) -> bool:
    """Whether the label's direction counts, as W2W Fit Directions fits it by default."""
    fit = host.pack("nodes.weights.directions")
    return not fit.fit(space, {"random": label}, 1000, fit.FitMethod.MOST_RELIABLE)["random"].noise
