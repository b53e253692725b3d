"""Learned masks on names as the model was trained on them, beside other masks and a generic prompt.

For each name the portrait's similarity, labels and faces under every mask, what ordinary captions
lose, and rows of the network (a row forward and backward counts as three). The names are two folds:
how much the node's price for ordinary captions weighs is chosen on one and reported on the other
(`FOLDS`, `KEEP`). The captions that are judged are others than masks are learned with. Three names
also for feed-forward neurons, and for the attack of the audit on the learned mask, with a control
image.
"""

from __future__ import annotations

import re

import numpy as np
import torch

from ..common import host, results
from ..world.scenes import random_scene, render
from .attribution import GENERIC, MOST, _neurons, _values, localized
from .audit import ATTACK, attacked
from .known import GENERIC_SEEDS, distance, generic_features, seen
from .masks import alignment
from .world import LAYERS, World, silencing

#: Images of a name; captions that are judged, and that masks are learned with.
IMAGES, CAPTIONS, KEPT_CAPTIONS = 4, 8, 8
#: The verbatim names by their numbers: what is chosen on one fold is reported on the other.
FOLDS = (range(5), range(5, 10))
#: Weights of what ordinary captions lose that are tried; the first is the node's default.
KEEP = (1.0, 2.0)
#: Of how many verbatim names each mask is measured, in the order of measuring; and of all template
#: names.
MEASURED = {
    "generic prompt": 10,
    "learned, keep 1": 10,
    "learned, keep 2": 10,
    "learned, another seed": 10,
    "attributed": 10,
    "learned, feed-forward": 3,
    "attacked": 3,
    "untouched": 10,
    "largest |z|": 10,
    "random": 10,
    "NeMo, factor 0": 5,
    "stability": 4,
}
TEMPLATE = ("generic prompt", "learned, keep 1", "untouched")
_UNITS = {"similarity": "SSIM", "labels": "fraction", "faces": "fraction", "captions": "fraction"}
_UNITS["confidence"] = "probability"
_UNITS |= {
    "neurons": "neurons",
    "rows": "rows",
    "learned": "Jaccard",
    "attributed": "Jaccard",
} | dict.fromkeys(ATTACK, "SSIM")


def measure(quick: bool) -> dict[str, dict]:
    """Every number; each mask is kept on the disk as it is done."""
    world = World(4 if quick else 10, 16 if quick else 24)
    verbatim = world.names["verbatim"][: 1 if quick else None]
    template = [] if quick else world.names["template"]
    settings = {
        "noise samples": world.first_step["noise_samples"],
        "images": IMAGES,
        "captions": CAPTIONS,
    }
    kept = results.Rows("neurons_learned" + ("_quick" if quick else ""), settings)
    statistics = world.statistics(LAYERS)
    untouched = kept.row(
        "captions", lambda: {"captions": float(alignment(world, world.model, CAPTIONS).mean())}
    )
    arms = {
        "generic prompt": lambda text: seen(world, world.model, text, GENERIC, count=IMAGES),
        "learned, keep 1": lambda text: _judged(world, text, *_learned(world, text)),
        "learned, keep 2": lambda text: _judged(world, text, *_learned(world, text, keep=2.0)),
        "learned, another seed": lambda text: _judged(world, text, *_learned(world, text, seed=2)),
        "learned, feed-forward": lambda text: _judged(
            world, text, *_learned(world, text, neuron_type="feed_forward")
        ),
        "attacked": lambda text: _attacked(world, text, quick),
        "attributed": lambda text: _judged(world, text, *_attributed(world, text, statistics)),
        "NeMo, factor 0": lambda text: _judged(world, text, *localized(world, text, statistics)),
        "largest |z|": lambda text: _judged(world, text, *_deviating(world, text, statistics)),
        "random": lambda text: _judged(world, text, *_at_random(world)),
        "untouched": lambda text: seen(world, world.model, text, text, count=IMAGES),
        "stability": lambda text: _stability(world, text, statistics),
    }
    rows: dict[str, dict[str, dict]] = {text: {} for text in (*verbatim, *template)}
    wanted = [(text, arm) for arm, count in MEASURED.items() for text in verbatim[:count]]
    wanted += [(text, arm) for text in template for arm in TEMPLATE]
    for text, arm in wanted:
        rows[text][arm] = kept.row(f"{text}: {arm}", lambda text=text, arm=arm: arms[arm](text))
        shown = {name: value for name, value in rows[text][arm].items() if name != "features"}
        print(text, arm, shown, flush=True)
    numbers = {
        "untouched, captions": results.number(
            untouched["captions"], CAPTIONS, "fraction", "requested and read"
        )
    }
    if not quick:
        numbers |= _by_folds([rows[text] for text in verbatim])
        numbers |= _distances(world, [rows[text] for text in verbatim])
    for kind, texts in (("verbatim", verbatim), ("template", template)):
        numbers |= _means({text: rows[text] for text in texts}, kind)
    kept.finished()
    return numbers


def _by_folds(rows: list[dict[str, dict]]) -> dict[str, dict]:
    """Add to each name's rows, as "learned, by folds", those at the weight that is chosen on the
    other fold.
    """
    numbers = {}
    for number, fold in enumerate(FOLDS):
        other = [row for place, row in enumerate(rows) if place not in fold]
        best = min(KEEP, key=lambda keep: _missed(other, f"learned, keep {keep:g}"))
        what = f"weight of ordinary captions, chosen on fold {2 - number}"
        numbers[f"keep, fold {number + 1}"] = results.number(best, len(other), "weight", what)
        for place in fold:
            rows[place]["learned, by folds"] = rows[place][f"learned, keep {best:g}"]
    return numbers


def _distances(world: World, rows: list[dict[str, dict]]) -> dict[str, dict]:
    """How far the images of every mask that all names have lie from those of the generic prompt,
    and how far two sets of those lie from each other: the floor.
    """
    of_generic, again = (
        generic_features(world, IMAGES * len(rows), seed) for seed in GENERIC_SEEDS
    )
    numbers = {"generic prompt: distance to generic": distance(again, of_generic)}
    for arm in rows[0]:
        if arm != "generic prompt" and all("features" in row.get(arm, {}) for row in rows):
            features = np.concatenate([np.array(row[arm]["features"]) for row in rows])
            numbers[f"verbatim, {arm}: distance to generic"] = distance(features, of_generic)
    return numbers


def _missed(rows: list[dict[str, dict]], arm: str) -> tuple[float, float]:
    """How much of the portrait is left over where it is gone, as Memorization Report judges; then
    what captions lose.
    """
    similarity = host.pack("nodes.neurons.image_similarity")
    limits = {"similarity": similarity.GONE_SIMILARITY, "labels": similarity.GONE_LABELS}
    excess = [
        np.mean([row[arm][name] - row["generic prompt"][name] for row in rows]) - limits[name]
        for name in limits
    ]
    broken = np.mean([row["generic prompt"]["faces"] - row[arm]["faces"] for row in rows])
    return max(0.0, *excess, float(broken)), -float(np.mean([row[arm]["captions"] for row in rows]))


def _of_indices(world: World, indices: list[int]):
    """The mask that silences neurons, counted over all layers."""
    names = [
        (layer.path, index) for layer in _neurons(world).layers for index in range(layer.width)
    ]
    return silencing(names[index] for index in indices)


def _attributed(world: World, text: str, statistics, seed: int = 1) -> tuple[object, int]:
    """The first neurons of the ranking multi, and the rows that it takes."""
    order = _values(world, text, statistics, ("multi",), seed)["multi"].argsort(descending=True)
    return _of_indices(world, order[:MOST].tolist()), 8 + 3 * 4


def _deviating(world: World, text: str, statistics) -> tuple[object, int]:
    """The neurons that deviate most from ordinary captions, which takes no row of the network."""
    measured, step = (
        host.pack("nodes.neurons.neuron_statistics"),
        host.pack("nodes.neurons.first_step_comfy"),
    )
    with torch.inference_mode():
        paths = [layer.path for layer in _neurons(world).layers]
        outputs = step.value_outputs(world.model, world.encode(text)[0][0], paths)
        z = torch.cat(
            [
                statistics.z(path, measured.mean_activations(outputs[path][0]).cpu()).abs()
                for path in paths
            ]
        )
    return _of_indices(world, z.argsort(descending=True)[:MOST].tolist()), 0


def _at_random(world: World) -> tuple[object, int]:
    total = sum(layer.width for layer in _neurons(world).layers)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(5))
    return _of_indices(world, order[:MOST].tolist()), 0


def _learned(world: World, text: str, **changes) -> tuple[object, int]:
    """The mask of Optimize Neuron Mask at its defaults but for changes, and its rows."""
    how = {name: value for name, value in world.first_step.items() if name != "timestep"}
    given = {
        "model": world.model,
        "clip": world.clip,
        "prompts": text,
        "anchor": GENERIC,
        "ordinary_prompts": "\n".join(world.ordinary[-KEPT_CAPTIONS:]),
        "layers": LAYERS,
        "steps": 60,
        "learning_rate": 0.08,
        "min_factor": -1.0,
        "removal": 20.0,
        "keep": KEEP[0],
        "sparsity": 0.04,
        "max_neurons": 0,
        "batch_size": 2,
        "checkpoint_name": "",
        "precision": "fp32",  # so that the numbers are of one arithmetic on every machine
    }
    mask, _, _, report = world.run("OptimizeNeuronMask", **(given | how | changes))
    forward, gradient = map(int, re.search(r"Cost: (\d+) rows, (\d+) rows", report).groups())
    return mask, forward + 3 * gradient


def _stability(world: World, text: str, statistics) -> dict:
    """How many of their neurons masks from two noise seeds share (Jaccard)."""
    masks = {
        "learned": [_learned(world, text, seed=seed)[0] for seed in (1, 2)],
        "attributed": [_attributed(world, text, statistics, seed)[0] for seed in (1, 2)],
    }
    found = {way: [set(mask.neurons) for mask in pair] for way, pair in masks.items()}
    return {way: len(one & two) / len(one | two) for way, (one, two) in found.items()}


def _attacked(world: World, text: str, quick: bool) -> dict:
    """Similarity to the image before and after the attack on the learned mask, and to a control
    image after its own.
    """
    control = render(random_scene(np.random.default_rng(99 + world.names["verbatim"].index(text))))
    found = attacked(world, world.masked(_learned(world, text)[0]), text, quick, control)
    return dict(zip(ATTACK, found, strict=True))


def _judged(world: World, text: str, mask, rows: int) -> dict:
    masked = world.masked(mask)
    captions = float(alignment(world, masked, CAPTIONS).mean())
    return seen(world, masked, text, text, count=IMAGES) | {
        "captions": captions,
        "neurons": mask.count,
        "rows": rows,
    }


def _means(rows: dict[str, dict[str, dict]], kind: str) -> dict[str, dict]:
    """The mean of every number over names, by arm; and how much of the portrait is left over the
    generic prompt's.
    """
    numbers = {}
    for arm in dict.fromkeys(arm for arms in rows.values() for arm in arms):
        found = {text: arms for text, arms in rows.items() if arm in arms}
        for name in next(iter(found.values()))[arm]:
            if name == "features":
                continue
            values = np.array([arms[arm][name] for arms in found.values()], dtype=float)
            numbers[f"{kind}, {arm}, {name}"] = results.bootstrap(
                values, f"mean over {kind} names", _UNITS[name]
            )
            if name in ("similarity", "labels", "faces", "confidence") and arm != "generic prompt":
                excess = values - np.array(
                    [arms["generic prompt"][name] for arms in found.values()]
                )
                what = f"over a generic prompt on the same model, mean over {kind} names"
                numbers[f"{kind}, {arm}, {name} over generic"] = results.bootstrap(
                    excess, what, _UNITS[name]
                )
    return numbers
