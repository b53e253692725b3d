"""Head-averaged attention against NumPy in float64."""

import kernel_inputs
import numpy as np
import pytest
import torch
from glassbox.kernels import mean_attention
from glassbox.kernels.eager import mean_attention as eager


def expected_mean(query, key, mask, scale, begin, count):
    """The mean over heads of the probabilities: float64 (rows, positions, count)."""
    groups = query.shape[1] // key.shape[1]
    q = query.double().numpy()
    k = np.repeat(key.double().numpy(), groups, axis=1)
    scores = q @ k.transpose(0, 1, 3, 2) * (scale or 1 / np.sqrt(q.shape[3]))
    if mask is not None:
        scores = scores + mask.double().numpy()
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    maps = exponentials / exponentials.sum(-1, keepdims=True)
    return maps.mean(1)[..., begin : None if count is None else begin + count]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("count", "begin"), [(None, 0), (1, 0), (4, 0), (2, 3)])
@pytest.mark.parametrize("block", [1, 300, 1 << 20])
def test_against_numpy(monkeypatch, dtype, count, begin, block):
    monkeypatch.setattr(eager, "BLOCK", block)
    arguments = kernel_inputs.mean_attention(dtype, 2, 9, 5, 3, 8, count, begin)
    found = mean_attention(**arguments)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, expected_mean(**arguments), atol=1e-6)


@pytest.mark.parametrize("mask", [None, (1, 1, 1), (2, 1, 1), (2, 1, 9), (1, 6, 9), (2, 6, 1)])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(("block", "fewest"), [(1, 64), (300, 64), (300, 2), (1 << 20, 64)])
def test_masks_and_heads_that_share_keys(monkeypatch, mask, groups, block, fewest):
    """The text in the middle of the keys, as of a network that reads registers first; all heads at
    a time, one, and, of six, five and then the last.
    """
    monkeypatch.setattr(eager, "BLOCK", block)
    monkeypatch.setattr(eager, "POSITIONS", fewest)
    arguments = kernel_inputs.mean_attention(
        torch.float32, 2, 9, 7, heads=6, channels=8, count=3, begin=2, groups=groups, mask=mask
    )
    np.testing.assert_allclose(mean_attention(**arguments), expected_mean(**arguments), atol=1e-6)


def test_large_scores_do_not_overflow():
    arguments = kernel_inputs.mean_attention(torch.float32, 1, 4, 5, 1, 8)
    found = mean_attention(**arguments | {"query": 1e4 * arguments["query"]})
    torch.testing.assert_close(found.sum(-1), torch.ones(1, 4))


def test_nothing_to_do():
    assert mean_attention(torch.ones(1, 2, 0, 2), torch.ones(1, 2, 3, 2)).shape == (1, 0, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": torch.ones(1, 2, 5, 8)}, "divide those of queries"),
        ({"key": torch.ones(2, 3, 5, 8)}, "needs \\(rows"),
        ({"key": torch.ones(1, 3, 5, 6)}, "needs \\(rows"),
        ({"key": torch.ones(1, 3, 0, 8)}, "a key and heads"),
        ({"count": 0}, "5 keys: return from 1 to all of them, not 0 from 0 on"),
        ({"count": 4, "begin": 2}, "5 keys: return from 1 to all of them, not 4 from 2 on"),
        ({"mask": torch.ones(1, 1, 9, 4)}, "A mask of \\(1, 1, 9, 4\\) does not fit"),
        ({"mask": torch.ones(1, 2, 9, 5)}, "A mask of \\(1, 2, 9, 5\\) does not fit"),
    ],
)
def test_wrong_shapes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        mean_attention(**kernel_inputs.mean_attention(torch.float32, 1, 9, 5, 3, 8) | change)
