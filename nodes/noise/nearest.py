"""The nearest of k noises for each picture alone: Improved Immiscible Diffusion (arXiv 2505.18521), "KNN".

Of a candidate z only a = <z, x> / |x| and r^2 = |z|^2 - a^2 decide its distance from the picture x, and for Gaussian
noise they are a draw of N(0, 1) and of chi^2 with D - 1 degrees of freedom. The closed form therefore draws k such
pairs, takes the nearest, and moves the one noise that is there: the same law as the official form in O(D + k).

Candidate 0 is always the given noise, k = 1 returns it bit for bit, and more candidates never take a nearer one away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from ...kernels import blend, nearest_drawn, pair_moments

CLOSED, DOT, OFFICIAL = FORMS = ("closed form", "dot product", "official")
_TINY = 1e-300  # in float64: divides nothing by zero and changes nothing else


def streams(seed: int, numbers: Sequence[int]) -> list[np.random.Generator]:
    """Private random streams, one a picture; they depend on the seed and on the number of its noise alone."""
    return [np.random.default_rng([seed % 2**64, number]) for number in numbers]


def check_k(k: float, form: str) -> None:
    """Raises ValueError for a form or a k that there is not."""
    if form not in FORMS:
        raise ValueError(f"There is no form {form}: choose one of {', '.join(FORMS)}.")
    if k < 1:
        raise ValueError(f"k is {k:g}: it counts the noises to choose from and is at least 1.")
    if form != DOT and k != int(k):
        raise ValueError(f"The {form} needs a whole k, not {k:g}: choose the form '{DOT}' for the k between.")


def closed_form(
    data: torch.Tensor,
    noise: torch.Tensor,
    k: int,
    generators: Sequence[np.random.Generator],
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """For each row of `data` (B, D) a noise distributed as the nearest of k, made from the row of `noise`; float32.

    Of `weights` only the coordinates of at least one half count: a law this simple needs a mask of zeros and ones.
    Rows of zeros keep their noise.
    """
    mask = None if weights is None else (weights >= 0.5).expand_as(data)
    along, across, length = _coordinates(*((data, noise) if mask is None else (data * mask, noise * mask)))
    sizes = [data.shape[1]] * len(data) if mask is None else mask.sum(dim=1).tolist()
    nearer = torch.tensor(
        [
            _nearest_pair(*map(float, coordinates), size, int(k), generator)
            for *coordinates, size, generator in zip(along, across, length, sizes, generators, strict=True)
        ],
        dtype=torch.float64,
    ).reshape(-1, 2)
    # z' = a' x / |x| + (r' / r) (z - a x / |x|), as a sum of z and x.
    scale = nearer[:, 1] / across.clamp_min(_TINY)
    shift = (nearer[:, 0] - scale * along) / length.clamp_min(_TINY)
    return _replaced(data, noise, shift, scale, nearer[:, 0] != along, mask)


def dot_form(
    data: torch.Tensor,
    noise: torch.Tensor,
    k: float,
    generators: Sequence[np.random.Generator],
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `closed_form` with "nearest" by the dot product: one coordinate becomes the largest of k; k may be fractional.

    The length of the noise across the picture stays, so that |z|^2 does not shrink as with the distance.
    """
    towards = data if weights is None else data * weights
    along, _, length = _coordinates(towards, noise)
    rivals = torch.tensor([_largest_of(k - 1, generator) for generator in generators], dtype=torch.float64)
    shift = (rivals - along) / length.clamp_min(_TINY)
    return _replaced(towards, noise, shift, torch.ones_like(shift), (rivals > along) & (length > 0))


def official(data: torch.Tensor, candidates: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """The index of the nearest candidate (k, B, D) of each row of `data` (B, D), in half precision as in their code."""
    half = data.half()
    roots = None if weights is None else weights.sqrt().half()
    distances = []
    for candidate in candidates:
        difference = half - candidate.half()
        distances.append(torch.linalg.vector_norm(difference if roots is None else difference * roots, dim=1))
    return torch.stack(distances).argmin(dim=0)


def official_drawn(data: torch.Tensor, noise: torch.Tensor, k: int, seeds: torch.Tensor) -> torch.Tensor:
    """For each row the nearest of its `noise` (B, D) and k - 1 more, of its own seed int64 (B,); float32 (B, D).

    The official form for noises that nobody else has to draw again: the candidates need no memory, and their distances
    are compared in float32.
    """
    if k == 1:
        return noise.float()
    drawn, _ = nearest_drawn(data, seeds, k - 1)
    nearer = (drawn - data).square().sum(dim=1) < (noise - data).square().sum(dim=1)
    return torch.where(nearer[:, None], drawn, noise.float())


def largest_of_normals(k: float) -> float:
    """The mean of the largest of k draws of N(0, 1), by quadrature: m_4 = 1.029, m_64 = 2.344."""
    grid = torch.linspace(-10, 10, 20001, dtype=torch.float64)
    density = torch.exp(-grid.square() / 2) / math.sqrt(2 * math.pi)
    return float((grid * k * density * torch.special.ndtr(grid) ** (k - 1)).sum() * (grid[1] - grid[0]))


def _coordinates(data: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each noise the coordinate along its picture and the length across it; the picture's length. On the CPU."""
    dots, squares, noise_squares = (moment.double().cpu() for moment in pair_moments(data, noise))
    length = squares.sqrt()
    along = dots / length.clamp_min(_TINY)
    return along, (noise_squares - along.square()).clamp_min(0).sqrt(), length


def _replaced(
    data: torch.Tensor,
    noise: torch.Tensor,
    shift: torch.Tensor,
    scale: torch.Tensor,
    rows: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """The noise with scale * z + shift * x in the given rows, and there inside the mask only."""
    result = noise.float().clone()
    rows = rows.nonzero()[:, 0]
    here = rows.to(data.device)
    moved = blend(data[here], noise[here], shift[rows].to(data), scale[rows].to(data))
    result[here] = moved if mask is None else torch.where(mask[here], moved, result[here])
    return result


def _nearest_pair(
    along: float, across: float, length: float, size: int, k: int, generator: np.random.Generator
) -> tuple[float, float]:
    """Coordinate along the picture and length across it of the nearest of the given noise and k - 1 others."""
    if k == 1 or length == 0 or across == 0:
        return along, across
    others = generator.standard_normal(k - 1), np.sqrt(generator.spawn(1)[0].chisquare(size - 1, k - 1))
    a, r = np.append(along, others[0]), np.append(across, others[1])
    best = int((a**2 + r**2 - 2 * length * a).argmin())
    return float(a[best]), float(r[best])


def _largest_of(k: float, generator: np.random.Generator) -> float:
    """A draw of the largest of k draws of N(0, 1), for any k > 0."""
    if k == 0:
        return -math.inf
    # U^(1/k) with U in (0, 1] is the distribution function at the largest of k; where it rounds to 1, it is infinite.
    share = min(math.exp(math.log1p(-generator.random()) / k), 1 - 2**-53)
    return float(torch.special.ndtri(torch.tensor(share, dtype=torch.float64)))
