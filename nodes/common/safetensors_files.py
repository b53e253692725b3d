"""Read a .safetensors file that another process may replace, and write one that is larger than
memory.

The format: eight bytes with the length of a JSON header, the header, then the tensors' bytes one
after another.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import torch

from .atomic_write import atomic_write
from .headers import HeaderError, unreadable

if TYPE_CHECKING:
    from safetensors import safe_open

_TRIES = 20
_MOST_SIDES = 16
#: The dtypes that PyTorch compares and converts.
_PLAIN = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
}
#: And those that it converts alone, which LoRA files may have.
NUMBERS = _PLAIN | {
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
}
_NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int8: "I8",
    torch.int64: "I64",
}


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[safe_open]:
    """The open file (``safetensors.safe_open``, on the CPU), its header and its tensors of one and
    the same version.

    safetensors opens a path twice, for the header and for the tensors. A file that another process
    puts in its place in between fails to map, or gives one file's numbers under the other's names:
    such a file is opened again.
    """
    from safetensors import safe_open

    for _ in range(_TRIES):
        before = _version(path)
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(safe_open(path, framework="pt", device="cpu"))
            except Exception:
                if _version(path) == before:
                    raise
                continue
            if _version(path) == before:
                yield file
                return
    raise OSError(f"{path.name} was replaced {_TRIES} times while it was opened")


@contextlib.contextmanager
def open_file(path: Path, remedy: str) -> Iterator[safe_open]:
    """``open_tensors`` whose errors are one sentence, which ends in ``remedy``, such as "train it
    again".
    """
    from safetensors import SafetensorError

    try:
        with open_tensors(path) as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise unreadable(path, error, remedy) from None


def read_tensors(
    file: safe_open, name: str, keys: Iterable[str] | None = None
) -> dict[str, torch.Tensor]:
    """The tensors of an open file, or those of some keys.

    Raises HeaderError for one that is missing, and for numbers that PyTorch cannot convert
    (complex, packed).
    """
    present = set(file.keys())
    tensors = {}
    for key in sorted(present) if keys is None else keys:
        if key not in present:
            raise HeaderError(
                f"{name} has no tensor {key[:60]!r}: download or make the file again."
            )
        if len(file.get_slice(key).get_shape()) > _MOST_SIDES:
            raise HeaderError(
                f"{name} has a tensor {key[:60]!r} of more than {_MOST_SIDES} sides: make the file "
                "again."
            )
        tensors[key] = file.get_tensor(key)
        if tensors[key].dtype not in _PLAIN:
            kind = str(tensors[key].dtype).removeprefix("torch.")
            raise HeaderError(
                f"{name} holds {key[:60]!r} as {kind}, not as plain numbers: convert it to float32."
            )
    return tensors


def _version(path: Path) -> tuple[int, ...]:
    """What differs between two files that stood at one path."""
    about = path.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


class MappedFile:
    """A file whose tensors lie in memory as a mapping: reading them where it was shortened ends the
    process.

    It is held open, so that a file that takes its name, as every careful program writes, changes
    nothing here.
    """

    def __init__(self, path: Path):
        self._name = path.name
        self._file = path.open("rb")
        self._state = self._current()

    def check(self) -> None:
        """Raise ValueError where the file was written to since it was opened."""
        if self._current() != self._state:
            raise ValueError(
                f"{self._name} was written to while it was in use: load it again, and replace such "
                "files as a whole instead of writing into them."
            )

    def _current(self) -> tuple[int, int]:
        about = os.fstat(self._file.fileno())
        return about.st_size, about.st_mtime_ns


@contextlib.contextmanager
def tensor_file(
    path: Path,
    tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]],
    metadata: dict[str, str],
    check: Callable[[Path], object] | None = None,
) -> Iterator[TensorFile]:
    """A file of tensors (name -> dtype, shape) to fill; written whole or not at all, ``check`` as
    in `atomic_write`.
    """
    with atomic_write(path, check) as temporary, open(temporary, "wb") as file:
        yield TensorFile(file, tensors, metadata)


class TensorFile:
    """The tensors of an open file, which has its whole size from the start."""

    def __init__(
        self,
        file: BinaryIO,
        tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]],
        metadata: dict,
    ):
        self._file = file
        self._tensors = tensors
        self._starts = {}
        header: dict[str, object] = {"__metadata__": metadata}
        offset = 0
        for name, (dtype, shape) in tensors.items():
            size = dtype.itemsize * torch.Size(shape).numel()
            header[name] = {
                "dtype": _NAMES[dtype],
                "shape": list(shape),
                "data_offsets": [offset, offset + size],
            }
            self._starts[name] = offset
            offset += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        head = struct.pack("<Q", len(text)) + text
        self._first = len(head)
        file.write(head)
        file.truncate(len(head) + offset)

    def put(self, name: str, value: torch.Tensor) -> None:
        """Write a whole tensor."""
        dtype, shape = self._tensors[name]
        self._write(self._starts[name], value.reshape(shape).to(dtype))

    def put_columns(self, name: str, first: int, block: torch.Tensor) -> None:
        """Write columns ``first`` to ``first`` + w of a matrix (rows, columns) from a block (rows,
        w).
        """
        dtype, (_, columns) = self._tensors[name]
        for row, part in enumerate(block.to(dtype)):
            self._write(self._starts[name] + (row * columns + first) * dtype.itemsize, part)

    def put_rows(self, name: str, first: int, block: torch.Tensor) -> None:
        """Write rows ``first`` and following of a matrix from a block (w, columns)."""
        dtype, (_, columns) = self._tensors[name]
        self._write(self._starts[name] + first * columns * dtype.itemsize, block.to(dtype))

    def _write(self, start: int, value: torch.Tensor) -> None:
        self._file.seek(self._first + start)
        self._file.write(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
