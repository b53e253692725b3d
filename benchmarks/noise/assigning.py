"""Distance and assignment of B images and B noise samples."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment

from studies.common import host
from studies.common.turns import times, timing_numbers

#: Numbers in a latent: Stable Diffusion and Flux at 512 x 512 pixels.
SIZES = {"SD, D = 16,384": 16_384, "Flux, D = 65,536": 65_536}
#: The official form's table of differences takes B * B * D * 2 bytes; above this many it is left
#: out.
OFFICIAL_BYTES = 4e9


def official(data: torch.Tensor, noise: torch.Tensor):
    """The released code's computation: differences of tenths in half precision, plain L2, SciPy."""
    differences = 0.1 * data.half()[:, None] - 0.1 * noise.half()[None]
    return linear_sum_assignment(torch.linalg.vector_norm(differences, dim=2).numpy())


def by_cdist(data: torch.Tensor, noise: torch.Tensor):
    """torch.cdist and SciPy."""
    return linear_sum_assignment(torch.cdist(data, noise).numpy())


def measure(quick: bool) -> dict[str, dict]:
    """Ours against the others for every size, in the processor's time on one thread."""
    numbers = {}
    counts = {
        "SD, D = 16,384": (256,) if quick else (64, 256, 512, 1024),
        "Flux, D = 65,536": (64,) if quick else (64, 256),
    }
    for name, width in SIZES.items():
        for count in counts[name]:
            numbers |= _one(name, width, count, 3 if quick or count > 512 else 7)
    return numbers


def _one(name: str, width: int, count: int, turns: int) -> dict[str, dict]:
    assign = host.pack("nodes.noise.assignment").assign
    generator = torch.Generator().manual_seed(count)
    data, noise = (torch.randn(count, width, generator=generator) for _ in range(2))
    contenders = {
        "glassbox": lambda: assign(data, noise),
        "one line of SciPy": lambda: linear_sum_assignment(-(data @ noise.T).numpy()),
        "cdist with SciPy": lambda: by_cdist(data, noise),
    }
    if 2 * count * count * width <= OFFICIAL_BYTES:
        contenders["official form"] = lambda: official(data, noise)
    where = f"assignment, B = {count:,}, {name}, 1 thread"
    return timing_numbers(
        where, times(contenders, turns, alone=True), "glassbox", "CPU time; white latents"
    )
