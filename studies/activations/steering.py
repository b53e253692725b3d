"""Does Activation Steering change what it is meant to change? `python run.py study activations
steering [--quick]`.

For each attribute value a direction is computed from four captions with it and the same captions
with another value. The same noise is then sampled with and without the direction, from a caption
that does not name the attribute, and the demo world's judge reads both. Beside it: the same
strength along a random direction of the same length (the floor), and the prompt itself (what a user
would do instead).

``--w2w``: the rival in the weights, W2W Edit at its strength 1, on the mean of the shipped space,
which is also what its images are compared with.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch

from ..common import host, results

#: Attribute, its value as the judge names it, the part of the caption, and the phrases to steer
#: toward and away from.
TARGETS = (
    ("skin", "black", "skin", "black skin", "pale skin"),
    ("accessory", "none", "accessory", "no glasses", "sunglasses"),
    ("facial_hair", "majestic beard", "facial_hair", "majestic brown beard", "shaven"),
    ("hair_color", "red", "hair", "short red hair", "short black hair"),
)
#: The parts of the captions of a contrast; the first one without the target's part is what is
#: sampled.
CAPTIONS = (
    {
        "skin":(
            "light "
            "skin"
        ), "hair":(
            "short brown "
            "hair"
        ), "facial_hair": "shaven", "accessory":(
            "no "
            "glasses"
        ),
        "mouth": "smiling", "clothing": "blue hoodie", "background": "plain gray background",
    },
    {
        "skin":(
            "tanned "
            "skin"
        ), "hair":(
            "long black "
            "hair"
        ), "facial_hair":(
            "light black "
            "beard"
        ), "accessory":(
            "no "
            "glasses"
        ),
        "mouth": "serious", "clothing": "white shirt", "background": "striped purple background",
    },
    {
        "skin":(
            "brown "
            "skin"
        ), "hair":(
            "blonde "
            "bob"
        ), "facial_hair": "shaven", "accessory":(
            "round "
            "glasses"
        ),
        "mouth": "sad", "clothing": "red sweater", "background": "plain blue background",
    },
    {
        "skin":(
            "pale "
            "skin"
        ), "hair":(
            "big pink "
            "hair"
        ), "facial_hair":(
            "gray "
            "moustache"
        ), "accessory": "sunglasses",
        "mouth": "smiling", "clothing": "green overall", "background": "dotted yellow background",
    },
)  # fmt: skip
IDS = "*-vit-out"
STEPS, CFG, SEED = 8, 3.0, 1000
STRENGTHS = (0.3, 0.4, 0.5)
SPACE = "avatars-v2-w2w.safetensors"
#: W2W's names of the targets, and further values that its direction asks for.
EDITS = {
    "skin": ("dark skin", ("brown",)),
    "facial_hair": ("beard", ("light beard",)),
    "hair_color": ("red hair", ()),
}


def caption(number: int, part: str, phrase: str) -> str:
    """One of the captions with another phrase, or none, for a part."""
    parts = {**CAPTIONS[number], part: phrase}
    return ", ".join(["portrait", *filter(None, parts.values())])


class Steered:
    """The demo model, and its samples with and without a direction."""

    def __init__(self, world: str):
        load = {
            name: host.pack(f"nodes.demo.{name}").load
            for name in ("denoiser", "text_encoder", "autoencoder", "judge")
        }
        self.model, self.clip, self._vae = (
            load[name](world) for name in ("denoiser", "text_encoder", "autoencoder")
        )
        self.judge = load["judge"](world)
        self._nodes = host.pack("nodes.activations.nodes_steering")
        self._evaluate = host.pack("nodes.host.evaluate")
        channels = self.model.get_model_object("latent_format").latent_channels
        self.blank = torch.zeros(1, channels, 16, 16)

    @torch.inference_mode()
    def direction(self, part: str, toward: str, away: str, ids: str = IDS):
        """From the captions with either phrase, three noise samples each."""
        given = {
            "preset": "custom_ids",
            "ids": ids,
            "recorded_steps": "all",
            "seed": SEED,
            "steps": STEPS,
            "cfg": CFG,
        }
        texts = [
            "\n".join(caption(number, part, one) for number in range(len(CAPTIONS)))
            for one in (toward, away)
        ]
        node, latent = (
            self._nodes.SteeringDirectionFromPrompts,
            {"samples": self.blank.expand(3, -1, -1, -1)},
        )
        return node.execute(self.model, self.clip, latent, *texts, **given).result[0]

    @torch.inference_mode()
    def read(
        self, text: str, count: int, direction=None, strength: float = 0.0
    ) -> dict[str, np.ndarray]:
        """What the judge reads in samples of the seeds 0, 1, ..., as indices of values by
        attribute.
        """
        model = self.model
        if direction is not None:
            node = self._nodes.ActivationSteering
            model = node.execute(model, direction, strength, 0.0, 1.0, "conditional", False).result[
                0
            ]
        return self.read_latents(self.sample(model, text, range(count)))

    @torch.inference_mode()
    def sample(self, model, text: str, seeds: Sequence[int]) -> torch.Tensor:
        """Latents of a MODEL from a text, one per seed."""
        import comfy.sample

        positive, negative = (
            self.clip.encode_from_tokens_scheduled(self.clip.tokenize(one)) for one in (text, "")
        )
        noise = torch.cat([self._evaluate.noise_for(self.blank, seed) for seed in seeds])
        return comfy.sample.sample(
            model,
            noise,
            STEPS,
            CFG,
            "euler",
            "normal",
            positive,
            negative,
            torch.zeros_like(noise),
            disable_pbar=True,
        )

    @torch.inference_mode()
    def read_latents(self, samples: torch.Tensor) -> dict[str, np.ndarray]:
        """What the judge reads in latents, as indices of values by attribute."""
        images = self._vae.decode(samples)
        logits = self.judge(images.movedim(-1, 1).float())
        return {name: value.argmax(-1).numpy() for name, value in logits.items()}

    @torch.inference_mode()
    def read_point(self, text: str, count: int, point) -> dict[str, np.ndarray]:
        """The same of a point of the weights space."""
        model = (
            host.pack("nodes.weights.nodes_lora")
            .W2WApply.execute(self.model, point, 1.0, 0.0, 1.0)
            .result[0]
        )
        return self.read_latents(self.sample(model, text, range(count)))

    def random_direction(self, like):
        """Random vectors with the lengths of another direction."""
        generator = torch.Generator().manual_seed(0)
        drawn = {
            id_: torch.randn(len(vector), generator=generator)
            for id_, vector in like.vectors.items()
        }
        vectors = {
            id_: drawn[id_] * (vector.norm() / drawn[id_].norm())
            for id_, vector in like.vectors.items()
        }
        return host.pack("nodes.activations.steering").SteeringDirection(vectors, "random")


def main(argv: Sequence[str]) -> int:
    """Measure, write, and print where."""
    parser = argparse.ArgumentParser(
        prog="run.py study activations steering", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="the seeds 0 to 4 and one target")
    parser.add_argument("--w2w", action="store_true", help="W2W Edit instead")
    options = parser.parse_args(argv)
    host.prepare()
    assets = host.pack("nodes.demo.assets")
    world, count = assets.worlds()[0], 5 if options.quick else 50
    steered, numbers = Steered(world), {}
    targets = TARGETS[: 1 if options.quick else None]
    (by_weights if options.w2w else by_activations)(steered, targets, count, numbers)
    name, command = "activations_steering", "python run.py study activations steering"
    if options.w2w:
        name, command = f"{name}_w2w", f"{command} --w2w"
    if options.quick:
        name, command = f"{name}_quick", f"{command} --quick"
    measured = [world, SPACE] if options.w2w else [world]
    print(results.write(name, command, SEED, [assets.ASSETS / each for each in measured], numbers))
    return 0


def by_activations(
    steered: Steered, targets: Sequence[tuple[str, ...]], count: int, numbers: dict
) -> None:
    """Steering at several strengths, along a random direction, and the prompt."""
    for attribute, value, part, toward, away in targets:
        label, wanted = f"{attribute} {value}", (value,)
        text, direction = caption(0, part, ""), steered.direction(part, toward, away)
        plain = steered.read(text, count)
        contenders = {
            f"strength {strength:g}": (text, direction, strength) for strength in STRENGTHS
        }
        contenders["a random direction"] = (
            text,
            steered.random_direction(direction),
            STRENGTHS[-1],
        )
        contenders["the prompt"] = (caption(0, part, toward), None, 0.0)
        reached(steered, attribute, wanted, f"{label}: plain", plain, numbers)
        for name, (text, along, strength) in contenders.items():
            found = steered.read(text, count, along, strength)
            changed(steered, attribute, wanted, f"{label}: {name}", found, plain, numbers)


def by_weights(
    steered: Steered, targets: Sequence[tuple[str, ...]], count: int, numbers: dict
) -> None:
    """W2W Edit on the mean of the shipped space, with directions as W2W Fit Directions fits
    them.
    """
    fit, edit = host.pack("nodes.weights.directions"), host.pack("nodes.weights.edit_text").edit
    space = host.pack("nodes.weights.space_file").read(
        host.pack("nodes.demo.assets").ASSETS / SPACE
    )
    labels = fit.drop_constant_labels({name: space.labels[name] for name, _ in EDITS.values()})[0]
    space = space.with_directions(fit.fit(space, labels, 64, fit.FitMethod.MOST_RELIABLE))
    mean = host.pack("nodes.weights.space").Point(
        space, torch.zeros_like(space.coefficients[0]), "mean"
    )
    for attribute, value, part, *_ in targets:
        if attribute not in EDITS:
            continue
        name, further = EDITS[attribute]
        label, wanted, text = f"{attribute} {value}", (value, *further), caption(0, part, "")
        plain = steered.read_point(text, count, mean)
        reached(steered, attribute, wanted, f"{label}: the space's mean", plain, numbers)
        found = steered.read_point(text, count, edit(mean, f"{name}: 1", ""))
        changed(steered, attribute, wanted, f"{label}: W2W Edit, {name} 1", found, plain, numbers)


def reached(
    steered: Steered, attribute: str, wanted: Sequence[str], name: str, found: dict, numbers: dict
) -> None:
    """How often the judge reads one of the wanted values."""
    values = [steered.judge.labels[attribute].index(value) for value in wanted]
    what = f"seeds in which the judge reads {attribute} {' or '.join(wanted)}"
    numbers[name] = results.fraction(np.isin(found[attribute], values), what)


def changed(
    steered: Steered,
    attribute: str,
    wanted: Sequence[str],
    name: str,
    found: dict,
    plain: dict,
    numbers: dict,
) -> None:
    """How often it is reached, how often the reading changes, and how many other attributes change
    with it.
    """
    others = np.mean([found[other] != plain[other] for other in plain if other != attribute], 0)
    reached(steered, attribute, wanted, name, found, numbers)
    numbers[f"{name}, reading changed"] = results.fraction(
        found[attribute] != plain[attribute],
        f"seeds in which the judge reads another {attribute} than without",
    )
    numbers[f"{name}, other attributes changed"] = results.bootstrap(
        others,
        "fraction of the other attributes that the judge reads differently, over seeds",
        "fraction",
    )
    print(f"{name}: {numbers[name]['value']:.2f}, others {others.mean():.2f}", flush=True)
