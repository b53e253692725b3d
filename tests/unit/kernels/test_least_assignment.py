"""The least assignment against all permutations, and what the device leaves to the CPU."""

import itertools

import kernel_inputs
import pytest
import torch
from glassbox import kernels
from glassbox.kernels import dispatch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

KINDS = "random", "tied", "equal rows", "constant", "whole", "outlier"


def problem(kind, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    cost = torch.randn(size, size, generator=generator)
    if kind == "tied":
        cost = cost.sign()
    if kind == "equal rows":
        cost = cost[torch.randint(0, min(2, size), (size,), generator=generator)]
    if kind == "constant":
        cost = cost[:1, :1].expand(size, size).contiguous()
    if kind == "whole":
        cost = torch.randint(-9, 10, (size, size), generator=generator).float()
    if kind == "outlier":
        cost[0, -1] = 1e6
    return cost


def least(cost):
    """The least total in float64."""
    cost = cost.double().numpy()
    return float(cost[linear_sum_assignment(cost)].sum())


def right(cost, found, gap=0.0):
    """Whether columns and total are of one permutation that is at most the gap above the least."""
    columns, total = found
    assert columns.sort().values.tolist() == list(range(len(cost)))
    assert float(total) == pytest.approx(float(cost.double()[range(len(cost)), columns].sum()), abs=1e-9)
    return float(total) <= least(cost) + gap + 1e-12 * float(cost.abs().max()) * len(cost)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from(KINDS), st.integers(1, 6), st.integers(0, 1000))
def test_against_all_permutations(kind, size, seed):
    cost = problem(kind, size, seed)
    _, total = kernels.least_assignment(cost)
    rows = torch.arange(size)
    brute = min(float(cost.double()[rows, list(order)].sum()) for order in itertools.permutations(range(size)))
    assert float(total) == pytest.approx(brute, abs=1e-12 * float(cost.abs().max()) * size)
    assert right(cost, kernels.least_assignment(cost))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_many_problems_at_once(dtype):
    costs = torch.stack([problem("random", 30, seed) for seed in range(3)]).to(dtype)
    columns, totals = kernels.least_assignment(costs)
    assert columns.shape == (3, 30) and totals.shape == (3,) and totals.dtype == torch.float64
    for cost, *found in zip(costs, columns, totals, strict=True):
        assert right(cost, found)


def test_no_problem_and_no_row():
    assert [tuple(part.shape) for part in kernels.least_assignment(torch.zeros(0, 3, 3))] == [(0, 3), (0,)]
    assert [tuple(part.shape) for part in kernels.least_assignment(torch.zeros(0, 0))] == [(0,), ()]


def test_what_is_no_cost():
    with pytest.raises(ValueError, match="needs a cost"):
        kernels.least_assignment(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="NaN or infinity"):
        kernels.least_assignment(torch.full((2, 2), torch.inf))
    with pytest.raises(ValueError, match="The gap is -1"):
        kernels.least_assignment(torch.zeros(2, 2), gap=-1)


@pytest.mark.usefixtures("interpreter")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
class TestAuction:
    """The kernel in Triton's interpreter, which takes some hundredths of a second for a round."""

    @staticmethod
    def solve(cost, gap=0.0):
        return dispatch.function("triton", "least_assignment")(cost=cost, gap=gap)

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_kind_of_cost(self, kind):
        cost = problem(kind, 7, seed=3)
        assert right(cost, self.solve(cost))

    @settings(max_examples=6, deadline=None, derandomize=True)
    @given(st.sampled_from(["random", "tied", "whole"]), st.integers(2, 5), st.integers(0, 1000))
    def test_any_size(self, kind, size, seed):
        cost = problem(kind, size, seed)
        assert right(cost, self.solve(cost))

    def test_what_the_auction_settles_is_certified_without_the_cpu(self, monkeypatch):
        from glassbox.kernels.triton import least_assignment as module

        def no_cpu(problem):
            raise AssertionError("the CPU was asked")

        monkeypatch.setattr(module, "exact", no_cpu)
        cost = problem("random", 20)
        assert right(cost, self.solve(cost, gap=1.0), gap=1.0)
        whole = problem("whole", 6, seed=1)
        assert right(whole, self.solve(whole, gap=0.99))  # totals of whole numbers that lie below 1 apart are one

    def test_rows_that_are_left_are_finished(self, monkeypatch):
        from glassbox.kernels.triton import least_assignment as module

        cost = problem("random", 20)
        monkeypatch.setattr(module, "ROUNDS", 0.1)
        columns, _ = module.auction(cost[None], 0.0)
        assert (columns < 0).any()
        assert right(cost, self.solve(cost)) and right(cost, self.solve(cost, gap=0.5))

    def test_problems_do_not_mix(self):
        costs = torch.stack([problem("random", 5), problem("constant", 5), problem("whole", 5)])
        columns, totals = self.solve(costs)
        assert all(right(cost, found) for cost, *found in zip(costs, columns, totals, strict=True))
        again = self.solve(costs)
        assert torch.equal(again[0], columns) and torch.equal(again[1], totals)

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(st.sampled_from(KINDS), st.integers(2, 12), st.integers(0, 1000), st.booleans())
    def test_the_result_is_the_least_whatever_the_prices(self, kind, size, seed, whole):
        """With any prices and any assignment, or none, in the place of the auction's."""
        from glassbox.kernels.triton import least_assignment as module

        cost = problem(kind, size, seed)
        prices = kernel_inputs.gaussian(1, size, seed=seed).double()
        order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
        columns = order[None] if whole else torch.where(order % 2 == 0, order, -1)[None]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "auction", lambda problems, gap: (columns.clone(), prices))
            assert right(cost, self.solve(cost))
