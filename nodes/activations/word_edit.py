"""Edits by words: the difference between what a network's queries read in two texts, added to its cross-attention.

    o' = o + sum_i s_i (softmax(q K_Ti^T / sqrt d) V_Ti - softmax(q K_Ai^T / sqrt d) V_Ai)

in every cross-attention of the positive prompt, before its output layer; T_i: the text to move toward, A_i: the text to
move away from. With the prompt itself as A, s = 1 is the prompt T. Nothing is trained and nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..common import prompt_words
from ..common.named_strengths import parse

ARROW = "->"

#: Attention of queries (B, N, heads * d) to keys and values (B, tokens, heads * d): (B, N, heads * d).
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
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
    """An edit's encoded texts (rows, tokens, channels), its strength, and both texts pooled (1, channels)."""

    toward: torch.Tensor
    away: torch.Tensor
    strength: float
    pooled: tuple[torch.Tensor, torch.Tensor] | None = None


def read_edits(text: str, prompt: str = "") -> list[WordEdit]:
    """Edits such as ``brown hair -> red hair: 2, glasses: 1``, without those that change nothing.

    With a prompt the texts are the prompt with the words replaced, or added at its end, and the prompt itself; without
    one the words alone, and an empty text where nothing stands before an arrow. Raises ValueError for text that is no
    edit, and for words to replace that are not in the prompt.
    """
    edits = []
    for name, strength in parse(text):
        away, _, toward = (part.strip() for part in name.rpartition(ARROW))
        if not away and not toward:
            raise ValueError(f"{name!r} names no words: write words to move toward, such as red hair: 2.")
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
            f"{away!r} is not in the prompt {prompt!r}: enter words as they stand there, or leave the prompt input "
            "empty to compare the words alone."
        )
    for begin, end in reversed(places):
        prompt = prompt[:begin] + toward + prompt[end:]
    return prompt


def attention_difference(query: torch.Tensor, toward: KeysValues, away: KeysValues, attend: Attend) -> torch.Tensor:
    """What the queries (B, N, heads * d) read in one text minus what they read in another; the formula's bracket.

    Keys and values (R, tokens, heads * d) of R texts repeat over the B images.
    """

    def read(text: KeysValues) -> torch.Tensor:
        rows = torch.arange(len(query), device=query.device) % len(text[0])
        return attend(query, *(part[rows] for part in text))

    return read(toward) - read(away)
