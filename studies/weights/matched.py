"""Edits at matched loss: W2W, the prompt and a slider LoRA, where each keeps as much of the other
attributes; and directions that two phrases train inside the space (phrases.py).

`python run.py study weights matched` writes ``studies/results/weights_matched.json``. Random
members that lack the attribute, with identity guidance up to 60 % in every contender, the same
scene, caption and noise for all. W2W and the slider (arXiv 2311.12092) have a curve of strengths,
the prompt one point; at the prompt's mean kept fraction the curves are interpolated, again in every
bootstrap draw of the members. The floor is a random direction of the same length. "Kept" counts the
other attributes that are read as before the edit, misreadings too; "the person's" those that are
read as they are. Every edit is kept as it is done, so that a run which was stopped goes on.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..world.faces import ATTRIBUTES, IDENTITY
from ..world.release import ASSETS
from . import lora_sums, phrases, sliders
from .guidance import WAYS
from .release import ASSET
from .setup import EDITS, NOISE, Study, factors, fractions, load, prompts, truth

STRENGTHS = (0.25, 0.5, 0.75, 1.0)
SLIDER_STRENGTHS = (0.5, 1.0, 2.0)
PHRASE_STRENGTHS = (0.5, 0.75, 1.0, 1.25)
CHANCE_STRENGTHS = (0.5, 1.0)
GUIDED = WAYS["positive side to 60 %"]
#: How much an edit leaves of the other attributes.
KEPT = {
    "kept": "other attributes recognized as before",
    "the person's": "other attributes recognized as they are",
}


def reached_at(kept_goal: float, kept: np.ndarray, reached: np.ndarray) -> float:
    """The reached fraction where a curve keeps ``kept_goal``, from means (strengths,) that start at
    strength 0.

    Linear between the first two neighbors that enclose the goal; at its strongest where it keeps
    more everywhere.
    """
    for number in range(1, len(kept)):
        if kept[number] <= kept_goal:
            before, after = kept[number - 1], kept[number]
            part = 0.0 if before <= kept_goal else (before - kept_goal) / (before - after)
            return float(reached[number - 1] + part * (reached[number] - reached[number - 1]))
    return float(reached[-1])


def matched_difference(curve: np.ndarray, rival: np.ndarray) -> float:
    """Reached of a curve less that of a rival at the rival's loss; (n, strengths, 2) and (n, 2):
    reached, kept.
    """
    (reached, kept), (goal_reached, goal_kept) = curve.mean(0).T, rival.mean(0)
    return reached_at(goal_kept, kept, reached) - float(goal_reached)


def measure_edit(
    study: Study, name: str, slider: torch.Tensor | None, count: int
) -> dict[str, dict]:
    """Every contender's reached and kept, and the differences at matched loss; with ``slider``, a
    LoRA from the two phrases, and the direction that they have trained in the study's space.
    """
    group = study.members(without=name, count=count)
    points, texts = study.points(group), prompts(group)
    plain, layout = factors(points), study.space.layout
    attribute, values, words, _ = EDITS[name]
    column = IDENTITY.index(attribute)
    wanted = [ATTRIBUTES[attribute].index(value) for value in values]
    rest = [number for number in range(len(IDENTITY)) if number != column]
    before = study.read(plain, texts, **GUIDED)[0]
    own = truth(group)
    known = np.where(own < 0, -1, before)

    def judged(flats: torch.Tensor, captions=texts, layout=layout) -> np.ndarray:
        after = study.read(flats, captions, layout=layout, **GUIDED)[0]
        return np.stack(
            [
                np.isin(after[:, column], wanted),
                *(fractions(after, one, rest) for one in (known, own)),
            ],
            1,
        )

    others = study.preserved(name)
    unedited = np.stack(
        [np.isin(before[:, column], wanted), np.ones(len(group)), fractions(before, own, rest)],
        axis=1,
    )
    w2w = [judged(study.edited(points, f"{name}: {strength}", others)) for strength in STRENGTHS]
    learned, phrased = [], []
    if slider is not None:
        for strength in SLIDER_STRENGTHS:
            wide, flats = lora_sums.together(layout, plain, slider, strength)
            learned.append(judged(flats, layout=wide))
        for strength in PHRASE_STRENGTHS:
            direction = phrases.direction_of(name)
            phrased.append(judged(study.edited(points, f"{direction}: {strength}", others)))
    step = host.pack("nodes.weights.directions").direction_step(
        study.space, name, list(filter(None, others.split(", "))), False
    )
    generator = torch.Generator().manual_seed(NOISE)
    floor = []
    for strength in CHANCE_STRENGTHS:
        chance = torch.randn(step.shape, generator=generator)
        chance *= strength * step.norm() / chance.norm()
        floor.append(
            judged(
                torch.stack([study.space.rebuild(point.coefficients + chance) for point in points])
            )
        )
    prompt = judged(plain, prompts(group, extra=words))
    ways = {
        "W2W": (STRENGTHS, w2w),
        "slider": (SLIDER_STRENGTHS, learned),
        "phrases": (PHRASE_STRENGTHS, phrased),
        "random direction": (CHANCE_STRENGTHS, floor),
    }
    ways = {way: curve for way, curve in ways.items() if curve[1]}
    numbers, listed = dict[str, dict](), {"unedited": unedited, "prompt": prompt}
    listed |= {
        f"{way} {strength}": rows
        for way, (strengths, found) in ways.items()
        for strength, rows in zip(strengths, found, strict=True)
    }
    for way, rows in listed.items():
        numbers[f"{name}, {way}: reached"] = results.fraction(rows[:, 0], f"{name} recognized")
        for place, (kind, what) in enumerate(KEPT.items(), 1):
            numbers[f"{name}, {way}: {kind}"] = results.bootstrap(rows[:, place], what, "fraction")
    for strength, rows in zip(STRENGTHS, w2w, strict=True):
        for place, kind in enumerate(("reached", *KEPT)):
            numbers[f"{name}, W2W {strength} less prompt: {kind}"] = results.bootstrap(
                rows[:, place] - prompt[:, place],
                "paired difference on the same members",
                "fraction",
            )
    curves = {way: np.stack([unedited, *found], axis=1) for way, (_, found) in ways.items()}
    for way, curve in curves.items():
        joined = np.concatenate([curve, prompt[:, None]], axis=1)[..., :2]
        numbers[f"{name}, {way} less prompt at its loss: reached"] = results.bootstrap(
            joined,
            "reached where as much of the other attributes is kept; paired",
            "fraction",
            lambda rows: matched_difference(rows[:, :-1], rows[:, -1]),
        )
    return numbers


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes fewer members and one edit, and trains no slider."""
    count = 3 if quick else 50
    study = load(count)
    names, numbers, stem = (
        list(EDITS)[: 1 if quick else None],
        {},
        "weights_matched" + "_quick" * quick,
    )
    trained = (
        [None] if quick else sliders.train(study.sampler, {name: EDITS[name] for name in names})
    )
    if not quick:
        study = phrases.train(study, names)
    kept = results.Rows(stem, {"count": count, "space": results.assets_hash(ASSET)})
    for name, slider in zip(names, trained, strict=True):
        numbers |= kept.row(
            name, lambda name=name, slider=slider: measure_edit(study, name, slider, count)
        )
    command = "python run.py study weights matched" + (" --quick" if quick else "")
    path = results.write(stem, command, NOISE, (ASSETS, ASSET), numbers)
    kept.finished()
    return path
