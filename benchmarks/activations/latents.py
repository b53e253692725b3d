"""What a tap and steering add at the latents that people use: a narrow network at 64 x 64 and 128 x
128.

As in `adding`, contenders take turns forwards and backwards, and the processor's time is read. The
network is narrow and shallow, so that many turns are cheap, and hooks weigh more in it than in real
ones. It is SDXL's: SD1.5 attends at the latent's own size, which takes 30 times as long at 64 x 64.
The evaluation stands against itself as well: the interval of that difference, around zero, is what
the run has resolved.
"""

from __future__ import annotations

from functools import partial

import torch

from studies.common import host

from . import tapping
from .adding import added_numbers, rounds
from .networks import SEED, Bench

#: Network, side of the latent, and turns of all contenders, each forwards and backwards.
CASES = (
    ("narrowest SDXL with 1 of 10 blocks", 64, 300),
    ("narrowest SDXL with 1 of 10 blocks", 128, 90),
)
STEERED = "*-vit-out"


def measure(quick: bool) -> dict[str, dict]:
    """What is added, as milliseconds and as fractions of the evaluation, turn by turn."""
    numbers = {}
    for name, side, turns in CASES[: 1 if quick else None]:
        bench = Bench(name, side)
        about = (
            f"of one evaluation through ComfyUI's path, latent of {side} x {side}, random weights, "
            "float32"
        )
        times = rounds(contenders(bench), turns // 2 if quick else turns)
        plain = times.pop("plain")
        for contender, measured in times.items():
            numbers |= added_numbers(
                f"{name}, {side} x {side}, {contender}", measured, plain, about
            )
    return numbers


def contenders(bench: Bench) -> dict[str, partial]:
    """The plain evaluation, itself, taps of the recommended set and of everything, and every
    transformer steered.
    """
    evaluate = partial(tapping.plain, bench)
    found = {"plain": evaluate, "the evaluation against itself": evaluate}
    for preset in ("recommended", "all_features"):
        chosen = bench.chosen(preset)
        found[f"tap of {preset} ({len(chosen)})"] = partial(tapping.tap, bench, chosen)
    select = host.pack("nodes.activations.select_ids").select
    generator = torch.Generator().manual_seed(SEED)
    specs = select(bench.entries, "custom_ids", STEERED)
    vectors = {one.id: torch.randn(one.channels, generator=generator) for one in specs}
    direction = host.pack("nodes.activations.steering").SteeringDirection(vectors, "random")
    steer = host.pack("nodes.activations.nodes_steering").ActivationSteering.execute
    steered = bench.with_model(
        steer(bench.model, direction, 1.0, 0.0, 1.0, "conditional", False).result[0]
    )
    return {**found, f"{len(specs)} transformers steered": partial(tapping.plain, steered)}
