"""Edits by words: the difference between what a network's queries read in two texts, added to its
cross-attention.

    o' = o + sum_i s_i (softmax(q K_Ti^T / sqrt d) V_Ti - softmax(q K_Ai^T / sqrt d) V_Ai)

in every cross-attention of the positive prompt, before its output layer; T_i: the text to move
toward, A_i: the text to move away from. With the prompt itself as A, s = 1 is the prompt T. Nothing
is trained and nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..common import prompt_words
from ..common.named_strengths import WORDS_EXAMPLE, parse

ARROW = "->"

KeysValues = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class WordEdit:
    """Two texts and a strength, never 0."""

    toward: str
    away: str
    strength: float

    def describe(self) -> str:
        """In one line."""
        return f"{self.strength:g}: toward {self.toward!r}, away from {self.away!r}"


@dataclass(frozen=True)
class EncodedEdit:
    """An edit's encoded texts (rows, tokens, channels), its strength, and the entries of both
    conditionings.
    """

    toward: torch.Tensor
    away: torch.Tensor
    strength: float
    conditionings: tuple[list, list] = ([], [])


def read_edits(text: str, prompt: str = "") -> list[WordEdit]:
    """Edits such as ``brown hair -> red hair: 2, glasses: 1``, without those that change nothing.

    With a prompt the texts are the prompt with the words replaced, or added at its end, and the
    prompt itself; without one the words alone, and an empty text where nothing stands before an
    arrow. Raises ValueError for text that is no edit, and for words to replace that are not in the
    prompt.
    """
    edits = []
    for name, strength in parse(text, WORDS_EXAMPLE):
        away, _, toward = (part.strip() for part in name.rpartition(ARROW))
        if not away and not toward:
            raise ValueError(
                f"{name!r} names no words: write words to move toward, such as red hair: 2."
            )
        if prompt.strip():
            away, toward = prompt.strip(), _replaced(prompt.strip(), away, toward)
        if strength and toward != away:
            edits.append(WordEdit(toward, away, strength))
    return edits


def _replaced(prompt: str, away: str, toward: str) -> str:
    if not away:
        return f"{prompt}, {toward}"
    places = prompt_words.spans(prompt, away)
    if not places:
        raise ValueError(
            f"{away!r} is not in the prompt {prompt!r}: enter words as they stand there, or leave "
            "the prompt input empty to compare the words alone."
        )
    for begin, end in reversed(places):
        prompt = prompt[:begin] + toward + prompt[end:]
    return prompt


@dataclass(frozen=True, kw_only=True)
class ReadingPlan:
    """The formula's sum, ordered by texts: which of them the queries read, and what each counts.

    ``own`` is what the attention to the prompt itself counts, which the network computes anyway.
    All add up to 0.
    """

    texts: tuple[int, ...]
    weights: tuple[float, ...]
    own: float


class EncodedTexts:
    """The texts of some edits, each once, and which of them are the prompt that is sampled."""

    def __init__(self, edits: Sequence[EncodedEdit]):
        self.edits = tuple(edits)
        self.texts: list[torch.Tensor] = []
        #: For each edit the numbers of the texts to move toward and away from.
        self.numbers = [(self._number(edit.toward), self._number(edit.away)) for edit in edits]
        self._placed: dict[tuple, list[torch.Tensor]] = {}
        self._prompts: dict[int, tuple[torch.Tensor, frozenset[int]]] = {}

    def _number(self, text: torch.Tensor) -> int:
        for number, other in enumerate(self.texts):
            if other.shape == text.shape and torch.equal(other, text):
                return number
        self.texts.append(text)
        return len(self.texts) - 1

    def on(self, like: torch.Tensor) -> list[torch.Tensor]:
        """The texts in another tensor's precision on its device, moved once a run."""
        key = (like.dtype, like.device, torch.is_grad_enabled())
        if key not in self._placed:
            texts = [text.to(like) for text in self.texts]
            if torch.is_grad_enabled():
                texts = [text.clone() if text.is_inference() else text for text in texts]
            self._placed[key] = texts
        return self._placed[key]

    def plan(self, prompts: Sequence[torch.Tensor | None]) -> ReadingPlan:
        """What is read beside the prompts (1 or images, tokens, channels); None stands for one that
        is not known.
        """
        same = frozenset.intersection(*map(self._same, prompts))
        weights = dict.fromkeys(range(len(self.texts)), 0.0)
        for edit, (toward, away) in zip(self.edits, self.numbers, strict=True):
            weights[toward] += edit.strength
            weights[away] -= edit.strength
        read = {
            number: weight for number, weight in weights.items() if weight and number not in same
        }
        own = sum(weight for number, weight in weights.items() if number in same)
        return ReadingPlan(texts=tuple(read), weights=tuple(read.values()), own=own)

    def _same(self, prompt: torch.Tensor | None) -> frozenset[int]:
        """The texts that are a prompt. Looked up once a run, as that waits for the device."""
        if prompt is None:
            return frozenset()
        if id(prompt) not in self._prompts:
            texts = enumerate(self.on(prompt))
            same = [
                number
                for number, text in texts
                if text.shape[1:] == prompt.shape[1:] and (text == prompt).all()
            ]
            self._prompts[id(prompt)] = (
                prompt,
                frozenset(same),
            )  # the prompt too, so that its id stays its own
        return self._prompts[id(prompt)][1]

    def forget(self) -> None:
        """Free what belongs to a run."""
        self._placed.clear()
        self._prompts.clear()


def edited_attention(
    plan: ReadingPlan, own: torch.Tensor, reads: Sequence[torch.Tensor]
) -> torch.Tensor:
    """An attention's output (B, N, heads * d) with the edits: the formula's o'.

    ``own`` is o, ``reads`` what the same queries read in each of the plan's texts. At strength 1
    away from the prompt that is the text to move toward bit for bit, as o counts nothing then.
    """
    edited = own * (1 + plan.own)
    for weight, read in zip(plan.weights, reads, strict=True):
        edited = edited.add(read, alpha=weight)
    return edited
