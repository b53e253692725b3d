"""Does Activation Steering change what it is meant to change? `python run.py study activations steering [--quick]`.

For each attribute value a direction is computed from four captions with it and the same captions with another value.
The same noise is then sampled with and without the direction, from a caption that does not name the attribute, and the
demo world's judge reads both. Beside it: the same strength along a random direction of the same length (the floor), and
the prompt itself (what a user would do instead).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch

from ..common import host, results

#: Attribute, its value as the judge names it, the part of the caption, and the phrases to steer toward and away from.
TARGETS = (
    ("skin", "black", "skin", "black skin", "pale skin"),
    ("accessory", "none", "accessory", "no glasses", "sunglasses"),
    ("facial_hair", "majestic beard", "facial_hair", "majestic brown beard", "shaven"),
    ("hair_color", "red", "hair", "short red hair", "short black hair"),
)
#: The parts of the captions of a contrast; the first one without the target's part is what is sampled.
CAPTIONS = (
    {
        "skin": "light skin", "hair": "short brown hair", "facial_hair": "shaven", "accessory": "no glasses",
        "mouth": "smiling", "clothing": "blue hoodie", "background": "plain gray background",
    },
    {
        "skin": "tanned skin", "hair": "long black hair", "facial_hair": "light black beard", "accessory": "no glasses",
        "mouth": "serious", "clothing": "white shirt", "background": "striped purple background",
    },
    {
        "skin": "brown skin", "hair": "blonde bob", "facial_hair": "shaven", "accessory": "round glasses",
        "mouth": "sad", "clothing": "red sweater", "background": "plain blue background",
    },
    {
        "skin": "pale skin", "hair": "big pink hair", "facial_hair": "gray moustache", "accessory": "sunglasses",
        "mouth": "smiling", "clothing": "green overall", "background": "dotted yellow background",
    },
)  # fmt: skip
IDS = "*-vit-out"
STEPS, CFG, SEED = 8, 3.0, 1000
STRENGTHS = (0.3, 0.4, 0.5)


def caption(number: int, part: str, phrase: str) -> str:
    """One of the captions with another phrase, or none, for a part."""
    parts = {**CAPTIONS[number], part: phrase}
    return ", ".join(["portrait", *filter(None, parts.values())])


class Steered:
    """The demo model, and its samples with and without a direction."""

    def __init__(self, world: str):
        load = {
            name: host.pack(f"nodes.demo.{name}").load for name in ("denoiser", "text_encoder", "autoencoder", "judge")
        }
        self.model, self.clip, self._vae = (load[name](world) for name in ("denoiser", "text_encoder", "autoencoder"))
        self.judge = load["judge"](world)
        self._nodes = host.pack("nodes.activations.nodes_steering")
        self._evaluate = host.pack("nodes.host.evaluate")
        channels = self.model.get_model_object("latent_format").latent_channels
        self.blank = torch.zeros(1, channels, 16, 16)

    @torch.inference_mode()
    def direction(self, part: str, toward: str, away: str, ids: str = IDS):
        """From the captions with either phrase, three noise samples each."""
        given = {"preset": "custom_ids", "ids": ids, "recorded_steps": "all", "seed": SEED, "steps": STEPS, "cfg": CFG}
        texts = ["\n".join(caption(number, part, one) for number in range(len(CAPTIONS))) for one in (toward, away)]
        node, latent = self._nodes.SteeringDirectionFromPrompts, {"samples": self.blank.expand(3, -1, -1, -1)}
        return node.execute(self.model, self.clip, latent, *texts, **given).result[0]

    @torch.inference_mode()
    def read(self, text: str, count: int, direction=None, strength: float = 0.0) -> dict[str, np.ndarray]:
        """What the judge reads in samples of the seeds 0, 1, ..., as indices of values by attribute."""
        model = self.model
        if direction is not None:
            node = self._nodes.ActivationSteering
            model = node.execute(model, direction, strength, 0.0, 1.0, "conditional", False).result[0]
        return self.read_latents(self.sample(model, text, range(count)))

    @torch.inference_mode()
    def sample(self, model, text: str, seeds: Sequence[int]) -> torch.Tensor:
        """Latents of a MODEL from a text, one per seed."""
        import comfy.sample

        positive, negative = (self.clip.encode_from_tokens_scheduled(self.clip.tokenize(one)) for one in (text, ""))
        noise = torch.cat([self._evaluate.noise_for(self.blank, seed) for seed in seeds])
        return comfy.sample.sample(
            model, noise, STEPS, CFG, "euler", "normal", positive, negative, torch.zeros_like(noise), disable_pbar=True
        )

    @torch.inference_mode()
    def read_latents(self, samples: torch.Tensor) -> dict[str, np.ndarray]:
        """What the judge reads in latents, as indices of values by attribute."""
        images = self._vae.decode(samples)
        logits = self.judge(images.movedim(-1, 1).float())
        return {name: value.argmax(-1).numpy() for name, value in logits.items()}

    def random_direction(self, like):
        """Random vectors with the lengths of another direction."""
        generator = torch.Generator().manual_seed(0)
        drawn = {id_: torch.randn(len(vector), generator=generator) for id_, vector in like.vectors.items()}
        vectors = {id_: drawn[id_] * (vector.norm() / drawn[id_].norm()) for id_, vector in like.vectors.items()}
        return host.pack("nodes.activations.steering").SteeringDirection(vectors, "random")


def main(argv: Sequence[str]) -> int:
    """Measure, write, and print where."""
    parser = argparse.ArgumentParser(prog="run.py study activations steering", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the seeds 0 to 9 and two targets")
    options = parser.parse_args(argv)
    host.prepare()
    assets = host.pack("nodes.demo.assets")
    world, count = assets.worlds()[0], 10 if options.quick else 50
    steered, numbers = Steered(world), {}
    for attribute, value, part, toward, away in TARGETS[: 2 if options.quick else None]:
        wanted, label = steered.judge.labels[attribute].index(value), f"{attribute} {value}"
        text, direction = caption(0, part, ""), steered.direction(part, toward, away)
        plain = steered.read(text, count)
        contenders = {f"strength {strength:g}": (text, direction, strength) for strength in STRENGTHS}
        contenders["a random direction"] = (text, steered.random_direction(direction), STRENGTHS[-1])
        contenders["the prompt"] = (caption(0, part, toward), None, 0.0)
        numbers[f"{label}: plain"] = results.fraction(
            plain[attribute] == wanted, f"seeds in which the judge reads {label}"
        )
        for name, (text, along, strength) in contenders.items():
            found = steered.read(text, count, along, strength)
            others = np.mean([found[other] != plain[other] for other in plain if other != attribute], 0)
            numbers[f"{label}: {name}"] = results.fraction(
                found[attribute] == wanted, f"seeds in which the judge reads {label}"
            )
            numbers[f"{label}: {name}, reading changed"] = results.fraction(
                found[attribute] != plain[attribute], f"seeds in which the judge reads another {attribute} than without"
            )
            numbers[f"{label}: {name}, other attributes changed"] = results.bootstrap(
                others, "fraction of the other attributes that the judge reads differently, over seeds", "fraction"
            )
            print(f"{label}: {name}: {np.mean(found[attribute] == wanted):.2f}, others {others.mean():.2f}", flush=True)
    name, command = "activations_steering", "python run.py study activations steering"
    if options.quick:
        name, command = f"{name}_quick", f"{command} --quick"
    print(results.write(name, command, SEED, assets.ASSETS / world, numbers))
    return 0
