"""Best match against the matrix of all similarities in float64."""

import pytest
import torch
from glassbox import kernels
from glassbox.kernels.eager import best_match as eager


def naive(queries, targets):
    a, b = (torch.nn.functional.normalize(x.double(), dim=1) for x in (queries, targets))
    return a @ b.T


@pytest.mark.parametrize(("n", "m", "c"), [(1, 1, 1), (7, 5, 3), (33, 65, 17), (128, 100, 64)])
@pytest.mark.parametrize("slice_", [1, 100, 1 << 24])
def test_against_the_whole_matrix(monkeypatch, n, m, c, slice_):
    monkeypatch.setattr(eager, "BLOCK", 4 * slice_)
    generator = torch.Generator().manual_seed(n + m)
    queries, targets = (
        torch.randn(n, c, generator=generator),
        torch.randn(m, c, generator=generator),
    )
    matrix = naive(queries, targets)
    similarity, index, mutual = kernels.best_match(queries, targets, mutual=True)
    assert torch.equal(index, matrix.argmax(1)) or c == 1
    assert (
        similarity.double() - matrix.amax(1)
    ).abs().max() < 1e-6  # float32 dot products of unit vectors
    if c > 1:
        assert torch.equal(mutual, matrix.argmax(0)[index] == torch.arange(n))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_half_precision_gives_float32_similarity(dtype):
    queries = torch.eye(4, dtype=dtype)
    similarity, index = kernels.best_match(queries, queries.flip(0))
    assert index.tolist() == [3, 2, 1, 0] and similarity.dtype == torch.float32


@pytest.mark.parametrize("slice_", [1, 1 << 24])
def test_ties_go_to_the_lower_index(monkeypatch, slice_):
    monkeypatch.setattr(eager, "BLOCK", 4 * slice_)
    ones = torch.ones(3, 2)
    _, index, mutual = kernels.best_match(ones, ones, mutual=True)
    assert index.tolist() == [0, 0, 0]
    assert mutual.tolist() == [True, False, False]


def test_zero_vectors_and_no_queries():
    similarity, index = kernels.best_match(torch.zeros(1, 3), torch.ones(2, 3))
    assert similarity.item() == 0 and index.item() == 0
    assert [len(x) for x in kernels.best_match(torch.zeros(0, 3), torch.ones(2, 3))] == [0, 0]


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="at least one target"):
        kernels.best_match(torch.ones(2, 3), torch.ones(0, 3))
    with pytest.raises(ValueError, match="needs \\(N, C\\) and \\(M, C\\)"):
        kernels.best_match(torch.ones(2, 3), torch.ones(2, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_is_a_fraction_of_the_inputs(monkeypatch, dtype):
    """The largest tensors that exist beside the inputs: with them at most 1.2 times the inputs in
    float32.
    """
    monkeypatch.setattr(eager, "BLOCK", 1 << 18)
    queries, targets = (
        torch.randn(1000, 600, generator=torch.Generator().manual_seed(n)).to(dtype) for n in (0, 1)
    )
    with torch.profiler.profile(profile_memory=True) as profile:
        kernels.best_match(queries, targets, mutual=True)
    live = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    assert peak <= 0.2 * 4 * (queries.numel() + targets.numel())
