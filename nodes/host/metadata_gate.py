"""Metadata that changes while a MODEL samples: encoded anew at every step, or moved inside the network."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Protocol

import comfy.conds
from comfy.patcher_extension import WrappersMP

from . import metadata, sampling

_SCHEDULES = "glassbox_metadata_schedules"


class Schedule(Protocol):
    """What decides how much of the metadata is told at a share u of noise."""

    mode: str

    def weight(self, u: float) -> float:
        """gamma(u); 1 leaves everything as it is."""

    def applies(self, prompt: str) -> bool:
        """Whether conditioning in a role ("positive", "negative", ...) is gated."""

    def told(self, values: Mapping[str, float], canvas: tuple[int, int], weight: float) -> dict[str, float]:
        """The metadata at a weight; weight 0 is the reference."""


def gated(patcher, schedule: Schedule, inside: bool):
    """A clone of a MODEL whose metadata follows a schedule.

    ``inside`` False: told anew at each evaluation, ControlNets included. True: the network's metadata embedding moves
    from the told to the reference one, emb += (1 - gamma) (E(reference) - E(told)); ControlNets see what was told.
    Raises ValueError when the model takes no metadata, or has no such embedding (PixArt, HunyuanDiT) for ``inside``.
    """
    layout = metadata.layout_of(patcher)
    if inside and not hasattr(patcher.model.diffusion_model, "label_emb"):
        raise ValueError(f"{layout.model} has no embedding that mode 'embedding' could move: choose mode 'value'.")
    clone, key = patcher.clone(), f"glassbox_metadata_{uuid.uuid4().hex}"
    metadata.annotate(clone)
    if inside:
        clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, key, _with_reference(layout, schedule, key))
        clone.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, key, _moving_embedding(key))
    else:
        clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, key, _telling_anew(layout, schedule))
    clone.set_attachments(_SCHEDULES, (*schedules_of(patcher), schedule))
    return clone


def schedules_of(patcher) -> tuple[Schedule, ...]:
    """The schedules on a MODEL, in the order in which they were put there."""
    return patcher.get_attachment(_SCHEDULES) or ()


def _telling_anew(layout: metadata.Layout, schedule: Schedule):
    def wrapper(executor, model, conds, x_in, timestep, model_options):
        weight = schedule.weight(_fraction(model, timestep))

        def anew(stock: metadata.ToldCond):
            return _encoded(layout, model, stock, schedule, weight)

        if weight != 1:
            conds = _changed(conds, lambda encoded: _told_anew(encoded, layout.key, anew))
        return executor(model, conds, x_in, timestep, model_options)

    return wrapper


def _told_anew(encoded: dict, key: str, anew: Callable) -> dict:
    return {**encoded, key: anew(encoded[key])}


def _with_reference(layout: metadata.Layout, schedule: Schedule, key: str):
    """Send the reference's encoded metadata along, for every conditioning, so that all still fit into one batch."""

    def wrapper(executor, model, conds, x_in, timestep, model_options):
        weight = schedule.weight(_fraction(model, timestep))
        if weight != 1:
            options = {**model_options.get("transformer_options", {}), key: weight}
            model_options = {**model_options, "transformer_options": options}
            conds = _changed(conds, lambda encoded: {
                **encoded,
                key: comfy.conds.CONDRegular(_encoded(layout, model, encoded[layout.key], schedule, 0.0).cond),
            })  # fmt: skip
        return executor(model, conds, x_in, timestep, model_options)

    return wrapper


def _moving_embedding(key: str):
    def wrapper(executor, x, timesteps=None, context=None, y=None, control=None, transformer_options=None, **kwargs):
        reference, options = kwargs.pop(key, None), transformer_options or {}
        if reference is not None:
            network = executor.class_obj
            shift = (1 - options[key]) * (network.label_emb(reference) - network.label_emb(y))
            patches = options.get("patches", {})
            moved = [*patches.get("emb_patch", ()), lambda emb, _channels, _options: emb + shift.to(emb)]
            options = {**options, "patches": {**patches, "emb_patch": moved}}
        return executor(x, timesteps, context, y, control, options, **kwargs)

    return wrapper


def _encoded(layout, model, stock: metadata.ToldCond, schedule: Schedule, weight: float) -> comfy.conds.CONDRegular:
    told = getattr(stock, "told", None)
    if told is None or not schedule.applies(told.prompt):
        return stock
    values = schedule.told(told.values, told.canvas, weight)
    changed = frozenset(name for name, value in values.items() if value != told.values[name])
    if not changed:
        return stock
    return metadata.ToldCond(layout.encode(model, stock.cond, values, changed),
                             metadata.Told(values, told.canvas, told.prompt))  # fmt: skip


def _changed(conds, change: Callable[[dict], dict]):
    """The conditionings of a call with their encoded tensors changed, where there are any."""
    return [
        group and [{**entry, "model_conds": change(entry["model_conds"])} for entry in group] for group in conds
    ]


def _fraction(model, timestep) -> float:
    return sampling.noise_fraction(model.model_sampling, float(timestep.flatten()[0]))
