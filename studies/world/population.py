"""A population of identities on the demo world's model: one recipe for all members, several images
a step.

weights2weights (arXiv 2406.09413), section 3.1. The members are LoRAs that
``studies/weights/population.py`` trains; here is how many, by which plan, and whether labels
explain where they lie.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..weights.population import Plan, train
from .faces import ATTRIBUTES, IDENTITY
from .generate import Generator
from .release import WORLD

MEMBERS = 512
PLAN = Plan()
COMPONENTS, FOLDS, PERMUTATIONS = 64, 5, 20
FOLDER = host.ROOT / ".cache" / "weights"


def make(folder: Path, copy: Path | None = None, start: str | None = None) -> None:
    """Train the members, cohort by cohort; what is finished is kept."""
    train(Generator.load(WORLD), MEMBERS, FOLDER, PLAN)


def coefficients(flat: torch.Tensor, count: int = COMPONENTS) -> np.ndarray:
    """Coefficients (N, count) of the members (N, D) in the leading principal components, in units
    of the first's standard deviation, so that a component counts as much as it varies.
    """
    centered = flat.double() - flat.double().mean(0)
    left, values, _ = torch.linalg.svd(centered, full_matrices=False)
    scores = left[:, :count] * values[:count]
    return (scores / scores[:, 0].std()).numpy()


def one_hot(faces: list) -> np.ndarray:
    """Labels of identities: float (N, sum of the values of every attribute of ``IDENTITY``)."""
    values = [(name, value) for name in IDENTITY for value in ATTRIBUTES[name]]
    return np.array(
        [[getattr(face, name) == value for name, value in values] for face in faces], float
    )


def explained(labels: np.ndarray, scores: np.ndarray, seed: int = 0, penalty: float = 1.0) -> float:
    """Cross-validated R2 of the coefficients (N, C) given the labels (N, L): ridge regression,
    ``FOLDS`` folds.
    """
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import KFold, cross_val_predict

    found = cross_val_predict(
        Ridge(alpha=penalty), labels, scores, cv=KFold(FOLDS, shuffle=True, random_state=seed)
    )
    return float(1 - np.square(scores - found).sum() / np.square(scores - scores.mean(0)).sum())


def measure(quick: bool) -> dict[str, dict]:
    """How much of the members' coefficients their labels explain, against permuted labels."""
    group, flat = train(Generator.load(WORLD), MEMBERS, FOLDER, PLAN, seconds=0)
    if len(group) < 2 * FOLDS:
        raise FileNotFoundError(
            "There is no population yet: run `python run.py study world train population` first."
        )
    scores, labels, rng = (
        coefficients(flat),
        one_hot([person.face for person in group]),
        np.random.default_rng(0),
    )
    permuted = [
        explained(rng.permutation(labels), scores) for _ in range(5 if quick else PERMUTATIONS)
    ]
    what = (
        f"cross-validated R2 of {COMPONENTS} coefficients on the labels of identity, {len(group)} "
        "members"
    )
    return {
        "R2 of the coefficients": {
            "value": explained(labels, scores),
            "n": len(group),
            "unit": "R2",
            "what": what,
        },
        "R2, permuted labels": results.bootstrap(
            np.array(permuted), what + ", labels permuted", "R2"
        ),
    }
