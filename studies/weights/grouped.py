"""Many LoRAs on one frozen network at once: every fraction of a batch goes through its own low-rank
factors.

A batch of P x m images belongs to P identities, m rows each. A layer computes W x for all of them
together, and up_p (down_p x) for each identity p by one grouped product (two batched matrix
products). So the frozen network, which is nearly all the work, is shared by the population.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ..common import host

#: Ends of the names of layers.
QUERIES_AND_VALUES = ("attn1.to_q", "attn1.to_v", "attn2.to_q", "attn2.to_v")
ATTENTION = (*QUERIES_AND_VALUES, "attn1.to_k", "attn2.to_k", "attn1.to_out.0", "attn2.to_out.0")
FEED_FORWARD = ("ff.net.0.proj", "ff.net.2")


class GroupedLinear(nn.Module):
    """A frozen linear layer with one pair of factors for each identity.

    ``population.part(slot)`` gives down (P, r, in) and up (P, out, r); inputs (P * m, ..., in), an
    identity's rows together.
    """

    def __init__(self, base: nn.Module, population: Population, slot):
        super().__init__()
        self.base, self._population, self._slot = base, population, slot

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        population = self._population
        down, up = population.part(self._slot)
        rows = x.reshape(population.count, -1, x.shape[-1])
        change = torch.bmm(torch.bmm(rows, down.transpose(1, 2)), up.transpose(1, 2))
        return self.base(x) + population.scale * change.view(*x.shape[:-1], -1)


class Population:
    """The factors of ``count`` identities as one parameter ``flat`` (count, D) in the layout of a
    weight space.
    """

    def __init__(self, layout, count: int, seed: int, device: torch.device | str = "cpu"):
        self.layout, self.count, self.scale = layout, count, layout.scale
        start = initial(layout, seed).to(device)
        self.flat = nn.Parameter(start.expand(count, -1).clone())

    def part(self, slot) -> tuple[torch.Tensor, torch.Tensor]:
        """down (P, r, in) and up (P, out, r) of one layer, as views of the parameter."""
        down = self.flat[:, slot.offset : slot.up_offset].view(self.count, *slot.down_shape)
        return down, self.flat[:, slot.up_offset : slot.end].view(self.count, *slot.up_shape)


def initial(layout, seed: int) -> torch.Tensor:
    """The factors from which every identity starts (D,): down uniform as in PEFT, up zero.

    One start for all, as in the paper's code: only so do factors compare without further ado.
    """
    generator, flat = torch.Generator().manual_seed(seed), torch.zeros(layout.size)
    for slot in layout.slots:
        bound = 1 / math.sqrt(slot.down_shape[1])
        numbers = torch.rand(slot.up_offset - slot.offset, generator=generator)
        flat[slot.offset : slot.up_offset] = (2 * numbers - 1) * bound
    return flat


def attention_layout(
    network: nn.Module,
    rank: int,
    alpha: float,
    prefix: str = "diffusion_model.",
    layers: tuple[str, ...] = QUERIES_AND_VALUES,
):
    """The layout of the layers whose names end so; by default the paper's: queries and values of
    all attention.
    """
    keys, layouts = host.pack("nodes.common.lora_keys"), host.pack("nodes.weights.flat_layout")
    shapes = {
        keys.canonical(prefix + name): (
            (rank, module.weight.shape[1]),
            (module.weight.shape[0], rank),
        )
        for name, module in network.named_modules()
        if name.endswith(layers)
    }
    return layouts.Layout.of(shapes, rank, alpha)


@contextmanager
def adapted(
    network: nn.Module, population: Population, prefix: str = "diffusion_model."
) -> Iterator[nn.Module]:
    """The network with its layers wrapped while the block runs."""
    slots = {slot.layer: slot for slot in population.layout.slots}
    wrapped = list(targets(network, slots, prefix))
    for owner, name, base, slot in wrapped:
        setattr(owner, name, GroupedLinear(base, population, slot))
    try:
        yield network
    finally:
        for owner, name, base, _ in wrapped:
            setattr(owner, name, base)


def targets(network: nn.Module, slots: dict, prefix: str) -> Iterator[tuple]:
    """The layers of slots in a network: owner, name, module, slot."""
    keys = host.pack("nodes.common.lora_keys")
    for path, module in list(network.named_modules()):
        slot = slots.get(keys.canonical(prefix + path)) if path else None
        if slot is not None:
            owner, _, name = path.rpartition(".")
            yield network.get_submodule(owner), name, module, slot
