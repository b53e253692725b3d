"""The words of a prompt, and which of its tokens each of them is.

The text and the texts of its tokens are laid side by side, letter by letter, so that every
tokenizer is read alike and a word gets the tokens that it has in this prompt, not those that it
would have alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

#: Names of the tokens before and after those of the text.
START = "<start>"
END = "<end>"
EMBEDDING = "embedding:"
_EMBEDDED = "\ufffc"
_UNKNOWN = "\ufffd"
_EMBEDDINGS = re.compile(rf"(?<![^\W_]){EMBEDDING}[^\s,()]+")
_SEPARATORS = re.compile(r"[,\n\uff0c\u3001]+")
_SEARCHED_AT_ONCE = 40_000  # pairs of letters: 200 in the text beside 200 in the tokens
_WINDOW = 32  # letters
_INNER = "'\u2019-\u2010\u2011\u30fb\u00b7"  # between two letters they are part of a word
#: Scripts that are written without spaces, or join words, so that a word is found inside of a
#: longer one.
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """A text beside its tokens: for each letter its place in the text and the positions of the
    tokens that hold it.

    ``matched``: the fraction of letters that are the same on both sides. ``start`` and ``end``:
    positions of the tokens around the text, None without. ``length``: how many positions the
    encoded text has.
    """

    places: tuple[tuple[int, int, frozenset[int]], ...]
    matched: float
    length: int
    start: int | None = None
    end: int | None = None

    def within(self, begin: int, end: int) -> set[int]:
        """Positions of the tokens with letters from ``begin`` to before ``end`` of the text."""
        return {
            one
            for first, last, found in self.places
            if first < end and last > begin
            for one in found
        }


def align(text: str, pieces: Sequence[tuple[int, bytes | None]]) -> Tokens:
    """A text beside its tokens: (position, bytes) in their order, None instead of bytes for an
    embedding's vector.
    """
    letters = _letters(text)
    held = _held(pieces)
    owners: list[frozenset[int]] = [frozenset()] * len(letters)
    matched = 0
    before = (0, 0)
    for begin, other, length in _matches(
        [letter for letter, *_ in letters], [letter for letter, _ in held]
    ):
        # Between two matches stands an unknown token, or a quotation mark that the tokenizer
        # straightens. Its letters share one set, as there may be as many of them as tokens.
        replaced = frozenset(
            position for _, holders in held[before[1] : other] for position in holders
        )
        owners[before[0] : begin] = [replaced] * (begin - before[0])
        owners[begin : begin + length] = [
            frozenset(holders) for _, holders in held[other : other + length]
        ]
        matched += length
        before = begin + length, other + length
    places = tuple(
        (begin, end, holders) for (_, begin, end), holders in zip(letters, owners, strict=True)
    )
    return Tokens(places=places, matched=matched / max(len(letters), 1), length=0)


def _matches(first: Sequence[str], second: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Where runs of two sequences are equal, in order: begin in each, and length; at the end one of
    length 0.

    The common beginning and end need no search. What is left between them is searched as a whole
    where it is short, as in prompts that people write, and else a window at a time, so that the
    work grows with the length alone.
    """
    head = _common(first, second, (0, 0))
    tail = 0
    while tail < min(len(first), len(second)) - head and first[-1 - tail] == second[-1 - tail]:
        tail += 1
    ends = len(first) - tail, len(second) - tail
    if head:
        yield 0, 0, head
    if (ends[0] - head) * (ends[1] - head) <= _SEARCHED_AT_ONCE:
        yield from _searched(first, second, (head, head), ends)
    else:
        yield from _searched_by_windows(first, second, head, ends)
    if tail:
        yield *ends, tail
    yield len(first), len(second), 0


def _searched_by_windows(
    first: Sequence[str], second: Sequence[str], head: int, ends: tuple[int, int]
) -> Iterator[tuple[int, int, int]]:
    """``_matches`` of a long stretch, a window at a time."""
    at = head, head
    while at[0] < ends[0] and at[1] < ends[1]:
        same = min(_common(first, second, at), ends[0] - at[0], ends[1] - at[1])
        if same:
            yield *at, same
            at = at[0] + same, at[1] + same
            continue
        stops = min(at[0] + _WINDOW, ends[0]), min(at[1] + _WINDOW, ends[1])
        half = at[0] + _WINDOW // 2, at[1] + _WINDOW // 2
        matches = list(_searched(first, second, at, stops))
        # The end of a window may change what is found near it, so only its first half counts, and
        # one match at least.
        counted = [
            match for match in matches if match[0] < half[0] and match[1] < half[1]
        ] or matches[:1]
        yield from counted
        at = half
        if counted:
            begin, other, length = counted[-1]
            at = begin + length, other + length


def _searched(
    first: Sequence[str], second: Sequence[str], begins: tuple[int, int], ends: tuple[int, int]
) -> Iterator[tuple[int, int, int]]:
    matcher = SequenceMatcher(
        None, first[begins[0] : ends[0]], second[begins[1] : ends[1]], autojunk=False
    )
    for begin, other, length in matcher.get_matching_blocks():
        if length:
            yield begins[0] + begin, begins[1] + other, length


def _common(first: Sequence[str], second: Sequence[str], at: tuple[int, int]) -> int:
    """How many letters from two places on are the same."""
    length = 0
    limit = min(len(first) - at[0], len(second) - at[1])
    while length < limit and first[at[0] + length] == second[at[1] + length]:
        length += 1
    return length


def _letters(text: str) -> list[tuple[str, int, int]]:
    """The letters of a text as they are compared, each with where it begins and ends; an
    embedding's name is one.
    """
    result = []
    named = {match.start(): match.end() for match in _EMBEDDINGS.finditer(text)}
    place = 0
    while place < len(text):
        end = named.get(place, place + 1)
        plain = _EMBEDDED if place in named else _plain(text[place])
        result += [(one, place, end) for one in plain]
        place = end
    return result


def _held(pieces: Sequence[tuple[int, bytes | None]]) -> list[tuple[str, set[int]]]:
    """The letters that tokens hold, each with the positions of its tokens: byte tokens share a
    letter.
    """
    result: list[tuple[str, set[int]]] = []
    bytes_ = bytearray()
    owners = list[int]()

    def flush() -> None:
        place = 0
        while place < len(bytes_):
            lead = bytes_[place]
            size = 1 + sum(lead >= first for first in (0xC0, 0xE0, 0xF0))  # of UTF-8
            try:
                plain = _plain(bytes_[place : place + size].decode())
            except UnicodeDecodeError:
                size = 1
                plain = _UNKNOWN
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
    """A character as it is compared: decomposed, without case; nothing of spaces and what cannot be
    seen.
    """
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    return "".join(
        one for one in plain if not one.isspace() and unicodedata.category(one) not in ("Cc", "Cf")
    )


def named(text: str) -> list[str]:
    """The words or phrases of an input that lists them, separated by commas of any script or line
    breaks.
    """
    return list(dict.fromkeys(part.strip() for part in _SEPARATORS.split(text) if part.strip()))


def words(text: str) -> list[str]:
    """The words of a text without prompt weights in their order, each once; an embedding's name is
    one.
    """
    found = []
    place = 0
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
    """Where a word or phrase stands in a text, whatever its case and spaces; not inside of another
    word.
    """
    pattern = r"\s+".join(re.escape(part) for part in word.split())
    found = [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)] if pattern else []
    return [(begin, end) for begin, end in found if _divides(text, begin) and _divides(text, end)]


def _divides(text: str, place: int) -> bool:
    """Whether a word may begin or end at a place of the text."""
    if not 0 < place < len(text):
        return True
    before = text[place - 1]
    after = text[place]
    if unicodedata.category(after)[0] == "M":
        return False
    if any(unicodedata.name(one, "").startswith(_UNSPACED) for one in (before, after)):
        return True
    kinds = {_kind(before), _kind(after)}
    return len(kinds) > 1 or not kinds <= {"letter", "digit"}


def _kind(character: str) -> str:
    category = unicodedata.category(character)
    if category[0] in "LM" or character == "_":
        return "letter"
    return "digit" if category[0] == "N" else "other"


def _continues(text: str, begin: int, place: int) -> bool:
    """Whether the character at a place belongs to the word that begins at ``begin``."""
    character = text[place]
    if _kind(character) != "other" or unicodedata.category(character) in ("So", "Sk", "Cf"):
        return True
    after = text[place + 1] if place + 1 < len(text) else " "
    if place == begin or _kind(text[place - 1]) == "other" or _kind(after) == "other":
        return False
    return character in _INNER or (character == "." and _kind(after) == "digit")
