"""Edits: W2W against the same words in the prompt and against a slider LoRA; their composition;
their delay.
"""

from __future__ import annotations

import numpy as np

from ..common import results
from ..world.faces import ATTRIBUTES, IDENTITY
from . import lora_sums, sliders
from .setup import EDITS, Study, factors, fractions, prompts, truth

STRENGTHS = (0.5, 1.0, 2.0)
SLIDER_STRENGTHS = (1.0, 2.0)
PAIR = ("beard", "round glasses")
TIMESTEPS = (900, 800, 600, 400)


def measure(study: Study, quick: bool = False) -> dict[str, dict]:
    """For each edit, on members that lack it: the texts attribute reached, and the others kept;
    ``quick``: one edit.
    """
    names = list(EDITS)[: 1 if quick else None]
    numbers, trained = {}, sliders.train(study.sampler, {name: EDITS[name] for name in names})
    for name, slider in zip(names, trained, strict=True):
        group = study.members(without=name)
        points, texts = study.points(group), prompts(group)
        plain = factors(points)
        before, _ = study.read(plain, texts)
        numbers[f"edit, {name}, unedited: reached"] = reached(before, name)
        ways = {
            f"W2W {strength}": study.edited(points, f"{name}: {strength}", study.preserved(name))
            for strength in STRENGTHS
        }
        for way, flats in ways.items():
            numbers |= judged(study.read(flats, texts)[0], before, group, name, way)
        asking = prompts(group, extra=EDITS[name][2])
        numbers |= judged(study.read(plain, asking)[0], before, group, name, "prompt")
        for strength in SLIDER_STRENGTHS:
            layout, flats = lora_sums.together(study.space.layout, plain, slider, strength)
            after, _ = study.read(flats, texts, layout=layout)
            numbers |= judged(after, before, group, name, f"slider {strength}")
    return numbers if quick else numbers | _composition(study) | _delay(study)


def reached(seen: np.ndarray, name: str) -> dict:
    """The fraction of images in which an edit's attribute is read."""
    return results.fraction(_recognized(seen, name), f"{name} recognized")


def _recognized(seen: np.ndarray, name: str) -> np.ndarray:
    attribute, values, *_ = EDITS[name]
    return np.isin(
        seen[:, IDENTITY.index(attribute)], [ATTRIBUTES[attribute].index(value) for value in values]
    )


def judged(after, before, group, name: str, way: str, *more: str) -> dict[str, dict]:
    """Reached and kept. Kept: visible attributes other than the texts that are read as before the
    edit.
    """
    texts = [EDITS[edit][0] for edit in (name, *more)]
    rest = [number for number, attribute in enumerate(IDENTITY) if attribute not in texts]
    known = np.where(truth(group) < 0, -1, before)
    label = " and ".join((name, *more))
    hits = np.logical_and.reduce([_recognized(after, edit) for edit in (name, *more)])
    kept = fractions(after, known, rest)
    return {
        f"edit, {label}, {way}: reached": results.fraction(hits, f"{label} recognized"),
        f"edit, {label}, {way}: kept": results.bootstrap(
            kept, "other attributes recognized as before", "fraction"
        ),
    }


def _composition(study: Study) -> dict[str, dict]:
    """Two edits at once: as one step of coefficients, and as the sum of two changed LoRAs."""
    first, second = PAIR
    group = study.members(without=first)
    points, texts = study.points(group), prompts(group)
    plain = factors(points)
    before, _ = study.read(plain, texts)
    both = study.edited(points, f"{first}: 1, {second}: 1", study.preserved(*PAIR))
    numbers = judged(
        study.read(both, texts)[0], before, group, first, "W2W, coefficients added", second
    )
    single = [study.edited(points, f"{name}: 1", study.preserved(*PAIR)) for name in PAIR]
    layout, flats = lora_sums.summed(study.space.layout, [*single, plain], (1.0, 1.0, -1.0))
    numbers |= judged(
        study.read(flats, texts, layout=layout)[0], before, group, first, "changes added", second
    )
    asking = prompts(group, extra=", ".join(EDITS[name][2] for name in PAIR))
    return numbers | judged(study.read(plain, asking)[0], before, group, first, "prompt", second)


def _delay(study: Study) -> dict[str, dict]:
    """How much of the image stays and of the edit acts when it starts at timestep T."""
    name = "dark skin"
    group = study.members(without=name)
    points, texts, numbers = study.points(group), prompts(group), {}
    base, moved = factors(points), study.edited(points, f"{name}: 1", study.preserved(name))
    _, plain = study.read(base, texts)
    for threshold in (1000, *TIMESTEPS):
        seen, images = study.read(base, texts, later=moved, from_timestep=float(threshold))
        numbers[f"delay, T {threshold}: reached"] = reached(seen, name)
        change = np.abs(images.astype(np.float32) - plain).mean(axis=(1, 2, 3)) / 255
        numbers[f"delay, T {threshold}: image change"] = results.bootstrap(
            change, "mean absolute difference from the unedited image", "of the range"
        )
    return numbers
