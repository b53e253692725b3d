"""Scale what chosen layers of a network put out, for exactly as long as one call of the network."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from comfy.patcher_extension import WrappersMP
from torch import nn

#: Factor of each channel by dotted path of the layer: (channels,), or (rows, channels) for factors of each row.
Factors = Mapping[str, torch.Tensor]


@contextmanager
def scaled(network: nn.Module, factors: Factors) -> Iterator[None]:
    """Multiply the outputs (rows, tokens, channels) of layers while the block runs; every hook goes with it.

    Factors of each row are repeated when the network is called with a multiple of those rows. Channels of factor 1
    keep their bits.
    """
    handles = []
    try:
        for path, factor in factors.items():
            handles.append(network.get_submodule(path).register_forward_hook(_scaling(factor)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def with_scaled(patcher, factors: Factors, sigmas: tuple[float, float], conditional_only: bool):
    """A clone of a MODEL whose sampling scales the layers from the first noise level of ``sigmas`` down to the second.

    ``conditional_only`` leaves rows of the negative prompt as they are.
    """
    clone, key = patcher.clone(), f"glassbox_values_{uuid.uuid4().hex}"
    highest, lowest = sigmas
    cache: dict = {}

    def call(executor, *args, **kwargs):
        options = kwargs.get("transformer_options") or (args[5] if len(args) > 5 else {})
        if not lowest <= _sigma(options, args, kwargs) <= highest:
            return executor(*args, **kwargs)
        parts = tuple(kind == 0 for kind in options.get("cond_or_uncond", ())) if conditional_only else ()
        key = (parts, len(args[0]))
        if key not in cache:
            cache.clear()
            cache[key] = _of_rows(factors, parts, len(args[0]))
        with scaled(executor.class_obj.diffusion_model, cache[key]):
            return executor(*args, **kwargs)

    clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, key, call)
    return clone


def _scaling(factor: torch.Tensor):
    def hook(_module, _args, output):
        nonlocal factor
        if factor.device != output.device or factor.dtype != output.dtype:
            factor = factor.to(output)
        if factor.is_inference() and torch.is_grad_enabled():
            factor = factor.clone()  # no gradient crosses an inference tensor
        if factor.ndim == 1:
            return output * factor
        rows = factor.repeat(len(output) // len(factor), 1)
        return output * rows[:, None]

    return hook


def _of_rows(factors: Factors, parts: tuple[bool, ...], rows: int) -> Factors:
    """Factors that act on conditional rows only, where ``parts`` says which equal shares of the rows those are."""
    if not parts or all(parts):
        return factors
    chosen = torch.tensor(parts).repeat_interleave(rows // len(parts))[:, None]
    return {path: torch.where(chosen, factor, 1.0) for path, factor in factors.items()}


def _sigma(options: dict, args: tuple, kwargs: dict) -> float:
    sigmas = options.get("sigmas")
    if sigmas is None:
        sigmas = args[1] if len(args) > 1 else kwargs["t"]
    return float(sigmas.flatten()[0])
