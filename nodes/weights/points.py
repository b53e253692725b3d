"""Points of a space: drawn anew, between others, on a grid (arXiv 2406.09413, section 3.2)."""

from __future__ import annotations

import torch

from .directions import along
from .space import Point, Space


def sample(space: Space, seed: int, count: int, components: int, spread: float) -> list[Point]:
    """Points whose coefficients are drawn one by one: beta_k ~ N(mean_k, spread * deviation_k) over the members.

    Coefficients beyond ``components`` are 0. One generator of the seed's own draws number after number, as the official
    code does, so the first point of a seed has that code's coefficients for it.
    """
    components = min(components, space.known)
    mean, deviation = (part[:components] for part in space.spread)
    generator = torch.Generator().manual_seed(seed)
    points = []
    for number in range(count):
        draws = torch.cat([torch.randn(1, generator=generator) for _ in range(components)])
        coefficients = mean + spread * deviation * draws
        points.append(Point(space, space.padded(coefficients), f"sample {seed}.{number}"))
    return points


def member(space: Space, name: str) -> Point:
    """A training member as a point; raises ValueError with names to choose from when there is none of that name."""
    if name not in space.members:
        near = ", ".join(space.members[:5])
        raise ValueError(f"The space {space.name} has no member '{name}': there are {near} and so on.")
    return Point(space, space.padded(space.coefficients[space.members.index(name)]), name)


def mix(first: Point, second: Point, start: float, end: float, steps: int) -> list[Point]:
    """Points on the line from ``first`` (0) to ``second`` (1), from ``start`` to ``end``; beyond 0..1 goes on."""
    same_space(first, second)
    shares = [start] if steps == 1 else torch.linspace(start, end, steps).tolist()
    name = f"{first.name} to {second.name}"
    return [
        first.at(torch.lerp(first.coefficients, second.coefficients, share), f"{name} {share:.2f}") for share in shares
    ]


def sweep(
    point: Point, first: str, second: str, values: list[float], keep: list[str]
) -> tuple[list[Point], list[str]]:
    """A row of points along one direction, or a grid along two (rows are ``second``), and what each of them is.

    A direction is the name of one of the space's own, in units of its reach, or "PC 3", in standard deviations.
    """
    steps = [(first, along(point.space, first.strip(), keep, raw=False))]
    if second:
        steps.append((second, along(point.space, second.strip(), keep, raw=False)))
    points, labels = [], []
    for down in values if second else [None]:
        for across in values:
            coefficients = point.coefficients + across * steps[0][1]
            label = f"{first} {across:+.2f}"
            if down is not None:
                coefficients = coefficients + down * steps[1][1]
                label += f", {second} {down:+.2f}"
            points.append(point.at(coefficients, f"{point.name}, {label}"))
            labels.append(label)
    return points, labels


def same_space(first: Point, second: Point) -> None:
    """Raise ValueError unless both points are of one space."""
    one, other = first.space, second.space
    if one is not other and (one.layout != other.layout or not torch.equal(one.coefficients, other.coefficients)):
        raise ValueError(f"{first.name} is of the space {one.name}, {second.name} of {other.name}: take both from one.")
