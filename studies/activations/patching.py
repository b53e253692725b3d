"""Where is an attribute carried? `python run.py study activations patching [--quick]`.

Two captions that differ in one phrase are sampled from the same noise. Activation Patching Map then
samples the second one with the output of one transformer at a time from the run of the first, and
the demo world's judge reads how often the first caption's value comes back, and what else changes.
The floor is the second run without a patch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch
from scipy.stats import spearmanr

from ..common import host, results
from .steering import CFG, IDS, SEED, STEPS, TARGETS, Steered, caption


def main(argv: Sequence[str]) -> int:
    """Measure, write, and print where."""
    parser = argparse.ArgumentParser(
        prog="run.py study activations patching", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="five seeds and one target")
    options = parser.parse_args(argv)
    host.prepare()
    assets = host.pack("nodes.demo.assets")
    world, count = assets.worlds()[0], 5 if options.quick else 24
    steered, numbers = Steered(world), {}
    for attribute, value, part, toward, away in TARGETS[: 1 if options.quick else None]:
        numbers |= _measure(
            steered,
            attribute,
            value,
            [caption(0, part, phrase) for phrase in (toward, away)],
            count,
        )
    name, command = "activations_patching", "python run.py study activations patching"
    if options.quick:
        name, command = f"{name}_quick", f"{command} --quick"
    print(results.write(name, command, SEED, assets.ASSETS / world, numbers))
    return 0


@torch.inference_mode()
def _measure(
    steered: Steered, attribute: str, value: str, captions: list[str], count: int
) -> dict[str, dict]:
    """Readings and restored fractions of every transformer, for one pair of captions."""
    clip, label = steered.clip, f"{attribute} {value}"
    source, target, negative = (
        clip.encode_from_tokens_scheduled(clip.tokenize(one)) for one in (*captions, "")
    )
    latent = {"samples": steered.blank.expand(count, -1, -1, -1)}
    given = {"preset": "custom_ids", "ids": IDS, "patched_steps": "all", "precision": "fp32"}
    node = host.pack("nodes.activations.nodes_patching").ActivationPatchingMap
    _, _, report, _, sampled = node.execute(
        steered.model, source, target, negative, latent, seed=SEED, steps=STEPS, cfg=CFG, **given
    ).result
    restored = {line.split()[0]: float(line.split()[1]) for line in report.splitlines()[1:]}
    readings = [steered.read_latents(part) for part in sampled["samples"].split(count)]
    wanted, plain = steered.judge.labels[attribute].index(value), readings[1]
    numbers, reached = {}, []
    for name, found in zip(("first caption", "second caption", *restored), readings, strict=True):
        hits = found[attribute] == wanted
        numbers[f"{label}: {name}"] = results.fraction(
            hits, f"seeds in which the judge reads {label}"
        )
        if name in restored:
            others = np.mean(
                [found[other] != plain[other] for other in plain if other != attribute], 0
            )
            numbers[f"{label}: {name}, other attributes changed"] = results.bootstrap(
                others,
                "fraction of the other attributes that the judge reads differently, over seeds",
                "fraction",
            )
            numbers[f"{label}: {name}, restored"] = {
                "value": restored[name],
                "n": count,
                "unit": "fraction",
                "what": "of the squared distance between the latents of both captions",
            }
            reached.append(hits.mean())
        print(
            f"{label}: {name}: {hits.mean():.2f}, restored {restored.get(name, float('nan')):.2f}",
            flush=True,
        )
    numbers[f"{label}: rank correlation"] = {
        "value": float(spearmanr(list(restored.values()), reached)[0]),
        "n": len(reached),
        "unit": "correlation",
        "what": "of the restored fraction and the judge's reading, over transformers (Spearman)",
    }
    return numbers
