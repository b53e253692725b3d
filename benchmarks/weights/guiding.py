"""What identity guidance costs beside its evaluations: a sampling step against plain CFG of the
same rows, in turns.

With both strengths at 1 both sides are rows of one call, as in plain CFG. At 0.5 there is a third
row, in a call of its own, so plain CFG is also timed a row at a time.
"""

from __future__ import annotations

import numpy as np
import torch

from studies.common import host, results
from studies.common.turns import times
from studies.world.autoencoder import CHANNELS
from studies.world.generate import Generator
from studies.world.release import WORLD

from .moving import made_up_space
from .network import sd15_model

PLAIN, APART, BOTH, HALF = (
    "plain CFG",
    "plain CFG, a row at a time",
    "guidance, strength 1",
    "guidance, strength 0.5",
)


def measure() -> dict[str, dict]:
    """The shipped model with a member of its space, and SD1.5 in its real size on random weights
    with a random one.
    """
    generator = Generator.load(WORLD)
    space = host.pack("nodes.weights.space_file").read(
        host.ROOT / "assets" / f"{WORLD}-w2w.safetensors"
    )
    point = host.pack("nodes.weights.space").Point(space, space.coefficients[0])
    conditions = [generator.condition([text]) for text in ("portrait", "")]
    numbers = _model("demo model", generator.model, point, conditions, CHANNELS, 16, 4, 40)
    large = made_up_space(16)
    point = host.pack("nodes.weights.space").Point(large, large.coefficients[0])
    draws = torch.Generator().manual_seed(1)
    conditions = [[[torch.randn(1, 77, 768, generator=draws), {}]] for _ in range(2)]
    return numbers | _model(
        "SD1.5, latent 32", sd15_model(torch.float32, filled=True), point, conditions, 4, 32, 1, 12
    )


def _model(
    name: str, model, point, conditions: list, channels: int, side: int, steps: int, turns: int
) -> dict:
    import comfy.sample

    guided = host.pack("nodes.weights.weight_guidance_comfy").guided
    noise = comfy.sample.prepare_noise(torch.zeros(1, channels, side, side), 0)

    def sampled(patcher):
        return comfy.sample.sample(
            patcher,
            noise,
            steps,
            3.0,
            "euler",
            "normal",
            *conditions,
            torch.zeros_like(noise),
            disable_pbar=True,
            seed=0,
        )

    def apart():
        required = model.model.memory_required
        model.model.memory_required = lambda *_, **__: (
            2.0**60
        )  # more than is free: ComfyUI takes a row at a time
        try:
            return sampled(model)
        finally:
            model.model.memory_required = required

    patched = {
        BOTH: guided(model, point, None, 1.0, 0.0, 1.0)[0],
        HALF: guided(model, point, None, 0.5, 0.0, 1.0)[0],
    }
    ways = {PLAIN: lambda: sampled(model), APART: apart}
    ways |= {way: lambda patcher=patcher: sampled(patcher) for way, patcher in patched.items()}
    taken = {way: values / steps for way, values in times(ways, turns, alone=True).items()}
    size = f"rank {point.space.layout.rank} on {len(point.layers())} layers"
    what = f"a step, one image, {size}, processor time of one thread"
    numbers = {
        f"{name}, {way}": results.bootstrap(ms, what, "ms", np.median) for way, ms in taken.items()
    }
    paired = {
        f"{BOTH} over {PLAIN}": taken[BOTH] / taken[PLAIN],
        f"{BOTH} over {APART}": taken[BOTH] / taken[APART],
        f"{HALF} over three rows of {APART}": taken[HALF] / (1.5 * taken[APART]),
    }
    for key, ratio in paired.items():
        numbers[f"{name}, {key}"] = results.bootstrap(ratio, "turn by turn", "ratio", np.median)
    return numbers
