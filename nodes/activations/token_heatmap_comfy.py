"""Where the words of a typed prompt stand in the text that a model was given, repeated or
joined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..common.network_call import entered_text
from ..host.text_encoding import Prompt, encode, read_prompt
from .activations import TEXT_MARKS, Activations
from .token_heatmap import text_marks, text_places

if TYPE_CHECKING:
    from ..host.socket_types import CLIP

_OTHER_TEXT = (
    "The prompt is not the text that these activations were encoded from. Enter exactly that "
    "text, with its weights, and connect the CLIP that encoded it; of texts that were joined "
    "(Conditioning (Concat)) enter one. Texts that share their tokens (CLIP Text Encode (SDXL) "
    "with two texts, Conditioning (Average)) have no words of their own."
)


def placed_words(
    activations: Activations, clip: CLIP, prompt: str, words: str
) -> tuple[dict[str, list[int]], int, list[int] | slice]:
    """Positions of the words of a prompt, its length, and which tokens of the attention it is, as
    often as it is there.

    ``words`` as for `Prompt.find`. All tokens for activations without marks of their text. Raises
    ValueError for words that are not there, and for another prompt.
    """
    read = read_prompt(clip, prompt)
    positions = read.find(words)
    row = activations.rows[0]
    marks = activations.settings.get(TEXT_MARKS, {}).get(str(row.conditional))
    if marks is None or row.text_tokens not in (None, len(marks)):
        return positions, read.length, slice(row.text_tokens)
    typed = _typed_marks(clip, prompt)
    shift = _cut_off(clip, read, typed)
    checked = [place - shift for place in read.every() if 0 <= place - shift < len(typed)]
    places = text_places(torch.tensor(marks), typed, checked)
    if not places:
        raise ValueError(_OTHER_TEXT)
    moved = {word: [place - shift for place in found] for word, found in positions.items()}
    tokens = [place + number for place in places for number in range(len(typed))]
    joined = tokens == list(range(tokens[0], tokens[-1] + 1))
    return (
        moved,
        len(typed),
        slice(tokens[0], tokens[-1] + 1) if joined else tokens,
    )  # a slice copies nothing


def _typed_marks(clip: CLIP, prompt: str) -> torch.Tensor:
    """The marks of a typed text's tokens, (tokens, 4)."""
    text, extras = encode(clip, prompt)[1][0]
    return text_marks(entered_text(text, extras))[0].cpu()


def _cut_off(clip: CLIP, read: Prompt, typed: torch.Tensor) -> int:
    """How many of a template's first tokens are cut off the encoded text.

    All that are missing, unless the text's own would be among them (LongCat-Image cuts the
    template's end, too): then the text begins where it differs from an empty one.
    """
    missing = read.length - len(typed)
    first = min(read.every())
    if missing <= first:
        return missing
    empty = _typed_marks(clip, "")
    count = min(len(empty), len(typed))
    differs = (typed[:count] - empty[:count]).norm(dim=-1) > 1e-3 * typed[:count].norm(dim=-1)
    begin = int(differs.int().argmax()) if differs.any() else count
    return first - begin
