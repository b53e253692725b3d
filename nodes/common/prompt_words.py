"""The words of a prompt, and which of its tokens each of them is.

The text and the texts of its tokens are laid side by side, letter by letter, so that every tokenizer is read alike and
a word gets the tokens that it has in this prompt, not those that it would have alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

#: Names of the tokens before and after those of the text.
START, END = "<start>", "<end>"
EMBEDDING = "embedding:"
_EMBEDDED, _UNKNOWN = "\ufffc", "\ufffd"
_EMBEDDINGS = re.compile(rf"(?<![^\W_]){EMBEDDING}[^\s,()]+")
_SEPARATORS = re.compile(r"[,\n\uff0c\u3001]+")
_INNER = "'\u2019-\u2010\u2011\u30fb\u00b7"  # between two letters they are part of a word
#: Scripts that are written without spaces, or join words, so that a word is found inside of a longer one.
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


@dataclass(frozen=True)
class Tokens:
    """A text beside its tokens: for each letter its place in the text and the positions of the tokens that hold it.

    ``matched``: the fraction of letters that are the same on both sides. ``start`` and ``end``: positions of the tokens
    around the text, None without. ``length``: how many positions the encoded text has.
    """

    places: tuple[tuple[int, int, frozenset[int]], ...]
    matched: float
    length: int
    start: int | None = None
    end: int | None = None

    def within(self, begin: int, end: int) -> set[int]:
        """Positions of the tokens with letters from ``begin`` to before ``end`` of the text."""
        return {one for first, last, found in self.places if first < end and last > begin for one in found}


def align(text: str, pieces: Sequence[tuple[int, bytes | None]]) -> Tokens:
    """A text beside its tokens: (position, bytes) in their order, None instead of bytes for an embedding's vector."""
    letters, held = _letters(text), _held(pieces)
    found: list[set[int]] = [set() for _ in letters]
    matcher = SequenceMatcher(None, [letter for letter, *_ in letters], [letter for letter, _ in held], autojunk=False)
    same = 0
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            same += b - a
            for one, (_, positions) in zip(found[a:b], held[c:d], strict=True):
                one |= positions
        elif kind == "replace":  # such as an unknown token, or a quotation mark that the tokenizer straightens
            for one in found[a:b]:
                one |= {position for _, positions in held[c:d] for position in positions}
    places = tuple((begin, end, frozenset(one)) for (_, begin, end), one in zip(letters, found, strict=True))
    return Tokens(places, same / max(len(letters), 1), 0)


def _letters(text: str) -> list[tuple[str, int, int]]:
    """The letters of a text as they are compared, each with where it begins and ends; an embedding's name is one."""
    result, named = [], {match.start(): match.end() for match in _EMBEDDINGS.finditer(text)}
    place = 0
    while place < len(text):
        end = named.get(place, place + 1)
        plain = _EMBEDDED if place in named else _plain(text[place])
        result += [(one, place, end) for one in plain]
        place = end
    return result


def _held(pieces: Sequence[tuple[int, bytes | None]]) -> list[tuple[str, set[int]]]:
    """The letters that tokens hold, each with the positions of its tokens: byte tokens share a letter."""
    result: list[tuple[str, set[int]]] = []
    bytes_, owners = bytearray(), list[int]()

    def flush() -> None:
        place = 0
        while place < len(bytes_):
            lead = bytes_[place]
            size = 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            try:
                plain = _plain(bytes_[place : place + size].decode())
            except UnicodeDecodeError:
                size, plain = 1, _UNKNOWN
            result.extend((one, set(owners[place : place + size])) for one in plain)
            place += size
        bytes_.clear()
        owners.clear()

    for position, piece in pieces:
        if piece is None:
            flush()
            if result and result[-1][0] == _EMBEDDED and position - 1 in result[-1][1]:
                result[-1][1].add(position)
            else:
                result.append((_EMBEDDED, {position}))
        else:
            bytes_ += piece
            owners += [position] * len(piece)
    flush()
    return result


def _plain(character: str) -> str:
    """A character as it is compared: decomposed, without case; nothing of spaces and what cannot be seen."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    return "".join(one for one in plain if not one.isspace() and unicodedata.category(one) not in ("Cc", "Cf"))


def named(text: str) -> list[str]:
    """The words or phrases of an input that lists them, separated by commas of any script or line breaks."""
    return list(dict.fromkeys(part.strip() for part in _SEPARATORS.split(text) if part.strip()))


def words(text: str) -> list[str]:
    """The words of a text without prompt weights in their order, each once; an embedding's name is one."""
    found, place = [], 0
    embeddings = {match.start(): match.end() for match in _EMBEDDINGS.finditer(text)}
    while place < len(text):
        if place in embeddings:
            end = embeddings[place]
            found.append(text[place:end].rstrip("."))
        else:
            end = place
            while end < len(text) and end not in embeddings and _continues(text, place, end):
                end += 1
            if end > place:
                found.append(text[place:end])
        place = max(end, place + 1)
    return list(dict.fromkeys(found))


def spans(text: str, word: str) -> list[tuple[int, int]]:
    """Where a word or phrase stands in a text, whatever its case and spaces; not inside of another word."""
    pattern = r"\s+".join(re.escape(part) for part in word.split())
    found = [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)] if pattern else []
    return [(begin, end) for begin, end in found if _divides(text, begin) and _divides(text, end)]


def _divides(text: str, place: int) -> bool:
    """Whether a word may begin or end at a place of the text."""
    if not 0 < place < len(text):
        return True
    before, after = text[place - 1], text[place]
    if unicodedata.category(after)[0] == "M":
        return False
    if any(unicodedata.name(one, "").startswith(_UNSPACED) for one in (before, after)):
        return True
    kinds = {_kind(before), _kind(after)}
    return len(kinds) > 1 or not kinds <= {"letter", "digit"}


def _kind(character: str) -> str:
    category = unicodedata.category(character)
    return "letter" if category[0] in "LM" or character == "_" else "digit" if category[0] == "N" else "other"


def _continues(text: str, begin: int, place: int) -> bool:
    """Whether the character at a place belongs to the word that begins at ``begin``."""
    character = text[place]
    if _kind(character) != "other" or unicodedata.category(character) in ("So", "Sk", "Cf"):
        return True
    after = text[place + 1] if place + 1 < len(text) else " "
    if place == begin or _kind(text[place - 1]) == "other" or _kind(after) == "other":
        return False
    return character in _INNER or (character == "." and _kind(after) == "digit")
