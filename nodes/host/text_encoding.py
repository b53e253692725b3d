"""Encoded prompts: where each encoder of a text model has its chunks in them, and where its padding
begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from comfy.sd1_clip import escape_important, token_weights, unescape_important

from ..common import prompt_words

if TYPE_CHECKING:
    import torch

    from .socket_types import CLIP

_ANY_TEXT = "~"  # a token that few prompts begin with
_CLIP_L_WIDTH = 768  # SD3's context keeps this room for CLIP-L when it is not loaded
#: Which encoders lie beside each other in the channels, and which one after the other in the slots.
_LAYOUTS = {
    frozenset({"l", "g"}): (("l", "g"),),
    frozenset({"l", "g", "t5xxl"}): (("l", "g"), ("t5xxl",)),
    frozenset({"l", "t5xxl"}): (("t5xxl",),),  # Flux: CLIP-L gives the pooled vector alone
}


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A chunk of an encoder in an encoded prompt: slots, channels, and how many tokens stand before
    the padding.
    """

    encoder: str
    rows: slice
    channels: slice
    real: int


def encode(clip: CLIP, text: str) -> tuple[dict, list]:
    """Tokens by encoder, and the CONDITIONING, as CLIP Text Encode makes them (weights, embeddings,
    hooks).

    Raises ValueError without a CLIP.
    """
    if clip is None:
        raise ValueError(
            "There is no CLIP: this checkpoint brings no text model, load one with a CLIP loader."
        )
    tokens = clip.tokenize(text)
    return tokens, clip.encode_from_tokens_scheduled(tokens)


def literal(clip: CLIP) -> CLIP | None:
    """A CLIP that reads brackets as what they are, where others read the weight of what stands in
    them.
    """
    if clip is None:
        return None
    clone = clip.clone()
    clone.tokenize = lambda text, *args, **more: clip.tokenize(
        re.sub(r"[()]", r"\\\g<0>", text), *args, **more
    )
    return clone


def chunks(clip: CLIP, tokens: dict, shape: tuple[int, ...]) -> list[Chunk]:
    """The chunks of every encoder in an encoded prompt of shape (rows, slots, channels).

    Raises ValueError for text models whose prompts are not laid out slot by slot, or are padded in
    front.
    """
    loaded = {key: _width(clip.cond_stage_model, key) for key in tokens}
    layout = ((next(iter(tokens)),),) if len(tokens) == 1 else _LAYOUTS.get(frozenset(tokens))
    if layout is None:
        raise ValueError(
            f"The padding of a text model of {', '.join(sorted(tokens))} is not known: use SD1.5, "
            "SD2, SDXL, SD3 or Flux."
        )
    found: list[Chunk] = []
    start = 0
    for beside in layout:
        present = [key for key in beside if len(tokens) == 1 or loaded[key]]
        if not present:
            continue
        length = min(sum(map(len, tokens[key])) for key in present)
        for key in present:
            channels = slice(0, shape[2]) if len(beside) == 1 else _channels(key, loaded, shape[2])
            found += _of_encoder(
                clip.tokenizer,
                key,
                pieces=tokens[key],
                start=start,
                length=length,
                channels=channels,
            )
        start += length
    if start != shape[1]:
        raise ValueError(
            f"The text model makes {shape[1]} slots of {start} tokens, so which are padding is not "
            "known: use SD1.5, SD2, SDXL, SD3 or Flux."
        )
    return found


def unmasked(entry: list, embedding: torch.Tensor) -> list:
    """A CONDITIONING entry with another embedding, of which every slot is attended to."""
    extras = dict(entry[1])
    if extras.get("attention_mask") is not None:
        extras["attention_mask"] = extras["attention_mask"].new_ones(extras["attention_mask"].shape)
    return [embedding, extras]


def _of_encoder(
    tokenizer: Any, key: str, pieces: list, start: int, length: int, channels: slice
) -> Iterator[Chunk]:
    """The chunks of one encoder, as far as they lie in the first ``length`` slots."""
    own = _part(tokenizer, key)
    if getattr(own, "pad_left", False):
        raise ValueError(
            "This text model pads in front of the prompt: use SD1.5, SD2, SDXL, SD3 or Flux."
        )
    offset = 0
    for piece in pieces:
        if offset + len(piece) > length:
            return
        here = start + offset
        yield Chunk(
            encoder=key,
            rows=slice(here, here + len(piece)),
            channels=channels,
            real=_real(piece, own.pad_token, own.end_token),
        )
        offset += len(piece)


def _real(piece: list, pad: int, end: int | None) -> int:
    """How many tokens stand before the padding; an end token that is also the padding's counts
    once.
    """
    count = len(piece)
    while count and isinstance(piece[count - 1][0], int) and piece[count - 1][0] == pad:
        count -= 1
    return min(count + 1, len(piece)) if pad == end else count


def _channels(key: str, widths: dict, total: int) -> slice:
    """Of ``total`` channels those of CLIP-L or CLIP-G beside each other; SDXL's refiner reads
    CLIP-G alone.
    """
    room = _CLIP_L_WIDTH if total > (widths["g"] or 0) else 0
    first = widths["l"] or room
    return slice(0, first) if key == "l" else slice(first, first + widths["g"])


def _width(model: Any, key: str) -> int | None:
    """Channels of an encoder's output; None where it is not loaded."""
    encoder = _part(model, key)
    return (
        None if encoder is None else int(encoder.transformer.get_input_embeddings().weight.shape[1])
    )


def _part(holder: Any, key: str) -> Any:
    return getattr(holder, f"clip_{key}", None) or getattr(holder, key, None)


_SHORTEST = 3


def known_words(clip: CLIP) -> list[str]:
    """Whole words of one token, in the order of the vocabulary; for a small model those it was
    trained on alone.

    Raises ValueError for a tokenizer that is not CLIP's.
    """
    tokenizer = _clip_tokenizer(clip)
    if tokenizer is None:
        raise ValueError(
            "Random words are drawn from CLIP's vocabulary, and this text encoder has none: write "
            "words of your own into the words field."
        )
    trained = getattr(tokenizer, "known", None)
    vocabulary = sorted(tokenizer.inv_vocab.items())
    whole = (
        (number, text.removesuffix("</w>")) for number, text in vocabulary if text.endswith("</w>")
    )
    return [
        text
        for number, text in whole
        if len(text) >= _SHORTEST
        and text.isascii()
        and text.isalpha()
        and (not trained or number in trained)
    ]


def _clip_tokenizer(clip: CLIP) -> Any:
    for name in ("clip_l", "clip_g", "clip_h"):
        found = getattr(clip.tokenizer, name, None)
        if found is not None:
            return found
    return None


_T5 = "t5xxl"
_CLIPS = ("l", "g")


@dataclass(frozen=True)
class Prompt:
    """A prompt without the marks of weights, and its tokens in each encoder that the model attends
    to, in their order.

    T5's alone (Flux), CLIP's and then T5's (SD3), else one; CLIP's encoders split alike and share
    their positions.
    """

    text: str
    tokens: tuple[prompt_words.Tokens, ...]

    def positions(self, word: str) -> list[int]:
        """Positions of a word, phrase or `prompt_words.START` or END over all encoders; empty where
        it is not.
        """
        found = set()
        before = 0
        plain = _without_weights(word) or word
        for tokens in self.tokens:
            if word in (prompt_words.START, prompt_words.END):
                place = tokens.start if word == prompt_words.START else tokens.end
                here = set() if place is None else {place}
            else:
                spans = prompt_words.spans(self.text, word) or prompt_words.spans(self.text, plain)
                here = {one for span in spans for one in tokens.within(*span)}
            found |= {before + one for one in here}
            before += tokens.length
        return sorted(found)

    def every(self) -> list[int]:
        """Positions of all tokens of the text."""
        found = set()
        before = 0
        for tokens in self.tokens:
            found |= {before + one for one in tokens.within(0, len(self.text))}
            before += tokens.length
        return sorted(found)

    def find(self, words: str) -> dict[str, list[int]]:
        """Positions of each of several words or phrases, separated by commas or line breaks;
        without any, of all words.

        Raises ValueError for words that are not there.
        """
        positions = {
            word: self.positions(word)
            for word in prompt_words.named(words) or prompt_words.words(self.text)
        }
        for word, found in positions.items():
            if not found:
                raise ValueError(
                    f"{word!r} is not in the prompt {self.text.strip()!r}. Enter words as they are "
                    "written there."
                )
        if not positions:
            raise ValueError("The prompt has no words. Enter the text that was encoded.")
        return positions

    @property
    def length(self) -> int:
        """How many positions the encoded prompt has."""
        return sum(tokens.length for tokens in self.tokens)


def read_prompt(clip: CLIP, text: str) -> Prompt:
    """A prompt beside its own tokens, for every tokenizer of ComfyUI."""
    by_encoder = clip.tokenize(text, return_word_ids=True)
    empty = clip.tokenize("", return_word_ids=True)
    if not any(chunk for chunks in empty.values() for chunk in chunks):
        # Lens renders no template around an empty prompt: it is seen around another one.
        empty = clip.tokenize(_ANY_TEXT, return_word_ids=True)
    model = clip.cond_stage_model
    names = [next(iter(by_encoder))]
    if _T5 in by_encoder:
        clips = [
            name
            for name in _CLIPS
            if hasattr(model, "clip_g") and getattr(model, f"clip_{name}", None)
        ]
        names = clips[:1] + [_T5] * (getattr(model, _T5, model) is not None)
    read = []
    for name in names:
        own = _part(clip.tokenizer, name)
        read.append(
            (
                own,
                *(
                    [entry for chunk in each[name] for entry in chunk]
                    for each in (by_encoder, empty)
                ),
            )
        )
    # Text models with a template read no weights.
    plains = dict.fromkeys((_without_weights(text), text))
    return max(
        (Prompt(plain, tuple(_aligned(plain, *one) for one in read)) for plain in plains),
        key=lambda prompt: sum(tokens.matched for tokens in prompt.tokens),
    )


def _without_weights(text: str) -> str:
    # Parts of unlike weight share no token.
    return "\n".join(
        unescape_important(part) for part, _ in token_weights(escape_important(text), 1.0)
    )


def _aligned(plain: str, own: Any, entries: list[tuple], empty: list[tuple]) -> prompt_words.Tokens:
    """``entries``: (token, weight, number of its word or 0) of the prompt, and of an empty one:
    what stands around.
    """
    first = 0
    last = len(entries)
    if not any(len(entry) > 2 and entry[2] for entry in entries):  # words are not numbered
        entries, empty = ([(*entry[:2], 1) for entry in each] for each in (entries, empty))
    if any(entry[2] for entry in empty):  # a template
        ids = [
            [entry[0] if isinstance(entry[0], int) else None for entry in each]
            for each in (entries, empty)
        ]
        first = _common(*ids)
        last -= min(_common(*(each[::-1] for each in ids)), len(empty) - first)
    placed = [
        (place, entry[0])
        for place, entry in enumerate(entries)
        if entry[2] and first <= place < last
    ]
    vocabulary = set(own.inv_vocab.values())
    pieces = [
        (place, _bytes_of(own, vocabulary, token) if isinstance(token, int) else None)
        for place, token in placed
    ]
    behind = placed[-1][0] + 1 if placed else 1
    end = behind if behind < len(entries) and entries[behind][0] == own.end_token else None
    start = 0 if own.start_token is not None and not own.pad_left else None
    return replace(prompt_words.align(plain, pieces), length=len(entries), start=start, end=end)


def _common(one: list, other: list) -> int:
    """How many elements two lists begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _bytes_of(own: Any, vocabulary: set[str], token: int) -> bytes:
    """What a token stands for in the text, as a tokenizer's vocabulary writes it; spaces do not
    count.
    """
    piece = own.inv_vocab.get(token, "")
    if vocabulary & {"the</w>", "\u0120the"}:  # tokens of bytes, written as letters
        return b"".join(
            bytes([_BYTES[one]]) if one in _BYTES else one.encode()
            for one in piece.removesuffix("</w>")
        )
    if (match := _BYTE.fullmatch(piece)) is not None:
        return bytes([int(match[1], 16)])
    if len(vocabulary) < _BYTES_ALONE and len(piece) == 1:
        return piece.encode("latin-1", "replace")
    plain = piece.removeprefix("##").replace("\u2581", " ")
    return ("\ufffd" if plain in ("<unk>", "[UNK]") else plain).encode()


def _byte_letters() -> dict[str, int]:
    """The letters that byte-level tokenizers write bytes as (GPT-2): printable ones as they are,
    others from U+0100.
    """
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


_BYTES = _byte_letters()
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BYTES_ALONE = 1000
