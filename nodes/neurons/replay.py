"""Spare a network that is evaluated again and again what cannot have changed since the last
evaluation.

Where only the neurons of one layer differ, whatever runs before that layer puts out what it did:
its outputs are kept and handed out again. For searches that scale neurons of few layers, such as
NeMo's refinement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..common.network_call import evaluated_again


class Replay:
    """The outputs of a network's stages in the last evaluation of all rows, up to the last scaled
    layer.

    Stages are the blocks that the network runs one after the other. A replay is bit for bit the
    evaluation that it stands for, as long as no stage, and nothing between stages, depends on
    anything but its inputs; the first one is to be compared with a whole evaluation, and
    ``trusted`` is False where that failed.
    """

    def __init__(self, network: nn.Module):
        self._stages = dict(_stages(network, ""))
        self.trusted: bool | None = None  # None: not compared yet
        self.forget()

    def forget(self) -> None:
        """Free what is kept."""
        self._noise = torch.empty(0)
        self._factors: Mapping[str, torch.Tensor] = {}
        self._kept: dict[
            str, Any
        ] = {}  # in the order of the calls; None for what is no tensors of the rows

    def unchanged(self, noise: torch.Tensor, factors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """The outputs, by stage, that noise (rows, C, H, W) with factors has in common with the
        last evaluation.

        Of a single row or a few of the last evaluation's the outputs are the same but for rounding,
        and only handed out where replays are trusted.
        """
        rows = [
            next((at for at, one in enumerate(self._noise) if torch.equal(one, row)), None)
            for row in noise
        ]
        whole = rows == list(range(len(self._noise)))
        if self.trusted is False or None in rows or not (whole or self.trusted):
            return {}
        paths = [
            path for path in {**factors, **self._factors} if not self._same(path, factors, rows)
        ]
        changed = {self._stage(path) for path in paths}
        found = {}
        for stage, output in self._kept.items():
            if stage in changed:
                break
            if output is not None:
                found[stage] = output if whole else _each(lambda part: part[rows], output)
        return found

    @contextmanager
    def running(
        self, noise: torch.Tensor, factors: Mapping[str, torch.Tensor], replayed: Mapping[str, Any]
    ) -> Iterator[None]:
        """Hand out ``replayed`` while the network runs, and keep the outputs of all rows that it
        computes.
        """
        partial = len(noise) < len(self._noise)
        waiting = {self._stage(path) for path in factors}
        called = set()
        kept = {}

        def forward(stage: str, original: Callable) -> Callable:
            def run(*args: Any, **kwargs: Any) -> Any:
                if evaluated_again() is not None:  # none of the network's own calls
                    return original(*args, **kwargs)
                if stage in called:  # a prompt in several parts calls the network for each
                    self.trusted = False
                called.add(stage)
                waiting.discard(stage)
                if stage in replayed:
                    kept[stage] = replayed[stage]
                    return _each(torch.clone, replayed[stage])
                output = original(*args, **kwargs)
                if waiting:  # a copy, since what follows may change it in place, as in Flux
                    kept[stage] = (
                        _each(torch.clone, output) if _has_rows(output, len(noise)) else None
                    )
                return output

            return run

        before: dict[str, Any] = {
            stage: one.__dict__.get("forward") for stage, one in self._stages.items()
        }
        try:
            for stage, module in self._stages.items():
                module.forward = forward(stage, module.forward)
            yield
        finally:
            for stage, module in self._stages.items():
                if before[stage] is None:
                    del module.forward
                else:
                    module.forward = before[stage]
        if self.trusted is False:
            self.forget()
        elif not partial and any(output is not None for output in kept.values()):
            self._noise = noise
            self._factors = dict(factors)
            self._kept = kept

    def _same(self, path: str, factors: Mapping[str, torch.Tensor], rows: list) -> bool:
        """Whether the rows have the factors that they had; a layer without factors has none that
        differ from 1.
        """
        now = factors.get(path)
        then = self._factors.get(path)
        if now is None or then is None:
            return False
        return torch.equal(now, then if then.ndim == 1 else then[rows])

    def _stage(self, path: str) -> str:
        return next(stage for stage in self._stages if f"{path}.".startswith(f"{stage}."))


def _stages(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        inner = f"{path}.{name}".lstrip(".")
        if isinstance(child, nn.ModuleList | nn.Sequential):
            yield from _stages(child, inner)
        else:
            yield inner, child


def _has_rows(output: Any, rows: int) -> bool:
    """Whether an output is tensors of so many rows."""
    if isinstance(output, tuple):
        return all(_has_rows(part, rows) for part in output)
    return isinstance(output, torch.Tensor) and output.ndim > 0 and len(output) == rows


def _each(change: Callable[[torch.Tensor], torch.Tensor], output: Any) -> Any:
    return (
        tuple(_each(change, part) for part in output)
        if isinstance(output, tuple)
        else change(output)
    )
