"""Steer a model along directions in its activations while it samples.

Activation addition (arXiv 2308.10248) and difference of means (arXiv 2312.06681), at the IDs of arXiv 2410.03558:
``h' = h + strength * mask * d`` at every position of the image, with ``|h'| = |h|`` on demand.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional as F

from ..common.atomic_write import atomic_write
from .activation_spec import ActivationSpec, Kind
from .activations import Activations
from .attention_capture import Receivers
from .pca import principal_components
from .select_ids import NoSuchActivationError
from .tap import CallLayout

FORMAT_VERSION = 1
_FORMAT = "glassbox steering direction"


@dataclass(frozen=True)
class SteeringDirection:
    """A vector (C,) in float32 for each of one or several IDs, and how it was computed, in words."""

    vectors: dict[str, torch.Tensor]
    source: str

    def report(self) -> str:
        """One line per ID: channels and length."""
        lines = [f"{id_}  {len(vector)} channels, length {vector.norm():.4g}" for id_, vector in self.vectors.items()]
        return "\n".join([self.source, *lines])


@dataclass(frozen=True)
class SteeringSettings:
    """``strength`` times the direction is added to rows of which conditioning; ``mask``: (M, H, W) in 0..1 or None."""

    strength: float
    conditional: bool = True
    unconditional: bool = False
    preserve_norm: bool = False
    mask: torch.Tensor | None = None


def mean_difference(toward: Activations, away: Activations) -> SteeringDirection:
    """The mean of ``toward`` minus the mean of ``away``, over rows and positions; ValueError for other IDs."""
    first, second = toward.features, away.features
    shapes = [{id_: value.shape[1] for id_, value in features.items()} for features in (first, second)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "toward and away hold different activations. Tap or record both with the same preset or IDs on the same "
            "model."
        )
    vectors = {id_: value.float().mean((0, 2, 3)) - second[id_].float().mean((0, 2, 3)) for id_, value in first.items()}
    return SteeringDirection(vectors, "Difference of means")


def principal_direction(activations: Activations, component: int) -> SteeringDirection:
    """A principal component of each feature over rows and positions, from 0, times its standard deviation."""
    vectors = {}
    for id_, value in activations.features.items():
        mean, components = principal_components(value, component + 1)
        points = value.float().movedim(1, -1).flatten(0, -2) - mean
        vectors[id_] = components[component] * (points @ components[component]).std(correction=0)
    return SteeringDirection(vectors, f"Principal component {component}")


def specs_of(direction: SteeringDirection, specs: list[ActivationSpec]) -> list[ActivationSpec]:
    """The specs of a network that a direction is for.

    Raises NoSuchActivationError when the network does not have an ID with these channels, ValueError for IDs whose
    tensors cannot be changed.
    """
    known = {spec.id: spec for spec in specs}
    for id_, vector in direction.vectors.items():
        if id_ not in known or known[id_].channels != len(vector):
            raise NoSuchActivationError(
                f"The direction has {len(vector)} channels at {id_}, which this model does not have. Use the model of "
                "the direction."
            )
        if known[id_].kind not in (Kind.SPATIAL, Kind.TOKENS) or known[id_].from_input:
            raise ValueError(f"{id_} can be read but not steered. Use the output of a module, such as *-out.")
    return [known[id_] for id_ in direction.vectors]


class CallSteering:
    """Receivers for one call of a network that add a direction to the outputs of modules.

    ``parts``: for each equal part of the call's rows whether its conditioning is the positive one, None for neither.
    """

    def __init__(
        self,
        specs: list[ActivationSpec],
        direction: SteeringDirection,
        settings: SteeringSettings,
        parts: tuple[bool | None, ...],
    ):
        self._specs, self._direction, self._settings, self._parts = specs, direction, settings, parts
        self._layout = CallLayout(specs)

    def receivers(self) -> tuple[Receivers, Receivers] | None:
        """Receivers of outputs, which return the steered output, and of first inputs; None when no row is steered."""
        if not any(map(self._steers, self._parts)):
            return None
        outputs, inputs = self._layout.receivers()
        return [*outputs, *((spec.module, partial(self._steer, spec)) for spec in self._specs)], inputs

    def _steers(self, part: bool | None) -> bool:
        return part is not None and (self._settings.conditional if part else self._settings.unconditional)

    def _steer(self, spec: ActivationSpec, output: torch.Tensor | tuple[torch.Tensor, ...]):
        tensor = (output[spec.item] if isinstance(output, tuple) else output).clone()
        for part, rows in zip(self._parts, tensor.chunk(len(self._parts)), strict=True):
            if self._steers(part):
                self._add(spec, rows)
        if isinstance(output, tuple):
            return (*output[: spec.item], tensor, *output[spec.item + 1 :])
        return tensor

    def _add(self, spec: ActivationSpec, rows: torch.Tensor) -> None:
        """Steer rows (B, C, H, W), or the image's tokens in (B, N, C'), in place."""
        if spec.kind == Kind.TOKENS:
            channels = slice(spec.begin, spec.begin + spec.channels)
            rows = rows[:, self._layout.token_slice(spec, rows.shape[1]), channels]
            size, dim, shape = self._layout.size(spec), 2, (1, 1, -1)
        else:
            size, dim, shape = tuple(rows.shape[-2:]), 1, (1, -1, 1, 1)
        delta = self._settings.strength * self._direction.vectors[spec.id].to(rows.device).view(shape)
        if self._settings.mask is not None:
            mask = F.interpolate(self._settings.mask.float()[:, None], size=size, mode="area").to(rows.device)
            mask = mask[torch.arange(len(rows)) % len(mask)]  # (B, 1, H, W)
            if spec.kind == Kind.TOKENS:
                mask = mask.flatten(2).transpose(1, 2).repeat(1, self._layout.frames, 1)
            delta = delta * mask
        before = rows.float()
        after = before + delta
        if self._settings.preserve_norm:
            after *= before.norm(dim=dim, keepdim=True) / after.norm(dim=dim, keepdim=True).clamp_min(1e-12)
        rows.copy_(after)


def write(direction: SteeringDirection, path: Path) -> None:
    """Write a direction as .safetensors: one vector per ID, whole or not at all."""
    from safetensors.torch import save_file

    header = {"ids": list(direction.vectors), "source": direction.source}
    metadata = {"format": _FORMAT, "format_version": str(FORMAT_VERSION), "direction": json.dumps(header)}
    with atomic_write(path) as temporary:
        save_file({id_: vector.contiguous() for id_, vector in direction.vectors.items()}, temporary, metadata)


def read(path: Path) -> SteeringDirection:
    """Read what ``write`` wrote; raises ValueError for any other, damaged or newer file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            known = metadata.get("format") == _FORMAT and metadata.get("format_version") == str(FORMAT_VERSION)
            header = json.loads(metadata["direction"]) if known else {}
            vectors = {id_: file.get_tensor(id_) for id_ in header["ids"]} if known else {}
            source = str(header.get("source", ""))
    except (SafetensorError, OSError, KeyError, TypeError, AttributeError, RecursionError, ValueError) as error:
        raise ValueError(f"{path.name} cannot be read ({str(error)[:200]}).") from None
    if not known:
        raise ValueError(
            f"{path.name} is no steering direction of format version {FORMAT_VERSION}. Use a file of Save Steering "
            "Direction."
        )
    if not vectors or not all(
        vector.ndim == 1 and vector.dtype == torch.float32 and math.isfinite(float(vector.sum()))
        for vector in vectors.values()
    ):
        raise ValueError(f"{path.name} is damaged: its vectors are not one-dimensional, float32 and finite.")
    return SteeringDirection(vectors, source)
