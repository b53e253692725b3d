"""Points of a space: sampled, interpolated, on a grid (arXiv 2406.09413, section 3.2)."""

from __future__ import annotations

import math

import torch

from .directions import direction_step
from .space import Point, Space


def sample(space: Space, seed: int, count: int, components: int, spread: float) -> list[Point]:
    """Points whose coefficients are sampled one by one: beta_k ~ N(mean_k, spread * deviation_k)
    over the members.

    Coefficients beyond ``components`` are 0. One generator of the seed's own draws number after
    number, as the official code does, so the first point of a seed has that code's coefficients for
    it.
    """
    components = min(components, space.known)
    mean, deviation = (part[:components] for part in space.spread)
    generator = torch.Generator().manual_seed(seed)
    points = []
    for number in range(count):
        draws = torch.cat([torch.randn(1, generator=generator) for _ in range(components)])
        coefficients = mean + spread * deviation * draws
        points.append(Point(space, space.pad(coefficients), f"sample {seed}.{number}"))
    return points


def member_point(space: Space, name: str) -> Point:
    """A training member as a point; raises ValueError with example names when there is none."""
    if name not in space.members:
        near = ", ".join(space.members[:5])
        raise ValueError(
            f"The space {space.name} has no member {name!r}. Its members are {near}, ..."
        )
    return Point(space, space.pad(space.coefficients[space.members.index(name)]), name)


def random_members(space: Space, seed: int, count: int) -> list[Point]:
    """``count`` different members drawn at random, or all of them, in their order."""
    order = torch.randperm(len(space.members), generator=torch.Generator().manual_seed(seed))
    return [member_point(space, space.members[row]) for row in sorted(order[:count].tolist())]


def near_members(
    space: Space, seed: int, count: int, components: int, spread: float
) -> list[Point]:
    """Points near members drawn at random: a smoothed bootstrap (Efron 1979).

    Up to a spread of 2 they keep the members' mean and deviation: beta = mean + sqrt(1 - h^2)
    (member - mean) + h deviation N(0, 1) with h = spread / 2, in the first ``components``.
    """
    components = min(components, space.known)
    mean, deviation = (part[:components] for part in space.spread)
    generator = torch.Generator().manual_seed(seed)
    h = spread / 2
    points = []
    for number in range(count):
        row = int(torch.randint(len(space.members), (1,), generator=generator))
        apart = space.coefficients[row, :components] - mean
        noise = torch.randn(components, generator=generator)
        moved = mean + math.sqrt(max(0.0, 1 - h * h)) * apart + h * deviation * noise
        points.append(Point(space, space.pad(moved), f"near {space.members[row]} {seed}.{number}"))
    return points


def mix(first: Point, second: Point, start: float, end: float, count: int) -> list[Point]:
    """Points on the line from ``first`` (0) to ``second`` (1), from ``start`` to ``end``, which may
    lie beyond 0..1.
    """
    check_same_space(first, second)
    fractions = [start] if count == 1 else torch.linspace(start, end, count).tolist()
    name = f"{first.name} to {second.name}"
    return [
        first.with_coefficients(
            torch.lerp(first.coefficients, second.coefficients, fraction), f"{name} {fraction:.2f}"
        )
        for fraction in fractions
    ]


def sweep(
    point: Point, first: str, second: str, values: list[float], preserved: list[str]
) -> tuple[list[Point], list[str]]:
    """A row of points along one direction, or a grid along two (rows are ``second``), and the label
    of each.

    A direction is the name of one of the space's own, in units of its largest projection, or "PC
    3", in standard deviations. ``preserved`` directions are held fixed.
    """
    along = direction_step(point.space, first.strip(), preserved, raw=False)
    upward = direction_step(point.space, second.strip(), preserved, raw=False) if second else None
    points = []
    labels = []
    for down in values if second else [0.0]:
        for across in values:
            steps = [(along, across)]
            label = f"{first} {across:+.2f}"
            if upward is not None:
                steps.append((upward, down))
                label += f", {second} {down:+.2f}"
            points.append(point.with_steps(steps, f"{point.name}, {label}"))
            labels.append(label)
    return points, labels


def check_same_space(first: Point, second: Point) -> None:
    """Raise ValueError unless both points are of one space."""
    one = first.space
    other = second.space
    if one is not other and (
        one.layout != other.layout or not torch.equal(one.coefficients, other.coefficients)
    ):
        raise ValueError(
            f"{first.name} is in the space {one.name} and {second.name} in {other.name}: take both "
            "from one space."
        )
