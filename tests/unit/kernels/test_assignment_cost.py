"""The assignment cost against NumPy in float64."""

import numpy as np
import pytest
import torch
from glassbox.kernels import assignment_cost


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (16, 16, 1000), (2, 9, 65536)])
def test_against_numpy(dtype, shape):
    rows, columns, size = shape
    data, noise = gaussian(rows, size).to(dtype), gaussian(columns, size, seed=1).to(dtype)
    cost = assignment_cost(data, noise)
    expected = -(data.double().numpy() @ noise.double().numpy().T)
    expected = (
        expected
        - expected.mean(0, keepdims=True)
        - expected.mean(1, keepdims=True)
        + expected.mean()
    )
    assert cost.dtype == torch.float32
    np.testing.assert_allclose(cost.numpy(), expected, atol=1e-5 * size**0.5, rtol=1e-4)


def test_strided_rows():
    data, noise = gaussian(40, 6).T, gaussian(40, 6, seed=1).T
    torch.testing.assert_close(
        assignment_cost(data, noise), assignment_cost(data.contiguous(), noise.contiguous())
    )


def test_nan_reaches_the_cost():
    data = gaussian(3, 8)
    data[1, 2] = float("nan")
    assert assignment_cost(data, gaussian(3, 8)).isnan().any()


def test_widths_must_agree():
    with pytest.raises(ValueError, match="Assignment cost needs"):
        assignment_cost(gaussian(3, 8), gaussian(3, 9))
