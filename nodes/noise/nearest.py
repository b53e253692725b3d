"""The nearest of k noise samples for each image alone: Improved Immiscible Diffusion (arXiv
2505.18521), "KNN".

Of a candidate z only a = <z, x> / |x| and r^2 = |z|^2 - a^2 decide its distance from the image x,
and for Gaussian noise they are a draw of N(0, 1) and of chi^2 with D - 1 degrees of freedom. The
closed form therefore draws k such pairs, takes the nearest, and moves the given noise sample there:
the law of the official form in O(D + k).

Candidate 0 is always the given noise, k = 1 returns it bit for bit, and more candidates never take
a nearer one away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import torch

from ...kernels import nearest_drawn

_TINY = 1e-300  # in float64: divides nothing by zero and changes nothing else
_DRAWN_AT_ONCE = 1 << 20  # numbers of candidates: what the cache of a CPU holds


class NearestForm(StrEnum):
    """How the nearest of k is drawn: by its law, by the law of the largest dot product, or from k
    noise samples.
    """

    CLOSED_FORM = "closed_form"
    DOT_PRODUCT = "dot_product"
    OFFICIAL = "official"


def random_streams(seed: int, numbers: Sequence[int]) -> list[np.random.Generator]:
    """Private random streams, one per image; each depends on the seed and on the number of its
    noise sample alone.
    """
    return [np.random.default_rng([seed % 2**64, number]) for number in numbers]


def check_k(k: float, form: str) -> None:
    """Raise ValueError for a k that the form does not take."""
    if k < 1:
        raise ValueError(
            f"k is {k:g}: it counts the noise samples to choose from and is at least 1."
        )
    if form != NearestForm.DOT_PRODUCT and k != int(k):
        raise ValueError(
            f"The {form} form needs an integer k, not {k:g}: set nearest_form to dot_product for "
            "it."
        )


def move_nearest(
    form: str,
    data: torch.Tensor,
    noise: torch.Tensor,
    k: float,
    streams: Sequence[np.random.Generator],
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """`closed_form` or `dot_form`."""
    if form == NearestForm.DOT_PRODUCT:
        return dot_form(data, noise, k=k, streams=streams, weights=weights)
    return closed_form(data, noise, k=int(k), streams=streams, weights=weights)


def closed_form(
    data: torch.Tensor,
    noise: torch.Tensor,
    k: int,
    streams: Sequence[np.random.Generator],
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """For each row of `data` (B, D) noise distributed as the nearest of k, made from the row of
    `noise`; float32.

    Of `weights` only coordinates of at least 0.5 count: the law needs a mask of zeros and ones.
    Rows of zeros keep their noise.
    """
    mask = None if weights is None else (weights >= 0.5).expand_as(data)
    along, across, length = _coordinates(
        *((data, noise) if mask is None else (data * mask, noise * mask))
    )
    sizes = [data.shape[1]] * len(data) if mask is None else mask.sum(dim=1).tolist()
    nearer = torch.tensor(
        [
            _nearest_pair(float(a), float(b), length=float(c), size=size, k=int(k), stream=stream)
            for a, b, c, size, stream in zip(along, across, length, sizes, streams, strict=True)
        ],
        dtype=torch.float64,
    ).reshape(-1, 2)
    # z' = a' x / |x| + (r' / r) (z - a x / |x|), as a sum of z and x.
    scale = nearer[:, 1] / across.clamp_min(_TINY)
    shift = (nearer[:, 0] - scale * along) / length.clamp_min(_TINY)
    return _replaced(data, noise, shift=shift, scale=scale, rows=nearer[:, 0] != along, mask=mask)


def dot_form(
    data: torch.Tensor,
    noise: torch.Tensor,
    k: float,
    streams: Sequence[np.random.Generator],
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `closed_form` with "nearest" by the dot product: one coordinate becomes the largest of k;
    k may be fractional.

    The length of the noise across the image stays, so that |z|^2 does not shrink as with the
    distance.
    """
    towards = data if weights is None else data * weights
    along, _, length = _coordinates(towards, noise)
    rivals = torch.tensor([_largest_of(k - 1, stream) for stream in streams], dtype=torch.float64)
    shift = (rivals - along) / length.clamp_min(_TINY)
    return _replaced(
        towards,
        noise,
        shift=shift,
        scale=torch.ones_like(shift),
        rows=(rivals > along) & (length > 0),
    )


def official(
    data: torch.Tensor, candidates: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """The index of the nearest candidate (k, B, D) of each row of `data` (B, D), in half precision
    as in their code.
    """
    half = data.half()
    roots = None if weights is None else weights.sqrt().half()
    distances = []
    for candidate in candidates:
        difference = half - candidate.half()
        distances.append(
            torch.linalg.vector_norm(difference if roots is None else difference * roots, dim=1)
        )
    return torch.stack(distances).argmin(dim=0)


def official_drawn(
    data: torch.Tensor, noise: torch.Tensor, k: int, seeds: torch.Tensor
) -> torch.Tensor:
    """For each row the nearest of its `noise` (B, D) and k - 1 more, of its own seed int64 (B,);
    float32 (B, D).

    The official form where no stock sampler has to draw the same noise again: the candidates need
    no memory, and their distances are compared in float32. A CPU draws other candidates than a GPU,
    by PyTorch's own generator.
    """
    if k == 1:
        return noise.float()
    if data.device.type == "cpu":  # where the kernel's generator is three times slower
        rows = zip(data.float(), noise.float(), seeds.tolist(), strict=True)
        return torch.stack([_nearest_of_seed(*row, k - 1) for row in rows])
    drawn, _ = nearest_drawn(data, seeds, k - 1)
    nearer = (drawn - data).square().sum(dim=1) < (noise - data).square().sum(dim=1)
    return torch.where(nearer[:, None], drawn, noise.float())


def _nearest_of_seed(row: torch.Tensor, noise: torch.Tensor, seed: int, k: int) -> torch.Tensor:
    """The nearest to `row` (D,) of `noise` (D,) and `k` samples of a seed."""
    generator = torch.Generator().manual_seed(seed)
    best = noise
    least = torch.dot(noise, noise) - 2 * torch.dot(noise, row)
    step = max(_DRAWN_AT_ONCE // len(row), 1)
    for first in range(0, k, step):
        drawn = torch.randn(min(step, k - first), len(row), generator=generator)
        distance, place = (torch.linalg.vector_norm(drawn, dim=1).square() - 2 * (drawn @ row)).min(
            dim=0
        )
        if distance < least:
            best = drawn[place]
            least = distance
    return best


def largest_of_normals(k: float) -> float:
    """The mean of the largest of k draws of N(0, 1), by quadrature: m_4 = 1.029, m_64 = 2.344."""
    grid = torch.linspace(-10, 10, 20001, dtype=torch.float64)
    density = torch.exp(-grid.square() / 2) / math.sqrt(2 * math.pi)
    return float(
        (grid * k * density * torch.special.ndtr(grid) ** (k - 1)).sum() * (grid[1] - grid[0])
    )


def _coordinates(
    data: torch.Tensor, noise: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each noise sample the coordinate along its image and the length across it; the image's
    length. On the CPU.
    """
    data = data.float()
    noise = noise.float()
    moments = [
        (data * noise).sum(dim=1),
        *(torch.linalg.vector_norm(rows, dim=1) for rows in (data, noise)),
    ]
    dots, length, noise_length = torch.stack(moments).double().cpu()
    along = dots / length.clamp_min(_TINY)
    return along, (noise_length.square() - along.square()).clamp_min(0).sqrt(), length


def _replaced(
    data: torch.Tensor,
    noise: torch.Tensor,
    shift: torch.Tensor,
    scale: torch.Tensor,
    rows: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """The noise with scale * z + shift * x in the given rows, and there inside the mask only."""
    shift, scale = (numbers.to(data.device, torch.float32)[:, None] for numbers in (shift, scale))
    changed = (
        rows.to(data.device)[:, None] if mask is None else rows.to(data.device)[:, None] & mask
    )
    return torch.where(
        changed, torch.addcmul(noise.float() * scale, data.float(), shift), noise.float()
    )


def _nearest_pair(
    along: float, across: float, length: float, size: int, k: int, stream: np.random.Generator
) -> tuple[float, float]:
    """Coordinate along the image and length across it of the nearest of the given noise and k - 1
    others.
    """
    if k == 1 or length == 0 or (across == 0 and size > 1):
        return along, across
    # With a single coordinate nothing lies across: chi^2 of no degrees of freedom is 0.
    squares = stream.spawn(1)[0].chisquare(size - 1, k - 1) if size > 1 else np.zeros(k - 1)
    a = np.append(along, stream.standard_normal(k - 1))
    r = np.append(across, np.sqrt(squares))
    best = int((a**2 + r**2 - 2 * length * a).argmin())
    return float(a[best]), float(r[best])


def _largest_of(k: float, stream: np.random.Generator) -> float:
    """A draw of the largest of k draws of N(0, 1), for any k > 0."""
    if k == 0:
        return -math.inf
    # U^(1/k) with U in (0, 1] is the distribution function at the largest of k; where it rounds to
    # 1, it is infinite.
    quantile = min(math.exp(math.log1p(-stream.random()) / k), 1 - 2**-53)
    return float(torch.special.ndtri(torch.tensor(quantile, dtype=torch.float64)))
