"""Which tokens of a prompt belong to which of its words, as ComfyUI's own tokenizer of a CLIP splits it."""

from __future__ import annotations

import re

from comfy.sd1_clip import escape_important, token_weights, unescape_important

_T5, _CLIPS = "t5xxl", ("l", "g")
_WORD = re.compile(r"[^\W\d_][\w'-]*")


def tokens_of(clip, text: str) -> list[list[int | None]]:
    """The token at every position of the encoded text, over all chunks; None at begin, end, padding and embeddings.

    One list for each encoder whose tokens the model attends to, in their order: T5's alone (Flux), CLIP's and then T5's
    (SD3), else one. CLIP's encoders split alike and share their positions.
    """
    by_encoder, model = clip.tokenize(text, return_word_ids=True), clip.cond_stage_model
    names = [next(iter(by_encoder))]
    if _T5 in by_encoder:
        clips = [name for name in _CLIPS if hasattr(model, "clip_g") and getattr(model, f"clip_{name}", None)]
        names = clips[:1] + [_T5] * (getattr(model, _T5, model) is not None)
    return [[_plain(entry) for chunk in by_encoder[name] for entry in chunk] for name in names]


def _plain(entry: tuple) -> int | None:
    """The token of (token, weight, number of its word), unless it belongs to no word or is an embedding."""
    return entry[0] if entry[2] and isinstance(entry[0], int) else None


def words_of(text: str) -> list[str]:
    """The words of a prompt in their order, each once, without the marks and numbers of prompt weights."""
    plain = " ".join(unescape_important(part) for part, _ in token_weights(escape_important(text), 1.0))
    return list(dict.fromkeys(_WORD.findall(plain)))
