"""What a job runs over: lists of prompts, files, seeds or table rows, read as they are needed and
never kept whole.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import LaunchError

_SEEDS = re.compile(r"(\d+)-(\d+)")
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Entries:
    """A list: the names of its columns, how many entries there are, and a way to read them from the
    start.

    An entry is a value for each column. ``files`` is the folder that values may name files or
    folders of.
    """

    columns: tuple[str, ...]
    count: int
    read: Callable[[], Iterator[tuple[str, ...]]]
    files: Path | None = None


def opened(over: str) -> Entries:
    """The list that ``over`` names. Raises LaunchError when there is none, or when it is empty.

    A .txt file: column ``prompt``, one a line. A .csv file: its own columns. A folder: column
    ``file``, or ``folder`` when it holds folders. A range such as 0-999: column ``seed``, both ends
    counted.
    """
    found = _opened(over)
    if not found.count:
        raise LaunchError(f"{over} is an empty list: there is nothing to run.")
    return found


def _opened(over: str) -> Entries:
    if seeds := _SEEDS.fullmatch(over):
        first, last = map(int, seeds.groups())
        return Entries(
            ("seed",),
            max(last - first + 1, 0),
            lambda: ((str(seed),) for seed in range(first, last + 1)),
        )
    path = Path(over).expanduser().absolute()
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise LaunchError(
            f"There is no list {over}: give a .txt or .csv file, a folder, or seeds such as 0-999."
        )
    if path.suffix.lower() == ".csv":
        return _table(path)
    return Entries(("prompt",), _count(_lines(path)), lambda: ((line,) for line in _lines(path)))


def _folder(path: Path) -> Entries:
    names = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    folders = [name for name in names if (path / name).is_dir()]
    if folders and len(folders) < len(names):
        raise LaunchError(
            f"{path} holds files and folders: give a folder that holds files, or folders, alone."
        )
    return Entries(
        ("folder" if folders else "file",), len(names), lambda: ((name,) for name in names), path
    )


def _lines(path: Path) -> Iterator[str]:
    """The lines of a text that are not empty."""
    with _reading(path) as file:
        yield from (line.strip() for line in file if line.strip())


def _table(path: Path) -> Entries:
    head = next(_rows(path), None)
    if not head:
        raise LaunchError(
            f"{path.name} has no first line with the names of its columns: write one."
        )
    twice = next((name for name in head if head.count(name) > 1), None)
    if twice is not None:
        raise LaunchError(f"{path.name} has two columns {twice!r}: rename one.")

    def read() -> Iterator[tuple[str, ...]]:
        for number, row in enumerate(itertools.islice(_rows(path), 1, None), 2):
            if len(row) != len(head):
                raise LaunchError(
                    f"Row {number} of {path.name} has {len(row)} cells and the first has "
                    f"{len(head)}."
                )
            yield tuple(row)

    return Entries(tuple(head), _count(read()), read)


def _rows(path: Path) -> Iterator[list[str]]:
    with _reading(path) as file:
        line = file.readline()
        file.seek(0)
        try:
            yield from filter(
                None, csv.reader(file, delimiter=";" if line.count(";") > line.count(",") else ",")
            )
        except csv.Error as error:
            raise LaunchError(f"{path.name} is no table ({error}): save it as CSV again.") from None


class _reading:  # noqa: N801, reads as a verb in a with statement
    """A text file open for reading, its troubles as sentences."""

    def __init__(self, path: Path):
        self._path = path

    def __enter__(self):
        self._file = self._path.open(encoding="utf-8-sig", newline="")
        return self._file

    def __exit__(self, kind, error, trace) -> None:
        self._file.close()
        if isinstance(error, UnicodeDecodeError):
            raise LaunchError(
                f"{self._path.name} is not UTF-8 text ({error}): save it as such."
            ) from None


def _count(items: Iterator) -> int:
    return sum(1 for _ in items)


def digest(path: Path) -> str:
    """SHA-256 of a file's bytes; of a folder: of the names and digests of all that lies in it and
    below.
    """
    total = hashlib.sha256()
    if path.is_dir():
        for inside in sorted(entry for entry in path.rglob("*") if entry.is_file()):
            total.update(f"{inside.relative_to(path).as_posix()}\0{digest(inside)}\n".encode())
        return total.hexdigest()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            total.update(block)
    return total.hexdigest()
