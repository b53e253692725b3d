"""The effect of masks, their controls and other mitigations on images of memorized names and of
ordinary captions.
"""

from __future__ import annotations

import itertools

import numpy as np

from ..common import host, results
from ..common.similarity import images_ssim
from ..world import dataset, judge
from .world import LAYERS, WORLD, World, silencing

STRENGTHS = {
    "factor .75": 0.25,
    "factor .5": 0.5,
    "factor .25": 0.75,
    "NeMo (factor 0)": 1.0,
    "factor -.5": 1.5,
    "factor -1": 2.0,
}
#: An image counts as replicated from this SSIM to the memorized one on; .5 % of new renders reach
#: it with any.
REPLICATED = 0.73
#: Verbatim and template names that are localized, of 10 and 4; searches that are repeated.
NAMES, QUICK_NAMES, REPEATED = (6, 3), (1, 0), 3


def measure(quick: bool) -> dict[str, dict]:
    """Neurons found, stability, replication and sameness by mitigation, and prompt alignment under
    a mask.
    """
    seeds = 2 if quick else 4
    world = World(seeds, ordinary=24 if quick else 60)
    counts = QUICK_NAMES if quick else NAMES
    names = [
        text
        for kind, count in zip(("verbatim", "template"), counts, strict=True)
        for text in world.names[kind][:count]
    ]
    statistics = world.statistics(LAYERS)
    masks = {text: world.localize(text, statistics) for text in names}
    numbers = {}
    for name, value in zip(("detection threshold", "target score"), world.thresholds, strict=True):
        numbers[name] = results.number(
            value, len(world.ordinary), "SSIM", f"score between {seeds} seeds"
        )
    numbers |= _found(masks, world)
    numbers |= _treatments(world, masks, 2 if quick else 4, quick)
    if not quick:
        numbers |= _stability(world, masks, statistics)
        numbers |= _elsewhere(world, names[:REPEATED])
    return numbers | _prompt_alignment(world, masks, 5 if quick else 40)


def _found(masks: dict, world: World) -> dict[str, dict]:
    numbers = {}
    for kind in ("verbatim", "template"):
        chosen = [masks[text] for text in world.names[kind] if text in masks]
        if chosen:
            counts = np.array([mask.count for mask in chosen])
            numbers[f"neurons, {kind}"] = results.bootstrap(
                counts, f"median neurons of a {kind} name, of {_all(world)}", "neurons", np.median
            )
            converged = np.array(
                [all(search.converged for search in mask.searches) for mask in chosen]
            )
            numbers[f"converged, {kind}"] = results.fraction(
                converged, f"searches of {kind} names that converged"
            )
    return numbers


def _all(world: World) -> int:
    network = world.model.model.diffusion_model
    return sum(
        layer.width for layer in host.pack("nodes.neurons.neuron_layers").value_layers(network)
    )


def _stability(world: World, masks: dict, statistics) -> dict[str, dict]:
    """The paper's found sets vary with the noise and with rounding; here searches are repeated with
    others.
    """
    changes = {"seeds": {"seed": 2}, "precision": {"model": world.in_low_precision()}}
    numbers = {}
    for what, change in changes.items():
        shared = []
        for text in list(masks)[:REPEATED]:
            first, again = (
                set(masks[text].neurons),
                set(world.localize(text, statistics, **change).neurons),
            )
            shared.append(len(first & again) / max(len(first | again), 1))
        numbers[f"stability over {what}"] = results.bootstrap(
            np.array(shared),
            "neurons shared with a search on other noise or in bfloat16 (Jaccard)",
            "fraction",
        )
    return numbers


def _elsewhere(world: World, names: list[str]) -> dict[str, dict]:
    """Searches of other layers: the paper's, and those that a layer ablation suggests."""
    named = world.layers(names)
    numbers = {}
    for what, layers in (
        ("the paper's layers", "down, middle"),
        ("Layer Ablation's layers", named),
    ):
        statistics, similarities = world.statistics(layers), []
        for text in names:
            images = world.generate(
                world.masked(world.localize(text, statistics, layers)), world.encode(text), 2
            )
            similarities.append(_replication(world, text, images))
        numbers[f"replication, NeMo in {what}"] = results.bootstrap(
            np.array(similarities), "SSIM to the memorized image", "SSIM"
        )
    return numbers


def _replication(world: World, text: str, images: np.ndarray) -> float:
    original = np.repeat(world.originals[text][None], len(images), 0)
    return float(np.median(images_ssim(images, original)))


def _treatments(world: World, masks: dict, count: int, quick: bool) -> dict[str, dict]:
    """Likeness to the memorized image and between seeds, for each mitigation."""
    similarities: dict[str, list[float]] = {}
    sameness: dict[str, list[float]] = {}
    strengths = {"NeMo (factor 0)": 1.0} if quick else STRENGTHS
    for text, mask in masks.items():
        for name, model, positive in _variants(world, text, mask, strengths):
            images = world.generate(model, positive, count)
            similarities.setdefault(name, []).append(_replication(world, text, images))
            pairs = [
                images_ssim(images[[a]], images[[b]])[0]
                for a, b in itertools.combinations(range(count), 2)
            ]
            sameness.setdefault(name, []).append(float(np.median(pairs)))
            print(
                f"{text}, {name}: {similarities[name][-1]:.3f} to the image, "
                f"{sameness[name][-1]:.3f} between seeds"
            )
    numbers = {}
    for name, values in similarities.items():
        values = np.array(values)
        numbers[f"replication, {name}"] = results.bootstrap(
            values, "SSIM to the memorized image", "SSIM"
        )
        numbers[f"replicated, {name}"] = results.fraction(
            values > REPLICATED, f"names with an SSIM over {REPLICATED}"
        )
        numbers[f"sameness, {name}"] = results.bootstrap(
            np.array(sameness[name]), "SSIM between seeds", "SSIM"
        )
    return numbers


def _variants(world: World, text: str, mask, strengths: dict[str, float]):
    """Name, model and conditioning of each mitigation of a prompt."""
    positive, negative = world.encode(text), world.encode("")
    yield "nothing", world.model, positive
    yield "random neurons", world.masked(any_neurons(world, mask)), positive
    for name, strength in strengths.items():
        yield name, world.masked(mask, strength), positive
    scaled = world.run(
        "AttentionScaling",
        model=world.model,
        clip=world.clip,
        prompt=text,
        scale=1.25,
        mask_padding=True,
    )
    yield "attention scaling", scaled[0], positive
    target = world.ordinary_norm
    how = {
        "steps": 10,
        "learning_rate": 0.05,
        "noise_samples": 4,
        "seed": 1,
        "width": 128,
        "height": 128,
    }
    adjusted, _ = world.run(
        "EmbeddingAdjustment",
        model=world.model,
        positive=positive,
        negative=negative,
        target_norm=target,
        **how,
    )
    yield "embedding adjustment", world.model, adjusted
    for count in (1, 4, 10):
        yield (
            f"{count} random words",
            world.model,
            world.run(
                "RandomTokens", clip=world.clip, prompt=text, count=count, seed=count, words=""
            )[0],
        )


def any_neurons(world: World, mask):
    """As many neurons in each layer, drawn among all as the official code does, so some of the
    found ones too.
    """
    rng = np.random.default_rng(3)
    network = world.model.model.diffusion_model
    return silencing(
        (path, int(index))
        for path, found in mask.scales.items()
        for index in rng.permutation(network.get_submodule(path).out_features)[: len(found)]
    )


def _prompt_alignment(world: World, masks: dict, count: int) -> dict[str, dict]:
    """Requested attributes that the judge finds in images of ordinary captions, with and without
    masks.
    """
    joined = host.pack("nodes.neurons.mask").merge_masks(list(masks.values()))
    models = {
        "nothing": world.model,
        "one mask": world.masked(next(iter(masks.values()))),
        "all masks joined": world.masked(joined),
    }
    fractions = {name: alignment(world, model, count) for name, model in models.items()}
    return {
        f"prompt alignment, {name}": results.bootstrap(
            found, "requested attributes found", "fraction"
        )
        for name, found in fractions.items()
    }


def alignment(world: World, model, count: int) -> np.ndarray:
    """The fraction of requested attributes that the judge finds in an image of each of ``count``
    ordinary captions.
    """
    from ..world.captions import full_caption

    network, scenes = host.pack("nodes.demo.judge").load(WORLD), world.scenes[:count]
    truth = np.array([dataset.labels(scene) for scene in scenes])
    images = np.concatenate(
        [
            world.generate(model, world.encode(full_caption(scene)), 1, seed=2000 + number)
            for number, scene in enumerate(scenes)
        ]
    )
    return judge.followed(judge.read(network, images)[0], truth)
