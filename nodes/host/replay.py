"""Run only what follows a layer of a U-Net: what came before hands out what it put out in an earlier call.

ComfyUI's own forward pass runs as ever, with its patches and ControlNets. For as long as one call, modules before the
layer give remembered rows in place of computing them, as do those that read nothing but the text and the noise level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from .hooks import forward_hooks

#: Ends of the names of modules that read the text or the noise level alone.
_GIVEN_ALONE = ("attn2.to_k", "attn2.to_v", "emb_layers")


class Replay:
    """Remembers rows of one network for one prompt and noise level, and lets later calls begin at a value layer."""

    def __init__(self, network: nn.Module):
        self._network = network
        self._alone = [name for name, _ in network.named_modules() if name.endswith(_GIVEN_ALONE)]
        self._known: dict[str, torch.Tensor] = {}

    @contextmanager
    def remembering(self, layers: Iterable[str], rows: int) -> Iterator[None]:
        """Remember what one call of ``rows`` rows puts out, as far as calls that begin at ``layers`` (paths) need it.

        What is not called exactly once, with all rows, is left out; where that is needed, ``begins`` says no.
        """
        seen: dict[str, list[torch.Tensor]] = {}
        read = {name for path in layers for name in before(self._network, path)[0]}

        def receiver(name: str) -> Callable[[torch.Tensor], None]:
            # ComfyUI adds to outputs in place.
            return lambda output: seen.setdefault(name, []).append(output.clone())

        with forward_hooks(self._network, ([(name, receiver(name)) for name in {*read, *self._alone}], ())):
            yield
        self._known = {name: calls[0] for name, calls in seen.items() if [len(one) for one in calls] == [rows]}

    def begins(self, layer: str) -> bool:
        """Whether everything that a call beginning at a layer needs is remembered."""
        return all(name in self._known for name in (*before(self._network, layer)[0], *self._alone))

    @contextmanager
    def beginning(self, layer: str, rows: list[int]) -> Iterator[None]:
        """While the block runs, a call whose rows are these of the remembered ones begins at a layer."""
        read, unread = before(self._network, layer)
        replaced = [self._network.get_submodule(name) for name in (*read, *unread, *self._alone)]
        own = [module.__dict__.get("forward") for module in replaced]  # of whoever has patched the module before
        index = torch.tensor(rows)
        try:
            for name in (*read, *self._alone):
                self._network.get_submodule(name).forward = _given(self._known[name], index)
            for name in unread:
                self._network.get_submodule(name).forward = _passed
            yield
        finally:
            for module, forward in zip(replaced, own, strict=True):
                module.__dict__.pop("forward", None)
                if forward is not None:
                    module.forward = forward


def before(network: nn.Module, layer: str) -> tuple[list[str], list[str]]:
    """Names of the modules that run before a value layer: those whose output is read later, and those only by these."""
    head, _, tail = layer.partition(".transformer_blocks.")
    block, _, place = head.rpartition(".")
    depth = int(tail.partition(".")[0])
    blocks = [
        *(f"input_blocks.{number}" for number in range(len(network.input_blocks))),
        "middle_block",
        *(f"output_blocks.{number}" for number in range(len(network.output_blocks))),
    ]
    runs = [[f"{name}.{part}" for part in range(len(network.get_submodule(name)))]
            for name in blocks[: blocks.index(block)]]  # fmt: skip
    runs.append([f"{block}.{part}" for part in range(int(place))])
    runs.append([f"{head}.transformer_blocks.{number}" for number in range(depth)])
    runs.append([f"{head}.transformer_blocks.{depth}.attn1"])
    return [run[-1] for run in runs if run], [name for run in runs for name in run[:-1]]


def _given(known: torch.Tensor, rows: torch.Tensor) -> Callable[..., torch.Tensor]:
    return lambda *_args, **_kwargs: known[rows.to(known.device)]


def _passed(x: torch.Tensor, *_args, **_kwargs) -> torch.Tensor:
    return x
