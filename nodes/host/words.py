"""Which tokens of a prompt belong to which of its words, as ComfyUI's own tokenizer of a CLIP splits it."""

from __future__ import annotations

import re

from comfy.sd1_clip import escape_important, token_weights, unescape_important

_WORD = re.compile(r"[^\W\d_][\w'-]*")


def tokens_of(clip, text: str) -> list[int | None]:
    """The token at every position of the encoded text, over all chunks; None at begin, end, padding and embeddings.

    Of several text encoders the first: those of SDXL split alike.
    """
    chunks = next(iter(clip.tokenize(text, return_word_ids=True).values()))
    return [entry[0] if entry[2] and isinstance(entry[0], int) else None for chunk in chunks for entry in chunk]


def words_of(text: str) -> list[str]:
    """The words of a prompt in their order, each once, without the marks and numbers of prompt weights."""
    plain = " ".join(unescape_important(part) for part, _ in token_weights(escape_important(text), 1.0))
    return list(dict.fromkeys(_WORD.findall(plain)))
