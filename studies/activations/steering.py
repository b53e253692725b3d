"""Does Activation Steering change what it is meant to change? `python run.py study activations steering [--quick]`.

For each attribute value a direction is computed from prompts with and without it. The same noise is then sampled with
and without the direction, from the plain prompt, and the demo world's judge reads both. Beside it: the same strength
along a random direction of the same length (the floor), and the prompt itself (what a user would do instead).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch

from ..common import host, results

#: Attribute, its value as the judge names it, and the phrase of the caption.
TARGETS = (
    ("accessory", "sunglasses", "sunglasses"),
    ("hair_color", "red", "red hair"),
    ("facial_hair", "majestic beard", "majestic beard"),
    ("mouth", "tongue", "tongue out"),
)
PLAIN = "portrait"
IDS = "up-level0-repeat2-vit-block0-out\nup-level1-repeat0-vit-block0-out"
STEPS, CFG, SEED = 12, 3.0, 7
STRENGTHS = (1.0, 2.0, 4.0)


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
    def direction(self, phrase: str, ids: str, seeds: int):
        """From prompts with the phrase and without, ``seeds`` noise samples each."""
        given = {"preset": "custom_ids", "ids": ids, "recorded_steps": "all", "seed": 1000, "steps": STEPS, "cfg": CFG}
        latent = {"samples": self.blank.expand(seeds, -1, -1, -1)}
        node, texts = self._nodes.SteeringDirectionFromPrompts, (f"{PLAIN}, {phrase}", PLAIN)
        return node.execute(self.model, self.clip, latent, *texts, **given).result[0]

    @torch.inference_mode()
    def read(self, text: str, count: int, direction=None, strength: float = 0.0) -> dict[str, np.ndarray]:
        """What the judge reads in ``count`` samples of fixed seeds, as indices of values by attribute."""
        model = self.model
        if direction is not None:
            node = self._nodes.ActivationSteering
            model = node.execute(model, direction, strength, 0.0, 1.0, "conditional", False).result[0]
        positive, negative = (self.clip.encode_from_tokens_scheduled(self.clip.tokenize(one)) for one in (text, ""))
        blank = self.blank.expand(count, -1, -1, -1)
        samples = self._evaluate.sample_latents(model, positive, negative, blank, STEPS, CFG, SEED)
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
    parser.add_argument("--quick", action="store_true", help="ten seeds and two targets")
    options = parser.parse_args(argv)
    host.prepare()
    assets = host.pack("nodes.demo.assets")
    world, count = assets.worlds()[0], 10 if options.quick else 100
    steered, numbers = Steered(world), {}
    plain = steered.read(PLAIN, count)
    for attribute, value, phrase in TARGETS[: 2 if options.quick else None]:
        wanted = steered.judge.labels[attribute].index(value)
        direction = steered.direction(phrase, IDS, 4 if options.quick else 16)
        contenders = {f"strength {strength:g}": (PLAIN, direction, strength) for strength in STRENGTHS}
        contenders["a random direction"] = (PLAIN, steered.random_direction(direction), STRENGTHS[-1])
        contenders["the prompt"] = (f"{PLAIN}, {phrase}", None, 0.0)
        numbers[f"{value}: plain"] = results.fraction(
            plain[attribute] == wanted, f"seeds in which the judge reads {value}"
        )
        for name, (text, along, strength) in contenders.items():
            found = steered.read(text, count, along, strength)
            others = np.mean([found[other] != plain[other] for other in plain if other != attribute], 0)
            numbers[f"{value}: {name}"] = results.fraction(
                found[attribute] == wanted, f"seeds in which the judge reads {value}"
            )
            numbers[f"{value}: {name}, other attributes changed"] = results.bootstrap(
                others, "fraction of the other attributes that the judge reads differently, over seeds", "fraction"
            )
            print(f"{value}: {name}: {np.mean(found[attribute] == wanted):.2f}, others {others.mean():.2f}", flush=True)
    name, command = "activations_steering", "python run.py study activations steering"
    if options.quick:
        name, command = f"{name}_quick", f"{command} --quick"
    print(results.write(name, command, SEED, assets.ASSETS / world, numbers))
    return 0
