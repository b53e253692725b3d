"""Guidance between weights: positive conditionings evaluated with several LoRAs of one MODEL and combined."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from comfy.patcher_extension import WrappersMP

from ..host import lora_targets
from ..host.evaluate import levels_of, sigmas_of
from ..host.hooks import RowRoles
from ..host.quantized import as_used
from . import lora_writer
from .identity_guidance import describe, guidance_terms
from .lora_intervals_comfy import Change, named_adapters
from .space import Point


@dataclass
class _Gate:
    """Whether the changes of one LoRA act in the evaluation under way."""

    on: bool = False

    def active(self) -> bool:
        return self.on


def guide(patcher, base: float, variants: Sequence[tuple[float, dict[str, torch.Tensor]]], end_percent: float = 1.0):
    """A clone of a MODEL whose positive conditionings predict a weighted sum over variants of the weights.

    D = base * D(model) + sum_i weight_i * D(model + LoRA_i); negative conditionings see the MODEL's own weights. The
    weights add up to 1; what has the weight 0 is not evaluated, and where only ``base`` is left the MODEL itself is
    returned. ``variants``: (weight, LoRA tensors by the keys of a LoRA file). Positive is every conditioning of the
    guider whose name holds no "negative": areas, timestep ranges, ControlNets and guiders with three conditionings
    work as without this. After ``end_percent`` of the noise levels the sum counts alone, as at cfg 1, and no negative
    conditioning is evaluated (guidance in a limited interval, arXiv 2404.07724). Raises ValueError when no key is of
    this model, for a MODEL that a custom loader has quantized, and at an end for two negative conditionings.
    """
    variants = [(weight, tensors) for weight, tensors in variants if weight]
    if not variants and end_percent >= 1:
        return patcher
    clone, key, gates = patcher.clone(), f"glassbox_guidance_{uuid.uuid4().hex}", []
    for _, tensors in variants:
        gate = _Gate()
        gates.append(gate)
        for target, adapter in named_adapters(patcher, tensors).items():
            name, part = (target, None) if isinstance(target, str) else (target[0], target[1])
            clone.add_weight_wrapper(name, as_used(patcher, name, Change(gate, adapter.weights, 1.0, part)))
    roles, (_, end) = RowRoles(clone, key, needs_positive=False), sigmas_of(patcher, 0.0, end_percent)

    def renamed(entries: list[dict], variant: int) -> list[dict]:
        """Entries under ids of their own: caches of stock nodes (EasyCache) distinguish conditionings by these."""
        return [{**entry, "uuid": uuid.uuid5(entry["uuid"], f"{key} {variant}")} for entry in entries]

    def calc_cond_batch(executor, model, conds, x_in, timestep, model_options):
        named = roles.of_groups(conds)
        positive = [role is not None and "negative" not in role for role in named]
        if end and sum(role is not None and "negative" in role for role in named) > 1:
            raise ValueError(
                "This guider has two negative prompts, and end_percent would leave out both: set it to 1, or use a "
                "guider with one."
            )
        alone = any(positive) and end and levels_of(timestep)[0] < end
        if alone:
            conds = [group if is_positive else None for group, is_positive in zip(conds, positive, strict=True)]
        own = [None if is_positive and not base else group for group, is_positive in zip(conds, positive, strict=True)]
        if any(own) or not any(positive):
            results = executor(model, own, x_in, timestep, model_options)
        else:
            results = [torch.zeros_like(x_in) for _ in conds]
        for row, is_positive in enumerate(positive):
            if is_positive:
                results[row] = results[row] * base
        for number, ((weight, _), gate) in enumerate(zip(variants, gates, strict=True)):
            groups = [
                renamed(group, number) if is_positive else None
                for group, is_positive in zip(conds, positive, strict=True)
            ]
            if not any(groups):
                continue
            before, gate.on = gate.on, True
            try:
                predicted = executor(model, groups, x_in, timestep, model_options)
            finally:
                gate.on = before
            for row, is_positive in enumerate(positive):
                if is_positive:
                    results[row] = results[row] + weight * predicted[row]
        if alone:  # sides that are equal leave nothing for a guider to amplify
            first = results[named.index("positive") if "positive" in named else positive.index(True)]
            results = [first.clone() for _ in results]
        return results

    clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, key, calc_cond_batch)
    return clone


def guided(
    model,
    point: Point,
    edited_point: Point | None,
    identity_strength: float,
    edit_strength: float,
    end_percent: float,
):
    """The MODEL with identity guidance, and a report."""
    base, terms = guidance_terms(point, edited_point, identity_strength, edit_strength)
    variants, remark = [], ""
    for weight, one in terms:
        fit = lora_targets.fit(model, one.layers(), one.space.stems)
        variants.append((weight, lora_writer.to_tensors(fit.layers, fit.stems)))
        remark = f" {fit.report('model')}"
    return guide(model, base, variants, end_percent), describe(base, terms, end_percent) + remark


def guider(patcher, positive: list, negative: list, cfg: float):
    """ComfyUI's CFG guider."""
    import comfy.samplers

    made = comfy.samplers.CFGGuider(patcher)
    made.set_conds(positive, negative)
    made.set_cfg(cfg)
    return made
