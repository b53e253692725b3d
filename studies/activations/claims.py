"""The claims of arXiv 2410.03558 as questions, each answered by numbers with 95 % bootstrap
intervals.
"""

from __future__ import annotations

import re

import numpy as np

from ..common.results import bootstrap, number
from .measure import RECIPE, Found

_PLACE = re.compile(r"(down|mid|up)(?:-level(\d+))?(?:-repeat(\d+))?-(.+)")
_TOP = 10
_NOISY = ("res-increment", "vit-block0-ffn-inner", "vit-block0-self-v")
_PCK = f"PCK@0.1 at t = {RECIPE}"


def numbers(found: Found) -> dict[str, dict]:
    """Every claim's numbers by name, in the order of the paper."""
    return {
        **_scores(found),
        **_filters(found),
        **_sets(found),
        **_noise(found),
        **_granularity(found),
        **_locality(found),
        **_levels(found),
    }


def _scores(found: Found) -> dict[str, dict]:
    """The best activation of each score, and how far one gets without a model."""
    pck = _pck(found)
    best, best_cut = max(pck, key=pck.get), max(found.miou, key=found.miou.get)
    result = {
        "PCK of the same place": bootstrap(
            found.guess.mean(1),
            "the key point is where it was in the source, PCK@0.1, over pairs",
            "fraction",
        ),
        "PCK of the best activation": bootstrap(
            found.hits[RECIPE][best].mean(1),
            f"{best}, {_PCK}, over pairs; selected on the same pairs, so slightly optimistic",
            "fraction",
        ),
    }
    values = np.array(list(found.miou.values()))
    result["mIoU of the best activation"] = number(
        found.miou[best_cut],
        len(values),
        "fraction",
        f"{best_cut}, few-shot mIoU over background and five parts, one training",
    )
    both = np.array([[pck[id_], found.miou[id_]] for id_ in found.ids])
    result["agreement of the two scores"] = bootstrap(
        both, "Spearman correlation of PCK and mIoU over activations", "correlation", _spearman
    )
    return result


def _filters(found: Found) -> dict[str, dict]:
    """Does the filter keep the best activations while it cuts the pool?"""
    result = {}
    for name, kept in found.filters.items():
        kept = [id_ for id_ in found.ids if id_ in kept]
        fraction = len(kept) / len(found.ids)
        result[f"{name}: pool kept"] = number(
            fraction, len(found.ids), "fraction", f"{len(kept)} of {len(found.ids)} activations"
        )
        for score, values in (("PCK", _pck(found)), ("mIoU", found.miou)):
            top = sorted(values, key=values.get, reverse=True)[:_TOP]
            hits = np.array([id_ in kept for id_ in top], float)
            result[f"{name}: best {_TOP} by {score} kept"] = bootstrap(
                hits,
                f"fraction of the {_TOP} best that the filter keeps; by chance {fraction:.2f}",
                "fraction",
            )
            others = [values[id_] for id_ in found.ids if id_ not in kept]
            result[f"{name}: mean {score} kept minus dropped"] = _difference(
                [values[id_] for id_ in kept],
                others,
                f"mean {score} of kept minus of dropped activations",
                "fraction",
            )
        result[f"{name}: best PCK lost"] = _best_lost(found, kept)
    return result


def _best_lost(found: Found, kept: list[str]) -> dict:
    """PCK of the best of all minus that of the best kept one, both selected again in every resample
    of pairs.
    """
    hits = np.stack([found.hits[RECIPE][id_].mean(1) for id_ in found.ids], 1)
    inside = np.array([id_ in kept for id_ in found.ids])

    def lost(rows: np.ndarray) -> float:
        means = rows.mean(0)
        return float(means.max() - means[inside].max())

    return bootstrap(
        hits,
        f"{_PCK}: the best of all activations minus the best kept one, over pairs",
        "fraction",
        lost,
    )


def _sets(found: Found) -> dict[str, dict]:
    """Does the chosen set beat the legacy set, what lies between modules?"""
    hits, miou, result = found.set_hits[RECIPE], found.set_miou, {}
    for name, ids in found.sets.items():
        what = f"{len(ids)} activations joined"
        result[f"set {name}: PCK"] = bootstrap(
            hits[name].mean(1), f"{what}, {_PCK}, over pairs", "fraction"
        )
        result[f"set {name}: mIoU"] = bootstrap(
            miou[name], f"{what}, few-shot mIoU, over splits", "fraction"
        )
    ours, legacy = found.sets
    result["set ours minus legacy: PCK"] = bootstrap(
        hits[ours].mean(1) - hits[legacy].mean(1), "paired over pairs", "fraction"
    )
    result["set ours minus legacy: mIoU"] = bootstrap(
        miou[ours] - miou[legacy], "paired over splits", "fraction"
    )
    return result


def _noise(found: Found) -> dict[str, dict]:
    """Noise in the down-stage, little in the early half of the up-stage, more in the later half;
    and in increments.
    """
    noise = {id_: found.quality[id_].noise for id_ in found.ids}
    groups = {name: [noise[id_] for id_ in ids] for name, ids in _halves(found.ids).items()}
    result = {
        f"noise: {name}": bootstrap(
            np.array(values),
            "mean fraction of variance from the noise sample, over activations",
            "fraction",
        )
        for name, values in groups.items()
    }
    for name in ("down-stage", "up-stage, later half"):
        result[f"noise: {name} minus early half"] = _difference(
            groups[name],
            groups["up-stage, early half"],
            "difference of the means, over activations",
            "fraction",
        )
    down = np.array([noise[id_] for id_ in found.ids if id_.startswith("down")])
    result["noise: along the down-stage"] = bootstrap(
        _ranked(down), "Spearman correlation of noise with forward order", "correlation", _spearman
    )
    for part in _NOISY:
        pairs = [
            (
                noise[id_],
                noise[
                    id_.removesuffix(part) + ("res-out" if part.startswith("res") else "vit-out")
                ],
            )
            for id_ in found.ids
            if id_.startswith("up") and id_.endswith(part)
        ]
        result[f"noise: {part} minus output"] = bootstrap(
            np.array([a - b for a, b in pairs]),
            "up-stage, paired with the output of the same module",
            "fraction",
        )
    return result


def _granularity(found: Found) -> dict[str, dict]:
    """Does granularity go from coarse to fine within each resolution of the up-stage?"""
    result = {}
    for level in sorted(
        {place[1] for place in map(_place, found.ids) if place and place[0] == "up"}
    ):
        values = [
            found.quality[id_].granularity
            for id_ in found.ids
            if (place := _place(id_)) and place[:2] == ("up", level) and place[2] is not None
        ]
        result[f"granularity: along up-level{level}"] = bootstrap(
            _ranked(np.array(values)),
            "Spearman correlation of granularity with forward order",
            "correlation",
            _spearman,
        )
    return result


def _locality(found: Found) -> dict[str, dict]:
    """Are self-attention's queries and keys local where cross-attention's queries are not, and do
    they help late?
    """
    values = {
        part: {id_: found.quality[id_].locality for id_ in found.ids if id_.endswith(part)}
        for part in ("self-q", "self-k", "cross-q")
    }
    result = {
        f"locality: {part}": bootstrap(
            np.array(list(group.values())), "above that of the latent, over blocks", "correlation"
        )
        for part, group in values.items()
    }
    paired = [
        values[part][id_.removesuffix("cross-q") + part] - cross
        for id_, cross in values["cross-q"].items()
        for part in ("self-q", "self-k")
    ]
    result["locality: self-q and self-k minus cross-q"] = bootstrap(
        np.array(paired), "paired in the same block", "correlation"
    )
    late = set(_halves(found.ids)["up-stage, later half"])
    pck = _pck(found)
    local = [pck[id_] for id_ in late if id_.endswith(("self-q", "self-k"))]
    others = [
        pck[id_] for id_ in late if id_.endswith(("res-out", "vit-out", "cross-q", "block0-out"))
    ]
    result["PCK: self-q and self-k minus others, later half"] = _difference(
        local,
        others,
        "the paper keeps self-attention there, because locality suppresses the noise",
        "fraction",
    )
    return result


def _levels(found: Found) -> dict[str, dict]:
    """Which noise level is best?"""
    ours = next(iter(found.sets))
    return {
        f"PCK of {ours} at t = {t}": bootstrap(hits[ours].mean(1), "over pairs", "fraction")
        for t, hits in found.set_hits.items()
    }


def _pck(found: Found) -> dict[str, float]:
    return {id_: float(hits.mean()) for id_, hits in found.hits[RECIPE].items()}


def _place(id_: str) -> tuple[str, str | None, str | None] | None:
    match = _PLACE.fullmatch(id_)
    return match and match.groups()[:3]


def _halves(ids: list[str]) -> dict[str, list[str]]:
    """The later half of the up-stage begins at the last repeat of its middle level."""
    groups = {"down-stage": [], "up-stage, early half": [], "up-stage, later half": []}
    for id_ in ids:
        stage, level, repeat = _place(id_) or (None, None, None)
        if stage == "down":
            groups["down-stage"].append(id_)
        elif stage == "up":
            late = (int(level), 9 if repeat is None else int(repeat)) >= (1, 2)
            groups[f"up-stage, {'later' if late else 'early'} half"].append(id_)
    return groups


def _ranked(values: np.ndarray) -> np.ndarray:
    """Values beside their order, for a correlation of both."""
    return np.stack([np.arange(len(values)), values], 1)


def _spearman(rows: np.ndarray) -> float:
    from scipy.stats import rankdata

    first, second = (rankdata(column) - (len(rows) + 1) / 2 for column in rows.T)
    return float((first * second).sum() / max(np.sqrt((first**2).sum() * (second**2).sum()), 1e-12))


def _difference(
    first: list[float], second: list[float], what: str, unit: str, draws: int = 2000
) -> dict:
    """Difference of two means, each group resampled for itself."""
    rng, groups = np.random.default_rng(0), (np.array(first), np.array(second))
    spread = [
        np.subtract(*(group[rng.integers(len(group), size=len(group))].mean() for group in groups))
        for _ in range(draws)
    ]
    value = float(groups[0].mean() - groups[1].mean())
    return number(value, len(first) + len(second), unit, what, np.percentile(spread, [2.5, 97.5]))
