"""Members' cores layer by layer in a folder, while a space on weight updates is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..common.atomic_write import named_write_errors
from ..common.lora_reader import Shape
from .flat_layout import CommonBasis, LayerBasis
from .member_store import open_journal
from .quantization import GROUP

_BLOCK_BYTES = 8 * 1024 * 1024


class CoreStore:
    """Cores (n, p * q) float32 of ``count`` candidates and the bases of each layer, with a journal
    of complete layers.

    ``entries``: what the journal says of each layer: its shapes (q, in, ...) and (out, p, ...), and
    what was given to ``add`` beside them. Opened again with the same key it resumes; with another
    key it begins again.
    """

    group = GROUP

    def __init__(self, folder: Path, key: str, count: int):
        self.members: dict[str, dict[str, float]] = {}
        self._rows = list(range(count))
        self._count = count
        self._files = {name: folder / f"{name}.f32" for name in ("cores", "left", "right")}
        whole = all(path.is_file() for path in self._files.values())
        self._journal = open_journal(folder, "cores", {"build": key}, whole)
        self.entries = {entry["layer"]: entry for entry in self._journal.entries}
        with named_write_errors(folder):
            sizes = [torch.Size(e["down"]).numel() for e in self.entries.values()]
            lefts = [e["up"][0] * e["up"][1] for e in self.entries.values()]
            cores = [count * e["down"][0] * e["up"][1] for e in self.entries.values()]
            for path, numbers in zip(
                self._files.values(), (sum(cores), sum(lefts), sum(sizes)), strict=True
            ):
                with open(
                    path, "ab"
                ) as file:  # what a stopped build wrote beyond the journal is cut off
                    file.truncate(4 * numbers)

    def add(
        self, layer: str, shape: Shape, basis: LayerBasis, cores: torch.Tensor, **about: Any
    ) -> None:
        """Write one layer; it counts once its line in the journal is complete."""
        p = basis.left.shape[1]
        q = len(basis.right)
        entry = {
            "layer": layer,
            "down": [q, *shape[0]],
            "up": [shape[1][0], p, *shape[1][1:]],
            **about,
        }
        with named_write_errors(self._files["cores"]):
            for name, numbers in (("cores", cores), ("left", basis.left), ("right", basis.right)):
                with open(self._files[name], "ab") as file:
                    file.write(numbers.float().contiguous().numpy().tobytes())
        self._journal.add(entry)
        self.entries[layer] = entry

    def finish(
        self, members: dict[int, tuple[str, dict[str, float]]], dtype: torch.dtype
    ) -> CommonBasis:
        """The layout of all layers; ``members`` are name and losses of the candidates that stay, by
        their number.
        """
        self._rows = list(members)
        self.members = dict(members.values())
        # mapped, so that memory holds the bases in their dtype alone; a copy, so that the files can
        # go
        left, right = (
            torch.from_numpy(np.memmap(self._files[side], np.float32, "c")).to(dtype, copy=True)
            if self._files[side].stat().st_size
            else torch.empty(0, dtype=dtype)
            for side in ("left", "right")
        )
        self.rounding = sum(self._rounding(side, dtype) for side in ("left", "right")) ** 0.5
        shapes = {layer: (entry["down"], entry["up"]) for layer, entry in self.entries.items()}
        self._layout = CommonBasis.of_bases(shapes, left, right)
        return self._layout

    def _rounding(self, side: str, dtype: torch.dtype) -> float:
        """The squared relative error of the bases on a side in a dtype, a part at a time."""
        if dtype == torch.float32 or not self._files[side].stat().st_size:
            return 0.0
        lost = total = 0.0
        for part in torch.from_numpy(np.memmap(self._files[side], np.float32, "c")).split(
            _BLOCK_BYTES // 4
        ):
            lost += float((part - part.to(dtype).float()).square().sum())
            total += float(part.square().sum())
        return lost / max(total, 1e-300)

    @property
    def norms(self) -> list[float]:
        """|dW| of the members that stay: what their cores keep of it."""
        return [
            sum(entry["kept"][row] for entry in self.entries.values()) ** 0.5 for row in self._rows
        ]

    def blocks(self) -> list[slice]:
        """Blocks of columns of all cores, in order, each but the last a multiple of the
        quantization's group.
        """
        width = max(_BLOCK_BYTES // (4 * self._count) // GROUP * GROUP, GROUP)
        size = self._layout.size
        return [slice(first, min(first + width, size)) for first in range(0, size, width)]

    def read(self, columns: slice) -> np.ndarray:
        """float32 (members, width) of a block of columns."""
        parts = []
        for slot in self._layout.slots:
            first = max(columns.start, slot.offset)
            last = min(columns.stop, slot.end)
            if first < last:
                shape = (self._count, slot.end - slot.offset)
                whole = np.memmap(
                    self._files["cores"], np.float32, "r", 4 * self._count * slot.offset, shape
                )
                parts.append(whole[self._rows, first - slot.offset : last - slot.offset])
        return np.concatenate(parts, axis=1)
