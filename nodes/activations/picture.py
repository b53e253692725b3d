"""Activations as pictures: the three main directions of their channels as red, green and blue, or one channel."""

from __future__ import annotations

import torch

#: Above this many channels and positions the main directions are found by a seeded iteration instead of exactly.
_EXACT = 2048
_ITERATIONS, _SPARE = 6, 8


def main_directions(feature: torch.Tensor, count: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean (C,) and main directions (count, C) of a feature (rows, C, H, W) over all positions of all rows.

    Principal components by descending variance. The sign is fixed: in each direction the channel with the largest
    weight is positive. Directions that the data do not have, in tiny features, are zero.
    """
    points = feature.float().movedim(1, -1).flatten(0, -2)
    mean = points.mean(0)
    points = points - mean
    directions = _exact(points, count) if min(points.shape) <= _EXACT else _iterated(points, count)
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    return mean, directions * torch.where(largest < 0, -1.0, 1.0)


def pca_picture(feature: torch.Tensor, together: bool = True) -> torch.Tensor:
    """A feature (rows, C, H, W) as colours (rows, H, W, 3) in 0..1: three main directions, each stretched to its range.

    ``together`` fits directions and ranges to all rows at once, so that the same colour means the same in each.
    """
    if not together:
        return torch.cat([pca_picture(row) for row in feature.split(1)])
    mean, directions = main_directions(feature)
    colours = torch.einsum("bchw,kc->bhwk", feature.float() - mean[:, None, None], directions)
    return stretched(colours)


def stretched(values: torch.Tensor) -> torch.Tensor:
    """Values (..., channels), each channel brought from its range over everything else to 0..1; a constant gives 0."""
    flat = values.flatten(0, -2)
    low, high = flat.amin(0), flat.amax(0)
    return (values - low) / (high - low).clamp_min(1e-12)


def channel_picture(feature: torch.Tensor, channel: int) -> torch.Tensor:
    """One channel of a feature (rows, C, H, W) as (rows, H, W) in 0..1 over all rows; raises ValueError without it."""
    if not 0 <= channel < feature.shape[1]:
        raise ValueError(f"There is no channel {channel}: these activations have {feature.shape[1]}, counted from 0.")
    return stretched(feature[:, channel].float()[..., None])[..., 0]


def _exact(points: torch.Tensor, count: int) -> torch.Tensor:
    """From the eigenvectors of the smaller of the two Gram matrices, in float64."""
    points = points.double()
    if points.shape[1] <= points.shape[0]:
        values, vectors = torch.linalg.eigh(points.T @ points)
        directions = vectors.T.flip(0)
    else:
        values, vectors = torch.linalg.eigh(points @ points.T)
        directions = (vectors.T @ points).flip(0)
    values = values.flip(0)
    directions = torch.nn.functional.normalize(directions, dim=1) * (values > values[0] * 1e-12)[:, None]
    missing = max(count - len(directions), 0)
    return torch.nn.functional.pad(directions[:count], (0, 0, 0, missing)).float()


def _iterated(points: torch.Tensor, count: int) -> torch.Tensor:
    """Block power iteration from a fixed start; the error is far below what a picture shows."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(points.shape[1], count + _SPARE, generator=generator).to(points)
    for _ in range(_ITERATIONS):
        basis = torch.linalg.qr(points.T @ (points @ basis)).Q
    _, vectors = torch.linalg.eigh((points @ basis).T @ (points @ basis))
    return (basis @ vectors).T.flip(0)[:count]
