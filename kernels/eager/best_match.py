"""Best match by cosine similarity, a block of the similarity matrix at a time."""

from __future__ import annotations

import torch

from . import block_bytes

#: Bytes of a block of similarities on a CPU, or a tenth of the inputs where that is more: each
#: block reads all targets.
BLOCK = 1 << 23


def best_match(
    queries: torch.Tensor, targets: torch.Tensor, mutual: bool = False
) -> tuple[torch.Tensor, ...]:
    """See ``kernels.best_match``."""
    size = max(block_bytes(queries.device, BLOCK), (queries.nbytes + targets.nbytes) // 10) // 4
    rows = max(size // len(targets), 1)
    step = len(targets)
    if targets.dtype != torch.float32:  # a part is cast at a time
        step = max(size // max(targets.shape[1], 1), 1)
    similarity = queries.new_empty(len(queries), dtype=torch.float32)
    index = torch.empty(len(queries), dtype=torch.int64, device=queries.device)
    target_scale = torch.cat([_inverse_norm(part.float()) for part in targets.split(step)])
    column_best = torch.full_like(target_scale, -torch.inf)
    column_index = torch.zeros(len(targets), dtype=torch.int64, device=queries.device)
    buffer = target_scale.new_empty(min(rows, len(queries)), len(targets))
    for first in range(0, len(queries), rows):
        part = slice(first, first + rows)
        units = queries[part].float()
        units = units * _inverse_norm(units)[:, None]
        block = buffer[: len(units)]
        for column in range(0, len(targets), step):
            torch.mm(
                units,
                targets[column : column + step].float().T,
                out=block[:, column : column + step],
            )
        del units  # before the next ones are made
        block *= target_scale
        index[part] = block.argmax(dim=1)
        similarity[part] = block.take_along_dim(index[part, None], dim=1)[:, 0]
        if mutual:
            row = block.argmax(dim=0)
            value = block.take_along_dim(row[None], dim=0)[0]
            better = value > column_best
            column_best = torch.where(better, value, column_best)
            column_index = torch.where(better, row + first, column_index)
    if not mutual:
        return similarity, index
    return (
        similarity,
        index,
        column_index[index] == torch.arange(len(queries), device=queries.device),
    )


def _inverse_norm(vectors: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(vectors, dim=1).clamp_min(1e-12).reciprocal()
