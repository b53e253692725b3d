"""Headers of files, which strangers wrote: each value is checked for its type, size and range.

A reader asks a ``Section`` for its fields by name and kind. A value that does not fit ends in one
sentence, which names the file and the key. The work is proportional to what is requested, and no
value of a header is ever run or compiled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

#: The longest text of a field that a person reads, such as a prompt or a name.
LONGEST_TEXT = 100_000
#: The longest text of JSON in a header, which safetensors limits as a whole.
LONGEST_JSON = 100_000_000
#: The largest magnitude of a number without a range of its own: its square is finite in float32.
LARGEST_NUMBER = 1e18
#: The largest count, size or seed: 64 bits.
LARGEST_INTEGER = 2**64 - 1
#: The largest side of a tensor.
LARGEST_SIDE = 2**31 - 1
_MOST_SIDES = 8
_SHOWN = 60

Value = TypeVar("Value")


class HeaderError(ValueError):
    """A header has a value that does not fit: one sentence with the file's name and the key."""


def shorten(text: object) -> str:
    """A text of a file as a sentence may show it: on one line, and cut."""
    line = " ".join(str(text)[: 2 * _SHOWN].split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


class _Required:
    """The default of a field that must be there."""


_REQUIRED = _Required()


def read_json(text: str | bytes, file: str, what: str = "its header") -> Any:
    """The JSON of a file or of a header; raises HeaderError for other text and deep nesting."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise HeaderError(
            f"{file} cannot be read: {what} is no JSON. Download or make the file again."
        ) from None


def read_section(text: str | bytes, file: str, what: str = "its header") -> Section:
    """The JSON object of a file or of a header; raises HeaderError for anything else."""
    values = read_json(text, file, what)
    if not isinstance(values, Mapping):
        raise HeaderError(
            f"{file} cannot be read: {what} is no JSON object. Download or make the file again."
        )
    return Section(values, file)


def unreadable(path: Path, error: Exception, remedy: str) -> ValueError:
    """The error of a file that its format's reader refuses, with the cause where the first bytes
    show it.

    ``remedy``: what to do, such as "build or save the space again".
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as missing:
        return HeaderError(f"{path.name} cannot be read ({missing.strerror or missing}): {remedy}.")
    if start.startswith(b"version https://git-lfs"):
        return HeaderError(
            f"{path.name} is a Git LFS pointer and not the file itself: run git lfs pull where it "
            "was cloned, or download the file."
        )
    if not size:
        return HeaderError(f"{path.name} cannot be read because it is empty: {remedy}.")
    if start.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return HeaderError(
            f"{path.name} cannot be read because it is a web page, not the download itself: "
            f"{remedy}."
        )
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return HeaderError(f"{path.name} cannot be read ({reason}): {remedy}.")


@dataclass(frozen=True)
class Section(Mapping):
    """An object of a header, as a table of raw values that are checked as they are requested.

    ``file``: what errors call the file; ``path``: the keys that lead to this object, ending in a
    dot. A field with a default may be absent or null.
    """

    values_by_key: Mapping[str, Any]
    file: str
    path: str = ""

    def __getitem__(self, key: str) -> Any:
        return self.values_by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_key)

    def __len__(self) -> int:
        return len(self.values_by_key)

    def present(self) -> dict[str, Any]:
        """The raw values by key without those that are null, which count as absent."""
        return {key: value for key, value in self.items() if value is not None}

    def number(
        self,
        key: str,
        *,
        low: float = -LARGEST_NUMBER,
        high: float = LARGEST_NUMBER,
        default: Any = _REQUIRED,
    ) -> float:
        """A finite number between two limits, both included."""

        def check(value: Any) -> float:
            return as_number(value, low=low, high=high)

        return self._field(key, check, default)

    def integer(
        self, key: str, *, low: int = 0, high: int = LARGEST_INTEGER, default: Any = _REQUIRED
    ) -> int:
        """A whole number between two limits, both included."""

        def check(value: Any) -> int:
            return as_integer(value, low=low, high=high)

        return self._field(key, check, default)

    def switch(self, key: str, *, default: Any = _REQUIRED) -> bool:
        """True or false."""
        return self._field(key, _as_switch, default)

    def text(self, key: str, *, longest: int = LONGEST_TEXT, default: Any = _REQUIRED) -> str:
        """A text of at most so many characters."""

        def check(value: Any) -> str:
            return as_text(value, longest=longest)

        return self._field(key, check, default)

    def choice(self, key: str, options: Collection[str], *, default: Any = _REQUIRED) -> str:
        """One of some texts."""

        def check(value: Any) -> str:
            if not isinstance(value, str) or value not in options:
                raise _MismatchError(f"one of {', '.join(options)}")
            return value

        return self._field(key, check, default)

    def numbers(
        self,
        key: str,
        *,
        count: int | None = None,
        low: float = -LARGEST_NUMBER,
        high: float = LARGEST_NUMBER,
        default: Any = _REQUIRED,
    ) -> tuple[float, ...]:
        """A list of finite numbers, of a length where ``count`` gives one."""

        def check(value: Any) -> tuple[float, ...]:
            items = as_list(value, count=count)
            return tuple(as_number(item, low=low, high=high) for item in items)

        return self._field(key, check, default)

    def integers(
        self,
        key: str,
        *,
        count: int | None = None,
        low: int = 0,
        high: int = LARGEST_INTEGER,
        default: Any = _REQUIRED,
    ) -> tuple[int, ...]:
        """A list of whole numbers, of a length where ``count`` gives one."""

        def check(value: Any) -> tuple[int, ...]:
            items = as_list(value, count=count)
            return tuple(as_integer(item, low=low, high=high) for item in items)

        return self._field(key, check, default)

    def texts(
        self,
        key: str,
        *,
        count: int | None = None,
        longest: int = LONGEST_TEXT,
        default: Any = _REQUIRED,
    ) -> tuple[str, ...]:
        """A list of texts, of a length where ``count`` gives one."""

        def check(value: Any) -> tuple[str, ...]:
            items = as_list(value, count=count)
            return tuple(as_text(item, longest=longest) for item in items)

        return self._field(key, check, default)

    def lists_of_texts(
        self, key: str, *, count: int | None = None, default: Any = _REQUIRED
    ) -> list[list[str]]:
        """A list of lists of texts, each of a length where ``count`` gives one."""

        def check(value: Any) -> list[list[str]]:
            return [
                [as_text(text) for text in as_list(item, count=count)] for item in as_list(value)
            ]

        return self._field(key, check, default)

    def shapes(
        self, key: str, *, count: int, default: Any = _REQUIRED
    ) -> tuple[tuple[int, ...], ...]:
        """The shapes of ``count`` tensors."""

        def check(value: Any) -> tuple[tuple[int, ...], ...]:
            return tuple(_as_shape(item) for item in as_list(value, count=count))

        return self._field(key, check, default)

    def section(self, key: str, *, default: Any = _REQUIRED) -> Section:
        """An object within this one."""

        def check(value: Any) -> Section:
            if not isinstance(value, Mapping):
                raise _MismatchError("an object")
            return Section(value, self.file, f"{self.path}{key}.")

        return self._field(key, check, default)

    def sections(self, key: str, *, default: Any = _REQUIRED) -> list[Section]:
        """A list of objects."""

        def check(value: Any) -> list[Section]:
            items = as_list(value)
            if not all(isinstance(item, Mapping) for item in items):
                raise _MismatchError("a list of objects")
            return [
                Section(item, self.file, f"{self.path}{key}.{place}.")
                for place, item in enumerate(items)
            ]

        return self._field(key, check, default)

    def parsed(self, key: str, *, default: Any = _REQUIRED) -> Section:
        """An object that stands here as a text of JSON, as in the metadata of a .safetensors
        file.
        """

        def check(value: Any) -> Section:
            content = _parsed(value)
            if not isinstance(content, Mapping):
                raise _MismatchError("a JSON object")
            return Section(content, self.file, f"{self.path}{key}.")

        return self._field(key, check, default)

    def parsed_texts(self, key: str, *, count: int | None = None) -> tuple[str, ...]:
        """A list of texts that stands here as a text of JSON."""

        def check(value: Any) -> tuple[str, ...]:
            items = as_list(_parsed(value), count=count)
            return tuple(as_text(item, longest=LONGEST_TEXT) for item in items)

        return self._field(key, check, _REQUIRED)

    def mismatch(self, key: str, expected: str) -> HeaderError:
        """The error of a value that is not what is expected, such as "a finite number"."""
        shown = shorten(repr(self.values_by_key.get(key)))
        name = shorten(f"{self.path}{key}")
        return HeaderError(
            f"{self.file} has {name} = {shown}, which must be {expected}: download or make the "
            "file again."
        )

    def _field(self, key: str, check: Callable[[Any], Value], default: Any) -> Value:
        if self.values_by_key.get(key) is None and (
            default is not _REQUIRED or key not in self.values_by_key
        ):
            if default is _REQUIRED:
                name = shorten(f"{self.path}{key}")
                raise HeaderError(f"{self.file} has no {name}: download or make the file again.")
            return default
        try:
            return check(self.values_by_key[key])
        except _MismatchError as error:
            raise self.mismatch(key, str(error)) from None


class _MismatchError(ValueError):
    """A value is not what is expected; the text says what is."""


def as_number(value: Any, *, low: float = -LARGEST_NUMBER, high: float = LARGEST_NUMBER) -> float:
    """A finite number in a range; raises ValueError with what is expected."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _MismatchError("a finite number")
    if isinstance(value, float) and not math.isfinite(value):
        raise _MismatchError("a finite number")
    if not low <= value <= high:
        raise _MismatchError(f"a number between {low:g} and {high:g}")
    return float(value)


def as_integer(value: Any, *, low: int = 0, high: int = LARGEST_INTEGER) -> int:
    """A whole number in a range; raises ValueError with what is expected."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _MismatchError(f"a whole number between {low} and {high}")
    return value


def as_text(value: Any, *, longest: int = LONGEST_TEXT) -> str:
    """A text of limited length, valid as UTF-8; raises ValueError with what is expected."""
    if not isinstance(value, str) or len(value) > longest:
        raise _MismatchError(f"a text of at most {longest} characters")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise _MismatchError("a text of valid characters")
    return value


def as_list(value: Any, *, count: int | None = None) -> list:
    """A list, of a length where ``count`` gives one; raises ValueError with what is expected."""
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise _MismatchError("a list" if count is None else f"a list of {count}")
    return value


def _as_shape(value: Any) -> tuple[int, ...]:
    sides = as_list(value)
    if not 1 <= len(sides) <= _MOST_SIDES:
        raise _MismatchError(f"shapes of 1 to {_MOST_SIDES} sides")
    return tuple(as_integer(side, low=1, high=LARGEST_SIDE) for side in sides)


def _as_switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _MismatchError("true or false")
    return value


def _parsed(value: Any) -> Any:
    try:
        return json.loads(value)
    except (ValueError, TypeError, RecursionError):
        raise _MismatchError("JSON") from None
