"""Head-averaged attention against NumPy in float64."""

import kernel_inputs
import numpy as np
import pytest
import torch
from glassbox.kernels import mean_attention
from glassbox.kernels.eager import mean_attention as eager


def whole(query, key, heads):
    """Probabilities of every head: float64 (heads, rows, positions, keys)."""
    split = (np.split(tensor.double().numpy(), heads, axis=2) for tensor in (query, key))
    maps = []
    for q, k in zip(*split, strict=True):
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[2])
        exponentials = np.exp(scores - scores.max(-1, keepdims=True))
        maps.append(exponentials / exponentials.sum(-1, keepdims=True))
    return np.stack(maps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("first", [None, 1, 4])
@pytest.mark.parametrize("block", [1, 300, 1 << 20])
def test_against_numpy(monkeypatch, dtype, first, block):
    monkeypatch.setattr(eager, "BLOCK", block)
    arguments = kernel_inputs.mean_attention(dtype, 2, 9, 5, 3, 8, first)
    found = mean_attention(**arguments)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, whole(arguments["query"], arguments["key"], 3).mean(0)[..., :first], atol=1e-6)


def test_large_scores_do_not_overflow():
    arguments = kernel_inputs.mean_attention(torch.float32, 1, 4, 5, 1, 8)
    found = mean_attention(**arguments | {"query": 1e4 * arguments["query"]})
    torch.testing.assert_close(found.sum(-1), torch.ones(1, 4))


def test_nothing_to_do():
    assert mean_attention(torch.ones(1, 0, 4), torch.ones(1, 3, 4), 2).shape == (1, 0, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 5}, "divide the channels evenly"),
        ({"key": torch.ones(2, 5, 24)}, "needs \\(rows"),
        ({"key": torch.ones(1, 0, 24)}, "a key and heads"),
        ({"first": 0}, "5 keys: keep from 1 to all of them, not 0"),
        ({"first": 6}, "5 keys: keep from 1 to all of them, not 6"),
    ],
)
def test_wrong_shapes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        mean_attention(**kernel_inputs.mean_attention(torch.float32, 1, 9, 5, 3, 8) | change)
