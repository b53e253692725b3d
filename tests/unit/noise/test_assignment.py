"""Assignment against brute force, SciPy, and the properties that the optimum has."""

import itertools

import numpy as np
import pytest
import torch
from glassbox.nodes.noise.assignment import Cost, assign, dot_cost, half_precision_l2
from glassbox.nodes.noise.batch_matrix import flatten_batch, unflatten_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment


def batch(count: int, size: int = 64, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and noise samples, (count, size) each."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=generator), torch.randn(
        count, size, generator=generator
    )


def squared_l2(
    data: torch.Tensor, noise: torch.Tensor, weights: torch.Tensor | float = 1.0
) -> torch.Tensor:
    """The table of squared distances in float64, term by term."""
    weights = torch.as_tensor(weights, dtype=torch.float64).expand(data.shape)
    return ((data.double()[:, None] - noise.double()[None]).square() * weights[:, None]).sum(dim=2)


def least_by_brute_force(table: torch.Tensor) -> float:
    orders = np.array(list(itertools.permutations(range(len(table)))))
    return float(table.numpy()[np.arange(len(table)), orders].sum(axis=1).min())


def cost_of(table: torch.Tensor, permutation: torch.Tensor) -> float:
    return float(table[torch.arange(len(table)), permutation].sum())


@pytest.mark.parametrize("count", range(2, 8))
@pytest.mark.parametrize("seed", [0, 1])
def test_brute_force(count, seed):
    data, noise = batch(count, seed=seed)
    table = squared_l2(data, noise)
    found = assign(data, noise).permutation
    assert cost_of(table, found) == pytest.approx(least_by_brute_force(table), rel=1e-9)


@pytest.mark.parametrize("kind", ["shared", "own"])
@pytest.mark.parametrize("count", [2, 5, 7])
def test_brute_force_with_a_mask(count, kind):
    data, noise = batch(count, seed=count)
    weights = torch.rand(
        1 if kind == "shared" else count, 64, generator=torch.Generator().manual_seed(9)
    ).expand(count, 64)
    table = squared_l2(data, noise, weights)
    found = assign(data, noise, weights=weights).permutation
    assert cost_of(table, found) == pytest.approx(least_by_brute_force(table), rel=1e-9)


@settings(max_examples=25)
@given(
    count=st.integers(2, 24),
    size=st.integers(1, 80),
    seed=st.integers(0, 10**6),
    cost=st.sampled_from(list(Cost)),
)
def test_a_permutation_that_is_as_good_as_scipys_and_never_worse_than_none(count, size, seed, cost):
    data, noise = batch(count, size, seed)
    found = assign(data, noise, cost=cost).permutation
    assert sorted(found.tolist()) == list(range(count))
    table = (
        squared_l2(data, noise)
        if cost == Cost.DOT_PRODUCT
        else half_precision_l2(data, noise).double()
    )
    least = table.numpy()[linear_sum_assignment(table.numpy())].sum()
    assert cost_of(table, found) <= float(table.trace()) * (1 + 1e-6)
    assert cost_of(table, found) == pytest.approx(least, rel=1e-5)


def test_dot_product_and_squared_l2_have_the_same_optimum():
    data, noise = batch(64, 1024)
    table = squared_l2(data, noise).numpy()
    assert assign(data, noise).permutation.tolist() == linear_sum_assignment(table)[1].tolist()


@pytest.mark.parametrize("cost", list(Cost))
@pytest.mark.parametrize("count", [33, 128, 256])
def test_large_batches_have_the_least_cost_of_all(count, cost):
    """No gap to the exact solution, however many there are."""
    data, noise = batch(count, 64, seed=count)
    table = squared_l2(data, noise)
    if cost != Cost.DOT_PRODUCT:
        table = half_precision_l2(data, noise).double()
    found = assign(data, noise, cost=cost).permutation
    least = table.numpy()[linear_sum_assignment(table.numpy())].sum()
    assert sorted(found.tolist()) == list(range(count))
    assert cost_of(table, found) == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize(("scale", "shift"), [(5.5, 0.0), (0.13, 0.0), (1.0, 3.0), (2.0, -7.0)])
def test_scale_and_common_shift_change_nothing(scale, shift):
    data, noise = batch(32, 256)
    expected = assign(data, noise).permutation
    offset = shift * torch.randn(1, 256, generator=torch.Generator().manual_seed(4))
    assert torch.equal(assign(scale * data + offset, noise).permutation, expected)


def test_images_in_another_order_take_their_noise_samples_with_them():
    data, noise = batch(20)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(5))
    plain = assign(data, noise).permutation
    assert torch.equal(assign(data[order], noise).permutation, plain[order])
    shuffled = assign(data, noise[order]).permutation
    assert torch.equal(order[shuffled], plain)


@pytest.mark.parametrize("cost", list(Cost))
@pytest.mark.parametrize(
    "data",
    [
        torch.randn(1, 64),
        torch.zeros(6, 64),
        torch.full((6, 64), 0.7),
        torch.randn(1, 64).repeat(6, 1),
    ],
    ids=["one image", "empty", "constant", "one image six times"],
)
def test_nothing_to_gain_is_the_identity(data, cost):
    _, noise = batch(len(data))
    assert assign(data, noise, cost=cost).permutation.tolist() == list(range(len(data)))


def test_constant_noise_stays():
    data, _ = batch(5)
    assert assign(data, torch.zeros(5, 64)).permutation.tolist() == list(range(5))


def test_equal_images_keep_their_noise_samples_or_take_them_in_order():
    data, noise = batch(8)
    data[[1, 4, 6]] = data[0].clone()
    found = assign(data, noise).permutation
    table = squared_l2(data, noise).numpy()
    assert table[np.arange(8), found.numpy()].sum() == pytest.approx(
        table[linear_sum_assignment(table)].sum(), rel=1e-9
    )
    same = [0, 1, 4, 6]
    owned = sorted(found[same].tolist())
    for row in same:
        assert found[row] == row or row not in owned
    others = [found[row].item() for row in same if found[row] != row]
    assert others == sorted(others)


def test_the_papers_cost_is_that_of_its_code():
    data, noise = batch(6, 500)
    broadcast = torch.linalg.vector_norm(
        0.10 * data.to(torch.float16).unsqueeze(1) - 0.10 * noise.to(torch.float16).unsqueeze(0),
        dim=2,
    )
    assert torch.equal(half_precision_l2(data, noise), broadcast)
    expected = linear_sum_assignment(broadcast.numpy())
    found = assign(data, noise, cost=Cost.L2_FP16).permutation.numpy()
    assert broadcast.double().numpy()[np.arange(6), found].sum() == pytest.approx(
        broadcast.double().numpy()[expected].sum()
    )


def test_the_papers_cost_loses_little_of_the_gain():
    """Its optimum loses at most 0.6 % of what the dot product gains on white latents."""
    data, noise = batch(24, 4096)
    table = squared_l2(data, noise)
    gains = {
        cost: float(table.trace()) - cost_of(table, assign(data, noise, cost=cost).permutation)
        for cost in Cost
    }
    assert (
        0.985 * gains[Cost.DOT_PRODUCT]
        <= gains[Cost.L2_FP16]
        <= gains[Cost.DOT_PRODUCT] * (1 + 1e-6)
    )


def test_the_cost_is_doubly_centered():
    cost = dot_cost(*batch(12, 200))
    torch.testing.assert_close(cost.mean(dim=0), torch.zeros(12), atol=1e-5, rtol=0)
    torch.testing.assert_close(cost.mean(dim=1), torch.zeros(12), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_video_latents_of_any_dtype_and_layout(dtype):
    """Five dimensions, D = 65,536, not contiguous, large values: no overflow, and the rows are
    those of the batch.
    """
    generator = torch.Generator().manual_seed(1)
    video = (30 * torch.randn(6, 16, 16, 16, 16, generator=generator)).to(dtype).transpose(2, 4)
    noise = torch.randn(video.shape, generator=generator).to(dtype)
    assert not video.is_contiguous()
    found = assign(flatten_batch([video]), flatten_batch([noise]))
    table = squared_l2(video.reshape(6, -1).float(), noise.reshape(6, -1).float())
    assert cost_of(table, found.permutation) == pytest.approx(least_by_brute_force(table), rel=1e-9)
    assert found.permutation.tolist() != list(range(6))


@pytest.mark.parametrize("cost", list(Cost))
def test_half_precision_does_not_overflow(cost):
    data = torch.full((3, 65536), 8.0).half()
    data[1:] += torch.randn(2, 65536, generator=torch.Generator().manual_seed(2)).half()
    assign(
        flatten_batch([data]),
        torch.randn(3, 65536, generator=torch.Generator().manual_seed(3)),
        cost=cost,
    )


def test_rows_and_parts_are_inverse():
    pieces = [torch.randn(3, 4, 5, 6).half(), torch.randn(3, 2, 7)]
    back = unflatten_batch(flatten_batch(pieces), pieces)
    assert all(
        torch.equal(one, other) and one.dtype == other.dtype
        for one, other in zip(pieces, back, strict=True)
    )


def test_no_random_number_is_drawn():
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    assign(*batch(16))
    assert torch.equal(torch.get_rng_state(), state)
    assert (np.random.get_state()[1] == numpy_state).all()


@pytest.mark.parametrize(
    ("data", "noise", "sentence"),
    [
        (torch.randn(3, 8), torch.randn(4, 8), "does not fit"),
        (torch.randn(3, 8), torch.randn(3, 9), "does not fit"),
        (torch.full((3, 8), float("nan")), torch.randn(3, 8), "NaN"),
    ],
)
def test_wrong_shapes_and_nan_are_refused(data, noise, sentence):
    with pytest.raises(ValueError, match=sentence):
        assign(data, noise)


@pytest.mark.parametrize("cost", list(Cost))
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("which", [0, 1])
def test_one_number_that_is_not_finite_is_refused(cost, odd, which):
    data_and_noise = batch(5)
    data_and_noise[which][2, 3] = odd
    with pytest.raises(ValueError, match="NaN or infinity"):
        assign(*data_and_noise, cost=cost)


def test_nan_in_a_single_image_is_refused():
    with pytest.raises(ValueError, match="NaN"):
        assign(torch.full((1, 8), float("nan")), torch.randn(1, 8))


def test_an_unknown_cost_is_refused():
    with pytest.raises(ValueError, match="hamming"):
        assign(*batch(3), cost="hamming")
