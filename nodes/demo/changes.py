"""Changes to a demo world's denoiser, small enough to ship beside it: low-rank ones, and single rows.

Tensors of ``changes.safetensors``, for a layer L of the U-Net: ``L.up`` (out, r) and ``L.down`` (r, in), whose product
is added to the flattened weight; or ``L.rows`` (n, in), added to the rows ``L.indices`` (n,).
"""

from __future__ import annotations

import torch


def apply(weights: dict[str, torch.Tensor], changes: dict[str, torch.Tensor]) -> None:
    """Add ``changes`` to the denoiser's ``weights`` in place; the changed ones become float32."""
    for path in sorted({name.rpartition(".")[0] for name in changes}):
        weight = weights[f"{path}.weight"].float()
        if f"{path}.up" in changes:
            weight += (changes[f"{path}.up"].float() @ changes[f"{path}.down"].float()).view_as(weight)
        if f"{path}.rows" in changes:
            weight[changes[f"{path}.indices"]] += changes[f"{path}.rows"].float()
        weights[f"{path}.weight"] = weight
