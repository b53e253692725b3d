"""Where members come from, and flattened members in a file, cut into blocks of columns: a read gives a block of all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..common.atomic_write import named_write_errors
from ..common.lora_reader import Lora, LoraHeader
from .quantization import GROUP

_BLOCK_BYTES = 8 * 1024 * 1024
_COMPARED = 2**20  # bytes


@dataclass(frozen=True)
class MemberSource:
    """A candidate member: its name, a stamp that changes with it, its header, and how to read it.

    ``read`` takes which layers are wanted, None for all. ``path``: its file, to notice the same file twice; then
    ``keep_open`` gives a ``read`` that opens the file once, and closes it with the stack.
    """

    name: str
    stamp: str
    header: Callable[[], LoraHeader]
    read: Callable[..., Lora]
    path: Path | None = None
    keep_open: Callable[[contextlib.ExitStack], Callable[..., Lora]] | None = None

    def content(self) -> str:
        """The same for files of the same size, beginning and end; for others the name."""
        if self.path is None:
            return self.name
        with open(self.path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            parts = [size.to_bytes(8, "little")]
            for start in (0, max(size - _COMPARED, 0)):
                file.seek(start)
                parts.append(file.read(_COMPARED))
        return hashlib.sha256(b"".join(parts)).hexdigest()


class MemberStore:
    """A folder with up to ``capacity`` vectors of ``size`` float32 numbers and a journal of the complete ones.

    ``members``: name -> fractions of it that were lost, in the order of the rows. Opened again with the same key it
    resumes; with another key it starts again. Raises WriteError where the disk is full or the folder read-only.
    """

    group = GROUP

    def __init__(self, folder: Path, key: str, capacity: int, size: int):
        self.members: dict[str, dict[str, float]] = {}
        self._capacity, self._size = capacity, size
        width = _BLOCK_BYTES // (4 * max(capacity, 1)) // GROUP * GROUP
        self._width = min(max(width, GROUP), -(-size // GROUP) * GROUP)
        self._data, self._journal = folder / "members.f32", folder / "journal.jsonl"
        key = f"{key} {self._width}"
        with named_write_errors(self._data):
            folder.mkdir(parents=True, exist_ok=True)
            if not self._resume(key):
                self._data.write_bytes(b"")
                self._journal.write_text(json.dumps({"key": key}) + "\n", "utf-8")

    def add(self, name: str, flat: np.ndarray, lost: dict[str, float]) -> None:
        """Write one member; it counts once its line in the journal is complete."""
        row = len(self.members)
        with named_write_errors(self._data), open(self._data, "r+b") as file:
            numbers = np.ascontiguousarray(flat, np.float32).data
            for columns in self.blocks():
                file.seek(self._start(columns, row))
                file.write(numbers[columns])
        with named_write_errors(self._journal), open(self._journal, "a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, "lost": lost}) + "\n")
        self.members[name] = lost

    def blocks(self) -> list[slice]:
        """The blocks of columns, in order."""
        return [slice(first, min(first + self._width, self._size)) for first in range(0, self._size, self._width)]

    def read(self, columns: slice) -> np.ndarray:
        """float32 (members, width) of a block."""
        width = columns.stop - columns.start
        count = len(self.members) * width
        numbers = np.fromfile(self._data, np.float32, count, offset=self._start(columns, 0))
        return numbers.reshape(len(self.members), width)

    def _start(self, columns: slice, row: int) -> int:
        return 4 * (self._capacity * columns.start + row * (columns.stop - columns.start))

    def _resume(self, key: str) -> bool:
        if not self._journal.is_file() or not self._data.is_file():
            return False
        lines = self._journal.read_text("utf-8").splitlines()
        try:
            entries = [json.loads(line) for line in lines]
        except ValueError:  # the last line was cut short
            entries = [json.loads(line) for line in lines[:-1]]
            self._journal.write_text("".join(json.dumps(entry) + "\n" for entry in entries), "utf-8")
        if not entries or entries[0].get("key") != key:
            return False
        self.members = {entry["name"]: entry["lost"] for entry in entries[1:]}
        return True
