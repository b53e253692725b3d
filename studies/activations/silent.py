"""Edits of new images whose caption does not name what changes: `python run.py study activations
silent [--quick]`.

The changed prompt from the first step and from 25 % of the steps (two stock nodes), and Edit by
Words at three strengths, with the same two captions. Then two and three edits at once: an image
counts where all are reached. The demo world's judge reads everything; units are captions.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from ..common import host, results
from .steering import CAPTIONS, CFG, SEED, STEPS
from .words import SEEDS, VARIED, Edited, paired, read_images, tabled

#: Attribute, the value that is requested, the trait of the caption that would name it, and the
#: words.
TARGETS = (
    ("hair_color", "red", "hair", "short red hair"),
    ("clothing_color", "green", "clothing", "green hoodie"),
    ("skin", "brown", "skin", "brown skin"),
    ("accessory", "sunglasses", "accessory", "sunglasses"),
    ("facial_hair", "majestic beard", "facial_hair", "majestic brown beard"),
)
#: From which fraction of the run, and the strength of the edit; None: the changed prompt.
METHODS = {
    "prompt": (0.0, None),
    "prompt from 25 %": (0.25, None),
    "edit 0.5": (0.0, 0.5),
    "edit 1": (0.0, 1.0),
    "edit 2": (0.0, 2.0),
}
#: Several at once, and how.
SEVERAL = {
    "two": ("hair_color", "accessory"),
    "three": ("hair_color", "clothing_color", "accessory"),
}
SEVERAL_METHODS = ("prompt", "prompt from 25 %", "edit 1")


def silent_row(edited: Edited, number: int) -> dict:
    """Of one caption, for each attribute and method: reached, the fraction of others kept, and
    pixels changed.
    """
    word_edit, half = (
        host.pack(f"nodes.activations.{one}") for one in ("word_edit", "word_edit_comfy")
    )
    row, seeds = {}, [100 * number + one for one in range(SEEDS)]
    parts = CAPTIONS[number % len(CAPTIONS)] | VARIED[number]
    plan = {attribute: (attribute,) for attribute, *_ in TARGETS} | SEVERAL
    for label, attributes in plan.items():
        targets = [one for one in TARGETS if one[0] in attributes]
        named = {part: text for *_, part, text in targets}
        plain = ", ".join(
            ["portrait", *(text for part, text in parts.items() if part not in named)]
        )
        changed = ", ".join(
            ["portrait", *{**parts, **named}.values()]
        )  # in its place, as captions have it
        base = _images(edited, edited.model, edited.encode(plain), seeds)
        traits = edited.names(base)
        for name in METHODS if len(targets) == 1 else SEVERAL_METHODS:
            start, strength = METHODS[name]
            if strength is None:
                model, positive = edited.model, edited.timed(plain, changed, start)
            else:
                edits = [word_edit.WordEdit(changed, plain, strength)]
                model = half.edited_model(edited.model, edited.clip, edits, start, 1.0)
                positive = edited.encode(plain)
            found = _images(edited, model, positive, seeds)
            wanted = {attribute: value for attribute, value, *_ in targets}
            row[f"{label}/{name}"] = read_images(edited, found, base, traits, wanted)
    return row


def _images(edited: Edited, model, positive, seeds: Sequence[int]):
    return edited.images(
        model, positive, edited.blank.expand(len(seeds), -1, -1, -1), seeds, CFG, 1.0
    )


def main(argv: Sequence[str]) -> int:
    """Measure, write, and print where."""
    parser = argparse.ArgumentParser(
        prog="run.py study activations silent", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="five captions")
    options = parser.parse_args(argv)
    host.prepare()
    assets = host.pack("nodes.demo.assets")
    world = assets.worlds()[0]
    edited, count = Edited(world), 5 if options.quick else len(VARIED)
    name = "activations_silent" + "_quick" * options.quick
    rows = results.Rows(
        name,
        {
            "targets": TARGETS,
            "methods": METHODS,
            "several": SEVERAL,
            "seeds": SEEDS,
            "steps": STEPS,
        },
    )
    done = []
    for number in range(count):
        done.append(rows.row(f"caption {number}", lambda number=number: silent_row(edited, number)))
        print(
            f"caption {number}",
            {key: np.round(value, 2).tolist() for key, value in done[-1].items()},
            flush=True,
        )
    numbers: dict[str, dict] = {}
    every = [attribute for attribute, *_ in TARGETS]
    for label, chosen in {"all": every, **{one: [one] for one in (*every, *SEVERAL)}}.items():
        for method in METHODS if label not in SEVERAL else SEVERAL_METHODS:
            tabled(f"silent, {label}: {method}", done, chosen, method, "captions", numbers)
            if method != "prompt":
                paired(
                    f"silent, {label}: {method} minus prompt",
                    done,
                    chosen,
                    (method, "prompt"),
                    "captions",
                    numbers,
                )
    command = "python run.py study activations silent" + " --quick" * options.quick
    print(results.write(name, command, SEED, assets.ASSETS / world, numbers))
    rows.finished()
    return 0
