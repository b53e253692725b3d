"""Is Edit by Words better than changing the prompt? `python run.py study activations words
[--quick]`.

Existing images: the 24 rendered faces of the demo world through image to image, four attributes,
against the changed prompt at the same denoise, at a higher denoise and at a higher CFG. The demo
world's judge reads everything; units are faces. ``--new``: new images instead (`new_images.py`);
``--choose``: their settings, on other captions; ``--steering``: constant directions
(`steering_scan.py`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch

from ..common import host, results
from ..world.captions import FACIAL_HAIR, HAIR, MOUTH
from ..world.faces import COLORLESS_HAIR
from . import new_images, steering_scan
from .steering import CFG, SEED, STEPS, Steered

#: Attribute, the value that is requested, the trait of the caption that names it.
TARGETS = (
    ("hair_color", "red", "hair"),
    ("clothing_color", "green", "clothing"),
    ("skin", "brown", "skin"),
    ("accessory", "sunglasses", "accessory"),
)
#: Denoise, CFG, strength of the edit and its form; strength None: the changed prompt.
EXISTING = {
    "prompt": (0.6, CFG, None, ""),
    "edit 2 in the prompt": (0.6, CFG, 2.0, "prompt"),
    "edit 2, words alone": (0.6, CFG, 2.0, "words"),
    "prompt at CFG 6": (0.6, 6.0, None, ""),
    "prompt at denoise .8": (0.8, CFG, None, ""),
    "prompt at denoise .5": (0.5, CFG, None, ""),
    "edit 3 in the prompt at denoise .5": (0.5, CFG, 3.0, "prompt"),
    "edit 2, own noise": (0.6, CFG, 2.0, "prompt"),
    "edit 2, own noise, corrected": (0.6, CFG, 2.0, "prompt"),
    "prompt, own noise": (0.6, CFG, None, ""),
    "prompt at CFG 6, own noise": (0.6, 6.0, None, ""),
}
#: Methods that start from the noise that the image leads to (Image to Noise) instead of random
#: noise, and the corrections of each of its steps.
OWN_NOISE = {
    "edit 2, own noise": 0,
    "edit 2, own noise, corrected": 1,
    "prompt, own noise": 0,
    "prompt at CFG 6, own noise": 0,
}
FACES, SEEDS = 24, 2
READINGS = ("reached", "others kept", "pixels changed")


def caption(traits: dict[str, str]) -> str:
    """A full caption of what the judge reads in an image."""
    color = traits["hair_color"] if traits["hair"] in COLORLESS_HAIR else ""
    return ", ".join(
        [
            "portrait",
            f"{traits['skin']} skin",
            HAIR[traits["hair"]].format(traits["hair_color"]),
            " ".join(FACIAL_HAIR[traits["facial_hair"]].format(color).split()),
            "no glasses" if traits["accessory"] == "none" else traits["accessory"],
            f"{traits['clothing_color']} {traits['clothing']}",
            MOUTH[traits["mouth"]],
        ]
    )


def words(traits: dict[str, str], attribute: str, value: str) -> tuple[str, str] | None:
    """What stands in the caption for an attribute, and what stands there instead; None where it is
    there already.
    """
    if traits[attribute] == value or (
        attribute == "hair_color" and traits["hair"] in COLORLESS_HAIR
    ):
        return None
    before, after = (
        caption({**traits, attribute: one}).split(", ") for one in (traits[attribute], value)
    )
    return next((one, other) for one, other in zip(before, after, strict=True) if one != other)


class Edited(Steered):
    """The demo model, its readings, and both ways to change a word."""

    def names(self, images: torch.Tensor) -> list[dict[str, str]]:
        """What the judge reads in images (B, H, W, 3), by attribute."""
        logits = self.judge(images.movedim(-1, 1).float())
        found = {name: value.argmax(-1).tolist() for name, value in logits.items()}
        return [
            {name: self.judge.labels[name][found[name][row]] for name in self.judge.labels}
            for row in range(len(images))
        ]

    def encode(self, text: str):
        """A CONDITIONING."""
        return self.clip.encode_from_tokens_scheduled(self.clip.tokenize(text))

    def edit(self, text: str, prompt: str, start: float):
        """The MODEL with edits."""
        node = host.pack("nodes.activations.nodes_steering").EditByWords
        return node.execute(self.model, self.clip, text, prompt, start, 1.0).result[0]

    def timed(self, before: str, after: str, start: float):
        """A CONDITIONING of one text up to a fraction of the run, and of another from there on."""
        import node_helpers

        early, late = (
            {"start_percent": 0.0, "end_percent": start},
            {"start_percent": start, "end_percent": 1.0},
        )
        if not start:
            return self.encode(after)
        return [
            *node_helpers.conditioning_set_values(self.encode(before), early),
            *node_helpers.conditioning_set_values(self.encode(after), late),
        ]

    @torch.inference_mode()
    def images(
        self,
        model,
        positive,
        latent: torch.Tensor,
        seeds: Sequence[int],
        cfg: float,
        denoise: float,
    ):
        """Images (B, H, W, 3) sampled from latents with stock noise."""
        import comfy.sample

        noise = torch.cat([self._evaluate.noise_for(latent[:1], seed) for seed in seeds])
        given = {"denoise": denoise, "disable_pbar": True}
        samples = comfy.sample.sample(
            model, noise, STEPS, cfg, "euler", "normal", positive, self.encode(""), latent, **given
        )
        return self._vae.decode(samples)

    @torch.inference_mode()
    def latents(self, images: torch.Tensor) -> torch.Tensor:
        """Latents of images."""
        return self._vae.encode(images)

    @torch.inference_mode()
    def own_noise(
        self, positive: list, latent: torch.Tensor, *, seed: int, denoise: float, corrections: int
    ) -> torch.Tensor:
        """The latent with which a sampler of ``seed`` starts from the noise behind an image."""
        node = host.pack("nodes.noise.nodes_image_to_noise").ImageToNoise
        made = node.execute(
            self.model,
            positive,
            {"samples": latent},
            steps=STEPS,
            scheduler="normal",
            denoise=denoise,
            seed=seed,
            corrections=corrections,
        )
        return made.result[0]["samples"]


def existing_row(edited: Edited, image: torch.Tensor, number: int) -> dict:
    """Of one face, for each attribute and method: reached, the fraction of others kept, and pixels
    changed.
    """
    traits = edited.names(image)[0]
    latent = edited.latents(image)
    plain = caption(traits)
    seed = SEED + number
    starts = {
        (denoise, corrections): edited.own_noise(
            edited.encode(plain), latent, seed=seed, denoise=denoise, corrections=corrections
        )
        for denoise, corrections in {(EXISTING[name][0], OWN_NOISE[name]) for name in OWN_NOISE}
    }
    row: dict[str, list[float]] = {}
    for attribute, value, _ in TARGETS:
        pair = words(traits, attribute, value)
        if pair is None:
            continue
        away, toward = pair
        for name, (denoise, cfg, strength, form) in EXISTING.items():
            if strength is None:
                model, positive = edited.model, edited.encode(plain.replace(away, toward))
            else:
                text = f"{away} -> {toward}: {strength}"
                model, positive = (
                    edited.edit(text, plain if form == "prompt" else "", 0.0),
                    edited.encode(plain),
                )
            own = name in OWN_NOISE
            start = starts[denoise, OWN_NOISE[name]] if own else latent
            found = edited.images(model, positive, start, [seed], cfg, denoise)
            row[f"{attribute}/{name}"] = read_images(
                edited, found, image, [traits], {attribute: value}
            )
    return row


#: What the ten captions have instead of those of the steering study.
VARIED = (
    {}, {}, {}, {},
    {"hair": "curly black hair", "clothing": "pink hoodie", "skin": "pale skin"},
    {"hair": "straight brown hair", "clothing": "yellow shirt", "skin": "light skin"},
    {"hair": "platinum bun", "clothing": "white sweater", "skin": "black skin"},
    {"hair":(
        "gray "
        "quiff"
    ), "clothing":(
        "black "
        "overall"
    ), "skin":(
        "tanned "
        "skin"
    ), "accessory":(
        "no "
        "glasses"
    )},
    {"hair": "black afro", "clothing": "blue shirt", "accessory": "round glasses"},
    {"hair": "blonde mohawk", "clothing": "red hoodie", "skin": "light skin"},
)  # fmt: skip


def read_images(
    edited: Edited, found, before, traits: list[dict], wanted: dict[str, str]
) -> list[float]:
    """All wanted values reached, other attributes kept, mean absolute change of the pixels: means
    over the images.
    """
    read = edited.names(found)
    others = [name for name in traits[0] if name not in wanted]
    kept = [
        np.mean([one[name] == was[name] for name in others])
        for one, was in zip(read, traits, strict=True)
    ]
    reached = [all(one[name] == value for name, value in wanted.items()) for one in read]
    return [float(np.mean(reached)), float(np.mean(kept)), float((found - before).abs().mean())]


def main(argv: Sequence[str]) -> int:
    """Measure, write, and print where."""
    parser = argparse.ArgumentParser(
        prog="run.py study activations words", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="measure less, in under five minutes")
    parser.add_argument("--new", action="store_true", help="new images instead")
    parser.add_argument(
        "--steering", action="store_true", help="constant directions on captions that are silent"
    )
    parser.add_argument(
        "--choose", action="store_true", help="scan the settings of new images, on other captions"
    )
    options = parser.parse_args(argv)
    host.prepare()
    assets = host.pack("nodes.demo.assets")
    world = assets.worlds()[0]
    edited, name, command = (
        Edited(world),
        "activations_words",
        "python run.py study activations words",
    )
    if options.choose:
        name, command, measure = f"{name}_choice", f"{command} --choose", new_images.choose
    elif options.steering:
        name, command, measure = f"{name}_steering", f"{command} --steering", steering_scan.report
    elif options.new:
        name, command, measure = f"{name}_new", f"{command} --new", new_images.report
    else:
        measure = existing
    if options.quick:
        name, command = f"{name}_quick", f"{command} --quick"
    print(results.write(name, command, SEED, assets.ASSETS / world, measure(edited, options.quick)))
    results.Rows(name, {}).finished()
    return 0


def existing(edited: Edited, quick: bool) -> dict[str, dict]:
    """Means over faces of each method, and paired differences of each edit with its rivals."""
    assets = host.pack("nodes.demo.assets")
    count = 6 if quick else FACES
    rows = results.Rows(
        "activations_words" + "_quick" * quick,
        {"existing": EXISTING, "own_noise": OWN_NOISE, "targets": TARGETS, "steps": STEPS},
    )
    images = assets.load_images(assets.worlds()[0], 0, count, "face")[0]
    done, numbers = [], {}
    for one in range(count):
        done.append(
            rows.row(
                f"face {one}", lambda one=one: existing_row(edited, images[one : one + 1], one)
            )
        )
        print(f"face {one}", flush=True)
    every = [attribute for attribute, *_ in TARGETS]
    for label, chosen in {"all": every, **{one: [one] for one in every}}.items():
        for method in EXISTING:
            tabled(f"existing, {label}: {method}", done, chosen, method, "faces", numbers)
    for edit in (method for method in EXISTING if method.startswith("edit")):
        for rival in (one for one in EXISTING if not one.startswith("edit")):
            if rival == "prompt" or EXISTING[rival][0] == EXISTING[edit][0]:
                paired(
                    f"existing: {edit} minus {rival}", done, every, (edit, rival), "faces", numbers
                )
    for edit in (method for method in OWN_NOISE if method.startswith("edit")):
        two = (edit, "edit 2 in the prompt")
        paired(f"existing: {edit} minus random noise", done, every, two, "faces", numbers)
    return numbers


def tabled(
    name: str, rows: list[dict], labels: Sequence[str], method: str, unit: str, numbers: dict
) -> None:
    """Means over units of a method's readings."""
    values = _table(rows, labels, method)
    for column, what in enumerate(READINGS):
        about = (
            f"{what}, mean over {unit}, by the judge"
            if column < 2
            else "mean absolute change, 0 to 1"
        )
        numbers[f"{name}: {what}"] = results.bootstrap(values[:, column], about, "fraction")


def paired(
    name: str,
    rows: list[dict],
    labels: Sequence[str],
    two: tuple[str, str],
    unit: str,
    numbers: dict,
) -> None:
    """Means over units of one method's readings less those of another."""
    pairs = _table(rows, labels, two[0]) - _table(rows, labels, two[1])
    for column, what in enumerate(READINGS):
        about = f"{what}: {two[0]} minus {two[1]}, paired over {unit}"
        numbers[f"{name}: {what}"] = results.bootstrap(pairs[:, column], about, "fraction")


def _table(rows: list[dict], labels: Sequence[str], method: str) -> np.ndarray:
    per_unit = [
        [row[f"{one}/{method}"] for one in labels if f"{one}/{method}" in row] for row in rows
    ]
    return np.array([np.mean(found, 0) for found in per_unit if found])
