"""Metadata that changes while a MODEL samples: encoded again at every step, or moved inside the
network.

All schedules on a MODEL act together: those of mode "value" change the numbers first, those of mode
"embedding" start from there, in whatever order they were put on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import comfy.conds
import torch
from comfy.patcher_extension import WrappersMP

from ..host.evaluate import evaluating, levels_of
from . import metadata_schedule, noise_rescale_comfy, size_metadata_comfy

if TYPE_CHECKING:
    from ..host.socket_types import BaseModel, ModelPatcher, WrapperExecutor

_KEY = "glassbox_metadata"

#: The metadata of each image of a batch; one for all where they are at the same noise level.
Rows = list[Mapping[str, float]]


class Schedule(Protocol):
    """What decides how much of the metadata is passed at a fraction u of noise."""

    @property
    def mode(self) -> str:
        """Where it acts: on the numbers or on the embedding."""

    def weight(self, u: float) -> float:
        """gamma(u); 1 leaves everything as it is."""

    def applies(self, prompt: str, explicit: Collection[str]) -> bool:
        """Whether conditioning in a role ("positive", "negative", ...) that sets the fields
        ``explicit`` is gated.
        """

    def gated(
        self,
        values: Mapping[str, float],
        canvas: tuple[int, int],
        weight: float,
        implicit: Collection[str],
    ) -> dict[str, float]:
        """The metadata at a weight; weight 0 is the reference. ``implicit`` fields follow the
        original size.
        """


@dataclass(frozen=True)
class _Gates:
    """The schedules on a MODEL: those that change the numbers, and those that move the network's
    embedding.
    """

    outside: tuple[Schedule, ...] = ()
    inside: tuple[Schedule, ...] = ()


def gated(patcher: ModelPatcher, schedule: Schedule, inside: bool) -> ModelPatcher:
    """A clone of a MODEL whose metadata follows a schedule, and those that are on it already.

    ``inside`` False: encoded again at each evaluation, ControlNets included. True: the network's
    metadata embedding moves from the requested to the reference one, emb += (1 - gamma)
    (E(reference) - E(requested)); ControlNets see the requested values. Raises ValueError when the
    model takes no metadata, or has no such embedding (PixArt, HunyuanDiT) for ``inside``.
    """
    layout = size_metadata_comfy.layout_of(patcher)
    if inside and not hasattr(patcher.model.diffusion_model, "label_emb"):
        raise ValueError(
            f"{layout.model} has no embedding that mode 'embedding' could move: choose mode "
            "'value'."
        )
    before = patcher.get_attachment(_KEY) or _Gates()
    added = ((), (schedule,)) if inside else ((schedule,), ())
    gates = _Gates(before.outside + added[0], before.inside + added[1])
    clone = patcher.clone()
    size_metadata_comfy.annotate(clone)
    clone.set_attachments(_KEY, gates)
    _wrap(clone, WrappersMP.CALC_COND_BATCH, _gating(layout, gates))
    if gates.inside:
        _wrap(clone, WrappersMP.DIFFUSION_MODEL, _moving_embedding)
    return clone


def schedules_of(patcher: ModelPatcher) -> tuple[Any, ...]:
    """The schedules on a MODEL, in the order in which they act."""
    gates = patcher.get_attachment(_KEY) or _Gates()
    return gates.outside + gates.inside


def _wrap(patcher: ModelPatcher, kind: str, wrapper: Callable) -> None:
    """One wrapper for all schedules, in place of the one for those before."""
    patcher.remove_wrappers_with_key(kind, _KEY)
    patcher.add_wrapper_with_key(kind, _KEY, wrapper)


def _gating(layout: size_metadata_comfy.Layout, gates: _Gates) -> Callable:
    choices = _choices(gates.inside)

    def wrapper(
        executor: WrapperExecutor,
        model: BaseModel,
        conds: list,
        x_in: torch.Tensor,
        timestep: torch.Tensor,
        model_options: dict,
    ) -> Any:
        fractions = _noise_fractions(model, timestep)
        outside, inside = (
            [[s.weight(u) for s in group] for u in fractions]
            for group in (gates.outside, gates.inside)
        )
        moving = any(weight != 1 for weights in inside for weight in weights)

        def encode_again(encoded: dict) -> dict:
            stock = encoded[layout.key]
            rows = [_metadata(stock, gates.outside, weights) for weights in outside]
            changed = {**encoded, layout.key: _encoded(layout, model, stock, rows)}
            for name, closed in choices.items() if moving else ():
                shut = list(itertools.compress(gates.inside, closed))
                references = [_metadata(stock, shut, [0.0] * len(shut), values) for values in rows]
                changed[name] = _encoded(layout, model, stock, references)
            return changed

        if moving:
            weights = {
                name: [metadata_schedule.choice_weight(closed, gammas) for gammas in inside]
                for name, closed in choices.items()
            }
            options = {**model_options.get("transformer_options", {}), _KEY: weights}
            model_options = {**model_options, "transformer_options": options}
        if moving or any(weight != 1 for weights in outside for weight in weights):
            conds = [
                group
                and [
                    {**entry, "model_conds": encode_again(entry["model_conds"])} for entry in group
                ]
                for group in conds
            ]
        return executor(model, conds, x_in, timestep, model_options)

    def evaluate(
        executor: WrapperExecutor,
        model: BaseModel,
        conds: list,
        x_in: torch.Tensor,
        timestep: torch.Tensor,
        model_options: dict,
    ) -> Any:
        with evaluating(timestep):
            return wrapper(
                executor,
                model,
                conds=conds,
                x_in=x_in,
                timestep=timestep,
                model_options=model_options,
            )

    return evaluate


def _choices(schedules: Sequence[Schedule]) -> dict[str, tuple[bool, ...]]:
    """The 2^n - 1 combinations of closed gates of n schedules, without the one in which all are
    open: which gates are closed, by the name under which the combination's reference is sent.

    Every conditioning is sent all of them, gated or not, so that all still fit into one batch.
    """
    every = itertools.product((False, True), repeat=len(schedules))
    return {f"{_KEY}_{number}": closed for number, closed in enumerate(every) if any(closed)}


def _moving_embedding(
    executor: WrapperExecutor,
    x: torch.Tensor,
    timesteps: torch.Tensor | None = None,
    context: torch.Tensor | None = None,
    y: torch.Tensor | None = None,
    control: dict | None = None,
    transformer_options: dict | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    options = transformer_options or {}
    network = executor.class_obj
    shift = None
    for name, weights in options.get(_KEY, {}).items():
        reference = kwargs.pop(name, None)
        if reference is not None:
            assert y is not None  # a network with references reads metadata
            part = _by_row(weights, y) * (network.label_emb(reference) - network.label_emb(y))
            shift = part if shift is None else shift + part
    if shift is not None:
        patches = options.get("patches", {})
        moved = [
            *patches.get("emb_patch", ()),
            lambda emb, _channels, _options: emb + shift.to(emb),
        ]
        options = {**options, "patches": {**patches, "emb_patch": moved}}
    return executor(x, timesteps, context, y, control, options, **kwargs)


def _by_row(weights: Sequence[float], y: torch.Tensor) -> float | torch.Tensor:
    """One number, or a column (rows, 1): ComfyUI repeats the images of a batch for every
    conditioning.
    """
    if len(weights) == 1:
        return weights[0]
    return torch.tensor(weights, device=y.device, dtype=y.dtype).repeat(len(y) // len(weights))[
        :, None
    ]


def _metadata(
    stock: torch.Tensor,
    schedules: Sequence[Schedule],
    weights: Sequence[float],
    values: Mapping | None = None,
) -> Mapping:
    """The metadata of a conditioning after some schedules, starting from ``values`` or from its
    own.
    """
    metadata = getattr(stock, "size_metadata", None)
    if metadata is None:
        return {}
    values = metadata.values if values is None else values
    for schedule, weight in zip(schedules, weights, strict=True):
        if schedule.applies(metadata.prompt, metadata.explicit):
            values = schedule.gated(values, metadata.canvas, weight, metadata.implicit)
    return values


def _encoded(
    layout: size_metadata_comfy.Layout,
    model: BaseModel,
    stock: comfy.conds.CONDRegular,
    rows: Rows,
) -> comfy.conds.CONDRegular:
    """The encoded metadata of a conditioning with other values; itself where they are its own."""
    metadata: Any = getattr(stock, "size_metadata", None)
    changed = [
        frozenset(name for name, value in values.items() if value != metadata.values[name])
        for values in rows
    ]
    if not any(changed):
        return stock
    images = [
        stock.cond if len(rows) == 1 else stock.cond[[index % len(stock.cond)]]
        for index in range(len(rows))
    ]
    return comfy.conds.CONDRegular(
        torch.cat(
            [
                layout.encode(model, image, values, fields)
                for image, values, fields in zip(images, rows, changed, strict=True)
            ]
        )
    )


def _noise_fractions(model: BaseModel, timestep: torch.Tensor) -> list[float]:
    """The fraction u of noise of each image (training mixes noise levels in a batch); one where all
    are alike.
    """
    sigmas = levels_of(timestep)
    sigmas = sigmas[:1] if len(set(sigmas)) == 1 else sigmas
    return [noise_rescale_comfy.noise_fraction(model.model_sampling, sigma) for sigma in sigmas]
