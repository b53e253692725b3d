"""What masks, their controls and the other ways out do to the pictures of memorised names, and to other captions."""

from __future__ import annotations

import itertools

import numpy as np

from ..common import host, results
from ..common.similarity import pictures_ssim
from ..world import dataset, judge
from .world import WORLD, World

STRENGTHS = {"factor .75": 0.25, "factor .5": 0.5, "factor .25": 0.75, "NeMo (factor 0)": 1.0, "factor -1": 2.0}
#: A picture counts as replicated from this SSIM to the memorised one.
REPLICATED = 0.6


def measure(quick: bool) -> dict[str, dict]:
    """Neurons found, stability, replication and sameness by treatment, and captions obeyed under a mask."""
    world = World(seeds=4, ordinary=24 if quick else 80)
    threshold = host.pack("nodes.neurons.calibration").threshold([s for s, _ in world.scores(world.ordinary)]).value
    names = world.names["verbatim"][: 1 if quick else None] + world.names["template"][: 0 if quick else None]
    layers = world.layers(names[: 1 if quick else 3])
    statistics = world.statistics(layers)
    masks = {text: world.localize(text, statistics, layers, threshold) for text in names}
    numbers = {"threshold": {"value": threshold, "low": threshold, "high": threshold, "n": len(world.ordinary),
                             "unit": "SSIM", "what": f"over 4 seeds; layers {layers}"}}  # fmt: skip
    numbers |= _found(masks, world)
    numbers |= _stability(world, masks, statistics, layers, threshold, 1 if quick else 3)
    numbers |= _treatments(world, masks, 2 if quick else 4, threshold, quick)
    return numbers | _obeyed(world, masks, 8 if quick else 48)


def _found(masks: dict, world: World) -> dict[str, dict]:
    numbers = {}
    for kind in ("verbatim", "template"):
        chosen = [masks[text] for text in world.names[kind] if text in masks]
        if chosen:
            counts = np.array([mask.count for mask in chosen])
            numbers[f"neurons, {kind}"] = results.bootstrap(
                counts, f"median neurons of a {kind} name", "neurons", np.median
            )
            converged = np.array([all(found.converged for found in mask.findings) for mask in chosen])
            numbers[f"converged, {kind}"] = results.share(converged, f"searches of {kind} names that converged")
    return numbers


def _stability(world: World, masks: dict, statistics, layers: str, threshold: float, count: int) -> dict[str, dict]:
    """The paper's found sets vary with the noise; here the search is repeated with other seeds."""
    shared = []
    for text in list(masks)[:count]:
        first = set(masks[text].neurons)
        again = set(world.localize(text, statistics, layers, threshold, seed=2).neurons)
        shared.append(len(first & again) / max(len(first | again), 1))
    return {"stability over seeds": results.bootstrap(np.array(shared), "neurons shared by searches of two seeds "
                                                                        "(Jaccard)",
                                                      "share")}  # fmt: skip


def _treatments(world: World, masks: dict, count: int, threshold: float, quick: bool) -> dict[str, dict]:
    """Likeness to the memorised picture and between seeds, for each treatment."""
    alike: dict[str, list[float]] = {}
    sameness: dict[str, list[float]] = {}
    strengths = {"NeMo (factor 0)": 1.0} if quick else STRENGTHS
    for text, mask in masks.items():
        for name, model, positive in _variants(world, text, mask, strengths):
            pictures = world.paint(model, positive, count)
            original = np.repeat(world.originals[text][None], count, 0)
            alike.setdefault(name, []).append(float(np.median(pictures_ssim(pictures, original))))
            pairs = [pictures_ssim(pictures[[a]], pictures[[b]])[0] for a, b in itertools.combinations(range(count), 2)]
            sameness.setdefault(name, []).append(float(np.median(pairs)))
            print(f"{text}, {name}: {alike[name][-1]:.3f} to the picture, {sameness[name][-1]:.3f} between seeds")
    numbers = {}
    for name, values in alike.items():
        values = np.array(values)
        numbers[f"replication, {name}"] = results.bootstrap(values, "SSIM to the memorised picture", "SSIM")
        numbers[f"replicated, {name}"] = results.share(values > REPLICATED, f"names with an SSIM over {REPLICATED}")
        numbers[f"sameness, {name}"] = results.bootstrap(np.array(sameness[name]), "SSIM between seeds", "SSIM")
    return numbers


def _variants(world: World, text: str, mask, strengths: dict[str, float]):
    """Name, model and conditioning of each treatment of a prompt."""
    positive, negative = world.encode(text), world.encode("")
    yield "nothing", world.model, positive
    control = world.run("NeuronMaskEdit", mask=mask, operation="random control", count=1, names="", seed=3,
                        model=world.model) if 2 * mask.count < _total(world, mask) else None  # fmt: skip
    if control is not None:
        yield "random neurons", world.masked(control[0]), positive
    for name, strength in strengths.items():
        yield name, world.masked(mask, strength), positive
    scaled = world.run(
        "AttentionScaling", model=world.model, clip=world.clip, prompt=text, scale=1.25, hide_padding=True
    )
    yield "attention scaling", scaled[0], positive
    target = world.ordinary_norm
    how = {"steps": 10, "learning_rate": 0.05, "pictures": 4, "seed": 1, "width": 128, "height": 128}
    adjusted, _ = world.run("EmbeddingAdjustment", model=world.model, positive=positive, negative=negative,
                            target=target, **how)  # fmt: skip
    yield "embedding adjustment", world.model, adjusted
    for count in (1, 4, 10):
        yield f"{count} random words", world.model, world.run(
            "RandomTokens", clip=world.clip, prompt=text, count=count, seed=count, words="")[0]  # fmt: skip


def _total(world: World, mask) -> int:
    """Neurons of the smallest masked layer's share: a control needs as many others in each."""
    network = world.model.model.diffusion_model
    room = [(network.get_submodule(path).out_features, len(of)) for path, of in mask.scales.items()]
    return 2 * mask.count + 1 if room and all(width >= 2 * used for width, used in room) else 0


def _obeyed(world: World, masks: dict, count: int) -> dict[str, dict]:
    """Asked attributes that the judge finds in pictures of ordinary captions, with and without masks."""
    joined = host.pack("nodes.neurons.findings").joined(list(masks.values()))
    network, labels = host.pack("nodes.demo.judge").load(WORLD), list(dataset.LABELS)
    columns = [labels.index(name) for name in labels if name != "mirror"]
    from ..world.captions import full_caption

    scenes = world.scenes[:count]
    truth = np.array([dataset.labels(scene) for scene in scenes])[:, columns]
    numbers = {}
    for name, model in (("nothing", world.model), ("one mask", world.masked(next(iter(masks.values())))),
                        ("all masks joined", world.masked(joined))):  # fmt: skip
        pictures = np.concatenate([world.paint(model, world.encode(full_caption(scene)), 1, seed=2000 + number)
                                   for number, scene in enumerate(scenes)])  # fmt: skip
        read = judge.read(network, pictures)[0][:, columns]
        obeyed = [(read[row] == truth[row])[truth[row] >= 0].mean() for row in range(len(scenes))]
        numbers[f"captions obeyed, {name}"] = results.bootstrap(np.array(obeyed), "asked attributes found", "share")
    return numbers
