"""The words that a text encoder's tokenizer knows."""

from __future__ import annotations

_SHORTEST = 3


def words(clip) -> list[str]:
    """Whole words of one token, in the order of the vocabulary; for a small model those it was trained on alone.

    Raises ValueError for a tokenizer that is not CLIP's.
    """
    tokenizer = _clip_tokenizer(clip)
    if tokenizer is None:
        raise ValueError("Random words are drawn from CLIP's vocabulary, and this text encoder has none: write words "
                         "of your own into the words field.")  # fmt: skip
    trained = getattr(tokenizer, "known", None)
    vocabulary = sorted(tokenizer.inv_vocab.items())
    whole = ((number, text.removesuffix("</w>")) for number, text in vocabulary if text.endswith("</w>"))
    return [
        text
        for number, text in whole
        if len(text) >= _SHORTEST and text.isascii() and text.isalpha() and (not trained or number in trained)
    ]


def _clip_tokenizer(clip):
    for name in ("clip_l", "clip_g", "clip_h"):
        found = getattr(clip.tokenizer, name, None)
        if found is not None:
            return found
    return None
