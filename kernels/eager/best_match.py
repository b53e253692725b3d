"""Best match by cosine similarity, sliced so that memory grows with N + M and not with N * M."""

from __future__ import annotations

import torch
from torch.nn import functional as F

#: Entries of the similarity matrix that exist at a time: 64 MiB of float32.
SLICE = 1 << 24


def best_match(queries: torch.Tensor, targets: torch.Tensor, mutual: bool = False):
    """See ``kernels.best_match``."""
    queries, targets = (F.normalize(vectors.float(), dim=1) for vectors in (queries, targets))
    similarity = torch.empty(len(queries), device=queries.device)
    index = torch.empty(len(queries), dtype=torch.int64, device=queries.device)
    backward = torch.full((len(targets),), -torch.inf, device=queries.device)
    best_query = torch.zeros(len(targets), dtype=torch.int64, device=queries.device)
    rows = max(SLICE // len(targets), 1)
    for first in range(0, len(queries), rows):
        block = queries[first : first + rows] @ targets.T
        similarity[first : first + rows], index[first : first + rows] = _first_max(block)
        if mutual:
            value, row = _first_max(block.T)
            better = value > backward
            backward[better], best_query[better] = value[better], row[better] + first
    if not mutual:
        return similarity, index
    return similarity, index, best_query[index] == torch.arange(len(queries), device=queries.device)


def _first_max(block: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest value a row and the lowest index that has it: ``argmax`` promises the first, ``max`` does not."""
    index = block.argmax(dim=1)
    return block.gather(1, index[:, None])[:, 0], index
