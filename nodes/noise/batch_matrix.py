"""A batch as a matrix: one image, however many dimensions or parts it has, is one row."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch


def flatten_batch(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The parts of a batch side by side as (B, D) in float32, on the device of the parts."""
    flat = [part.float().reshape(len(part), -1) for part in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)


def unflatten_batch(matrix: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The inverse of `flatten_batch`: the shapes, dtypes and devices of `like`."""
    widths = [part[0].numel() for part in like]
    return [
        piece.reshape(len(matrix), *part.shape[1:]).to(part)
        for piece, part in zip(matrix.split(widths, dim=1), like, strict=True)
    ]


def collapse_weights(weights: torch.Tensor | None) -> torch.Tensor | None:
    """Weights (B, D) as (1, D) where all images have the same ones, and as None where all are 1."""
    if weights is None or bool((weights == 1).all()):
        return None
    return weights[:1] if bool((weights == weights[:1]).all()) else weights


def row_distances(
    data: torch.Tensor, noise: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Euclidean distance of each row of `data` from the same row of `noise`, weighted; (B,) in
    float32.
    """
    difference = data - noise.to(data.device)
    if weights is not None:
        difference = difference * weights.sqrt()
    return torch.linalg.vector_norm(difference, dim=1).cpu()


def first_equal_rows(data: torch.Tensor, weights: torch.Tensor | None = None) -> list[int]:
    """For each row the index of the first row that equals it, in `data` and in `weights`."""
    tables = [data] if weights is None or len(weights) == 1 else [data, weights]
    for width in (16, None):  # most rows differ in their first numbers
        keys = list(zip(*(table[:, :width].sum(dim=1).tolist() for table in tables), strict=True))
        if len(set(keys)) == len(keys):
            return list(range(len(keys)))
    seen: dict[Hashable, list[int]] = {}
    firsts = []
    for row, key in enumerate(keys):
        known = seen.setdefault(key, [])
        first = next(
            (other for other in known if all(torch.equal(t[row], t[other]) for t in tables)), row
        )
        if first == row:
            known.append(row)
        firsts.append(first)
    return firsts


def check_finite(data: torch.Tensor, noise: torch.Tensor) -> None:
    """Raise ValueError when latents or noise hold NaN or infinity."""
    if not (torch.isfinite(data).all() and torch.isfinite(noise).all()):
        raise ValueError(
            "The latents or the noise contain NaN or infinity: check the nodes before this one."
        )
