"""Text reports, CSV tables and the canvas chart of the family's nodes."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from statistics import median

from .concept_neurons import LEAST_PAIRS, LEVEL, Contrast
from .image_similarity import BROKEN, GONE, KEPT, Remains
from .layer_ablation import LayerEffect
from .mask import CAVEATS, NeuronMask, SearchRecord
from .memorization_score import OFFICIAL_SIDE, PromptScore, has_official_score
from .nemo_search import SearchResult
from .neuron_layers import BlockPart, NeuronLayer
from .neuron_statistics import Statistics
from .score_threshold import Threshold

OTHER_STATISTICS = (
    "The statistics belong to another checkpoint or LoRA: run Neuron Statistics on this MODEL."
)
_MAX_CHART = 1000
_MAX_NAMED = 20
_NORM = "text_norm"  # a column of every table of scores


def caveats() -> str:
    """The five caveats, numbered."""
    return "Caveats:\n" + "\n".join(f"{number}. {text}" for number, text in enumerate(CAVEATS, 1))


def score_variant(side: int) -> str:
    """The form of the score for latents of this smallest side."""
    if has_official_score(side):
        return "Official score: three scales, window 11."
    return (
        f"Small-latent score: one scale, window 7 (the latent's side is {side}; the official score "
        f"needs {OFFICIAL_SIDE})."
    )


def table(rows: list[list], head: list[str]) -> str:
    """CSV text with a header."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()


def score_table(scores: dict[str, PromptScore], threshold: float) -> str:
    """CSV, one line per prompt: score, verdict, text norm, measured detectors, and each seed's
    largest similarity.
    """
    first = next(iter(scores.values()))
    detectors = [name for name in first.detectors if name != _NORM]
    seeds = (f"seed_{number}" for number in range(len(first.pairs)))
    head = ["prompt", "score", "is_memorized", _NORM, *detectors, *seeds]
    rows = [
        [
            prompt,
            f"{score.value:.6f}",
            score.value > threshold,
            f"{score.detectors[_NORM]:.4f}" if _NORM in score.detectors else "",
            *(f"{score.detectors[name]:.4f}" for name in detectors),
            *(f"{value:.6f}" for value in score.by_seed.tolist()),
        ]
        for prompt, score in scores.items()
    ]
    return table(rows, head)


def score_report(scores: dict[str, PromptScore], threshold: float, side: int) -> str:
    """The verdicts, the highest score first."""
    over = [prompt for prompt, score in scores.items() if score.value > threshold]
    lines = [
        f"{len(over)} of {len(scores)} prompt(s) score over {threshold:.3f} and count as memorized."
    ]
    for prompt, score in sorted(scores.items(), key=lambda item: -item[1].value):
        verdict = "memorized" if score.value > threshold else "not memorized"
        count = len(score.memorized_seeds(threshold))
        measured = "".join(
            f", {name.replace('_', ' ')} {value:.3g}" for name, value in score.detectors.items()
        )
        lines.append(
            f"{score.value:.3f} {verdict} ({count} of {len(score.pairs)} seeds over{measured}): "
            f"{prompt}"
        )
    lines.append(score_variant(side))
    lines.append(
        "Other detectors, text norm (arXiv 2407.21720), sharpness (2412.04140), anisotropy "
        "(2601.20642) and Bright Ending (2410.21665), have no fixed threshold: a value well above "
        "ordinary prompts of the same model indicates memorization."
    )
    return "\n".join(lines)


def threshold_report(threshold: Threshold, deviations: float, side: int) -> str:
    """The threshold, its false positives, and what it detects."""
    fraction, low, high = threshold.false_positives
    mean = sum(threshold.normal) / len(threshold.normal)
    lines = [
        f"Threshold {threshold.value:.3f}: mean {mean:.3f} of {len(threshold.normal)} ordinary "
        f"prompts plus {deviations:g} standard deviation(s).",
        f"Expected false positives: {100 * fraction:.0f} % of ordinary prompts (95 % interval "
        f"{100 * low:.0f} to {100 * high:.0f} %, leave one out).",
    ]
    if threshold.memorized:
        hits = sum(value > threshold.value for value in threshold.memorized)
        lines.append(
            f"{hits} of {len(threshold.memorized)} known memorized prompts score over it; AUROC "
            f"{threshold.auroc:.3f}."
        )
    return "\n".join(
        [
            *lines,
            score_variant(side),
            "Valid for this model, image size, number of noise samples and timestep.",
        ]
    )


def statistics_report(statistics: Statistics, layers: list[NeuronLayer]) -> str:
    """One line per layer."""
    known = [layer for layer in layers if layer.path in statistics.layers]
    total = sum(layer.width for layer in known)
    count = statistics.count or "an unknown number of"
    lines = [f"{total} neurons of {len(known)} layers over {count} prompts ({statistics.source})."]
    for layer in known:
        moments = statistics.layers[layer.path]
        lines.append(
            f"{layer.name} ({layer.part}): {layer.width} neurons, mean "
            f"{float(moments.mean.mean()):.4f}, standard deviation "
            f"{float(statistics.deviation(layer.path).mean()):.4f}"
        )
    if 0 < statistics.count < 500:
        lines.append(
            "Few prompts: standard deviations for rare words are uncertain. The paper uses "
            "50,000; 500 are enough to begin."
        )
    return "\n".join(lines)


def ablation_report(
    untouched: float, effects: list[LayerEffect], suggested: list[NeuronLayer]
) -> str:
    """The effect of each group of layers, and which layers to search."""
    lines = [f"Untouched: score {untouched:.3f}."]
    lines += [
        f"without {effect.name}: score {effect.score:.3f}, same-seed similarity "
        f"{effect.same_seed:.3f}"
        for effect in effects
    ]
    lines.append(f"Search these layers: {', '.join(layer.name for layer in suggested)}.")
    if all(layer.part == BlockPart.UP for layer in suggested):
        lines.append(
            "They are in the up blocks, which the paper's default (down, middle) does not search."
        )
    return "\n".join(lines)


def concept_report(
    name: str, found: Contrast, chosen: list[int], pairs: int, layers: list[NeuronLayer]
) -> str:
    """How many neurons are beyond chance, and the effect and p of those that were chosen, the first
    ones.
    """
    names = [f"{layer.name} {index}" for layer in layers for index in range(layer.width)]
    lines = [
        f"{name}: {len(chosen)} of {len(names)} neurons in {len(layers)} layers chosen; "
        f"{int(found.beyond_chance.sum())} are beyond chance.",
        f"Chance: absolute effects up to {found.threshold:.3f} (level {LEVEL:g} over all neurons, "
        f"{found.flips} sign flips of {pairs} pairs of prompts).",
    ]
    if pairs < LEAST_PAIRS:
        lines.append(f"{pairs} pairs cannot show more than chance: write {LEAST_PAIRS} or more.")
    lines += [
        f"  {names[n]}: effect {found.effect[n]:+.2f}, p {found.p[n]:.4f}"
        for n in chosen[:_MAX_NAMED]
    ]
    if len(chosen) > _MAX_NAMED:
        lines.append(f"  and {len(chosen) - _MAX_NAMED} more.")
    return "\n".join(lines)


def search_report(
    prompt: str, result: SearchResult, target_score: float, cost: str, finished_early: bool = False
) -> str:
    """How the search for one prompt went; ``finished_early``: by the user, not by the time
    budget.
    """
    steps = [
        f"  {step.rule}: {step.neurons} neurons, score {step.score:.3f}" for step in result.trace
    ]
    if not result.initial:
        ended = (
            f"{prompt}: the time budget ended during the selection, before any neurons blocked. "
            f"{cost}"
        )
        return "\n".join([ended, *steps])
    end = "converged" if result.converged else "stalled above the target score"
    if not result.finished:
        end += (
            f", {'finished early by the user' if finished_early else 'stopped by the time budget'} "
            "(best so far)"
        )
    listed = sum(map(len, result.initial))
    kept = len(
        {(layer, index) for layer, of_layer in enumerate(result.refined) for index in of_layer}
    )
    lines = [
        f"{prompt}: {end}; {listed} neurons selected, {kept} kept.",
        f"Remaining score: {result.initial_score:.3f} after selection, {result.score:.3f} after "
        f"refinement (target {target_score:.3f}). {cost}",
    ]
    return "\n".join([*lines, *steps])


def read_scores(text: str) -> dict[str, float]:
    """Scores by prompt from the table of Memorization Score, the highest first; raises ValueError
    for other text.
    """
    try:
        scores = {row["prompt"]: float(row["score"]) for row in csv.DictReader(io.StringIO(text))}
    except (KeyError, ValueError, TypeError, csv.Error):
        scores = {}
    if not scores or not all(map(math.isfinite, scores.values())):
        raise ValueError("table holds no scores: connect the table of Memorization Score.")
    return dict(sorted(scores.items(), key=lambda item: -item[1]))


def _verdict(score: float, threshold: float) -> str:
    return "memorized" if score > threshold else "not memorized"


#: By prompt what a masked image and a generic prompt's have of the untouched image.
Left = Mapping[str, tuple[Remains, Remains]]


def sheet_titles(
    scores: dict[str, float], threshold: float, searches: dict[str, SearchRecord], left: Left
) -> list[str]:
    """Rank, score, verdict, found neurons and what became of the image of each prompt; the prompt
    in a second line.
    """
    titles = []
    for rank, (prompt, score) in enumerate(scores.items(), 1):
        found = f", {searches[prompt].count} neurons" if prompt in searches else ""
        found += (
            f", {left[prompt][0].end(left[prompt][1])}"
            if prompt in searches and prompt in left
            else ""
        )
        titles.append(f"{rank}. {score:.3f} {_verdict(score, threshold)}{found}\n{prompt}")
    return titles


def scan_table(
    scores: dict[str, float], threshold: float, searches: dict[str, SearchRecord], left: Left
) -> str:
    """CSV, one line per prompt: prompt, score, is_memorized; neurons and converged where searched;
    and where judged similarity, labels and one_face of the masked image, the same of the generic
    prompt's, and what became of it.
    """
    head = ["prompt", "score", "is_memorized", "neurons", "converged"]
    rows = []
    for prompt, score in scores.items():
        search = searches.get(prompt)
        found = ["", ""] if search is None else [search.count, search.converged]
        rows.append([prompt, f"{score:.6f}", score > threshold, *found, *_judged(left, prompt)])
    return table(rows, [*head, *_JUDGED] if left else head)


_MEASURES = ("similarity", "labels", "one_face")
_JUDGED = (*_MEASURES, *(f"generic_{name}" for name in _MEASURES), "image")


def _judged(left: Left, prompt: str) -> list[str]:
    if prompt not in left:
        return [""] * len(_JUDGED) if left else []
    pair = left[prompt]
    numbers = [value for one in pair for value in (one.similarity, one.labels, one.faces)]
    return ["" if value is None else f"{value:.4f}" for value in numbers] + [pair[0].end(pair[1])]


def scan_report(
    scores: dict[str, float], threshold: float, searches: dict[str, SearchRecord], left: Left
) -> str:
    """How many prompts of a scan are memorized and searched, what was found for each of them, and
    what is left.
    """
    over = {prompt: score for prompt, score in scores.items() if score > threshold}
    lines = [
        f"{len(over)} of {len(scores)} prompt(s) score over {threshold:.3f} and count as memorized."
    ]
    found = [searches[prompt] for prompt in over if prompt in searches]
    if found:
        converged = sum(search.converged for search in found)
        typical = median(search.count for search in found)
        lines.append(
            f"{len(found)} of them have a mask; {converged} searches converged; median {typical:g} "
            "neurons."
        )
    if ends := [left[prompt][0].end(left[prompt][1]) for prompt in over if prompt in left]:
        lines.append(
            f"Of {len(ends)} images under the mask {ends.count(GONE)} are gone, {ends.count(KEPT)} "
            f"not gone, {ends.count(BROKEN)} broken, each beside the generic prompt's image, in "
            "one noise."
        )
    elif found:
        lines.append(
            "A score under the threshold does not mean that an image is gone: set generic_prompt, "
            "or look at the sheet."
        )
    for prompt, score in over.items():
        search = searches.get(prompt)
        end = ""
        if search is not None:
            outcome = "converged" if search.converged else "stalled"
            end = f", {search.count} neurons, {outcome}"
        lines.append(f"{score:.3f}{end}: {prompt}")
        if prompt in left:
            masked, generic = left[prompt]
            lines.append(f"  {masked.end(generic)}: {masked}; generic prompt: {generic}")
    return "\n".join([*lines, caveats()])


def remains_lines(left: dict[str, Remains], mask: NeuronMask | None = None) -> list[str]:
    """What each batch of images has of a reference, and whether that is gone under the mask.

    ``left``: by name of the batch; "after" is judged beside "generic prompt".
    """
    lines = [f"Left of the image, {name}: {found}." for name, found in left.items()]
    if "after" in left and "generic prompt" in left:
        lines.append(left["after"].verdict(left["generic prompt"]))
    elif "after" in left:
        lines.append(
            "Whether that is little cannot be judged alone: connect generic_images, of a generic "
            "prompt."
        )
    negated = (
        0
        if mask is None
        else sum(scale < 0 for of in mask.scales.values() for scale in of.values())
    )
    if negated:
        lines.append(
            f"{negated} neurons are negated (factors below 0), which can break images: look at "
            "them."
        )
    return lines


_DETAILS = ("z", "activation", "selected_by")


def mask_table(mask: NeuronMask) -> str:
    """CSV, one line per masked neuron and search: prompt, layer, neuron, factor, z, activation,
    selected_by.
    """
    rows = [
        [search.prompt, path, index, mask.scales[path][index]]
        + [search.details.get(name, {}).get(path, {}).get(str(index), "") for name in _DETAILS]
        for search in mask.searches
        for path, indices in search.neurons.items()
        for index in indices
        if index in mask.scales.get(path, {})
    ]
    if not rows:
        rows = [
            ["", path, index, scale, "", "", ""]
            for path, of in mask.scales.items()
            for index, scale in of.items()
        ]
    return table(rows, ["prompt", "layer", "neuron", "factor", *_DETAILS])


def mask_chart(mask: NeuronMask) -> dict:
    """The mask for the chart on the canvas.

    ``neurons``: [layer path, index, factor, z or None] in the mask's order, at most the 1,000 of
    the largest |z|; ``count``: how many there are.
    """
    z = mask.largest_z()
    shown = set(sorted(mask.neurons, key=lambda neuron: -abs(z.get(neuron, 0.0)))[:_MAX_CHART])
    neurons = [
        [path, index, mask.scales[path][index], z.get((path, index))]
        for path, index in mask.neurons
        if (path, index) in shown
    ]
    return {"neurons": neurons, "count": mask.count}
