"""Moments of neurons against NumPy in float64."""

import kernel_inputs
import numpy as np
import pytest
import torch
from glassbox.kernels import neuron_moments


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 77, 33), (2, 3, 0)])
def test_against_numpy(dtype, shape):
    values = kernel_inputs.gaussian(*shape, dtype=dtype)
    activations = np.abs(values.double().numpy()).mean(1)
    mean = activations.mean(0)
    largest = np.abs(values.double().numpy()).max((0, 1), initial=0)
    wanted = [
        mean,
        ((activations - mean) ** 2).sum(0),
        activations.min(0),
        activations.max(0),
        largest,
    ]
    found = neuron_moments(values)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_nan_stays_in_its_neuron():
    values = kernel_inputs.gaussian(3, 4, 5)
    values[1, 2, 3] = torch.nan
    assert neuron_moments(values).isnan().all(0).tolist() == [False, False, False, True, False]
