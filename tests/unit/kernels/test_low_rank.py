"""Flat vectors and low-rank changes against NumPy in float64."""

import numpy as np
import pytest
import torch
from glassbox.kernels import BASIS_GROUP, flat_weights, low_rank_apply
from glassbox.kernels.eager import low_rank


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-5), (torch.float16, 1e-5)]
)
@pytest.mark.parametrize(("count", "size"), [(1, 1), (7, 100), (150, 3000)])
def test_flat_weights(dtype, tolerance, count, size):
    coefficients, basis = gaussian(count), gaussian(count, size, seed=1).to(dtype)
    mean, deviation = gaussian(size, seed=2), gaussian(size, seed=3)
    wanted = mean.double().numpy() + deviation.double().numpy() * (
        coefficients.double().numpy() @ basis.double().numpy()
    )
    found = flat_weights(coefficients, basis, mean, deviation)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(
        found.double().numpy(), wanted, atol=tolerance * count**0.5 * 10, rtol=tolerance
    )


def test_flat_weights_of_int8():
    size = 2 * BASIS_GROUP + 5
    numbers = torch.randint(
        -127, 128, (4, size), generator=torch.Generator().manual_seed(0), dtype=torch.int8
    )
    scale = gaussian(4, 3, seed=1).abs()
    full = numbers.double() * scale.double().repeat_interleave(BASIS_GROUP, dim=1)[:, :size]
    found = flat_weights(gaussian(4), numbers, torch.zeros(size), torch.ones(size), scale)
    np.testing.assert_allclose(found.double(), gaussian(4).double() @ full, atol=1e-3, rtol=1e-5)


def test_rows_of_zero_are_not_read():
    basis = gaussian(3, 8)
    basis[1] = float("nan")
    found = flat_weights(torch.tensor([1.0, 0.0, 2.0]), basis, torch.zeros(8), torch.ones(8))
    torch.testing.assert_close(found, basis[0] + 2 * basis[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
def test_several_points_are_each_to_the_bit_the_point_alone(dtype, monkeypatch):
    """Dense ones beside one of few coefficients and one of none, over several blocks both ways."""
    monkeypatch.setattr(low_rank, "_COLUMNS", BASIS_GROUP)
    monkeypatch.setattr(low_rank, "_CONVERTED_COLUMNS", BASIS_GROUP)
    monkeypatch.setattr(low_rank, "BASIS_BLOCK", 4 * 7 * BASIS_GROUP)
    monkeypatch.setattr(low_rank, "CONVERTED_BLOCK", 4 * 7 * BASIS_GROUP)
    count = 40
    size = 2 * BASIS_GROUP + 300
    basis = (42 * gaussian(count, size, seed=1).clamp(-3, 3)).to(dtype)
    scale = gaussian(count, 3, seed=4).abs() if dtype == torch.int8 else None
    points = gaussian(4, count)
    points[1] = 0
    points[1, [3, 17, 18]] = torch.tensor([0.3, -2.0, 1.1])
    points[2] = 0
    means = gaussian(4, size, seed=2)
    deviation = gaussian(size, seed=3)
    several = flat_weights(points, basis, means, deviation, scale)
    assert several.shape == (4, size)
    for point, mean, flat in zip(points, means, several, strict=True):
        assert torch.equal(flat, flat_weights(point, basis, mean, deviation, scale))
    assert torch.equal(several[2], means[2])
    numbers = basis.double()
    if scale is not None:
        numbers = numbers * scale.double().repeat_interleave(BASIS_GROUP, dim=1)[:, :size]
    wanted = means.double() + deviation.double() * (points.double() @ numbers)
    torch.testing.assert_close(several.double(), wanted, atol=1e-3, rtol=1e-5)
    shared = flat_weights(points, basis, means[0], deviation, scale)
    assert torch.equal(shared[3], flat_weights(points[3], basis, means[0], deviation, scale))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3, 3)])
@pytest.mark.parametrize("rank", [1, 4])
@pytest.mark.parametrize("of_one_type", [False, True])
def test_low_rank_apply(dtype, shape, rank, of_one_type):
    weight = gaussian(*shape).to(dtype)
    up, down = gaussian(shape[0], rank, seed=1), gaussian(rank, *shape[1:], seed=2)
    if of_one_type:
        up, down = up.to(dtype), down.to(dtype)
    before = weight.clone()
    found = low_rank_apply(weight, up, down, 0.7)
    product = (up.double() @ down.double().flatten(1)).view(shape)
    wanted = (weight.double() + 0.7 * product).to(dtype)
    assert found.dtype == dtype and torch.equal(weight, before)
    torch.testing.assert_close(
        found, wanted, atol=1e-5 if dtype == torch.float32 else 2e-2, rtol=2e-2
    )


def test_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match="needs a coefficient for each row"):
        flat_weights(torch.ones(2), torch.ones(3, 4), torch.ones(4), torch.ones(4))
    for coefficients, mean in (((2, 2), (4,)), ((2, 3), (3, 4)), ((1, 2, 3), (4,))):
        with pytest.raises(ValueError, match="needs a coefficient for each row"):
            flat_weights(
                torch.ones(coefficients), torch.ones(3, 4), torch.ones(mean), torch.ones(4)
            )
    with pytest.raises(ValueError, match="int8 basis needs its scales"):
        flat_weights(
            torch.ones(3), torch.ones(3, 4, dtype=torch.int8), torch.ones(4), torch.ones(4)
        )
    for deviation in (
        torch.ones(1),
        torch.ones(5),
        torch.ones(1, 4),
    ):  # a kernel would read past its end
        with pytest.raises(ValueError, match="must be as long as the mean \\(4,\\)"):
            flat_weights(torch.ones(3), torch.ones(3, 4), torch.ones(4), deviation)
    for scale in (torch.ones(3, 1), torch.ones(2, 2), torch.ones(3)):
        with pytest.raises(ValueError, match="needs scales \\(3, 2\\)"):
            flat_weights(
                torch.ones(3), torch.ones(3, 1025, dtype=torch.int8), *torch.ones(2, 1025), scale
            )
    with pytest.raises(ValueError, match="make no change of"):
        low_rank_apply(torch.ones(4, 4), torch.ones(3, 1), torch.ones(1, 4), 1.0)


def test_no_rank_is_no_change():
    weight = torch.ones(4, 3, 2)
    assert torch.equal(low_rank_apply(weight, torch.ones(4, 0), torch.ones(0, 3, 2), 1.0), weight)


@pytest.mark.parametrize("block", [1, 70, 1 << 20])
def test_blocks_of_a_weight_make_the_same(monkeypatch, block):
    weight, up, down = gaussian(9, 5).bfloat16(), gaussian(9, 2, seed=1), gaussian(2, 5, seed=2)
    wanted = low_rank_apply(weight, up, down, 0.7)
    monkeypatch.setattr(low_rank, "WEIGHT_BLOCK", block)
    assert torch.equal(low_rank_apply(weight, up, down, 0.7), wanted)
