"""Low-rank changes of a MODEL's layers for one call of the network: for all of its rows, or for
some of them.

For all rows the weights change as they are used. For some rows the change is added to what the
layers put out there, x (W + B A)^T = x W^T + (x A^T) B^T, so that both sides of CFG are rows of one
call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from comfy.weight_adapter.lora import LoRAAdapter
from torch import nn

from ..host.quantized import WeightFunction, as_used
from ..host.training.layer_weights import added_output, is_addable
from .lora_intervals_comfy import Change

#: Above this fraction of the network's products, changes of single rows cost more than a call of
#: their own.
_MOST_ADDED = 0.2


_NOT_OF_COMFYUI = (
    "This MODEL has a layer that is none of ComfyUI's ({}), whose weight cannot change while it "
    "is used: apply the point with W2W Apply."
)


class SeparateCallsNeeded(Exception):  # noqa: N818, no error
    """Which rows of a layer belong to which prompt is not known; ``changes``: whose."""

    def __init__(self, changes: RowChanges):
        super().__init__()
        self.changes = changes


@dataclass(frozen=True, kw_only=True)
class LayerChange:
    """A change of one layer's weight, or of a ``part`` of it as (dimension, first, length).

    ``up`` (out, rank), ``down`` (rank, in, ...); ``function`` changes the weight as it is used.
    """

    layer: Any
    kind: str
    up: torch.Tensor
    down: torch.Tensor
    scale: float
    part: tuple[int, int, int] | None
    function: WeightFunction
    _cast: dict[tuple[torch.device, torch.dtype], tuple] = field(default_factory=dict)

    def add(self, x: torch.Tensor, output: torch.Tensor, rows: slice | torch.Tensor) -> None:
        """Add the change to some rows of what the layer puts out for inputs ``x``, in place."""
        inputs = x[rows]
        axis = 1 if isinstance(self.layer, nn.modules.conv._ConvNd) else -1
        target = output
        if self.part is not None:
            dimension, first, length = self.part
            if dimension == 0:
                target = output.narrow(axis, first, length)
            else:
                inputs = inputs.narrow(axis, first, length)
        down, up = self._factors_like(x)
        added = added_output(self.layer, inputs, down, up)
        if isinstance(rows, slice):
            target[rows].add_(added, alpha=self.scale)
        else:
            target.index_add_(0, rows.to(output.device), added, alpha=self.scale)

    def _factors_like(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        key = x.device, x.dtype
        if key not in self._cast:
            self._cast[key] = self.down.to(x), self.up.to(x)
        return self._cast[key]


@dataclass(eq=False)
class RowChanges:
    """Adapters by the keys of ComfyUI's patches, as changes of a MODEL's layers.

    Their tensors are made at the first call and dropped by ``release``. Raises ValueError for a
    MODEL that a custom loader has quantized.
    """

    adapters: Mapping[str | tuple, LoRAAdapter]
    patcher: Any = field(compare=False)  # no part of what the changes are

    def __post_init__(self):
        for key in self.adapters:
            as_used(self.patcher, key if isinstance(key, str) else key[0], _unchanged)

    def release(self) -> None:
        """Free the memory of the factors."""
        vars(self).pop("layers", None)

    @cached_property
    def layers(self) -> list[LayerChange]:
        """The changes, with their factors where the MODEL computes."""
        changes = []
        for key, adapter in self.adapters.items():
            name, part = (key, None) if isinstance(key, str) else (key[0], key[1])
            path, _, kind = name.rpartition(".")
            weights = adapter.weights
            up, down, alpha = weights[:3]
            function = as_used(self.patcher, name, Change(_Always(), weights, 1.0, part))
            function.move_to(device=self.patcher.load_device)  # type: ignore[attr-defined]
            change = LayerChange(
                layer=self.patcher.model.get_submodule(path),
                kind=kind,
                up=up,
                down=down,
                scale=1.0 if alpha is None else alpha / len(down),
                part=part,
                function=function,
            )
            changes.append(change)
        return changes

    @cached_property
    def can_change_rows(self) -> bool:
        """Whether all layers can be changed in some rows alone, for less than a call of its own
        costs.
        """
        network = self.patcher.model.diffusion_model
        products = sum(weight.numel() for weight in network.parameters() if weight.ndim > 1)
        added = sum(
            len(change.down) * (len(change.up) + math.prod(change.down.shape[1:]))
            for change in self.layers
        )
        return added <= _MOST_ADDED * products and all(
            is_addable(change.layer) and change.kind == "weight" for change in self.layers
        )

    @contextmanager
    def of_all_rows(self) -> Iterator[None]:
        """The weights are changed as they are used while the block runs."""
        with _attributes_put_back() as replaced:
            for change in self.layers:
                name = f"{change.kind}_function"
                functions = getattr(change.layer, name, None)
                if functions is None:
                    raise ValueError(_NOT_OF_COMFYUI.format(change.layer))
                replaced.append((change.layer, name, vars(change.layer).get(name)))
                setattr(change.layer, name, [*functions, change.function])
            yield

    @contextmanager
    def of_rows(self, rows: slice | torch.Tensor, count: int) -> Iterator[None]:
        """The outputs of the layers are changed in ``rows`` of a call of ``count`` rows while the
        block runs.

        Not by hooks: what another node does to a layer's output comes after the change of its
        weight. Raises SeparateCallsNeeded from within when a layer is evaluated on other rows, or a
        second time.
        """
        with _attributes_put_back() as replaced:
            for change in self.layers:
                replaced.append((change.layer, "forward", vars(change.layer).get("forward")))
                change.layer.forward = self._changed(change, change.layer.forward, rows, count)
            yield

    def _changed(
        self, change: LayerChange, forward: Callable, rows: slice | torch.Tensor, count: int
    ) -> Callable:
        evaluated = False

        def changed(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            nonlocal evaluated
            if evaluated or len(x) != count:
                raise SeparateCallsNeeded(self)
            evaluated = True
            output = forward(x, *args, **kwargs)
            change.add(x, output, rows)
            return output

        return changed


class _Always:
    def active(self) -> bool:
        return True


def _unchanged(weight: torch.Tensor) -> torch.Tensor:
    return weight


@contextmanager
def _attributes_put_back() -> Iterator[list[tuple[Any, str, Any]]]:
    """A list of (module, attribute, value) that the block fills: the modules get these values back
    at its end.

    A value of None stands for a module that had no such attribute of its own.
    """
    replaced: list[tuple[Any, str, Any]] = []
    try:
        yield replaced
    finally:
        for module, name, value in reversed(replaced):
            if value is None:
                vars(module).pop(name, None)  # absent where an error came before it was set
            else:
                setattr(module, name, value)
