"""Write a .safetensors file piece by piece, so that a tensor larger than memory can be written.

The format: eight bytes with the length of a JSON header, the header, then the tensors' bytes one after another.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import torch

_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int8: "I8", torch.int64: "I64"}


class TensorFile:
    """A file under a temporary name that gets its own when the block ends well, and vanishes when it does not."""

    def __init__(self, path: Path, tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]], metadata: dict[str, str]):
        self._path, self._temporary = path, path.with_name(f"{path.name}.part")
        self._tensors, self._starts = tensors, {}
        header: dict[str, object] = {"__metadata__": metadata}
        offset = 0
        for name, (dtype, shape) in tensors.items():
            size = dtype.itemsize * torch.Size(shape).numel()
            header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [offset, offset + size]}
            self._starts[name] = offset
            offset += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._head, self._size = struct.pack("<Q", len(text)) + text, offset

    def __enter__(self) -> TensorFile:
        self._file = open(self._temporary, "wb")
        self._file.write(self._head)
        self._file.truncate(len(self._head) + self._size)
        return self

    def __exit__(self, kind, *_) -> None:
        self._file.close()
        if kind is None:
            self._temporary.replace(self._path)
        else:
            self._temporary.unlink(missing_ok=True)

    def put(self, name: str, value: torch.Tensor) -> None:
        """Write a whole tensor."""
        dtype, shape = self._tensors[name]
        self._write(self._starts[name], value.reshape(shape).to(dtype))

    def put_columns(self, name: str, first: int, block: torch.Tensor) -> None:
        """Write columns ``first`` to ``first`` + w of a matrix (rows, columns) from a block (rows, w)."""
        dtype, (_, columns) = self._tensors[name]
        for row, part in enumerate(block.to(dtype)):
            self._write(self._starts[name] + (row * columns + first) * dtype.itemsize, part)

    def put_rows(self, name: str, first: int, block: torch.Tensor) -> None:
        """Write rows ``first`` and following of a matrix from a block (w, columns)."""
        dtype, (_, columns) = self._tensors[name]
        self._write(self._starts[name] + first * columns * dtype.itemsize, block.to(dtype))

    def _write(self, start: int, value: torch.Tensor) -> None:
        self._file.seek(len(self._head) + start)
        self._file.write(value.contiguous().view(torch.uint8).numpy().tobytes())
