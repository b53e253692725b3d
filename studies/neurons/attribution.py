"""Neurons ranked by a gradient, on names whose neurons are known and on names as the model was
trained on them.

Planted names: the ranking against the planted neurons, with a fraction of the largest attribution
fitted on five names and reported on the other five; what the score leaves with exactly the planted
neurons silenced; and the paper's search to its own target beside the ranking, in rows of the
network (a row forward and backward counts as three). Names as trained: neurons, rows, and what is
left of the portrait in images, beside a generic prompt on the same model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch

from ..common import host, results
from . import planted
from .masks import alignment
from .world import LAYERS, World, silencing

GENERIC = "portrait"
RANKINGS = ("multi", "multi_z", "dot", "dot_z")
FRACTIONS = np.round(np.arange(0.02, 1.0, 0.02), 2)
#: The largest mask that counts, on names as trained.
MOST = 80
#: Names that are searched to the target score, of each five planted ones, and names as trained.
SEARCHED, TRAINED, CAPTIONS = 1, 1, 8


def measure(quick: bool) -> dict[str, dict]:
    """Every number; each name is kept on the disk as it is done."""
    ordinary, seeds = (12, 4) if quick else (24, 10)
    world = planted.World(seeds, ordinary)
    names = list(world.planted)[4:6] if quick else list(world.planted)
    kept = results.Rows(
        "neurons_attribution" + ("_quick" if quick else ""), {"names": names, "seeds": seeds}
    )
    statistics, searched = (
        world.statistics(LAYERS),
        names[:1] if quick else names[::5][: 2 * SEARCHED],
    )
    rows = {
        text: kept.row(text, lambda text=text: _planted(world, text, statistics)) for text in names
    }
    found = {
        text: kept.row(f"search {text}", lambda text=text: _searched(world, text, statistics))
        for text in searched
    }
    numbers = _fitted(rows) | _score_left(rows, world) | _rows(found)
    trained = World(seeds, ordinary)
    texts = trained.names["verbatim"][: 1 if quick else TRAINED]
    of_trained = {}
    statistics = trained.statistics(LAYERS)
    for text in texts:
        of_trained[text] = kept.row(
            f"trained {text}", lambda text=text: _trained(trained, text, statistics, quick)
        )
        print(text, of_trained[text], flush=True)
    numbers |= _images(of_trained)
    kept.finished()
    return numbers


def _neurons(world):
    search, layers = (
        host.pack("nodes.neurons.nemo_search"),
        host.pack("nodes.neurons.neuron_layers"),
    )
    chosen = layers.select_layers(layers.value_layers(world.model.model.diffusion_model), LAYERS)
    return search.Neurons(tuple(chosen))


def _values(
    world, text: str, statistics, rankings: Sequence[str] = RANKINGS, seed: int = 1
) -> dict[str, torch.Tensor]:
    """What each ranking gives every neuron for a name, (total,), as the node computes it."""
    pack, pure = (
        host.pack("nodes.neurons.prompt_search_comfy"),
        host.pack("nodes.neurons.neuron_attribution"),
    )
    inputs, search = host.pack("nodes.neurons.nemo_inputs"), host.pack("nodes.neurons.nemo_search")
    how, found = world.first_step, {}
    step = inputs.FirstStepInputs(
        shape=(24, 16, 16),
        noise_samples=how["noise_samples"],
        seed=seed,
        timestep_name=how["timestep"],
    )
    with torch.inference_mode():
        conditioning = world.encode(text)
        for ranking in rankings:
            settings = pack.AttributionSettings(ranking=pure.Ranking(ranking), anchor=GENERIC)
            searches = pack.PromptSearches(
                model=world.model,
                clip=world.clip,
                neurons=_neurons(world),
                step=step,
                settings=search.SearchSettings(),
                statistics=statistics,
                method=pure.Method.ATTRIBUTION,
                attribution=settings,
                time_budget=0.0,
            )
            work = pack.PromptSearch(
                common=searches,
                bar=None,
                finish=None,
                done=0,
            )
            layers, activations = work.common.neurons.layers, work.common.activations(conditioning)
            work.z = [
                statistics.z(layer.path, each)
                for layer, each in zip(layers, activations, strict=True)
            ]
            found[ranking] = work.values(conditioning, step.noise())
    return found


def _planted(world, text: str, statistics) -> dict:
    """Of each ranking the F1 at every fraction, and the precision of as many neurons as are
    planted.
    """
    true, names = (
        world.planted[text],
        [(la.path, i) for la in _neurons(world).layers for i in range(la.width)],
    )
    marked = torch.tensor([name in true for name in names])
    silenced = world.masked(silencing(true))
    left = world.run(
        "MemorizationScore",
        model=silenced,
        clip=world.clip,
        prompts=text,
        prompts_file="",
        threshold=0.5,
        filename_prefix="",
        **world.first_step,
    )[1]
    row: dict = {"left": float(left), "f1": {}, "precision": {}}
    for ranking, values in _values(world, text, statistics).items():
        taken = [(values > 0) & (values >= fraction * values.max()) for fraction in FRACTIONS]
        row["f1"][ranking] = [
            float(2 * (each & marked).sum() / (each.sum() + marked.sum())) for each in taken
        ]
        row["precision"][ranking] = float(
            marked[values.argsort(descending=True)[: len(true)]].float().mean()
        )
    print(text, row["left"], row["precision"], flush=True)
    return row


def localized(world, text: str, statistics, **changes) -> tuple[object, int]:
    """A mask of the node at the paper's target, and the rows that it took."""
    how = {
        "model": world.model,
        "clip": world.clip,
        "prompts": text,
        "layers": LAYERS,
        "criterion": "between_seeds",
        "threshold": world.thresholds[0],
        "target_score": world.thresholds[0],
        "theta_start": 5.0,
        "time_budget": 0.0,
        "statistics": statistics,
        "anchor": GENERIC,
        **world.first_step,
    }
    mask, _, _, report = world.run("NemoLocalize", **(how | changes))
    forward = int(re.search(r"(\d+) rows in", report)[1])
    gradient = re.search(r"(\d+) rows forward and backward", report)
    return mask, forward + (3 * int(gradient[1]) if gradient else 0)


def _searched(world, text: str, statistics) -> dict:
    """Precision, recall, neurons and rows of the paper's search and of rankings, all to the paper's
    target.
    """
    row, true = {}, world.planted[text]
    ways = {
        ranking: {"method": "attribution", "ranking": ranking, "stopping_rule": "score"}
        for ranking in ("multi", "multi_z", "dot_z")
    }
    for name, how in {"search": {}, **ways}.items():
        mask, count = localized(world, text, statistics, **how)
        hits = len(set(mask.neurons) & true)
        row[name] = {
            "precision": hits / max(mask.count, 1),
            "recall": hits / len(true),
            "neurons": mask.count,
        }
        row[name]["rows"] = count
        print(text, name, row[name], flush=True)
    return row


def _fitted(rows: dict[str, dict]) -> dict[str, dict]:
    """F1 at the fraction that is best on the other half of the names."""
    numbers, names = {}, list(rows)
    halves = [names[: len(names) // 2], names[len(names) // 2 :]]
    for ranking in RANKINGS:
        curves = {name: np.array(rows[name]["f1"][ranking]) for name in names}
        held_out = []
        for fitted, reported in (halves, halves[::-1]):
            best = int(np.mean([curves[name] for name in fitted], 0).argmax())
            held_out += [curves[name][best] for name in reported]
            numbers[f"fraction fitted, {ranking}, {len(numbers) % 2}"] = results.number(
                float(FRACTIONS[best]),
                len(fitted),
                "fraction",
                "of the largest attribution, best on half of the names",
            )
        numbers[f"F1 held out, {ranking}"] = results.bootstrap(
            np.array(held_out), "planted names, the fraction fitted on the other half", "fraction"
        )
        numbers[f"precision at the true count, {ranking}"] = results.bootstrap(
            np.array([rows[name]["precision"][ranking] for name in names]),
            "as many neurons as are planted",
            "fraction",
        )
    held_out = []
    for number, (fitted, reported) in enumerate((halves, halves[::-1])):
        means = {
            ranking: np.mean([rows[name]["f1"][ranking] for name in fitted], axis=0)
            for ranking in RANKINGS
        }
        chosen = max(RANKINGS, key=lambda ranking, means=means: means[ranking].max())
        best = int(means[chosen].argmax())
        held_out += [rows[name]["f1"][chosen][best] for name in reported]
        numbers[f"fraction chosen with {chosen}, {number}"] = results.number(
            float(FRACTIONS[best]),
            len(fitted),
            "fraction",
            "ranking and fraction that are best on half of the names",
        )
    numbers["F1 held out, chosen ranking"] = results.bootstrap(
        np.array(held_out),
        "planted names, ranking and fraction chosen on the other half",
        "fraction",
    )
    return numbers


def _score_left(rows: dict[str, dict], world) -> dict[str, dict]:
    left = np.array([row["left"] for row in rows.values()])
    numbers = {
        "score with exactly the planted neurons silenced": results.bootstrap(
            left, "of each name", "score"
        )
    }
    for name, value in zip(("paper's target", "strict target"), world.thresholds, strict=True):
        numbers[name] = results.number(
            value, len(world.ordinary), "score", "mean + and - one standard deviation"
        )
    return numbers


def _rows(found: dict[str, dict]) -> dict[str, dict]:
    numbers = {}
    for name in next(iter(found.values())):
        for measure_name in ("precision", "recall", "neurons", "rows"):
            values = np.array([row[name][measure_name] for row in found.values()], dtype=float)
            unit = measure_name if measure_name in ("neurons", "rows") else "fraction"
            numbers[f"{name} to the paper's target, {measure_name}"] = results.bootstrap(
                values, "planted names; rows forward and backward count as three", unit
            )
    return numbers


def _trained(world, text: str, statistics, quick: bool) -> dict:
    """What each mask leaves of a portrait, its size, and the rows that it took."""

    def seen(model, prompt: str) -> dict:
        return world.left(model, text, prompt, 2 if quick else 4)

    row = {"untouched": seen(world.model, text), "generic prompt": seen(world.model, GENERIC)}
    names = [
        (layer.path, index) for layer in _neurons(world).layers for index in range(layer.width)
    ]
    for ranking, values in _values(world, text, statistics).items():
        order = values.argsort(descending=True)[:MOST].tolist()
        first = silencing(names[index] for index in order)
        row[f"{ranking}, first {MOST}"] = seen(world.masked(first), text) | {"neurons": first.count}
        if ranking == "multi":
            followed = {
                name: alignment(world, model, CAPTIONS)
                for name, model in {
                    "untouched": world.model,
                    f"{ranking}, first {MOST}": world.masked(first),
                }.items()
            }
            for name, values in followed.items():
                row[name]["captions"] = float(np.mean(values))
        how = {"method": "attribution", "ranking": ranking, "stopping_rule": "score"}
        mask, rows = localized(world, text, statistics, **how)
        row[ranking] = seen(world.masked(mask), text) | {"neurons": mask.count, "rows": rows}
    return row


def _images(rows: dict[str, dict]) -> dict[str, dict]:
    numbers = {}
    units = dict.fromkeys(("labels", "faces", "captions"), "fraction")
    units |= {"similarity": "SSIM", "confidence": "probability"}
    units |= {"neurons": "neurons", "rows": "rows"}
    for name in next(iter(rows.values())):
        for measure_name in next(iter(rows.values()))[name]:
            values = np.array([row[name][measure_name] for row in rows.values()], dtype=float)
            what = f"{measure_name}, mean over names as trained"
            numbers[f"{name}, {measure_name}"] = results.bootstrap(
                values, what, units[measure_name]
            )
    return numbers
