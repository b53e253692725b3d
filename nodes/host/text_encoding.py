"""Encoded prompts: where each encoder of a text model has its chunks in them, and where its padding begins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from comfy.sd1_clip import escape_important, token_weights, unescape_important

_CLIP_L_WIDTH = 768  # SD3's context keeps this room for CLIP-L when it is not loaded
#: Which encoders lie beside each other in the channels, and which one after the other in the slots.
_LAYOUTS = {
    frozenset({"l", "g"}): (("l", "g"),),
    frozenset({"l", "g", "t5xxl"}): (("l", "g"), ("t5xxl",)),
    frozenset({"l", "t5xxl"}): (("t5xxl",),),  # Flux: CLIP-L gives the pooled vector alone
}


@dataclass(frozen=True)
class Chunk:
    """A chunk of an encoder in an encoded prompt: slots, channels, and how many tokens stand before the padding."""

    encoder: str
    rows: slice
    channels: slice
    real: int


def encode(clip, text: str) -> tuple[dict, list]:
    """Tokens by encoder, and the CONDITIONING, as CLIP Text Encode makes them (weights, embeddings, hooks).

    Raises ValueError without a CLIP.
    """
    if clip is None:
        raise ValueError("There is no CLIP: this checkpoint brings no text model, load one with a CLIP loader.")
    tokens = clip.tokenize(text)
    return tokens, clip.encode_from_tokens_scheduled(tokens)


def literal(clip):
    """A CLIP that reads brackets as what they are, where others read the weight of what stands in them."""
    if clip is None:
        return None
    clone = clip.clone()
    clone.tokenize = lambda text, *args, **more: clip.tokenize(re.sub(r"[()]", r"\\\g<0>", text), *args, **more)
    return clone


def chunks(clip, tokens: dict, shape: tuple[int, ...]) -> list[Chunk]:
    """The chunks of every encoder in an encoded prompt of shape (rows, slots, channels).

    Raises ValueError for text models whose prompts are not laid out slot by slot, or are padded in front.
    """
    loaded = {key: _width(clip.cond_stage_model, key) for key in tokens}
    layout = ((next(iter(tokens)),),) if len(tokens) == 1 else _LAYOUTS.get(frozenset(tokens))
    if layout is None:
        raise ValueError(
            f"The padding of a text model of {', '.join(sorted(tokens))} is not known: use SD1.5, SD2, SDXL, SD3 or "
            "Flux."
        )
    found: list[Chunk] = []
    start = 0
    for beside in layout:
        present = [key for key in beside if len(tokens) == 1 or loaded[key]]
        if not present:
            continue
        length = min(sum(map(len, tokens[key])) for key in present)
        for key in present:
            channels = slice(0, shape[2]) if len(beside) == 1 else _channels(key, loaded)
            found += _of_encoder(clip.tokenizer, key, tokens[key], start, length, channels)
        start += length
    if start != shape[1]:
        raise ValueError(
            f"The text model makes {shape[1]} slots of {start} tokens, so which are padding is not known: use SD1.5, "
            "SD2, SDXL, SD3 or Flux."
        )
    return found


def unmasked(entry: list, embedding) -> list:
    """A CONDITIONING entry with another embedding, of which every slot is attended to."""
    extras = dict(entry[1])
    if extras.get("attention_mask") is not None:
        extras["attention_mask"] = extras["attention_mask"].new_ones(extras["attention_mask"].shape)
    return [embedding, extras]


def _of_encoder(tokenizer, key: str, pieces: list, start: int, length: int, channels: slice) -> Iterator[Chunk]:
    """The chunks of one encoder, as far as they lie in the first ``length`` slots."""
    own = _part(tokenizer, key)
    if getattr(own, "pad_left", False):
        raise ValueError("This text model pads in front of the prompt: use SD1.5, SD2, SDXL, SD3 or Flux.")
    offset = 0
    for piece in pieces:
        if offset + len(piece) > length:
            return
        here = start + offset
        yield Chunk(key, slice(here, here + len(piece)), channels, _real(piece, own.pad_token, own.end_token))
        offset += len(piece)


def _real(piece: list, pad: int, end: int | None) -> int:
    """How many tokens stand before the padding; an end token that is also the padding's counts once."""
    count = len(piece)
    while count and isinstance(piece[count - 1][0], int) and piece[count - 1][0] == pad:
        count -= 1
    return min(count + 1, len(piece)) if pad == end else count


def _channels(key: str, widths: dict) -> slice:
    first = widths["l"] or _CLIP_L_WIDTH
    return slice(0, first) if key == "l" else slice(first, first + widths["g"])


def _width(model, key: str) -> int | None:
    """Channels of an encoder's output; None where it is not loaded."""
    encoder = _part(model, key)
    return None if encoder is None else int(encoder.transformer.get_input_embeddings().weight.shape[1])


def _part(holder, key: str):
    return getattr(holder, f"clip_{key}", None) or getattr(holder, key, None)


_SHORTEST = 3


def known_words(clip) -> list[str]:
    """Whole words of one token, in the order of the vocabulary; for a small model those it was trained on alone.

    Raises ValueError for a tokenizer that is not CLIP's.
    """
    tokenizer = _clip_tokenizer(clip)
    if tokenizer is None:
        raise ValueError(
            "Random words are drawn from CLIP's vocabulary, and this text encoder has none: write words of your own "
            "into the words field."
        )
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
