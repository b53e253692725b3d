"""The assignment of least total cost: a Jacobi auction (Bertsekas 1988), a program a problem, and its dual's word.

All rows without a column, sixteen at a time, bid for the cheapest one at once; the highest bid has it, and its price
rises until the row would as soon have the next. Prices make a dual solution, so that what an assignment costs above the
least is known to be no more than the difference. Where that is too much, or rows are left, the CPU goes on from the
prices: they leave it little to do.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..eager.least_assignment import exact, total

#: Bids are raised by this share of the cost's standard deviation first, and by a tenth of that in each further auction.
FIRST, LAST = 0.3, 0.003
#: Rounds of bidding for each row and a few more, after which the rest is the CPU's: equal rows bid in small steps.
ROUNDS = 8
_TILE = 8192  # of bids at a time


def least_assignment(cost: torch.Tensor, gap: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``kernels.least_assignment``."""
    problems = cost if cost.ndim == 3 else cost[None]
    columns, prices = auction(problems, gap)
    dual = torch.stack([(one + price).amin(dim=1).sum() for one, price in zip(problems, prices, strict=True)])
    dual -= prices.sum(dim=1)
    done = (columns >= 0).all(dim=1)
    done &= total(problems, columns.clamp_min(0)) - dual <= gap
    for number in (~done).nonzero()[:, 0].tolist():
        reduced = problems[number] + prices[number]
        columns[number] = exact(reduced - reduced.amin(dim=1, keepdim=True)).to(columns.device)
    columns = columns.view(cost.shape[:-1])
    return columns, total(cost, columns)


def auction(problems: torch.Tensor, gap: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns int64 and prices float64, both (P, N), of problems (P, N, N); -1 for rows that the rounds did not settle.

    An assignment that is whole costs at most ``gap`` above the least, or 0.003 standard deviations a row without one.
    """
    count, size, _ = problems.shape
    spread = torch.stack([problem.double().std(correction=0) for problem in problems])
    last = torch.full_like(spread, 0.9 * gap / size) if gap else LAST * spread
    last = torch.where(last > 0, last, 1.0)  # of a constant cost every assignment is the least
    columns = torch.full((count, size), -1, dtype=torch.int64, device=problems.device)
    prices = torch.empty(count, size, dtype=torch.float64, device=problems.device)
    block = triton.next_power_of_2(size)
    rows = max(1, min(16, _TILE // block, block))
    _auction[(count,)](problems, torch.maximum(FIRST * spread, last), last, prices, columns, size, ROUNDS * (size + 8),
                       block, rows, num_warps=8 if block * rows > 2048 else 4)  # fmt: skip
    return columns, prices


@triton.jit
def _auction(cost, first_step, last_step, prices, columns, size, limit, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    problem = tl.program_id(0).to(tl.int64)
    cost += problem * size * size
    place, slot = tl.arange(0, BLOCK), tl.arange(0, ROWS)
    there = place < size
    price = tl.zeros([BLOCK], tl.float64)
    owner = tl.full([BLOCK], -1, tl.int32)  # the row that has a column
    step, last = tl.load(first_step + problem), tl.load(last_step + problem)
    rounds, over = 0, 0
    while over == 0:
        owner = tl.full([BLOCK], -1, tl.int32)
        waiting = there.to(tl.int32)  # rows without a column
        left = tl.sum(waiting, axis=0)
        while (left > 0) & (rounds < limit):
            turn = tl.cumsum(waiting, axis=0) * waiting - 1
            row = tl.sum(tl.where(turn[None, :] == slot[:, None], place[None, :], 0), axis=1)
            price, owner, waiting = _round(cost, price, owner, waiting, row, slot < left, step, size, place, slot)
            left = tl.sum(waiting, axis=0)
            rounds += 1
        over = ((step <= last) | (rounds >= limit)).to(tl.int32)
        step = tl.maximum(step / 10, last)
    tl.store(prices + problem * size + place, price, mask=there)
    tl.store(columns + problem * size + owner, place.to(tl.int64), mask=there & (owner >= 0))


@triton.jit
def _round(cost, price, owner, waiting, row, bids, step, size, place, slot):
    """The bids of a few rows: new prices and owners by column, and which rows then wait."""
    there = (place < size)[None, :]
    value = tl.load(cost + row.to(tl.int64)[:, None] * size + place[None, :], mask=bids[:, None] & there, other=0)
    value = tl.where(there, value.to(tl.float64) + price[None, :], float("inf"))
    least, target = tl.min(value, axis=1, return_indices=True)
    aimed = place[None, :] == target[:, None]
    second = tl.min(tl.where(aimed, float("inf"), value), axis=1)
    raised = tl.where(aimed & bids[:, None], price[None, :] + (second - least + step)[:, None], -float("inf"))
    best, winner = tl.max(raised, axis=0, return_indices=True)
    sold = best > -float("inf")
    wins = aimed & bids[:, None] & (winner[None, :] == slot[:, None])
    evicted = tl.sum(tl.where(wins, owner[None, :] + 1, 0), axis=1) - 1
    settled = tl.sum(wins.to(tl.int32), axis=1) > 0
    new = tl.max(tl.where(wins, row[:, None], -1), axis=0)
    served = tl.max(((row[:, None] == place[None, :]) & settled[:, None]).to(tl.int32), axis=0)
    freed = tl.max(((evicted[:, None] == place[None, :]) & settled[:, None]).to(tl.int32), axis=0)
    waiting = tl.where(served > 0, 0, tl.where(freed > 0, 1, waiting))
    return tl.where(sold, best, price), tl.where(sold, new, owner), waiting
