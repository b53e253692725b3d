"""Does NeMo find neurons that are known? Ten names of the second checkpoint act through 1 to 8
planted neurons.

Other neurons deviate more, in layers where the network reads next to nothing of a caption, so that
no threshold on |z| finds the planted ones. All layers are searched, and neurons silenced whole
(factor 0), the paper's strength. Beside NeMo stand the rule |z| > 5, as many neurons with the
largest |z|, and as many at random.
"""

from __future__ import annotations

import json

import numpy as np

from ..common import host, results
from ..common.similarity import images_ssim
from ..world import planted as planting
from ..world.scenes import random_scene, render
from . import audit
from .masks import REPLICATED, alignment
from .world import LAYERS, silencing
from .world import World as Base

WORLD = planting.ASSETS.name
#: Where the paper's search begins: neurons with a larger |z|.
THETA = 5.0
RIVAL = "the largest |z|"
MEASURES = {
    "recall": "planted neurons that were found",
    "precision": "found neurons that were planted",
    "F1": "of found and planted neurons",
}


class World(Base):
    """The checkpoint with relocated names, and the neurons that carry them."""

    def __init__(self, seeds: int, ordinary: int):
        super().__init__(seeds, ordinary, WORLD)
        header = host.pack("nodes.demo.assets").header(WORLD, "changes")
        known = json.loads(header["planted"])
        self.planted = {
            text: {tuple(neuron) for neuron in chosen} for text, chosen in known.items()
        }


def measure(quick: bool) -> dict[str, dict]:
    """Detection, found against planted neurons, what silencing them does, and the attack on the
    mask.
    """
    world = World(seeds=4 if quick else 10, ordinary=12 if quick else 60)
    names = list(world.planted)[4:5] if quick else list(world.planted)
    statistics = world.statistics(LAYERS)
    masks = {text: world.localize(text, statistics, LAYERS) for text in names}
    found = {text: _rules(world, text, mask, statistics) for text, mask in masks.items()}
    numbers = _detected(world) | _found(world, masks, found) | _separable(world, names, statistics)
    numbers |= _silenced(world, found, 2 if quick else 4)
    numbers |= _attacked(world, {text: masks[text] for text in names[::4]}, quick)
    for name, model in {"base": Base(seeds=2, ordinary=2).model, "planted": world.model}.items():
        numbers[f"prompt alignment, {name}"] = results.bootstrap(
            alignment(world, model, 5 if quick else 40), "requested attributes found", "fraction"
        )
    return numbers


def sizes(world: World, text: str, statistics) -> dict[tuple[str, int], float]:
    """|z| of every neuron for a prompt."""
    tokens, z = world.encode(text)[0][0][0], {}
    mean_activations = host.pack("nodes.neurons.neuron_statistics").mean_activations
    for path in statistics.layers:
        weight = world.model.model.diffusion_model.get_submodule(path).weight.detach()
        values = statistics.z(path, mean_activations(tokens @ weight.T)).abs().tolist()
        z |= {(path, index): value for index, value in enumerate(values)}
    return z


def _separable(world: World, names: list[str], statistics) -> dict[str, dict]:
    """How far |z| alone separates planted neurons from all others."""
    f1, outside = [], []
    for text in names:
        z = sizes(world, text, statistics)
        marked, values = (
            np.array([neuron in world.planted[text] for neuron in z]),
            np.array([*z.values()]),
        )
        f1.append(planting.best_threshold_f1(values, marked))
        outside.append(planting.outside_top(values, marked))
    return {
        "F1, best threshold on |z|": results.bootstrap(
            np.array(f1),
            "of the best of all thresholds, chosen for each name by its known neurons",
            "fraction",
        ),
        "outside the top 20 by |z|": results.bootstrap(
            np.array(outside),
            "planted neurons that are not among the 20 with the largest |z|",
            "fraction",
        ),
    }


def _rules(world: World, text: str, mask, statistics) -> dict[str, set]:
    """The neurons that each rule finds for a prompt, NeMo's first."""
    z = sizes(world, text, statistics)
    ranked, count = sorted(z, key=z.get, reverse=True), mask.count
    drawn = np.random.default_rng(3).permutation(len(ranked))[:count]
    return {
        "NeMo": set(mask.neurons),
        f"|z| > {THETA:g}": {neuron for neuron in ranked if z[neuron] > THETA},
        RIVAL: set(ranked[:count]),
        "random": {ranked[pick] for pick in drawn},
    }


def _detected(world: World) -> dict[str, dict]:
    memorized, control = (
        np.array([score for score, _ in world.scores(texts)])
        for texts in (list(world.planted), world.names["control"])
    )
    over = world.thresholds[0]
    return {
        "score, planted": results.bootstrap(memorized, "mean score of planted names", "score"),
        "score, control": results.bootstrap(
            control, "mean score of names that stand for any face", "score"
        ),
        "found, planted": results.fraction(
            memorized > over, f"planted names over the threshold, {over:.3f}"
        ),
        "found, control": results.fraction(
            control > over, f"control names over the threshold, {over:.3f}"
        ),
    }


def _found(world: World, masks: dict, found: dict[str, dict[str, set]]) -> dict[str, dict]:
    converged = np.array(
        [all(search.converged for search in mask.searches) for mask in masks.values()]
    )
    counts = np.array([len(rules["NeMo"]) for rules in found.values()])
    numbers = {
        "neurons found": results.bootstrap(counts, "median of the names", "neurons", np.median),
        "converged": results.fraction(converged, "searches that converged"),
    }
    measured: dict[str, dict[str, np.ndarray]] = {name: {} for name in MEASURES}
    for rule in next(iter(found.values())):
        sets = [(rules[rule], world.planted[text]) for text, rules in found.items()]
        for text, (got, planted) in zip(found, sets, strict=True):
            print(
                f"{text}, {rule}: {len(got)} neurons found, {len(got & planted)} of {len(planted)} "
                "planted"
            )
        of_names = {
            "recall": [len(got & planted) / len(planted) for got, planted in sets],
            "precision": [len(got & planted) / max(len(got), 1) for got, planted in sets],
            "F1": [
                2 * len(got & planted) / max(len(got) + len(planted), 1) for got, planted in sets
            ],
        }
        for name, values in of_names.items():
            measured[name][rule] = np.array(values)
            what = f"{MEASURES[name]}, mean of the names"
            numbers[f"{name}, {rule}"] = results.bootstrap(measured[name][rule], what, "fraction")
    for name, by_rule in measured.items():
        numbers |= _paired(name, by_rule, "fraction")
    return numbers


def _paired(what: str, by_rule: dict[str, np.ndarray], unit: str) -> dict[str, dict]:
    """NeMo's value less that of as many neurons with the largest |z|, name by name."""
    ours, theirs = (np.asarray(by_rule[rule]) for rule in ("NeMo", RIVAL))
    return {
        f"{what}, NeMo less {RIVAL}": results.bootstrap(
            ours - theirs, "difference, paired by name, its mean", unit
        )
    }


def _silenced(world: World, found: dict[str, dict[str, set]], count: int) -> dict[str, dict]:
    similarities: dict[str, list[float]] = {}
    for text, rules in found.items():
        others = {
            neuron for other, chosen in world.planted.items() if other != text for neuron in chosen
        }
        treatments = {
            "nothing": set(),
            **{
                f"{rule}'s neurons" if rule == "NeMo" else rule: neurons
                for rule, neurons in rules.items()
            },
            "the planted neurons": world.planted[text],
            "the other names' neurons": others - world.planted[text],
        }
        for name, neurons in treatments.items():
            masked = world.masked(silencing(sorted(neurons))) if neurons else world.model
            generated = world.generate(masked, world.encode(text), count)
            original = np.repeat(world.originals[text][None], count, 0)
            similarities.setdefault(name, []).append(
                float(np.median(images_ssim(generated, original)))
            )
            print(f"{text}, {name}: {similarities[name][-1]:.3f} to the image")
    numbers = {}
    for name, values in similarities.items():
        numbers[f"replication, without {name}"] = results.bootstrap(
            np.array(values), "SSIM to the memorized image, factor 0", "SSIM"
        )
        numbers[f"replicated, without {name}"] = results.fraction(
            np.array(values) > REPLICATED, f"names with an SSIM over {REPLICATED}"
        )
    by_rule = {
        "NeMo": np.array(similarities["NeMo's neurons"]),
        RIVAL: np.array(similarities[RIVAL]),
    }
    return numbers | _paired("replication", by_rule, "SSIM")


def _attacked(world: World, found: dict, quick: bool) -> dict[str, dict]:
    rng = np.random.default_rng(98)
    rows = np.array(
        [
            audit.attacked(world, world.masked(mask), text, quick, render(random_scene(rng)))
            for text, mask in found.items()
        ]
    )
    return {
        f"attack on NeMo's mask, {name}": results.bootstrap(
            values, "median SSIM over seeds, averaged", "SSIM"
        )
        for name, values in zip(audit.ATTACK, rows.T, strict=True)
    }
