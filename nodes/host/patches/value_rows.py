"""Scale what chosen layers of a network put out, for exactly as long as one call of the network."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import nn

from ..hooks import Call, forward_hooks, hook_calls

#: Factor of each channel by dotted path of the layer: (channels,), or (rows, channels) for factors of each row.
Factors = Mapping[str, torch.Tensor]


def scaled(network: nn.Module, factors: Factors) -> AbstractContextManager[None]:
    """Multiply the outputs (rows, tokens, channels) of layers while the block runs; every hook goes with it.

    Factors of each row are repeated when the network is called with a multiple of those rows. Channels of factor 1
    keep their bits.
    """
    return forward_hooks(network, ([(path, _scaling(factor)) for path, factor in factors.items()], ()))


def with_scaled(patcher, factors: Factors, sigmas: tuple[float, float], conditional_only: bool):
    """A clone of a MODEL whose sampling scales the layers from the first noise level of ``sigmas`` down to the second.

    ``conditional_only`` leaves rows of the negative prompt as they are.
    """
    highest, lowest = sigmas
    cache: dict = {}

    def calling(call: Call):
        if not lowest <= call.sigma <= highest:
            return None
        key = (call.positive if conditional_only else (), call.rows)
        if key not in cache:
            cache.clear()
            cache[key] = [(path, _scaling(factor)) for path, factor in _of_rows(factors, *key).items()]
        return cache[key], ()

    return hook_calls(patcher, calling, needs_positive=conditional_only)


def _scaling(factor: torch.Tensor):
    def receive(output):
        nonlocal factor
        if factor.device != output.device or factor.dtype != output.dtype:
            factor = factor.to(output)
        if factor.is_inference() and torch.is_grad_enabled():
            factor = factor.clone()  # no gradient crosses an inference tensor
        if factor.ndim == 1:
            return output * factor
        rows = factor.repeat(len(output) // len(factor), 1)
        return output * rows[:, None]

    return receive


def _of_rows(factors: Factors, parts: tuple[bool, ...], rows: int) -> Factors:
    """Factors that act on conditional rows only, where ``parts`` says which equal parts of the rows those are."""
    if not parts or all(parts):
        return factors
    chosen = torch.tensor(parts).repeat_interleave(rows // len(parts))[:, None]
    return {path: torch.where(chosen, factor, 1.0) for path, factor in factors.items()}


def bake_row_scales(patcher, factors: Factors):
    """A clone of a MODEL in which the weight rows of layers are multiplied by ``factors`` (rows,) by dotted path.

    After the LoRAs that the MODEL has by now; LoRAs that are added later are not scaled.
    """
    clone = patcher.clone()
    for path, factor in factors.items():
        key = f"diffusion_model.{path}.weight"
        for row in (factor != 1).nonzero().flatten().tolist():
            # ComfyUI multiplies the part of the weight that an offset names by the model's strength.
            nothing = ("diff", (torch.zeros(1),))
            clone.add_patches({(key, (0, row, 1)): nothing}, strength_patch=0.0, strength_model=float(factor[row]))
    return clone
