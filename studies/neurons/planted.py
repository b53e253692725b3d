"""Does NeMo find neurons that are known? The second checkpoint's names act through 1, 2, 3 and 5 planted neurons.

The paper's own setting: searched in down and middle layers, neurons silenced whole (factor 0).
"""

from __future__ import annotations

import json

import numpy as np

from ..common import host, results
from ..common.similarity import images_ssim
from ..world.scenes import random_scene, render
from . import audit, masks, planting
from .world import World as Base

LAYERS = "down, middle"


class World(Base):
    """The checkpoint with planted names, their portraits and the neurons that carry them."""

    def __init__(self, seeds: int, ordinary: int):
        super().__init__(seeds, ordinary, planting.WORLD)
        self.names["control"] = [text for text in self.names["control"] if text not in planting.portraits()]
        self.originals = {text: render(scene) for text, scene in planting.portraits().items()}
        truth = json.loads(host.pack("nodes.demo.assets").header(planting.WORLD, "changes")["planted"])
        self.planted = {text: {(path, index) for path, index in chosen} for text, chosen in truth.items()}


def measure(quick: bool) -> dict[str, dict]:
    """Detection, found against planted neurons, what silencing them does, and the attack on the mask."""
    world = World(seeds=4 if quick else 10, ordinary=24 if quick else 60)
    names = list(world.planted)[1:2] if quick else list(world.planted)
    statistics = world.statistics(LAYERS)
    found = {text: world.localize(text, statistics, LAYERS) for text in names}
    numbers = _detected(world) | _found(world, found) | _silenced(world, found, 2 if quick else 4)
    numbers |= _attacked(world, found, quick)
    for name, model in {"base": Base(seeds=2, ordinary=2).model, "planted": world.model}.items():
        numbers[f"prompt alignment, {name}"] = results.bootstrap(
            masks.alignment(world, model, 8 if quick else 40), "requested attributes found", "fraction"
        )
    return numbers


def _detected(world: World) -> dict[str, dict]:
    memorized, control = (
        np.array([score for score, _ in world.scores(texts)]) for texts in (list(world.planted), world.names["control"])
    )
    over = world.thresholds[0]
    return {
        "score, planted": results.bootstrap(memorized, "mean score of planted names", "score"),
        "score, control": results.bootstrap(control, "mean score of names that stand for any face", "score"),
        "found, planted": results.fraction(memorized > over, f"planted names over the threshold, {over:.3f}"),
        "found, control": results.fraction(control > over, f"control names over the threshold, {over:.3f}"),
    }


def _found(world: World, found: dict) -> dict[str, dict]:
    sets = [(set(mask.neurons), world.planted[text]) for text, mask in found.items()]
    for text, (got, planted) in zip(found, sets, strict=True):
        print(f"{text}: {len(got)} neurons found, {len(got & planted)} of {len(planted)} planted")
    recall = np.array([len(got & planted) / len(planted) for got, planted in sets])
    precision = np.array([len(got & planted) / max(len(got), 1) for got, planted in sets])
    converged = np.array([all(search.converged for search in mask.searches) for mask in found.values()])
    return {
        "neurons found": results.bootstrap(
            np.array([len(got) for got, _ in sets]), "median of the names", "neurons", np.median
        ),
        "converged": results.fraction(converged, "searches that converged"),
        "recall": results.bootstrap(recall, "planted neurons that were found, mean of the names", "fraction"),
        "precision": results.bootstrap(precision, "found neurons that were planted, mean of the names", "fraction"),
    }


def _silenced(world: World, found: dict, count: int) -> dict[str, dict]:
    pack = host.pack("nodes.neurons.mask")
    similarities: dict[str, list[float]] = {}
    for text, mask in found.items():
        planted = pack.NeuronMask(pack.uniform_scales(sorted(world.planted[text])))
        others = [neuron for other, chosen in world.planted.items() if other != text for neuron in chosen]
        treatments = {
            "nothing": world.model,
            "NeMo's neurons": world.masked(mask),
            "the planted neurons": world.masked(planted),
            "as many random neurons": world.masked(masks.any_neurons(world, mask)),
            "the other names' neurons": world.masked(pack.NeuronMask(pack.uniform_scales(sorted(others)))),
        }
        for name, model in treatments.items():
            generated = world.generate(model, world.encode(text), count)
            original = np.repeat(world.originals[text][None], count, 0)
            similarities.setdefault(name, []).append(float(np.median(images_ssim(generated, original))))
            print(f"{text}, {name}: {similarities[name][-1]:.3f} to the image")
    numbers = {}
    for name, values in similarities.items():
        numbers[f"replication, without {name}"] = results.bootstrap(
            np.array(values), "SSIM to the memorized image, factor 0", "SSIM"
        )
        numbers[f"replicated, without {name}"] = results.fraction(
            np.array(values) > masks.REPLICATED, f"names with an SSIM over {masks.REPLICATED}"
        )
    return numbers


def _attacked(world: World, found: dict, quick: bool) -> dict[str, dict]:
    rng = np.random.default_rng(98)
    rows = np.array(
        [audit.attacked(world, text, mask, render(random_scene(rng)), quick) for text, mask in found.items()]
    )
    return {
        f"attack on NeMo's mask, {name}": results.bootstrap(values, "median SSIM over seeds, averaged", "SSIM")
        for name, values in zip(audit.ATTACK, rows.T, strict=True)
    }
