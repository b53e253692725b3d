"""The nearest of k noise samples for each of B images: the official form against the closed
form.
"""

from __future__ import annotations

import torch

from studies.common import host
from studies.common.turns import times, timing_numbers

WIDTH = 16_384


def official(data: torch.Tensor, k: int, generator: torch.Generator) -> torch.Tensor:
    """The released code's computation: k noise samples each in float32, compared in half
    precision.
    """
    kept = []
    for row in data:
        noise = torch.randn(k, data.shape[1], generator=generator)
        distances = torch.linalg.vector_norm(row.half()[None] - noise.half(), dim=1)
        kept.append(noise[distances.argmin()])
    return torch.stack(kept)


def measure(quick: bool) -> dict[str, dict]:
    """Both forms with their random draws, on one thread."""
    method = host.pack("nodes.noise.nearest")
    numbers = {}
    for count, k in ((32, 4), (32, 64)) if quick else ((32, 4), (32, 64), (128, 64)):
        generator = torch.Generator().manual_seed(k)
        data = torch.randn(count, WIDTH, generator=generator)

        def closed(data=data, k=k, count=count, generator=generator):
            noise = torch.randn(data.shape, generator=generator)
            return method.closed_form(data, noise, k, method.random_streams(0, range(count)))

        contenders = {
            "closed_form": closed,
            "official form": lambda d=data, k=k, g=generator: official(d, k, g),
        }
        measured = times(contenders, 3 if quick else 7, alone=True)
        numbers |= timing_numbers(
            f"nearest of {k}, B = {count}, D = {WIDTH:,}, 1 thread",
            measured,
            "closed_form",
            "CPU time, drawing the noise included",
        )
    return numbers
