"""Activations of neurons in one reading of a value layer's outputs; their moments over prompts are few numbers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..eager.neuron_moments import moments

TOKENS, NEURONS = 16, 64


def neuron_moments(values: torch.Tensor) -> torch.Tensor:
    """See ``kernels.neuron_moments``."""
    prompts, tokens, neurons = values.shape
    activations = torch.empty(prompts, neurons, device=values.device)
    grid = (triton.cdiv(neurons, NEURONS), prompts)
    _activations[grid](values, activations, tokens, neurons, *values.stride()[:2], TOKENS, NEURONS)
    return moments(activations)


@triton.jit
def _activations(values, activations, tokens, neurons, prompt_stride, token_stride, TOKENS: tl.constexpr,
                 NEURONS: tl.constexpr):  # fmt: skip
    prompt = tl.program_id(1).to(tl.int64)
    neuron = tl.program_id(0) * NEURONS + tl.arange(0, NEURONS)
    total = tl.zeros([TOKENS, NEURONS], tl.float32)
    for first in range(0, tokens, TOKENS):
        token = (first + tl.arange(0, TOKENS)).to(tl.int64)
        block = tl.load(values + prompt * prompt_stride + token[:, None] * token_stride + neuron[None, :],
                        mask=(token < tokens)[:, None] & (neuron < neurons)[None, :], other=0)  # fmt: skip
        total += tl.abs(block.to(tl.float32))
    tl.store(activations + prompt * neurons + neuron, tl.sum(total, axis=0) / tokens, mask=neuron < neurons)
