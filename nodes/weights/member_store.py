"""Where members come from, and flattened members in a file, cut into blocks of columns: a read
gives a block of all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..common.atomic_write import named_write_errors
from ..common.lora_reader import Lora, LoraHeader
from ..common.resume import Identity, Journal
from .quantization import GROUP

_BLOCK_BYTES = 8 * 1024 * 1024
_VERSION = 3


@dataclass(frozen=True, kw_only=True)
class MemberSource:
    """A candidate member: its name, a digest of its content, its header, and how to read it.

    ``stamp`` stays in the space that is built, which says by it that a member need not be read
    again: neither a file's size nor its time would do. ``read`` takes which layers are wanted,
    None for all. ``path``: its file, to notice the same file twice; then ``keep_open`` gives a
    ``read`` that opens the file once, and closes it with the stack.
    """

    name: str
    stamp: str
    header: Callable[[], LoraHeader]
    read: Callable[..., Lora]
    path: Path | None = None
    keep_open: Callable[[contextlib.ExitStack], Callable[..., Lora]] | None = None

    def content(self) -> str:
        """The same for two files of the same bytes; for others the name."""
        return self.name if self.path is None else self.stamp


class MemberStore:
    """A folder with up to ``capacity`` vectors of ``size`` float32 numbers and a journal of the
    complete ones.

    ``members``: name -> fractions of it that were lost, in the order of the rows; ``norms``: their
    |dW|. Opened again with the same key it resumes; with another key it begins again. Raises
    WriteError where the disk is full or the folder read-only.
    """

    group = GROUP
    rounding = 0.0

    def __init__(self, folder: Path, key: str, capacity: int, size: int):
        self._capacity = capacity
        self._size = size
        width = _BLOCK_BYTES // (4 * max(capacity, 1)) // GROUP * GROUP
        self._width = min(max(width, GROUP), -(-size // GROUP) * GROUP)
        self._data = folder / "members.f32"
        whole = self._data.is_file()
        self._journal = open_journal(folder, "members", {"build": key, "width": self._width}, whole)
        self.members: dict[str, dict[str, float]] = {
            entry["name"]: entry["lost"] for entry in self._journal.entries
        }
        self.norms: list[float] = [entry["norm"] for entry in self._journal.entries]
        if not self.members:
            with named_write_errors(self._data):
                self._data.write_bytes(b"")

    def add(self, name: str, flat: np.ndarray, lost: dict[str, float], norm: float) -> None:
        """Write one member with its |dW|; it counts once its line in the journal is complete."""
        row = len(self.members)
        with named_write_errors(self._data), open(self._data, "r+b") as file:
            numbers = np.ascontiguousarray(flat, np.float32).data
            for columns in self.blocks():
                file.seek(self._start(columns, row))
                file.write(numbers[columns])
        self._journal.add({"name": name, "lost": lost, "norm": norm})
        self.members[name] = lost
        self.norms.append(norm)

    def blocks(self) -> list[slice]:
        """The blocks of columns, in order."""
        return [
            slice(first, min(first + self._width, self._size))
            for first in range(0, self._size, self._width)
        ]

    def read(self, columns: slice) -> np.ndarray:
        """float32 (members, width) of a block."""
        width = columns.stop - columns.start
        count = len(self.members) * width
        numbers = np.fromfile(self._data, np.float32, count, offset=self._start(columns, 0))
        return numbers.reshape(len(self.members), width)

    def _start(self, columns: slice, row: int) -> int:
        return 4 * (self._capacity * columns.start + row * (columns.stop - columns.start))


def open_journal(folder: Path, kind: str, identity: Identity, whole: bool) -> Journal:
    """The journal in a build's folder; begun again where it is of other work, or its data are not
    ``whole``.
    """
    path = folder / "journal.jsonl"
    with contextlib.suppress(ValueError):
        if whole:
            return Journal(path, kind, _VERSION, identity)
    path.unlink(missing_ok=True)
    return Journal(path, kind, _VERSION, identity)
