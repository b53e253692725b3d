"""Bring every layer of a LoRA to one rank and one sign, so that LoRAs of different trainers and
seeds are comparable.

A product up @ down does not determine its factors: (up / c, c down) is the same change, for
negative c too. The singular value decomposition fixes them up to the sign of each pair, with the
singular value split evenly between the two; the sign is that in which the pair lies along a
reference (ImageGem, arXiv 2510.18433, reduces LoRAs by SVD so).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..common.lora_reader import Factors
from .flat_layout import Layout

if TYPE_CHECKING:
    from .flat_layout import Slot

_ROUNDS = 3


def reduce_rank(
    factors: Factors, rank: int, dtype: torch.dtype = torch.float32
) -> tuple[Factors, float, float]:
    """The best approximation of a layer's change of rank ``rank``, and the squared norms of it and
    of the whole change.

    Balanced: |down_i| = |up_i| for each of the pairs, largest first; zero where the change has a
    lower rank.
    """
    up, down = factors.matrices(dtype)
    q_up, r_up = torch.linalg.qr(up)
    q_down, r_down = torch.linalg.qr(down.T)
    u, values, v = torch.linalg.svd(r_up @ r_down.T)
    kept = min(rank, len(values))
    roots = values[:kept].sqrt()
    new_up = up.new_zeros(len(up), rank)
    new_down = down.new_zeros(rank, down.shape[1])
    new_up[:, :kept] = (q_up @ u[:, :kept]) * roots
    new_down[:kept] = roots[:, None] * (v[:kept] @ q_down.T)
    shaped = Factors(
        new_down.view(rank, *factors.down.shape[1:]), new_up.view(-1, rank, *factors.up.shape[2:])
    )
    squares = values.double().square()
    return shaped, float(squares[:kept].sum()), float(squares.sum())


def align_signs(layout: Layout, flat: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Turn each pair (down_i, up_i) of flat vectors (..., size) so that it lies along the reference
    (size,).
    """
    flat = flat.clone()
    for slot in layout.slots:
        down, up = _pairs(layout, slot, flat)
        reference_down, reference_up = _pairs(layout, slot, reference)
        along = (down * reference_down).sum(-1) + (up * reference_up).sum(-1)
        turn = torch.where(along < 0, -1.0, 1.0).to(flat.dtype)[..., None]
        down *= turn
        up *= turn
    return flat


def sign_reference(layout: Layout, block: torch.Tensor) -> torch.Tensor:
    """A reference (size,) from a block of members (n, size): their sum, each turned along the sum
    so far.
    """
    reference = block[0].clone()
    for _ in range(_ROUNDS):
        reference = align_signs(layout, block, reference).sum(dim=0)
    return reference / len(block)


def _pairs(layout: Layout, slot: Slot, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the rank-one pairs of a slot: down (..., rank, in) and up (..., rank, out)."""
    head = flat.shape[:-1]
    down = flat[..., slot.offset : slot.up_offset].view(*head, layout.rank, -1)
    up = flat[..., slot.up_offset : slot.end].view(*head, -1, layout.rank).transpose(-1, -2)
    return down, up
