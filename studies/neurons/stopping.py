"""Which ranking, stopping rule and target finds known neurons, where each is chosen on other names?

Ten planted names. NeMo Localize by attribution at its defaults, and to the search's own target; the
paper's search to two targets. Then every ranking with the rule *gap*, which has no setting, with
*fraction* at its cuts, and the search's targets: chosen on one half of the names and judged on the
other, both ways, by the order of the list and by odd and even places. A row forward and backward
counts as three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from ..common import host, results
from . import attribution, planted
from .world import LAYERS

#: Noise seeds of the rankings: that of all other measurements, and another.
SEEDS = (1, 5)
DEFAULTS, SAME_TARGET = "the node's defaults", "attribution to the search's target"
TARGETS = ("the paper's target", "the mean score")
UNITS = {
    "F1": ("fraction", "of found and planted neurons"),
    "precision": ("fraction", "found neurons that were planted"),
    "recall": ("fraction", "planted neurons that were found"),
    "neurons": ("neurons", "found"),
    "rows": ("rows", "of the network for a name, forward and backward as three"),
}
_CHOSEN = "judged on the half of the names that it was not chosen on, both ways"


def measure(quick: bool) -> dict[str, dict]:
    """Every number, as means over names; each name is kept on the disk as it is done."""
    world = planted.World(*((4, 12) if quick else (10, 24)))
    names = list(world.planted)[4:6] if quick else list(world.planted)
    stem = "neurons_stopping" + "_quick" * quick
    kept = results.Rows(stem, {"seeds": SEEDS, "names": names})
    statistics = world.statistics(LAYERS)
    rows = {}
    for text in names:
        rows[text] = kept.row(text, lambda text=text: _row(world, text, statistics))
        print(text, {way: row["F1"] for way, row in rows[text]["ways"].items()}, flush=True)
    kept.finished()
    return summary(list(rows.values()))


def targets(thresholds: Sequence[float]) -> dict[str, float]:
    """Target scores by name: the paper's, one deviation over the mean of ordinary captions, and
    that mean; `planted` has the strict one, a deviation under it.
    """
    paper, strict = thresholds
    return dict(zip(TARGETS, (paper, (paper + strict) / 2), strict=True))


def _row(world, text: str, statistics) -> dict:
    """What each way finds of a name's neurons, and the F1 of every ranking and rule."""
    true = world.planted[text]
    gradient = {"method": "attribution"}
    ways = {DEFAULTS: gradient, SAME_TARGET: gradient | {"stopping_rule": "score"}}
    for name, target in targets(world.thresholds).items():
        ways[f"search to {name}"] = {"target_score": target}
    row: dict = {"ways": {}, "gap": {}, "fraction": {}}
    for way, how in ways.items():
        mask, count = attribution.localized(world, text, statistics, **how)
        row["ways"][way] = found(set(mask.neurons), true) | {"rows": count}
    pure = host.pack("nodes.neurons.neuron_attribution")
    neurons = attribution._neurons(world)
    marked = torch.tensor(
        [(layer.path, unit) in true for layer in neurons.layers for unit in range(layer.width)]
    )
    for seed in SEEDS:
        values_of = attribution._values(world, text, statistics, seed=seed)
        for ranking, values in values_of.items():
            before_gap = values.argsort(descending=True)[: pure.count_before_gap(values)]
            taken = torch.zeros(len(values), dtype=torch.bool)
            taken[before_gap] = True
            row["gap"][f"{ranking}, noise {seed}"] = _f1(taken, marked)
            row["fraction"][f"{ranking}, noise {seed}"] = [
                _f1((values > 0) & (values >= fraction * values.max()), marked)
                for fraction in attribution.FRACTIONS
            ]
    return row


def found(chosen: set, true: set) -> dict[str, float]:
    """Precision, recall, F1 and size of a set of neurons."""
    hits = len(chosen & true)
    return {
        "precision": hits / max(len(chosen), 1),
        "recall": hits / len(true),
        "F1": 2 * hits / (len(chosen) + len(true)),
        "neurons": len(chosen),
    }


def _f1(taken: torch.Tensor, marked: torch.Tensor) -> float:
    return float(2 * (taken & marked).sum() / (taken.sum() + marked.sum()))


def cross_judged(
    scores: Mapping[str, np.ndarray], halves: Sequence[Sequence[int]]
) -> tuple[np.ndarray, list[str]]:
    """F1 of each name by the candidate that is best on the half without it, (names,), and the two
    candidates that were chosen.

    ``scores``: F1 (names,) of each candidate; the first of equal ones is taken.
    """
    judged = np.empty(sum(map(len, halves)))
    chosen = []
    for fitted, other in (halves, halves[::-1]):
        best = max(scores, key=lambda name, fitted=fitted: scores[name][list(fitted)].mean())
        judged[list(other)] = scores[best][list(other)]
        chosen.append(best)
    return judged, chosen


def summary(rows: Sequence[dict]) -> dict[str, dict]:
    """Every number from the rows of names."""
    numbers = {}
    for way in rows[0]["ways"]:
        for what, (unit, about) in UNITS.items():
            values = np.array([row["ways"][way][what] for row in rows], dtype=float)
            numbers[f"{way}: {what}"] = results.bootstrap(values, about, unit)
    for name in rows[0]["gap"]:
        values = np.array([row["gap"][name] for row in rows])
        numbers[f"gap, {name}: F1"] = results.bootstrap(values, UNITS["F1"][1], "fraction")
    places = range(len(rows))
    splits = {
        "by order": (places[: len(rows) // 2], places[len(rows) // 2 :]),
        "odd and even": (places[::2], places[1::2]),
    }
    for kind, scores in _candidates(rows).items():
        for split, halves in splits.items():
            judged, chosen = cross_judged(scores, halves)
            about = f"{_CHOSEN}; chosen were {chosen[0]} and {chosen[1]}"
            numbers[f"{kind} chosen on the other half, {split}: F1"] = results.bootstrap(
                judged, about, "fraction"
            )
    return numbers


def _candidates(rows: Sequence[dict]) -> dict[str, dict[str, np.ndarray]]:
    """F1 (names,) of all that is chosen among: rankings with gap, rankings with a fraction, targets
    of the search.
    """
    gap, fraction = {}, {}
    for ranking in attribution.RANKINGS:
        gap[ranking] = np.array([row["gap"][f"{ranking}, noise {SEEDS[0]}"] for row in rows])
        curves = np.array([row["fraction"][f"{ranking}, noise {SEEDS[0]}"] for row in rows])
        for number, cut in enumerate(attribution.FRACTIONS):
            fraction[f"{ranking} at {cut:g}"] = curves[:, number]
    searched = {
        name: np.array([row["ways"][f"search to {name}"]["F1"] for row in rows]) for name in TARGETS
    }
    return {
        "gap, ranking": gap,
        "fraction, ranking and cut": fraction,
        "search, target": searched,
    }
