"""What the family's nodes report in words and tables."""

from __future__ import annotations

import csv
import io

from .ablation import Effect
from .calibration import Threshold
from .layers import ValueLayer
from .localization import Found
from .mask import CAVEATS, NeuronMask
from .memorization import OFFICIAL_SIDE, Score
from .statistics import Statistics

#: What is said where statistics and MODEL do not belong together.
OTHER_STATISTICS = "These statistics are of another checkpoint or LoRA: make new ones for this MODEL."


def caveats() -> str:
    """The five honest sentences, numbered."""
    return "Read this:\n" + "\n".join(f"{number}. {text}" for number, text in enumerate(CAVEATS, 1))


def of_variant(side: int) -> str:
    """Which form of the score a latent of this smallest side has."""
    if side >= OFFICIAL_SIDE:
        return "Official score: three scales, window 11."
    return (
        f"Small-latent score: one scale, window 7 (the latent's side is {side}; the official score needs "
        f"{OFFICIAL_SIDE})."
    )


def table(rows: list[list], head: list[str]) -> str:
    """CSV text with a head."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()


def score_table(scores: dict[str, Score], threshold: float) -> str:
    """One line a prompt: score, verdict, norm, and each seed's largest similarity."""
    seeds = len(next(iter(scores.values())).pairs)
    head = ["prompt", "score", "memorised", "text norm", *(f"seed {number}" for number in range(seeds))]
    rows = [
        [prompt, f"{found.value:.6f}", found.value > threshold, "" if found.norm is None else f"{found.norm:.4f}",
         *(f"{value:.6f}" for value in found.by_seed.tolist())]
        for prompt, found in scores.items()
    ]  # fmt: skip
    return table(rows, head)


def score_report(scores: dict[str, Score], threshold: float, side: int) -> str:
    """The verdicts in words, the highest first."""
    over = [prompt for prompt, found in scores.items() if found.value > threshold]
    lines = [f"{len(over)} of {len(scores)} prompt(s) score over {threshold:.3f} and look memorised."]
    for prompt, found in sorted(scores.items(), key=lambda item: -item[1].value):
        verdict = "memorised" if found.value > threshold else "not memorised"
        norm = "" if found.norm is None else f", text norm {found.norm:.2f}"
        kept = len(found.kept(threshold))
        lines.append(f"{found.value:.3f} {verdict} ({kept} of {len(found.pairs)} seeds over{norm}): {prompt}")
    lines.append(of_variant(side))
    lines.append("The text norm (Wen et al., arXiv 2407.21720) is a second opinion: high against ordinary prompts of "
                 "the "
                 "same model speaks for memorisation.")  # fmt: skip
    return "\n".join(lines)


def threshold_report(found: Threshold, deviations: float, side: int) -> str:
    """The threshold, what it lets through, and what it finds."""
    share, low, high = found.false_positives
    mean = sum(found.normal) / len(found.normal)
    lines = [
        f"Threshold {found.value:.3f}: mean {mean:.3f} of {len(found.normal)} ordinary prompts plus {deviations:g} "
        "standard deviation(s).",
        f"False positives to expect: {100 * share:.0f} % of ordinary prompts (95 % interval {100 * low:.0f} to "
        f"{100 * high:.0f} %, each prompt judged by the others).",
    ]
    if found.memorized:
        hit = sum(value > found.value for value in found.memorized)
        lines.append(f"Of {len(found.memorized)} known memorised prompts {hit} score over it; AUROC {found.auroc:.3f}.")
    return "\n".join(
        [*lines, of_variant(side), "It belongs to this model, picture size, number of seeds and timestep."]
    )


def statistics_report(statistics: Statistics, layers: list[ValueLayer]) -> str:
    """One line a layer."""
    known = [layer for layer in layers if layer.path in statistics.layers]
    total = sum(layer.width for layer in known)
    count = statistics.count or "an unknown number of"
    lines = [f"{total} neurons of {len(known)} layers over {count} prompts ({statistics.source})."]
    for layer in known:
        moments = statistics.layers[layer.path]
        lines.append(
            f"{layer.name} ({layer.part}): {layer.width} neurons, mean {float(moments.mean.mean()):.4f}, "
            f"deviation {float(statistics.deviation(layer.path).mean()):.4f}"
        )
    if 0 < statistics.count < 500:
        lines.append(
            "Few prompts: deviations of rare words are unsure. The paper takes 50,000, 500 are enough to begin."
        )
    return "\n".join(lines)


def ablation_report(untouched: float, effects: list[Effect], suggested: list[ValueLayer]) -> str:
    """What each group does, and where to search."""
    lines = [f"Untouched: score {untouched:.3f}."]
    lines += [
        f"without {effect.name}: score {effect.score:.3f}, same-seed likeness {effect.same_seed:.3f}"
        for effect in effects
    ]
    names = ", ".join(layer.name for layer in suggested)
    lines.append(f"Search these layers: {names}.")
    if all(layer.part == "up" for layer in suggested):
        lines.append("They are in the up blocks, where the paper's default (down, middle) finds nothing.")
    return "\n".join(lines)


def search_report(prompt: str, found: Found, threshold: float, evaluated: str) -> str:
    """How the search for one prompt went."""
    if not found.initial:
        return f"{prompt}: the time was up in the selection, before any neurons blocked: give it more. {evaluated}"
    end = "converged" if found.converged else "stalled above the threshold"
    if not found.finished:
        end += f", stopped {'by you' if found.stopped else 'when the time was up'} (the best so far)"
    listed = sum(map(len, found.initial))
    kept = len({(layer, index) for layer, of_layer in enumerate(found.refined) for index in of_layer})
    lines = [
        f"{prompt}: {end}; {listed} neurons listed, {kept} kept.",
        f"Memorisation left: {found.initial_score:.3f} after selection, {found.score:.3f} after refinement (threshold "
        f"{threshold:.3f}). {evaluated}",
    ]
    lines += [
        f"  theta {look.theta:g}, k {look.k}: {look.neurons} neurons, score {look.score:.3f}" for look in found.trace
    ]
    return "\n".join(lines)


def mask_table(mask: NeuronMask) -> str:
    """One line a masked neuron and finding: prompt, layer, index, factor, z, activation, and why it was chosen."""
    rows = []
    for found in mask.findings or ():
        for path, indices in found.neurons.items():
            for index in indices:
                if index in mask.scales.get(path, {}):
                    told = [found.details.get(name, {}).get(path, {}).get(str(index), "") for name in _TOLD]
                    rows.append([found.prompt, path, index, mask.scales[path][index], *told])
    if not rows:
        rows = [["", path, index, scale, "", "", ""] for path, of in mask.scales.items() for index, scale in of.items()]
    return table(rows, ["prompt", "layer", "neuron", "factor", "z", "activation", "why"])


_TOLD = ("z", "activation", "why")
