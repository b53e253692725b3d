"""PEFT's ``alpha_pattern`` and ``rank_pattern``: which value belongs to a layer.

PEFT takes the first key that, as a regular expression, matches a layer's name from its start or
from a dot to its end. A header is written by a stranger, and a backtracking engine needs years for
a pattern that is made for it. So a key is read as a name ("attn1.to_q", "^down_blocks.0.conv1"), or
as a pattern of a small language (".*attn2.(to_k|to_v)"), whose automaton takes at most pattern
times name steps; the steps of a file are counted.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass, field

from .headers import LARGEST_NUMBER, HeaderError, Section

LONGEST_PATTERN = 256
#: How many steps the patterns of one file may take altogether, a few seconds.
MOST_STEPS = 5_000_000
_NAME = frozenset(string.ascii_letters + string.digits + "_-.")
_SPECIAL = frozenset("\\.*+?()[]{}|^$")
_CLASSES = {
    "d": frozenset(string.digits),
    "w": frozenset(string.ascii_letters + string.digits + "_"),
}


class _UnsupportedPatternError(ValueError):
    """A pattern is not of the small language."""


class LayerPatterns:
    """Values by pattern, and the value of a layer, which is matched once and remembered."""

    def __init__(
        self,
        section: Section,
        key: str,
        *,
        low: float = -LARGEST_NUMBER,
        high: float = LARGEST_NUMBER,
    ):
        """Read the field ``key``; raises HeaderError for values and patterns that do not fit."""
        values = section.section(key, default=Section({}, section.file))
        self._file = section.file
        self._key = key
        self._steps = 0
        self._names: dict[str, tuple[int, float]] = {}
        self._anchored: dict[str, tuple[int, float]] = {}
        self._patterns: list[tuple[int, _Automaton, float]] = []
        self._matched: dict[tuple[str, ...], float | None] = {}
        for order, pattern in enumerate(values):
            self._add(order, pattern, values.number(pattern, low=low, high=high))

    def __bool__(self) -> bool:
        return bool(self._names or self._anchored or self._patterns)

    def value(self, *names: str) -> float | None:
        """The value of the first pattern that matches one of a layer's names; None without one.

        Raises HeaderError when the patterns of the file take more than ``MOST_STEPS`` steps.
        """
        if names not in self._matched:
            self._matched[names] = self._match(names)
        return self._matched[names]

    def _add(self, order: int, pattern: str, value: float) -> None:
        name = pattern.removeprefix("^").removesuffix("$")
        if not pattern.endswith("\\$") and name and _NAME.issuperset(name):
            names = self._anchored if pattern.startswith("^") else self._names
            names.setdefault(name, (order, value))
            return
        try:
            self._patterns.append((order, _compile(pattern), value))
        except _UnsupportedPatternError:
            shown = " ".join(pattern[:60].split())
            raise HeaderError(
                f"{self._file} has the {self._key} {shown!r}, which is neither a layer's name nor "
                "a simple pattern such as '.*attn2.(to_k|to_v)': save the LoRA with names of "
                "layers."
            ) from None
        self._count(len(pattern))

    def _match(self, names: tuple[str, ...]) -> float | None:
        best: tuple[int, float] | None = None
        for name in names:
            candidates = [self._anchored.get(name)]
            candidates += [self._names.get(name[start:]) for start in _starts(name)]
            for candidate in candidates:
                if candidate is not None and (best is None or candidate[0] < best[0]):
                    best = candidate
        for order, automaton, value in self._patterns:
            if best is not None and best[0] < order:
                break
            for name in names:
                matches, steps = automaton.match(name)
                self._count(steps)
                if matches:
                    return value
        return best[1] if best else None

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MOST_STEPS:
            raise HeaderError(
                f"{self._file} has patterns under {self._key} that take too long to compare with "
                "its layers: save the LoRA with names of layers."
            )


def _starts(name: str) -> Iterator[int]:
    """Where a pattern may begin: at the start and behind each dot."""
    yield 0
    for place, letter in enumerate(name):
        if letter == ".":
            yield place + 1


@dataclass
class _Automaton:
    """A nondeterministic automaton: edges take a letter (None: any letter), jumps take none."""

    anchored: bool = False
    edges: list[list[tuple[frozenset[str] | None, int]]] = field(default_factory=list)
    jumps: list[list[int]] = field(default_factory=list)

    def new_state(self) -> int:
        self.edges.append([])
        self.jumps.append([])
        return len(self.edges) - 1

    def match(self, name: str) -> tuple[bool, int]:
        """Whether the pattern matches the end of a name, and the steps it took.

        State 0 starts, state 1 accepts.
        """
        starts = {0} if self.anchored else set(_starts(name))
        states: set[int] = set()
        steps = 0
        for place in range(len(name) + 1):
            if place in starts:
                states.add(0)
            pending = list(states)
            while pending:  # follow the jumps
                steps += 1
                for target in self.jumps[pending.pop()]:
                    if target not in states:
                        states.add(target)
                        pending.append(target)
            if place == len(name):
                break
            following: set[int] = set()
            for state in states:
                for letters, target in self.edges[state]:
                    steps += 1
                    if letters is None or name[place] in letters:
                        following.add(target)
            states = following
        return 1 in states, steps


def _compile(pattern: str) -> _Automaton:
    """The automaton of a pattern of letters, ".", escapes, classes, groups and "|".

    "*", "+" and "?" may follow a letter, an escape or a class.
    Raises _UnsupportedPatternError for everything else.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise _UnsupportedPatternError
    automaton = _Automaton(anchored=pattern.startswith("^"))
    start = automaton.new_state()
    end = automaton.new_state()
    groups = [(start, end)]
    state = start
    place = 1 if automaton.anchored else 0
    stop = (
        len(pattern) - 1 if pattern.endswith("$") and not pattern.endswith("\\$") else len(pattern)
    )
    while place < stop:
        letter = pattern[place]
        if letter == "(":
            place += 3 if pattern[place : place + 3] == "(?:" else 1
            groups.append((automaton.new_state(), automaton.new_state()))
            automaton.jumps[state].append(groups[-1][0])
            state = groups[-1][0]
        elif letter == "|":
            place += 1
            automaton.jumps[state].append(groups[-1][1])
            state = groups[-1][0]
        elif letter == ")":
            place += 1
            if len(groups) == 1 or pattern[place : place + 1] in ("*", "+", "?", "{"):
                raise _UnsupportedPatternError
            automaton.jumps[state].append(groups[-1][1])
            state = groups.pop()[1]
        else:
            letters, place = _letters(pattern, place)
            repeat = pattern[place : place + 1] if place < stop else ""
            state = _append(automaton, state, letters, repeat)
            place += 1 if repeat and repeat in "*+?" else 0
            if place < stop and pattern[place] in "*+?{":
                raise _UnsupportedPatternError
    if len(groups) > 1:
        raise _UnsupportedPatternError
    automaton.jumps[state].append(end)
    return automaton


def _append(automaton: _Automaton, state: int, letters: frozenset[str] | None, repeat: str) -> int:
    """Put a letter behind a state, repeated by "*", "+" or "?"; returns the state behind it."""
    following = automaton.new_state()
    if repeat and repeat in "*+":
        loop = automaton.new_state()
        automaton.edges[loop].append((letters, loop))
        automaton.jumps[loop].append(following)
        if repeat == "*":
            automaton.jumps[state].append(loop)
        else:
            automaton.edges[state].append((letters, loop))
        return following
    automaton.edges[state].append((letters, following))
    if repeat == "?":
        automaton.jumps[state].append(following)
    return following


def _letters(pattern: str, place: int) -> tuple[frozenset[str] | None, int]:
    """The letters that a place of a pattern takes (None: any), and where the next place begins."""
    letter = pattern[place]
    if letter == ".":
        return None, place + 1
    if letter == "\\":
        escaped = pattern[place + 1 : place + 2]
        if escaped in _CLASSES:
            return _CLASSES[escaped], place + 2
        if not escaped or escaped.isalnum():
            raise _UnsupportedPatternError
        return frozenset(escaped), place + 2
    if letter == "[":
        return _bracket(pattern, place)
    if letter in _SPECIAL:
        raise _UnsupportedPatternError
    return frozenset(letter), place + 1


def _bracket(pattern: str, place: int) -> tuple[frozenset[str], int]:
    """A class such as [qkv] or [0-9], and where the next place begins."""
    end = pattern.find("]", place)
    content = pattern[place + 1 : end]
    if end < 0 or not content or not content.isascii() or not set(content).isdisjoint("[^\\"):
        raise _UnsupportedPatternError
    letters: set[str] = set()
    position = 0
    while position < len(content):
        if content[position + 1 : position + 2] == "-" and position + 2 < len(content):
            first = ord(content[position])
            last = ord(content[position + 2])
            letters.update(map(chr, range(first, last + 1)))
            position += 3
        else:
            letters.add(content[position])
            position += 1
    return frozenset(letters), end + 1
