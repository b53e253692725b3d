"""What one call of a network stands for: conditionings, their rows and images, their area of the
latent, the true step.

``nodes/host/hooks.py`` makes a ``Call`` of every call and hands it to whoever hooks the network;
no other file counts rows. What cannot be known is None, and asking for it raises ValueError
with one sentence.

A node may evaluate layers of the network once more within a call, for some of its rows with another
text (``evaluating_again``). Whatever changes these layers changes them then too, in those rows;
whatever watches them looks away.

Hooks, gates and noise levels that are set for a call by ``in_call`` hold again where a part of the
call is computed again later, as gradient checkpointing does in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from .attention import NetworkLayout

#: Conditionings of guiders that hold the positive prompt (reference: the same prompt with other
#: size metadata).
POSITIVE = ("positive", "reference")
#: Where an entry of a conditioning keeps its "model_conds" as the prompt was encoded, when a node
#: has changed them for one evaluation.
WRITTEN = "glassbox_written"
_SAME = 1e-5  # relative difference of noise levels that are the same but for rounding

#: Why the place of what the network sees in the image is unknown.
TILED = (
    "Another node on the MODEL evaluates tiles or context windows, whose place in the image is "
    "not known (such as Tiled Diffusion). Connect the MODEL from before that node, or leave the "
    "node out"
)


@dataclass(frozen=True)
class Area:
    """Which rectangle of the latent the network sees: its first row and column, its sides, and
    those of the latent.
    """

    begin: tuple[int, int]
    size: tuple[int, int]
    of: tuple[int, int]

    @property
    def whole(self) -> bool:
        """Whether that is all of the latent."""
        return self.size == self.of

    def cut(self, mask: torch.Tensor) -> torch.Tensor:
        """The area's part of masks (M, H, W) over the whole image, at their own resolution where
        its edges allow it.
        """
        if self.whole:
            return mask
        if any(edge * side % of for side, edge, of in self._edges(mask)):
            mask = torch.nn.functional.interpolate(
                mask.float()[:, None], size=self.of, mode="area"
            )[:, 0]
        (_, top, _), (_, left, _), (_, bottom, _), (_, right, _) = (
            (side, edge * side // of, of) for side, edge, of in self._edges(mask)
        )
        return mask[:, top:bottom, left:right]

    def _edges(self, mask: torch.Tensor) -> list[tuple[int, int, int]]:
        """The mask's side, the latent's row or column, and the latent's side, of the area's four
        edges.
        """
        ends = [begin + size for begin, size in zip(self.begin, self.size, strict=True)]
        edges = zip(mask.shape[-2:], self.of, self.begin, ends, strict=True)
        both = [((side, begin, of), (side, end, of)) for side, of, begin, end in edges]
        return [one[0] for one in both] + [one[1] for one in both]


#: All of a latent of any size.
WHOLE = Area((0, 0), (1, 1), (1, 1))


@dataclass(frozen=True, kw_only=True)
class Part:
    """The rows of a call that belong to one conditioning.

    ``role``: the conditioning's name in the guider. ``rows``: an index of the call's rows, one
    after the other for the images of the batch; None where it is not known which they are.
    ``area``: what the rows see of the latent, None where that is not known. ``text``: the encoded
    prompt as the network is given it, (images, tokens, channels). ``prompt``: the same before
    ComfyUI repeats its tokens, (1 or images, tokens, channels), one tensor for all calls of a run;
    None where another node has replaced the conditioning. ``entered``: what the
    conditioning's tokens are recognized by (``entered_text``); some models make ``prompt`` of it.
    """

    role: str | None
    rows: slice | torch.Tensor | None
    area: Area | None
    text: torch.Tensor | None = None
    prompt: torch.Tensor | None = None
    entered: torch.Tensor | None = None

    def encoded_text(self) -> torch.Tensor | None:
        """What the tokens of ``text`` are recognized by, (rows, tokens, channels): the text as it
        was entered, where the model has prepared it in its own way; tokens of its own stand behind.
        """
        if self.text is None or self.prompt is None or self.entered is None:
            return self.text
        missing = self.prompt.shape[1] - self.entered.shape[1]
        is_prepared = self.entered is not self.prompt and missing >= 0
        if not is_prepared or (missing and _ends_alike(self.prompt, self.entered)):
            return self.text
        whole = torch.nn.functional.pad(self.entered, (0, 0, 0, missing))
        return whole.repeat(1, self.text.shape[1] // self.prompt.shape[1], 1)

    @property
    def side(self) -> bool | None:
        """True for the guider's positive conditioning, False for its negative one, None for any
        other.
        """
        return {"positive": True, "negative": False}.get(self.role or "")

    @property
    def positive(self) -> bool:
        """Whether it is the positive prompt, with whatever metadata."""
        return self.role in POSITIVE


_padded_in_front: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _ends_alike(prompt: torch.Tensor, entered: torch.Tensor) -> bool:
    """Whether a prompt ends in the entered text, which is then padded in front (FLUX.2).

    Compared once for each prompt of a run, as that waits for the device.
    """
    if prompt not in _padded_in_front:
        last = prompt[:1, -1]
        same = last.shape == entered[:1, -1].shape and torch.equal(
            last.to(entered), entered[:1, -1]
        )
        _padded_in_front[prompt] = same
    return _padded_in_front[prompt]


def entered_text(text: torch.Tensor, extras: Mapping) -> torch.Tensor:
    """What the tokens of a conditioning are recognized by: (1, tokens, channels).

    The encoded text, or sixteen numbers for each token of a second tokenizer whose tokens the model
    reads in its stead (T5's of Anima).
    """
    numbers = extras.get("t5xxl_ids")
    if numbers is None:
        return text
    waves = torch.arange(1, 17, device=numbers.device) * 0.618
    return (numbers.flatten()[:, None] * waves).sin()[None]


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a network at a noise level.

    ``parts``: empty outside of a sampling run. ``rows``: how many the network is given.
    ``schedule``: the noise levels of the run, empty outside of one. ``compiled``: whether the
    network runs through torch.compile, where hooks are ignored or not as its graphs were made
    before.
    """

    network: nn.Module
    parts: tuple[Part, ...]
    rows: int
    sigma: float
    schedule: tuple[float, ...]
    compiled: bool = False

    @property
    def step(self) -> tuple[int, int]:
        """The step of the run that the call is in, from 0, and how many there are; (0, 1) without a
        schedule.
        """
        return step_of(self.sigma, self.schedule)

    def split(self, tensor: torch.Tensor) -> Iterator[tuple[Part, torch.Tensor]]:
        """Each part with its rows of a tensor inside the network.

        Raises ValueError when the tensor has other rows than the call, or it is not known which are
        whose.
        """
        self.require(len(tensor))
        for part in self.parts:
            if part.rows is None:
                raise ValueError(f"{TILED}: it is not known which rows belong to which prompt.")
            if _subset is None:
                yield part, tensor[part.rows]
            elif (rows := _subset.places(part.rows)) is not None:
                yield replace(part, rows=rows), tensor[rows]

    def require(self, count: int) -> None:
        """Raise ValueError unless a tensor inside the network has as many rows as the call."""
        if count != (self.rows if _subset is None else len(_subset)):
            raise ValueError(
                f"Inside the network there are {count} rows where it was called with {self.rows}, "
                "because another node multiplies rows inside attention (attention couple, regional "
                "prompts) or tiles tokens (HyperTile), so which prompt a row belongs to is not "
                "known. Connect the MODEL from before that node, and a CONDITIONING that no such "
                "node has changed."
            )

    def where(self, chosen: Sequence[bool], count: int) -> torch.Tensor:
        """Which of a tensor's ``count`` rows are of the chosen parts, bool (count,); ValueError as
        in ``split``.

        All or none of the parts are all or none of the rows, however many there are; outside of a
        run, all.
        """
        if all(chosen) or not any(chosen):
            return torch.full((count,), all(chosen))
        result = torch.zeros(count, dtype=torch.bool)
        for (part, _), is_chosen in zip(self.split(result), chosen, strict=True):
            result[part.rows] = is_chosen
        return result


class RowSubset:
    """Rows of a call of ``of`` rows for which layers are evaluated again, by their numbers in this
    order.

    ``probe``: only to see where tokens stand, so that no node changes the evaluation. ``layout``:
    where they stand in its attentions, where that is known and another than in the call.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        of: int,
        *,
        probe: bool = False,
        layout: NetworkLayout | None = None,
    ):
        self.numbers = tuple(numbers)
        self.of = of
        self.probe = probe
        self.layout = layout
        self._indices: dict[torch.device, torch.Tensor] = {}

    @classmethod
    def of_parts(cls, parts: Sequence[Part], of: int) -> RowSubset:
        """The rows of some parts, one part after the other."""
        return cls([number for part in parts for number in _numbers(part.rows, of)], of)

    def __len__(self) -> int:
        return len(self.numbers)

    def index(self, device: torch.device) -> torch.Tensor:
        """The numbers as int64 (n,)."""
        if device not in self._indices:
            self._indices[device] = torch.tensor(self.numbers, device=device)
        return self._indices[device]

    def select(self, tensor: torch.Tensor) -> torch.Tensor:
        """These rows of a tensor with the rows of the call."""
        return tensor[self.index(tensor.device)]

    def places(self, rows: slice | torch.Tensor | None) -> slice | torch.Tensor | None:
        """Where rows of the call stand among these; a slice where they follow each other; None
        where none is.
        """
        numbers = set(_numbers(rows, self.of))
        places = [place for place, number in enumerate(self.numbers) if number in numbers]
        if not places:
            return None
        first = places[0]
        last = places[-1]
        return slice(first, last + 1) if len(places) == last + 1 - first else torch.tensor(places)


def _numbers(rows: slice | torch.Tensor | None, of: int) -> Sequence[int]:
    if rows is None:
        raise ValueError(f"{TILED}: it is not known which rows belong to which prompt.")
    return range(of)[rows] if isinstance(rows, slice) else rows.tolist()


_subset: RowSubset | None = None


def evaluating_again(rows: RowSubset) -> AbstractContextManager[None]:
    """Within: layers are evaluated once more for some rows of the call under way, with another
    text.
    """
    return in_call(partial(_of_rows, rows))


@contextmanager
def _of_rows(rows: RowSubset) -> Iterator[None]:
    global _subset
    before = _subset
    _subset = rows
    try:
        yield
    finally:
        _subset = before


def evaluated_again() -> RowSubset | None:
    """The rows for which layers are evaluated once more; None in the call itself."""
    return _subset


def rows_in_call(values: torch.Tensor, count: int) -> torch.Tensor:
    """A value for each of the ``count`` rows of a tensor inside the network, from one for each row
    of a batch.

    A multiple of the rows holds them again, as both sides of CFG do. Raises ValueError for a tensor
    of other rows.
    """
    if count % len(values) and _subset is None:
        raise ValueError(
            f"A layer of the network has {count} rows for {len(values)} images, and it is unknown "
            "which are whose: name other layers."
        )
    if _subset is None:
        return values.repeat(count // len(values))
    return _subset.select(values.repeat(_subset.of // len(values)))


def step_of(sigma: float, levels: tuple[float, ...]) -> tuple[int, int]:
    """The step that a noise level is in, from 0, and how many steps the schedule has; (0, 1)
    without one.

    Counted in the direction of sampling: of rising levels (FlipSigmas) the lowest is the first.
    """
    if len(levels) < 2:
        return 0, 1
    if levels[0] < levels[-1]:
        begun = sum(level <= sigma * (1 + _SAME) for level in levels[:-1])
    else:
        begun = sum(
            level >= sigma * (1 - _SAME) for level in levels[:-1]
        )  # between two steps is in the earlier one
    return max(begun - 1, 0), len(levels) - 1


def is_on_schedule(sigma: float, levels: tuple[float, ...]) -> bool:
    """Whether a noise level is that at which its step begins; True without a schedule."""
    return len(levels) < 2 or abs(levels[step_of(sigma, levels)[0]] - sigma) <= _SAME * sigma


Enter = Callable[[], AbstractContextManager]


@dataclass(frozen=True, eq=False)
class State:
    """A state of a call; ``enter`` makes a new context of it each time."""

    enter: Enter


_states: list[
    State
] = []  # outermost first; shared by threads, as autograd computes on threads of its own


@contextmanager
def in_call(enter: Enter) -> Iterator[None]:
    """The state that ``enter`` makes holds while the block runs, and while a part of it is computed
    again.
    """
    with _entered(State(enter)):
        yield


def states() -> tuple[State, ...]:
    """The states of the call under way, outermost first."""
    return tuple(_states)


@contextmanager
def again(of_call: Sequence[State]) -> Iterator[None]:
    """The states of an earlier call hold while the block runs; a state that still holds is not
    entered twice.
    """
    with ExitStack() as stack:
        for state in of_call:
            if state not in _states:
                stack.enter_context(_entered(state))
        yield


@contextmanager
def _entered(state: State) -> Iterator[None]:
    with state.enter():
        _states.append(state)
        try:
            yield
        finally:
            _states.remove(state)


def for_autograd(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that gradients may cross, where gradients are on and the tensor was made in inference
    mode; else itself.

    For what a node hands to a network that somebody may train: masks, directions, factors, encoded
    texts.
    """
    return tensor.clone() if tensor.is_inference() and torch.is_grad_enabled() else tensor
