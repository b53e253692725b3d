"""Any LoRA as the nearest point of a space, and what is lost (arXiv 2406.09413, section 3.4)."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..common.lora_reader import Factors, Lora
from .space import Form, Point, Space


def project(space: Space, lora: Lora, components: int, name: str) -> tuple[Point, str]:
    """The point of the first ``components`` coefficients, and a report of what is lost.

    Raises ValueError with one sentence when the LoRA is of another base model.
    """
    norm = lora.squared_norm() ** 0.5
    remark = ""
    if space.common_norm and norm:
        lora = lora.scaled(space.common_norm / norm)
        remark = f"\n{name} {at_own_strength(space, norm)}"
    try:
        flat, lost = space.flatten(_on_projections(space, lora) if space.learned else lora)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None
    whole = space.project(flat)
    coefficients = whole.clone()
    coefficients[components:] = 0
    point = Point(space, coefficients, name)
    return point, describe(point, flat, whole=whole, lost=lost, lora=lora) + remark


def _on_projections(space: Space, lora: Lora) -> Lora:
    """The LoRA on the down factors R that all members of a learned space share: up = dW R^+ by
    least squares.

    So files of any rank and factors have a place there, a point's own export among them.
    """
    shared = space.layout.unflatten(space.mean)
    layers = dict(lora.layers)
    for name in shared.keys() & layers.keys():
        up, down = layers[name].matrices(torch.float64)
        other, projection = shared[name].matrices(torch.float64)
        if (len(up), down.shape[1]) == (
            len(other),
            projection.shape[1],
        ):  # else a sentence names the layer
            up = up @ (down @ torch.linalg.pinv(projection)) / shared[name].scale
            layers[name] = replace(shared[name], up=up.float().view(shared[name].up.shape))
    return replace(lora, layers=layers)


def at_own_strength(space: Space, norm: float) -> str:
    """The end of a sentence on a LoRA of a norm in a space whose members were brought to one."""
    common = space.common_norm or norm
    return (
        f"has |dW| {norm:.3g} and is brought to the members' {common:.3g}: strength "
        f"{norm / common:.2f} in W2W Apply gives its own."
    )


def describe(
    point: Point, flat: torch.Tensor, whole: torch.Tensor, lost: dict[str, float], lora: Lora
) -> str:
    """What the point has of the LoRA's own change dW, what each step loses, and the members nearest
    to it.
    """
    space = point.space
    nearest = point.flat
    standard = (flat - space.mean) / space.deviation
    rebuilt = (nearest - space.mean) / space.deviation
    inside = float(rebuilt.square().sum() / standard.square().sum().clamp_min(1e-30))
    projected = space.layout.unflatten(nearest)
    error = total = sum(lora.dropped.values())
    for layers in (lora.layers, lora.text):
        for name in layers:
            factors = layers[name]
            total += factors.squared_norm()
            error += (
                difference(factors, projected.pop(name))
                if name in projected
                else factors.squared_norm()
            )
    error += sum(one.squared_norm() for one in projected.values())
    error = max(error, 0.0)
    total = max(total, 1e-30)
    if space.form == Form.WEIGHT_UPDATES:
        nearby = _nearest_updates(
            space, whole, along_mean=float(flat @ space.mean), length=total**0.5, count=3
        )
    else:
        nearby = nearest_members(point, 3)
    near = ", ".join(f"{name} {value:+.3f}" for name, value in nearby)
    lines = [
        f"Left out of {point.name}: {reason}, {100 * part:.2f} % of its change."
        for reason, part in lost.items()
    ]
    lines += [
        f"Kept by the space's components: {100 * inside:.1f} % of its difference from the mean, in "
        "standardized numbers.",
        f"|dW - dW'| / |dW| against the whole LoRA: {(error / total) ** 0.5:.3f}; the point "
        f"explains {100 * max(1 - error / total, 0.0):.1f} % of |dW|^2"
        + (", so it is none of this space." if error > total / 2 else "."),
        "Nearest members by cosine of "
        f"{'dW' if space.form == Form.WEIGHT_UPDATES else 'coefficients'}: {near}.",
    ]
    return "\n".join(lines)


def label_point(point: Point, count: int = 2, description: str = "") -> str:
    """A point's name, its description if it has one, and its nearest members with their cosines."""
    near = ", ".join(f"{name} {value:+.2f}" for name, value in nearest_members(point, count))
    lines = [point.name, description, f"near {near}"]
    return "\n".join(line for line in lines if line)


def nearest_members(point: Point, count: int) -> list[tuple[str, float]]:
    """The most similar members with their cosines: of dW on weight updates, else of coefficients as
    in section 4.2.
    """
    space = point.space
    if space.form != Form.WEIGHT_UPDATES:
        known = point.coefficients[: space.known]
        members = space.coefficients
        return _best(
            space, members @ known / (members.norm(dim=1) * known.norm()).clamp_min(1e-30), count
        )
    dot, square = _lengths(space, point.coefficients[None])
    return _nearest_updates(
        space, point.coefficients, along_mean=float(dot), length=float(square) ** 0.5, count=count
    )


def _nearest_updates(
    space: Space, coefficients: torch.Tensor, along_mean: float, length: float, count: int
) -> list[tuple[str, float]]:
    """Members of a space on weight updates by cosine of dW: of a change of this length and product
    with the mean.

    Products of updates are those of cores, so <dW, dW_i> = <dW, mean> + <a + s^2 c, c_i> with a = s
    basis mean and the deviation s. Seen from the mean instead, weak members of a space of strangers
    are alike: they lie at minus the mean.
    """
    members = space.coefficients
    scale = float(space.deviation[0])
    products = along_mean + members @ (space.along_mean + scale**2 * coefficients)[: space.known]
    _, squares = _lengths(space, members)
    return _best(space, products / (squares.clamp_min(0).sqrt() * length).clamp_min(1e-30), count)


def _lengths(space: Space, coefficients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """<dW, mean> and |dW|^2 of points (m, k) of a space on weight updates."""
    along = coefficients @ space.along_mean[: coefficients.shape[1]]
    square = space.mean.square().sum()
    return square + along, square + 2 * along + space.deviation[0] ** 2 * coefficients.square().sum(
        dim=1
    )


def _best(space: Space, cosines: torch.Tensor, count: int) -> list[tuple[str, float]]:
    best = cosines.topk(min(count, len(cosines)))
    return [
        (space.members[row], float(value))
        for value, row in zip(best.values, best.indices, strict=True)
    ]


def difference(one: Factors, other: Factors) -> float:
    """|dW - dW'|^2 of two changes of one layer."""
    up, down = one.matrices(torch.float64)
    up_other, down_other = other.matrices(torch.float64)
    up = torch.cat([up, -up_other], dim=1)
    down = torch.cat([down, down_other])
    return float(((up.T @ up) * (down @ down.T)).sum())
