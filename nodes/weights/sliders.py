"""What a slider for each direction of a space needs, as plain data for the canvas."""

from __future__ import annotations

import torch

from .space import Space


def outline(space: Space) -> dict:
    """The space's name, its directions with their ranges, the labels that directions can be fitted to, and how many
    ``components`` there are to move along, PC 1 to PC n.

    ``low`` and ``high`` are the members' extreme projections in units of the largest one, which is a strength of 1;
    ``raw`` is that strength in units of the vector as it was fitted.
    """
    directions = [{"name": name, **_range(space, one.vector, one.reach)} for name, one in space.directions.items()]
    return {"name": space.name, "directions": directions, "labels": list(space.labels), "components": space.known}


def _range(space: Space, vector: torch.Tensor, reach: float) -> dict[str, float]:
    norm = float(vector.norm())
    if not norm or not reach:
        return {"low": -1.0, "high": 1.0, "raw": 1.0}
    projections = space.coefficients @ (vector / norm)[: space.known] / reach
    return {"low": float(projections.min().clamp(max=0.0)), "high": 1.0, "raw": reach / norm}
