"""Guidance between weights: positive conditionings evaluated with several LoRAs of one MODEL and
combined.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from comfy.patcher_extension import WrappersMP
from comfy.weight_adapter.lora import LoRAAdapter

from ..common.network_call import Call
from ..host import lora_targets
from ..host.evaluate import levels_of, sigmas_of
from ..host.hooks import RowRoles, evaluates_layers, hook_calls, is_compiled
from .identity_guidance import describe, guidance_terms
from .lora_intervals_comfy import adapters
from .row_changes_comfy import RowChanges, SeparateCallsNeeded
from .space import Point

if TYPE_CHECKING:
    from ..host.socket_types import BaseModel, ModelPatcher, WrapperExecutor

#: What in a conditioning, in a MODEL's options, or among its transformer options makes rows that
#: stand for themselves.
_ENTRY_EXTRAS = ("control", "gligen", "hooks")
_OPTION_EXTRAS = ("model_function_wrapper", "context_handler")
_TRANSFORMER_EXTRAS = ("patches", "patches_replace", "optimized_attention_override")


@dataclass(kw_only=True)
class _Acting:
    """What acts in the evaluation under way, and what is known of the run; no part of what the
    guidance is.
    """

    changes: RowChanges | None = field(default=None, compare=False)
    both_sides: bool = field(default=False, compare=False)  # of CFG are rows of one call
    compiled: bool = field(default=False, compare=False)
    separate: bool = field(default=False, compare=False)  # a call has shown that it must be

    @contextmanager
    def on(self, changes: RowChanges, *, both_sides: bool) -> Iterator[None]:
        """The changes act while the block runs."""
        before = self.changes, self.both_sides
        self.changes = changes
        self.both_sides = both_sides
        try:
            yield
        finally:
            self.changes, self.both_sides = before

    def calling(self, call: Call) -> Callable[[], AbstractContextManager] | None:
        """For ``hook_calls``: the layers of one call, changed in the rows of positive
        conditionings.
        """
        if self.changes is None:
            return None
        positive = [_is_positive(part.role) for part in call.parts]
        if not self.both_sides or all(positive):
            return self.changes.of_all_rows
        if not any(positive):
            return None
        rows = []
        for part in call.parts:
            if not _is_positive(part.role):
                continue
            if part.rows is None:
                raise SeparateCallsNeeded(self.changes)
            rows.append(part.rows)
        if len(rows) == 1:
            return partial(self.changes.of_rows, rows[0], call.rows)
        numbers = torch.arange(call.rows)
        places = torch.cat([numbers[part_rows] for part_rows in rows])
        return partial(self.changes.of_rows, places, call.rows)


def guide(
    patcher: ModelPatcher,
    base: float,
    variants: Sequence[tuple[float, Mapping[str | tuple, LoRAAdapter]]],
    end_percent: float = 1.0,
) -> ModelPatcher:
    """A clone of a MODEL whose positive conditionings predict a weighted sum over variants of the
    weights.

    D = base * D(model) + sum_i weight_i * D(model + LoRA_i); negative conditionings see the MODEL's
    own weights. The weights add up to 1; what has the weight 0 is not evaluated, and where only
    ``base`` is left the MODEL itself is returned. ``variants``: (weight, adapters by the keys of
    patches). Positive is every conditioning of the guider whose name holds no "negative": areas,
    timestep ranges, ControlNets and guiders with three conditionings work as without this. After
    ``end_percent`` of the noise levels negative conditionings predict the same sum, so that CFG
    amplifies the prompt alone (guidance in a limited interval, arXiv 2404.07724). Raises ValueError
    for a MODEL that a custom loader has quantized.

    Where ``base`` is 0 the first variant and the negative conditionings are rows of one call, as in
    plain CFG. They are calls of their own where rows stand for themselves: with ControlNets,
    patches of other packs, layers that other nodes evaluate, gradients, and changes of so high a
    rank that a call of their own costs less.
    """
    variants = [(weight, changes) for weight, changes in variants if weight]
    if not variants:
        return patcher
    acting = _Acting()
    clone = hook_calls(patcher, acting.calling, needs_positive=False, with_compiled=True)
    terms = [(weight, RowChanges(changes, patcher)) for weight, changes in variants]
    key = f"glassbox_guidance_{uuid.uuid4().hex}"
    _, end = sigmas_of(patcher, 0.0, end_percent)

    def run(executor: WrapperExecutor, *args: Any, **kwargs: Any) -> Any:
        acting.compiled = is_compiled(executor.class_obj.model_patcher)
        try:
            return executor(*args, **kwargs)
        finally:
            for _, changes in terms:
                changes.release()

    def renamed(entries: list[dict], variant: int) -> list[dict]:
        """Entries under ids of their own: caches of stock nodes (EasyCache) distinguish
        conditionings by these.
        """
        return [
            {**entry, "uuid": uuid.uuid5(entry["uuid"], f"{key} {variant}")} for entry in entries
        ]

    def calc_cond_batch(
        executor: WrapperExecutor,
        model: BaseModel,
        conds: list,
        x_in: torch.Tensor,
        timestep: torch.Tensor,
        model_options: dict,
    ) -> list:
        positive = [_is_positive(role) for role in RowRoles.of_groups(conds)]
        after = bool(end) and any(positive) and levels_of(timestep)[0] < end
        changed = [True] * len(conds) if after else positive
        rest = terms
        unchanged = [bool(group) and not side for group, side in zip(conds, changed, strict=True)]
        results = None
        if not base and any(changed) and any(unchanged):
            first = terms[0][1]
            if _rows_are_the_call(conds, model_options, acting) and first.can_change_rows:
                try:
                    with acting.on(first, both_sides=True):
                        results = executor(model, conds, x_in, timestep, model_options)
                except SeparateCallsNeeded as reason:
                    if reason.changes is not first:
                        raise
                    acting.separate = True
        if results is not None:
            rest = terms[1:]
            _multiply(results, changed, terms[0][0])
        elif base or any(unchanged) or not any(changed):
            left = [
                group if base or not side else None
                for group, side in zip(conds, changed, strict=True)
            ]
            results = executor(model, left, x_in, timestep, model_options)
            _multiply(results, changed, base)
        else:
            results = [torch.zeros_like(x_in) for _ in conds]
        for number, (weight, changes) in enumerate(rest, len(terms) - len(rest)):
            groups = [
                renamed(group, number) if group and side else None
                for group, side in zip(conds, changed, strict=True)
            ]
            if not any(groups):
                continue
            with acting.on(changes, both_sides=False):
                predicted = executor(model, groups, x_in, timestep, model_options)
            for row, side in enumerate(changed):
                if side:
                    results[row] = results[row] + weight * predicted[row]
        return results

    clone.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, key, run)
    clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, key, calc_cond_batch)
    return clone


def _is_positive(role: str | None) -> bool:
    return role is not None and "negative" not in role


def _multiply(results: list[torch.Tensor], chosen: Sequence[bool], factor: float) -> None:
    for row, is_chosen in enumerate(chosen):
        if is_chosen:
            results[row] = results[row] * factor


def _rows_are_the_call(conds: list, model_options: dict, acting: _Acting) -> bool:
    """Whether inside the network every tensor has the rows of the call, as far as can be known
    before it.
    """
    if acting.separate or acting.compiled or torch.is_grad_enabled():
        return False
    transformer_options = model_options.get("transformer_options", {})
    extras = [model_options.get(name) for name in _OPTION_EXTRAS]
    extras += [transformer_options.get(name) for name in _TRANSFORMER_EXTRAS]
    extras += [
        entry.get(name) for group in conds for entry in group or () for name in _ENTRY_EXTRAS
    ]
    return not any(extras) and not evaluates_layers(model_options)


def guided(
    model: ModelPatcher,
    point: Point,
    edited_point: Point | None,
    identity_strength: float,
    edit_strength: float,
    end_percent: float,
) -> tuple[ModelPatcher, str]:
    """The MODEL with identity guidance, and a report."""
    base, terms = guidance_terms(point, edited_point, identity_strength, edit_strength)
    variants = []
    remark = ""
    for weight, one in terms:
        fit = lora_targets.fit(model, one.space.layout.matrix_sizes, one.space.stems, in_use=True)
        variants.append((weight, adapters(one.lazy_layers(), fit.targets)))
        remark = f" {fit.report('model')}"
    return guide(model, base, variants, end_percent), describe(base, terms, end_percent) + remark


def guider(patcher: ModelPatcher, positive: list, negative: list, cfg: float) -> Any:
    """ComfyUI's CFG guider."""
    import comfy.samplers

    made = comfy.samplers.CFGGuider(patcher)
    made.set_conds(positive, negative)
    made.set_cfg(cfg)
    return made
