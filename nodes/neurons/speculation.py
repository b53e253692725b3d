"""The refinement of NeMo in far fewer network evaluations, with the same decisions.

The greedy rule drops neuron after neuron until one is needed. Three things save work:

- Speculation: which of the next neurons are needed is guessed, and the sets that the rule would then ask for are
  evaluated in one batch. Decisions count up to the first wrong guess; what lies behind it tells how much each neuron
  matters, which makes the next guesses better.
- mem(S) is a largest similarity, so the seeds that led at the last full look already prove that a neuron is needed.
  That the others agree with what was dropped is looked at once for several neurons: all seeds at the end, and in
  between those that come near the threshold. Seeds that object lead as well, and those neurons are decided again.
- Where a bound is closer to the threshold than rounding can tell, the decision is made again as in exact mode.

The order goes from the last layer to the first, so that the evaluator can begin at the layer that is decided.

What goes unseen is a neuron without which a seed passes the threshold that neither leads nor comes near it at the looks
before and after: what is left still blocks, by another neuron. And from latents of 44 on, a bound takes part of the
score's dynamic range from the last full look. `python run.py bench neurons` tells how often results differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch

from .evaluation import CLOSE, Evaluator
from .localization import LAYERS, Chosen, Keep, dropped

_FEWEST_AHEAD, _MOST_AHEAD = 2, 32
#: Weight of the newest decision in running shares.
_NEW = 0.1
#: After how many drops all seeds are looked at, at first and at most.
_UNSEEN, _MOST_UNSEEN = 16, 64

#: What is dropped together: listings of neurons, by position of the layer and index.
Unit = list[tuple[int, int]]


def refine(chosen: Chosen, evaluator: Evaluator, threshold: float, keep: Keep) -> Chosen:
    """As ``localization.refine``, by speculation. ``keep`` gets only what all seeds agree with."""
    left, search = [list(indices) for indices in chosen], _Search(evaluator, threshold, keep)
    layers = reversed(range(len(left)))
    whole = [[(position, index) for index in left[position]] for position in layers if left[position]]
    left = search.drop(left, whole, (0.0, LAYERS))
    layers = reversed(range(len(left)))
    return search.drop(left, [[(position, index)] for position in layers for index in left[position]], (LAYERS, 1.0))


@dataclass(frozen=True)
class _State:
    """Where a run stands: what is left, which unit is next, and the bound of what is left (None: not known yet)."""

    left: Chosen
    next: int = 0
    bound: float | None = None
    passed: tuple[tuple[torch.Tensor, float], ...] = ()  # sets since all seeds were looked at, and their bounds


@dataclass(frozen=True)
class _Try:
    """A unit, whether it was guessed to go, the set without it that the guesses lead to, and the bound of that."""

    unit: int
    guess: bool
    mask: torch.Tensor
    bound: float = 0.0


@dataclass
class _Guesses:
    """Guesses which units may go, from how much the bound rose without each; where not known, as most of late."""

    threshold: float
    rises: dict[int, float] = field(default_factory=dict)
    going: float = 1.0  # running share of units that may go
    right: float = 0.7  # running share of right guesses

    def may_go(self, unit: int, bound: float | None) -> bool:
        """Whether the bound probably stays below the threshold without a unit too."""
        return bound + self.rises[unit] < self.threshold if unit in self.rises else self.going > 0.5

    @property
    def ahead(self) -> int:
        """How many guesses to follow: a call costs about as much as a row, so that rows are wasted where they fail."""
        return min(max(round(math.sqrt(2 / max(1 - self.right, 0.001))), _FEWEST_AHEAD), _MOST_AHEAD)

    def decided(self, guess: bool, goes: bool) -> None:
        """Count a decision."""
        self.going += _NEW * (goes - self.going)
        self.right += _NEW * ((guess == goes) - self.right)

    def learn(self, bound: float, tried: list[_Try]) -> None:
        """Take from bounds along the guesses, which began at ``bound``, what each unit adds."""
        for one in tried:
            self.rises[one.unit] = one.bound - bound
            bound = one.bound if one.guess else bound


class _Search:
    def __init__(self, evaluator: Evaluator, threshold: float, keep: Keep):
        self._evaluator, self._threshold, self._keep = evaluator, threshold, keep

    def drop(self, left: Chosen, units: list[Unit], shares: tuple[float, float]) -> Chosen:
        """Drop each unit in turn that may go; all seeds agree with what is left. ``shares`` of the refinement done."""
        first, last = shares
        self._evaluator.begin_with(self._mask(left))
        guesses, at_most = _Guesses(self._threshold), _UNSEEN
        agreed = state = _State(left)
        while state.next < len(units):
            state = self._run(state, units, guesses)
            if len(state.passed) >= at_most or state.next == len(units):
                if self._agree(agreed, state):
                    agreed = state = replace(state, passed=())
                    at_most = min(2 * at_most, _MOST_UNSEEN)
                else:  # other seeds' bounds rise differently
                    state, at_most = replace(agreed, bound=None), _UNSEEN
                    guesses.rises.clear()
            self._keep(agreed.left, first + (last - first) * state.next / len(units))
        return agreed.left

    def _run(self, state: _State, units: list[Unit], guesses: _Guesses) -> _State:
        """Decide the next units, up to and with the first one that was guessed wrong."""
        tried = self._guessed(state, units, guesses)
        masks = [one.mask for one in tried]
        if state.bound is None:
            masks.insert(0, self._mask(state.left))
        bounds = list(self._evaluator.lower_bounds(masks))
        if state.bound is None:
            state = replace(state, bound=bounds.pop(0))
        tried = [replace(one, bound=bound) for one, bound in zip(tried, bounds, strict=True)]
        guesses.learn(state.bound, tried)
        decided = 0
        for one in tried:
            goes, decided = self._below(one), decided + 1
            guesses.decided(one.guess, goes)
            if goes:
                passed = (*state.passed, (one.mask, one.bound))
                state = _State(dropped(state.left, units[one.unit]), one.unit, one.bound, passed)
            if goes != one.guess:
                break
        return replace(state, next=tried[decided - 1].unit + 1)

    def _guessed(self, state: _State, units: list[Unit], guesses: _Guesses) -> list[_Try]:
        """The next units with the sets that the rule asks for if the guesses are right."""
        ahead = 1 if self._evaluator.bounds_are_exact else guesses.ahead
        tried, left, bound = [], state.left, state.bound
        for unit in range(state.next, min(state.next + ahead, len(units))):
            without, goes = dropped(left, units[unit]), guesses.may_go(unit, bound)
            tried.append(_Try(unit, goes, self._mask(without)))
            if goes:
                left, bound = without, None if bound is None else bound + guesses.rises.get(unit, 0.0)
        return tried

    def _agree(self, agreed: _State, state: _State) -> bool:
        """Whether all seeds let pass what the leading ones did; where not, those that object lead from now on."""
        if not state.passed or self._evaluator.bounds_are_exact:
            return True
        leading = self._evaluator.leading
        before, after = (self._evaluator.by_seed(self._mask(one.left)) for one in (agreed, state))
        objecting = (after >= self._threshold).nonzero().flatten().tolist()
        if objecting and not set(objecting) - set(leading):  # their bounds said otherwise: trust none
            objecting = list(range(len(after)))
        objecting = objecting or self._objected(before, after, state, leading)
        self._evaluator.lead(leading + objecting)
        return not objecting

    def _objected(self, before: torch.Tensor, after: torch.Tensor, state: _State, leading: list[int]) -> list[int]:
        """Seeds that may have passed the threshold between two looks (seeds,) at all; empty where none did.

        Suspected is a seed that passes it if it rose as much as the leading ones did, from the higher of its looks.
        """
        from_here = min(float(look[leading].max()) for look in (before, after))
        rises = [bound - from_here for _, bound in state.passed]
        room = self._threshold - torch.maximum(before, after)
        room[leading] = torch.inf
        suspected = (room <= max(rises)).nonzero().flatten().tolist()
        if not suspected:
            return []
        masks = [mask for (mask, _), rise in zip(state.passed, rises, strict=True) if rise >= float(room.min())]
        self._evaluator.lead(leading + suspected)
        passing = max(self._evaluator.lower_bounds(masks)) >= self._threshold - CLOSE
        return suspected if passing else []

    def _below(self, one: _Try) -> bool:
        """Whether mem(S) of a set is below the threshold, as far as the leading seeds tell."""
        if abs(one.bound - self._threshold) >= CLOSE or self._evaluator.bounds_are_exact:
            return one.bound < self._threshold
        leading = self._evaluator.leading
        below = self._evaluator.exact(one.mask) < self._threshold
        self._evaluator.lead(leading)
        return below

    def _mask(self, chosen: Chosen) -> torch.Tensor:
        return self._evaluator.neurons.mask(chosen)
