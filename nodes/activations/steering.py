"""Steer a model along directions in its activations while it samples.

Activation addition (arXiv 2308.10248) and difference of means (arXiv 2312.06681), at the IDs of
arXiv 2410.03558: ``h' = h + strength * mask * d`` at every position of the image, with ``|h'| =
|h|`` on demand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ..common import named_strengths
from ..common.atomic_write import atomic_write
from ..common.headers import Section
from ..common.network_call import Part, for_autograd
from ..common.safetensors_files import open_file, read_tensors
from .activation_edit import Edit, mask_at
from .activation_spec import ActivationSpec
from .activations import Activations
from .pca import check_finite, principal_components

FORMAT_VERSION = 1
_PROMPTS_MAX = 256
_FORMAT = "glassbox steering direction"


@dataclass(frozen=True)
class SteeringDirection:
    """A vector (C,) in float32 for each of one or several IDs, how it was computed, in words, and
    its name or "". Raises ValueError for NaN or infinity, which would make black images.
    """

    vectors: dict[str, torch.Tensor]
    source: str
    name: str = ""

    def __post_init__(self) -> None:
        for id_, vector in self.vectors.items():
            check_finite(id_, vector)

    def __str__(self) -> str:
        first, *_, last = (*self.vectors, *self.vectors)
        return (
            f"STEERING_DIRECTION: {self.name or self.source}\n{len(self.vectors)} IDs: {first} to "
            f"{last}"
        )

    def report(self) -> str:
        """One line per ID: channels and length."""
        lines = [
            f"{id_}  {len(vector)} channels, length {vector.norm():.4g}"
            for id_, vector in self.vectors.items()
        ]
        return "\n".join([self.source, *lines])


@dataclass(frozen=True, kw_only=True)
class SteeringSettings:
    """``strength`` times the direction is added; ``mask``: (M, H, W) in 0..1 or None."""

    strength: float
    preserve_norm: bool = False
    mask: torch.Tensor | None = None


def mean_difference(toward: Activations, away: Activations) -> SteeringDirection:
    """The mean of ``toward`` minus the mean of ``away``, over rows and positions; ValueError for
    other IDs.
    """
    first = toward.features
    second = away.features
    shapes = [
        {id_: value.shape[1] for id_, value in features.items()} for features in (first, second)
    ]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "toward and away hold different activations. Tap or record both with the same preset "
            "or IDs on the same model."
        )
    vectors = {
        id_: value.float().mean((0, 2, 3)) - second[id_].float().mean((0, 2, 3))
        for id_, value in first.items()
    }
    return SteeringDirection(vectors, "Difference of means")


def contrasted_prompts(toward: str, away: str) -> list[list[str]]:
    """The prompts of both kinds, one a line. Raises ValueError where a kind has none, and for too
    many.
    """
    prompts = [
        [line.strip() for line in text.splitlines() if line.strip()] for text in (toward, away)
    ]
    if not all(prompts) or sum(map(len, prompts)) > _PROMPTS_MAX:
        raise ValueError(
            f"Enter at least one prompt of each kind, one per line, and at most {_PROMPTS_MAX} in "
            "all."
        )
    return prompts


def contrast(
    toward: list[str],
    away: list[str],
    record: Callable[[str], Activations],
    watch: Callable[[Iterable], Iterator],
) -> dict[str, torch.Tensor]:
    """The vector (C,) of each ID from two sets of prompts: the mean over the one minus the mean
    over the other.

    ``record``: the activations of a prompt, of which the mean over rows and positions counts.
    ``watch`` is given the prompts to iterate over.
    """
    sums: list[dict[str, torch.Tensor]] = [{}, {}]
    for kind, prompt in watch(
        [(0, prompt) for prompt in toward] + [(1, prompt) for prompt in away]
    ):
        for id_, value in record(prompt).features.items():
            sums[kind][id_] = sums[kind].get(id_, 0) + value.mean((0, 2, 3))
    return {id_: sums[0][id_] / len(toward) - sums[1][id_] / len(away) for id_ in sums[0]}


def principal_direction(activations: Activations, component: int) -> SteeringDirection:
    """A principal component of each feature over rows and positions, from 0, times its standard
    deviation.
    """
    vectors = {}
    for id_, value in activations.features.items():
        mean, components = principal_components(value, component + 1)
        points = value.float().movedim(1, -1).flatten(0, -2) - mean
        vectors[id_] = components[component] * (points @ components[component]).std(correction=0)
    return SteeringDirection(vectors, f"Principal component {component}")


def mix(directions: Mapping[str, SteeringDirection], text: str) -> SteeringDirection:
    """The sum of strength times direction over directions by name, at every ID that one of them
    has.

    ``text`` holds names and strengths, ``beard: 0.8, glasses: -0.5``; those of one name add up, and
    a direction that it does not name has strength 0. ValueError for another name, or other channels
    at one ID.
    """
    strengths = dict.fromkeys(directions, 0.0)
    for written, strength in named_strengths.parse(text):
        name = named_strengths.matching_name(written, strengths)
        if name is None:
            raise ValueError(
                f"No direction is named {written!r}. The connected ones are "
                f"{', '.join(directions)}."
            )
        strengths[name] += strength
    vectors: dict[str, torch.Tensor] = {}
    for name, direction in directions.items():
        for id_, vector in direction.vectors.items():
            total = vectors.get(id_, torch.zeros_like(vector))
            if total.shape != vector.shape:
                raise ValueError(
                    f"The directions have different channels at {id_}. Connect directions of one "
                    "model."
                )
            vectors[id_] = total + strengths[name] * vector
    used = ", ".join(f"{name} {strength:+g}" for name, strength in strengths.items() if strength)
    return SteeringDirection(vectors, f"Sum of {used or 'no direction'}")


def steer(direction: SteeringDirection, settings: SteeringSettings) -> Edit:
    """The edit that adds a direction: ``h + strength * mask * d``, scaled to the length of ``h`` on
    demand.
    """

    def edit(spec: ActivationSpec, part: Part, feature: torch.Tensor, frames: int) -> torch.Tensor:
        vector = for_autograd(direction.vectors[spec.id].to(feature.device))
        delta = settings.strength * vector.view(1, -1, 1, 1)
        if settings.mask is not None:
            delta = delta * mask_at(settings.mask, feature, frames, part.area)
        steered = feature + delta
        if settings.preserve_norm:
            length = steered.norm(dim=1, keepdim=True).clamp_min(1e-12)
            steered = steered * (feature.norm(dim=1, keepdim=True) / length)
        return steered

    return edit


def write(direction: SteeringDirection, path: Path) -> None:
    """Write a direction as .safetensors: one vector per ID, whole or not at all."""
    from safetensors.torch import save_file

    header = {"ids": list(direction.vectors), "source": direction.source, "name": direction.name}
    metadata = {
        "format": _FORMAT,
        "format_version": str(FORMAT_VERSION),
        "direction": json.dumps(header),
    }
    with atomic_write(path) as temporary:
        save_file(
            {id_: vector.contiguous() for id_, vector in direction.vectors.items()},
            temporary,
            metadata,
        )


def read(path: Path) -> SteeringDirection:
    """Read what ``write`` wrote; raises ValueError for any other, damaged or newer file."""
    with open_file(path, "save the direction again") as file:
        metadata = Section(file.metadata() or {}, path.name)
        if metadata.get("format") != _FORMAT or metadata.get("format_version") != str(
            FORMAT_VERSION
        ):
            raise ValueError(
                f"{path.name} is not a steering direction of format version {FORMAT_VERSION}. Use "
                "a file of Save Steering Direction."
            )
        header = metadata.parsed("direction")
        vectors = read_tensors(file, path.name, header.texts("ids"))
        source = header.text("source", default="")
        name = header.text("name", default="")
    if not vectors or not all(
        vector.ndim == 1 and vector.dtype == torch.float32 and math.isfinite(float(vector.sum()))
        for vector in vectors.values()
    ):
        raise ValueError(
            f"{path.name} is damaged: its vectors are not one-dimensional, float32 and finite."
        )
    return SteeringDirection(vectors, source, name)
