"""Edits by words in transformers of any class, for exactly as long as one call of the network.

The text may be one sequence with the image, and change from block to block. So each text goes
through the network in an evaluation beside the call's own, with the rows of the positive prompt.
All of them stop at each attention in which the image reads the text. There the image's tokens of
all become what the call's own read, plus what they read in the text to move toward, minus what
they read in the text to move away from. With the prompt as the text to move away from, the call's
own rows say what is read in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from comfy.conds import CONDNoiseShape
from comfy.sampler_helpers import convert_cond
from comfy.samplers import encode_model_conds

from ..common.attention import AttentionCall, NetworkLayout, Positions
from ..common.network_call import Call, RowSubset, evaluating_again
from ..host.attention.reader import OVERRIDE, AttentionOverride, entering_blocks
from ..host.attention.side_evaluation import SideEvaluation, closing
from ..host.attention.token_layout import first_part, layout_of, rows_of
from .activation_edit import mask_at
from .word_edit import EncodedEdit, EncodedTexts, ReadingPlan, edited_attention

if TYPE_CHECKING:
    from torch import nn

_TEXT = "c_crossattn"
_POSITIVE = "positive"
_CACHE = "easycache"  # ComfyUI's: leaves evaluations out, and takes each for a step
_PATCHES = (1, 2, 4, 8, 16, 32)  # latent positions a side of a token
_UNREADABLE = (
    "How this MODEL reads its text cannot be seen (as of Stable Cascade): use another model."
)


class RunTexts:
    """The texts of some edits in a sampling run, as the network is given them.

    ComfyUI prepares them as it has prepared the positive conditioning, of which they are copies
    with another text.
    """

    def __init__(self, edits: list[EncodedEdit]):
        self._edits = edits
        self._positive: dict | None = None
        self._shapes: Any = None
        self._prepared: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._encoded: EncodedTexts | None = None
        self._inputs: list[dict[str, Any]] = []

    def begin(self, latent_shapes: Any = None) -> None:
        """A run begins. ``latent_shapes``: of the parts of a latent that ComfyUI has packed."""
        self.end()
        self._shapes = latent_shapes

    def prepare(self, guider: Any, x: torch.Tensor, seed: int | None) -> None:
        """A guider is about to predict from latents: prepare the texts once for its prompt."""
        positive = (guider.conds.get(_POSITIVE) or [None])[0]
        if positive is None or positive is self._positive:
            return  # without one the run is refused where its rows are looked for
        self._encoded = None
        self._positive = positive
        entries = []
        for edit in self._edits:
            for conditioning in edit.conditionings:
                (entry,) = convert_cond([conditioning])
                entries.append({**positive, **entry, "model_conds": {}})
        given: dict[str, Any] = {"latent_image": torch.zeros_like(x), "denoise_mask": None}
        if seed is not None:
            given["seed"] = seed
        if self._shapes is not None:
            given["latent_shapes"] = self._shapes
        with torch.no_grad():
            entries = encode_model_conds(
                guider.inner_model.extra_conds,
                entries,
                x,
                x.device,
                prompt_type=_POSITIVE,
                **given,
            )
        prepared = [entry["model_conds"] for entry in entries]
        self._prepared = list(zip(prepared[::2], prepared[1::2], strict=True))

    def end(self) -> None:
        """Free what belongs to a run."""
        self._positive = None
        self._prepared = []
        self._encoded = None
        self._inputs = []

    @property
    def encoded(self) -> EncodedTexts:
        """The edits with the texts as the network is given them."""
        if self._encoded is None:
            if any(_TEXT not in text for texts in self._prepared for text in texts):
                raise ValueError(_UNREADABLE)
            self._encoded = EncodedTexts(
                [
                    EncodedEdit(toward[_TEXT].cond, away[_TEXT].cond, edit.strength)
                    for edit, (toward, away) in zip(self._edits, self._prepared, strict=True)
                ]
            )
            inputs = {}
            texts = [text for both in self._prepared for text in both]
            # Each text gets all inputs in which one differs: other rows may have another prompt.
            names = dict.fromkeys(name for text in texts for name in self._of_text(text))
            for numbers, (toward, away) in zip(self._encoded.numbers, self._prepared, strict=True):
                inputs[numbers[0]] = {name: toward.get(name) for name in names}
                inputs[numbers[1]] = {name: away.get(name) for name in names}
            self._inputs = [inputs[number] for number in range(len(inputs))]
        return self._encoded

    def _of_text(self, prepared: dict[str, Any]) -> dict[str, Any]:
        """Inputs of the network that are not those of the positive prompt; None for one that is
        left out.
        """
        assert self._positive is not None
        positive = self._positive["model_conds"]
        changed = {}
        for name in {**positive, **prepared}:
            value = prepared.get(name)
            if isinstance(value, CONDNoiseShape):
                continue
            if value is None or name not in positive or not _same(value, positive[name]):
                changed[name] = value
        return changed

    def inputs_of(self, number: int, kwargs: dict[str, Any], rows: int) -> dict[str, Any]:
        """The inputs by name of a call of some rows, with a text instead of its own."""
        replaced = dict(kwargs)
        for name, value in self._inputs[number].items():
            keyword = "context" if name == _TEXT else name
            if value is None:
                replaced.pop(keyword, None)
            elif not _is_vector(name, value.cond):
                prepared = value.process_cond(batch_size=rows, area=None).cond
                replaced[keyword] = _placed_like(prepared, kwargs.get(keyword), kwargs["context"])
        return replaced

    def refuse_other_widths(self, context: torch.Tensor) -> None:
        """Raise ValueError unless the texts have the channels of the call's text."""
        for text in self.encoded.texts:
            if text.shape[-1] != context.shape[-1]:
                raise ValueError(
                    f"The CLIP encodes texts of {text.shape[-1]} channels and the MODEL reads "
                    f"{context.shape[-1]}: connect the CLIP of the model."
                )

    def moved_vectors(self, kwargs: dict[str, Any], rows: torch.Tensor) -> dict[str, Any]:
        """Pooled texts of a call with the edits: y' = y + sum_i s_i (y_Ti - y_Ai) in some rows."""
        moved: dict[str, torch.Tensor] = {}
        for edit, (toward, away) in zip(self._edits, self._prepared, strict=True):
            for name in toward.keys() & away.keys() & kwargs.keys():
                value = toward[name].cond
                if not _is_vector(name, value) or name not in kwargs:
                    continue
                if name not in moved:
                    moved[name] = kwargs[name].clone()
                both = (one.to(moved[name]) for one in (value, away[name].cond))
                moved[name][rows, : value.shape[1]] += edit.strength * torch.sub(*both)
        return moved


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and _same_value(one.cond, other.cond)


def _same_value(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.equal(one, other.to(one))
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return False
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_same_value, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            _same_value(value, other[key]) for key, value in one.items()
        )
    return bool(one == other)


def _is_vector(name: str, value: Any) -> bool:
    """Whether an input is one vector of a whole text, such as CLIP's pooled output."""
    is_numbers = isinstance(value, torch.Tensor) and value.is_floating_point()
    return is_numbers and value.ndim == 2 and "mask" not in name


def _placed_like(value: Any, own: Any, context: torch.Tensor) -> Any:
    """An input on the device of the call, and in its precision."""
    if not isinstance(value, torch.Tensor):
        return value
    like = own if isinstance(own, torch.Tensor) else context
    placed = value.to(like.device)
    if value.is_floating_point() and like.is_floating_point():
        placed = placed.to(like.dtype)
    return placed.clone() if placed.is_inference() and torch.is_grad_enabled() else placed


@contextmanager
def edited_call(call: Call, texts: RunTexts, mask: torch.Tensor | None) -> Iterator[None]:
    """One call of the network in which the rows of the positive prompt are edited.

    Without a mask the pooled text moves too: y' = y + sum_i s_i (y_Ti - y_Ai).
    """
    edit = _CallEdit(call, texts, mask)

    def begin(_network: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return args, edit.begin(args, kwargs)

    handle = call.network.register_forward_pre_hook(begin, with_kwargs=True)
    try:
        with entering_blocks(call.network, edit.current):
            yield
    finally:
        handle.remove()
        edit.end()


class _EditOverride(AttentionOverride):
    """The override of an edit."""


class _Text:
    """A text on its way through the network beside the call."""

    def __init__(self, layout: NetworkLayout, rows: RowSubset):
        self.layout = layout
        self.rows = RowSubset(rows.numbers, rows.of, layout=layout)
        self.place = ("", -1)
        self.read = torch.empty(0)
        self.override: AttentionOverride
        self.evaluation: SideEvaluation


class _CallEdit:
    """The attentions of one call, and the texts that go through the network beside it.

    Where gradients are computed, blocks may be evaluated again after the call: they get what was
    exchanged in it.
    """

    def __init__(self, call: Call, run: RunTexts, mask: torch.Tensor | None):
        self._call = call
        self._run = run
        self._mask = mask
        parts = [part for part in call.parts if part.positive]
        self._areas = [(part.area, len(RowSubset.of_parts([part], call.rows))) for part in parts]
        self._prompts = [part.prompt for part in parts]
        self._subset = RowSubset.of_parts(parts, call.rows)
        self._texts: list[_Text] = []
        self._is_over = False
        self._reads: dict[tuple[str, int], list[torch.Tensor]] = {}
        self._edited: dict[tuple[str, int], torch.Tensor] = {}
        self._current = AttentionOverride(lambda call: call.attend())
        self._rows = torch.empty(0)
        self._size: tuple[int, ...] = ()
        self._call_tokens = 0
        self._layout: NetworkLayout
        self._plan: ReadingPlan

    def current(self) -> AttentionOverride:
        """The override of the evaluation that runs."""
        return self._current

    def begin(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name with which the network is called."""
        options = kwargs.get("transformer_options") or {}
        other = options.get(OVERRIDE)
        if isinstance(other, _EditOverride):
            raise ValueError(
                "Two Edit by Words nodes follow each other: enter both edits in one of them."
            )
        latent = first_part(args[0])
        self._call.require(len(latent))
        self._size = tuple(latent.shape[2:])
        self._rows = self._subset.index(latent.device)
        encoded = self._run.encoded
        self._run.refuse_other_widths(kwargs["context"])
        self._plan = encoded.plan(self._prompts)
        self._call_tokens = kwargs["context"].shape[1]
        network = self._call.network
        self._layout = layout_of(network, args, kwargs, RowSubset([0], self._call.rows))
        if not any(layout.reads_text for layout in self._layout.layouts.values()):
            raise ValueError(_UNREADABLE)
        if self._mask is None:
            kwargs = {**kwargs, **self._run.moved_vectors(kwargs, self._rows)}
        for number in self._plan.texts:
            self._texts.append(self._text(number, args, kwargs, other))
        self._current = _EditOverride(self._attention, other)
        return {**kwargs, "transformer_options": {**options, OVERRIDE: self._current}}

    def _text(
        self, number: int, args: tuple, kwargs: dict[str, Any], other: Callable | None
    ) -> _Text:
        args, kwargs = rows_of(args, kwargs, self._subset)
        kwargs = self._run.inputs_of(number, kwargs, len(self._rows))
        _refuse_other_positions(kwargs, self._call_tokens)
        network = self._call.network
        text = _Text(layout_of(network, args, kwargs, self._subset), self._subset)
        text.override = _EditOverride(partial(self._text_attention, text), other)
        options = {**(kwargs.get("transformer_options") or {}), OVERRIDE: text.override}
        options["wrappers"] = {
            kind: {key: entries for key, entries in by_key.items() if key != _CACHE}
            for kind, by_key in options.get("wrappers", {}).items()
        }

        def work(_evaluation: SideEvaluation) -> None:
            network.forward(*args, **{**kwargs, "transformer_options": options})

        text.evaluation = SideEvaluation(work)
        return text

    def end(self) -> None:
        """The call is over."""
        self._is_over = True
        with closing([text.evaluation for text in self._texts]):
            self._texts = []

    def _text_attention(self, text: _Text, call: AttentionCall) -> torch.Tensor:
        """An attention of a text's evaluation, with the image's tokens as in the call."""
        attended = call.attend()
        image = _moved_positions(text.layout, call)
        if image is None:
            return attended
        place = (call.block, call.number)
        if not self._is_over:
            text.place = place
            text.read = call.tokens(attended)[:, image]
            text.evaluation.pause()
        changed = attended.clone()
        call.tokens(changed)[:, image] = self._edited[place]
        return changed

    def _attention(self, call: AttentionCall) -> torch.Tensor:
        """An attention of the call itself."""
        attended = call.attend()
        image = _moved_positions(self._layout, call)
        if image is None:
            return attended
        place = (call.block, call.number)
        reads = self._reads[place] if self._is_over else self._read(place)
        tokens = call.tokens(attended)
        own = tokens[self._rows][:, image]
        edited = edited_attention(self._plan, own, reads)
        if self._mask is not None and call.pools:
            edited = own  # one vector for the whole image, which a part of it cannot have moved
        elif self._mask is not None:
            edited = torch.lerp(own, edited, self._placed(own, self._mask))
        if not self._is_over:
            keeps = torch.is_grad_enabled()
            self._reads = {**self._reads, place: reads} if keeps else {}
            self._edited = {**self._edited, place: edited} if keeps else {place: edited}
        changed = attended.clone()
        _put(call.tokens(changed), self._rows, image, edited)
        return changed

    def _read(self, place: tuple[str, int]) -> list[torch.Tensor]:
        """What the image's tokens read in each text at this place."""
        for text in self._texts:
            before = self._current
            self._current = text.override
            try:
                with evaluating_again(text.rows):
                    text.evaluation.resume()
            finally:
                self._current = before
            if text.evaluation.is_over or text.place != place:
                raise ValueError(
                    "This MODEL reads texts of unlike length by other layers: use words of the "
                    "same number of tokens."
                )
        return [text.read for text in self._texts]

    def _placed(self, own: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The mask at the image's tokens, broadcasting to (rows, N, ...)."""
        frames, height, width = (1, *self._size)[-3:]
        sizes = [(frames, -(-height // side), -(-width // side)) for side in _PATCHES]
        size = next((one for one in sizes if one[0] * one[1] * one[2] == own.shape[1]), None)
        if size is None:
            raise ValueError(
                "Reference images or merged tokens stand beside the image: leave the mask out."
            )
        feature = own.flatten(2).movedim(1, 2).unflatten(2, size)  # (rows, C, frames, H, W)
        placed = []
        for rows, (area, _) in zip(
            feature.split([count for _, count in self._areas]), self._areas, strict=True
        ):
            of_frames = rows.movedim(2, 1).flatten(0, 1)
            placed.append(mask_at(mask, of_frames, frames, area).unflatten(0, (-1, frames)))
        weights = torch.cat(placed).to(own).flatten(1)  # (rows, N)
        return weights.view(*weights.shape, *[1] * (own.ndim - 2))


def _refuse_other_positions(kwargs: dict[str, Any], tokens: int) -> None:
    """Raise ValueError where the image's positions follow from the length of the call's text."""
    options = (kwargs.get("transformer_options") or {}).get("rope_options") or {}
    if kwargs["context"].shape[1] != tokens and float(tokens) in options.values():
        raise ValueError(
            "This MODEL places its image by the length of the text: use words of the same number "
            "of tokens."
        )


def _moved_positions(layout: NetworkLayout, call: AttentionCall) -> Positions | None:
    """The queries whose output an edit moves: the image's where they read the text, and the one
    that pools the text to a vector for all layers; None of other attentions.
    """
    if call.pools:
        return slice(0, 1)
    tokens = layout.of(call)
    return tokens.image if tokens is not None and tokens.reads_text else None


def _put(tokens: torch.Tensor, rows: torch.Tensor, image: Positions, edited: torch.Tensor) -> None:
    """Replace the image's tokens in some rows, in place."""
    if isinstance(image, slice):
        tokens[rows, image] = edited
    else:
        tokens[rows[:, None], image.to(rows.device)] = edited
