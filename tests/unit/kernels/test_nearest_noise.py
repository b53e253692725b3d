"""Moments and blend of rows against NumPy in float64."""

import numpy as np
import pytest
import torch
from glassbox.kernels import blend, pair_moments


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (3, 65536), (0, 4)])
def test_moments(dtype, shape):
    data, noise = gaussian(*shape).to(dtype), gaussian(*shape, seed=1).to(dtype)
    x, z = data.double().numpy(), noise.double().numpy()
    for found, expected in zip(pair_moments(data, noise), ((x * z), (x * x), (z * z)), strict=True):
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found.numpy(), expected.sum(1), rtol=1e-5, atol=1e-5 * max(shape[1], 1) ** 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blend(dtype):
    data, noise = gaussian(4, 33).to(dtype), gaussian(4, 33, seed=1).to(dtype)
    along, scale = gaussian(4, seed=2), gaussian(4, seed=3)
    expected = scale.double()[:, None] * noise.double() + along.double()[:, None] * data.double()
    torch.testing.assert_close(blend(data, noise, along, scale), expected.float(), rtol=1e-5, atol=1e-5)


def test_rows_do_not_mix():
    data, noise = gaussian(3, 8), gaussian(3, 8, seed=1)
    noise[1, 0] = float("inf")
    assert [bool(value.isfinite()) for value in pair_moments(data, noise)[2]] == [True, False, True]


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="must both be"):
        pair_moments(gaussian(3, 8), gaussian(4, 8))
    with pytest.raises(ValueError, match="must both be"):
        blend(gaussian(3, 8), gaussian(3, 9), gaussian(3), gaussian(3))
