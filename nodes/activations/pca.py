"""Activations as colors: the three principal components of their channels as red, green and blue,
or one channel.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

#: Above this many channels and positions the components are computed by a randomized method.
_EXACT = 2048
_OVERSAMPLING = 8
_ITERATIONS = 6


def check_finite(name: str, values: torch.Tensor) -> None:
    """Raise ValueError where activations hold NaN or infinity. Tensors on PyTorch's meta device
    have shapes and no values, and pass.
    """
    if not values.is_meta and not values.isfinite().all():
        raise ValueError(
            f"The activations of {name} have NaN or infinity: the model overflows in its "
            "precision. Load it in bf16 or fp32."
        )


def principal_components(
    feature: torch.Tensor, count: int = 3
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean (C,) and principal components (count, C) of a feature (rows, C, H, W) over all positions
    of all rows.

    By descending variance. The sign is fixed: in each component the channel with the largest weight
    is positive. Components that a tiny feature does not have are zero. Raises ValueError for NaN
    or infinity.
    """
    check_finite("this feature", feature)
    points = feature.float().movedim(1, -1).flatten(0, -2)
    mean = points.mean(0)
    points = points - mean
    if min(points.shape) <= _EXACT:
        components = _exact(points, count)
    else:
        with torch.random.fork_rng(
            devices=[points.device] if points.is_cuda else []
        ):  # pca_lowrank draws from these
            torch.default_generator.manual_seed(0)
            if points.is_cuda:
                torch.cuda.manual_seed(0)
            components = torch.pca_lowrank(
                points, count + _OVERSAMPLING, center=False, niter=_ITERATIONS
            )[2].T[:count]
    largest = components.gather(1, components.abs().argmax(1, keepdim=True))
    return mean, components * torch.where(largest < 0, -1.0, 1.0)


def pca_colors(feature: torch.Tensor, joint: bool = True) -> torch.Tensor:
    """A feature (rows, C, H, W) as colors (rows, H, W, 3) in 0..1: three components, each stretched
    to its range.

    ``joint`` fits components and ranges to all rows at once, so that a color means the same in each
    row.
    """
    if not joint:
        return torch.cat([pca_colors(row) for row in feature.split(1)])
    mean, components = principal_components(feature)
    return _stretch(
        torch.einsum("bchw,kc->bhwk", feature.float() - mean[:, None, None], components)
    )


def channel_image(feature: torch.Tensor, channel: int) -> torch.Tensor:
    """One channel of a feature (rows, C, H, W) as (rows, H, W) in 0..1 over all rows; raises
    ValueError without it.
    """
    if not 0 <= channel < feature.shape[1]:
        raise ValueError(
            f"There is no channel {channel}: these activations have {feature.shape[1]}, counted "
            "from 0."
        )
    return _stretch(feature[:, channel].float()[..., None])[..., 0]


def _stretch(values: torch.Tensor) -> torch.Tensor:
    """Values (..., channels), each channel scaled from its range over everything else to 0..1; a
    constant gives 0.
    """
    flat = values.flatten(0, -2)
    low = flat.amin(0)
    high = flat.amax(0)
    return (values - low) / (high - low).clamp_min(1e-12)


def _exact(points: torch.Tensor, count: int) -> torch.Tensor:
    """From the eigenvectors of the smaller of the two Gram matrices, in float64."""
    points = points.double()
    if points.shape[1] <= points.shape[0]:
        values, vectors = torch.linalg.eigh(points.T @ points)
        components = vectors.T.flip(0)
    else:
        values, vectors = torch.linalg.eigh(points @ points.T)
        components = (vectors.T @ points).flip(0)
    values = values.flip(0)
    components = F.normalize(components, dim=1) * (values > values[0] * 1e-12)[:, None]
    missing = max(count - len(components), 0)
    return F.pad(components[:count], (0, 0, 0, missing)).float()
