"""Any LoRA as the nearest point of a space, and what is lost (arXiv 2406.09413, section 3.4)."""

from __future__ import annotations

import torch

from ..common.lora_reader import Factors, Lora
from .space import Point, Space


def project(space: Space, lora: Lora, components: int, name: str) -> tuple[Point, str]:
    """The point of the first ``components`` coefficients, and a report of what is lost.

    Raises ValueError with one sentence when the LoRA is of another base model.
    """
    try:
        flat, lost = space.flatten(lora)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None
    coefficients = space.project(flat)
    coefficients[components:] = 0
    point = Point(space, coefficients, name)
    return point, describe(point, flat, lost)


def describe(point: Point, flat: torch.Tensor, lost: dict[str, float]) -> str:
    """Fractions of the LoRA's change that each step keeps, and the members nearest to it."""
    space, nearest = point.space, point.flat
    standard, rebuilt = (flat - space.mean) / space.deviation, (nearest - space.mean) / space.deviation
    inside = float(rebuilt.square().sum() / standard.square().sum().clamp_min(1e-30))
    near = ", ".join(f"{name} {value:+.3f}" for name, value in nearest_members(point, 3))
    layers, projected = space.layout.unflatten(flat), space.layout.unflatten(nearest)
    error = sum(difference(layers[name], projected[name]) for name in layers)
    total = sum(one.squared_norm() for one in layers.values())
    lines = [f"Left out of {point.name}: {reason}, {100 * part:.2f} % of its change." for reason, part in lost.items()]
    lines += [
        f"Kept by the space's components: {100 * inside:.1f} % of its difference from the mean, in standardized "
        "numbers.",
        f"|dW - dW'| / |dW| of the layers of the space: {(error / max(total, 1e-30)) ** 0.5:.3f}.",
        f"Nearest members by cosine: {near}.",
    ]
    return "\n".join(lines)


def label_point(point: Point, count: int = 2) -> str:
    """A point's name, and its nearest members with their cosines."""
    near = ", ".join(f"{name} {value:+.2f}" for name, value in nearest_members(point, count))
    return f"{point.name}\nnear {near}"


def nearest_members(point: Point, count: int) -> list[tuple[str, float]]:
    """The members of the most similar coefficients by cosine, as in section 4.2, with their cosines."""
    known = point.coefficients[: point.space.known]
    members = point.space.coefficients
    cosines = members @ known / (members.norm(dim=1) * known.norm()).clamp_min(1e-30)
    best = cosines.topk(min(count, len(cosines)))
    return [(point.space.members[row], float(value)) for value, row in zip(best.values, best.indices, strict=True)]


def difference(one: Factors, other: Factors) -> float:
    """|dW - dW'|^2 of two changes of one layer."""
    up, down = one.matrices(torch.float64)
    up_other, down_other = other.matrices(torch.float64)
    up, down = torch.cat([up, -up_other], dim=1), torch.cat([down, down_other])
    return float(((up.T @ up) * (down @ down.T)).sum())
