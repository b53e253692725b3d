"""The nearest of k noise samples: exact properties, and the law of the closed forms against the
official one.
"""

import itertools
import math

import pytest
import torch
from glassbox.kernels.eager.nearest_drawn import candidates, nearest_drawn
from glassbox.nodes.noise import nearest
from glassbox.nodes.noise.nearest import NearestForm
from scipy import stats

D = 512


def gaussian(count: int, seed: int, size: int = D) -> torch.Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed))


def made(form: str, data, noise, k, seed=7, weights=None):
    streams = nearest.random_streams(seed, range(len(data)))
    make = nearest.closed_form if form == NearestForm.CLOSED_FORM else nearest.dot_form
    return make(data, noise, k, streams, weights)


@pytest.mark.parametrize("form", [NearestForm.CLOSED_FORM, NearestForm.DOT_PRODUCT])
def test_k_of_one_is_the_given_noise_bit_for_bit(form):
    data, noise = gaussian(8, 0), gaussian(8, 1)
    assert torch.equal(made(form, data, noise, 1), noise)


def test_official_k_of_one():
    data, noise = gaussian(8, 0), gaussian(8, 1)
    assert nearest.official(data, noise[None]).tolist() == [0] * 8


@pytest.mark.parametrize("form", [NearestForm.CLOSED_FORM, NearestForm.DOT_PRODUCT])
def test_more_candidates_never_take_a_nearer_one_away(form):
    data, noise = gaussian(16, 0), gaussian(16, 1)

    def apart(k):
        moved = made(form, data, noise, k)
        return (
            (moved - data).norm(dim=1)
            if form == NearestForm.CLOSED_FORM
            else -(moved * data).sum(dim=1)
        )

    distances = [apart(k) for k in (1, 2, 3, 5, 8, 40)]
    for fewer, more in itertools.pairwise(distances):
        assert (more <= fewer + 1e-3).all()
    assert distances[-1].mean() < distances[0].mean()


def test_official_takes_the_least_distance():
    data, candidates = gaussian(5, 0), gaussian(30, 1).reshape(6, 5, D)
    chosen = nearest.official(data, candidates)
    distances = (data[None] - candidates).norm(dim=2)
    picked = distances.gather(0, chosen[None])[0]
    torch.testing.assert_close(picked, distances.amin(dim=0), rtol=2e-3, atol=0)


@pytest.mark.parametrize("numbers", [1, 1 << 20])
def test_official_of_seeds_is_the_nearest_of_all_candidates(monkeypatch, numbers):
    monkeypatch.setattr(nearest, "_DRAWN_AT_ONCE", numbers * D)
    data, noise, seeds = gaussian(12, 0), gaussian(12, 1), torch.arange(12) * 2**40 - 5
    drawn = [
        torch.randn(2, D, generator=torch.Generator().manual_seed(seed)) for seed in seeds.tolist()
    ]
    drawn = torch.cat([noise[None], torch.stack(drawn, dim=1)])
    assert torch.equal(nearest.official_drawn(data, noise, 1, seeds), noise)
    found = nearest.official_drawn(data, noise, 3, seeds)
    chosen = (drawn.double() - data.double()).norm(dim=2).argmin(dim=0)
    assert set(chosen.tolist()) == {0, 1, 2}
    assert torch.equal(found, drawn[chosen, torch.arange(12)])
    assert torch.equal(nearest.official_drawn(data[2:3], noise[2:3], 3, seeds[2:3]), found[2:3])


def test_official_of_seeds_on_a_gpu_is_the_nearest_of_the_kernels_candidates(monkeypatch):
    """Whose data says that it lies there."""

    class OnGpu(torch.Tensor):
        device = torch.device("cuda")

    data, noise, seeds = gaussian(12, 0), gaussian(12, 1), torch.arange(12)
    monkeypatch.setattr(
        nearest, "nearest_drawn", lambda rows, *rest: nearest_drawn(torch.Tensor(rows), *rest)
    )
    drawn = torch.cat([noise[None], candidates(seeds, 0, 2, D).transpose(0, 1)])
    chosen = (drawn.double() - data.double()).norm(dim=2).argmin(dim=0)
    found = nearest.official_drawn(data.as_subclass(OnGpu), noise, 3, seeds)
    assert torch.equal(found.as_subclass(torch.Tensor), drawn[chosen, torch.arange(12)])


def test_official_is_their_code():
    """The lines of the official code, on candidates laid out as there: image by image."""
    data, candidates = gaussian(5, 2), gaussian(30, 3).reshape(6, 5, D)
    apart = data.to(torch.float16).unsqueeze(1) - candidates.transpose(0, 1).to(torch.float16)
    _, expected = torch.min(torch.linalg.vector_norm(apart, dim=2), dim=1)
    assert nearest.official(data, candidates).tolist() == expected.tolist()


@pytest.mark.parametrize("form", [NearestForm.CLOSED_FORM, NearestForm.DOT_PRODUCT])
def test_an_image_of_zeros_keeps_its_noise(form):
    data, noise = gaussian(3, 0), gaussian(3, 1)
    data[1] = 0
    assert torch.equal(made(form, data, noise, 16)[1], noise[1])


@pytest.mark.parametrize("form", [NearestForm.CLOSED_FORM, NearestForm.DOT_PRODUCT])
def test_each_image_depends_on_itself_alone(form):
    data, noise = gaussian(6, 0), gaussian(6, 1)
    together = made(form, data, noise, 8)
    streams = nearest.random_streams(7, [4])
    make = nearest.closed_form if form == NearestForm.CLOSED_FORM else nearest.dot_form
    torch.testing.assert_close(
        make(data[4:5], noise[4:5], 8, streams)[0], together[4], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("form", [NearestForm.CLOSED_FORM, NearestForm.DOT_PRODUCT])
def test_outside_the_mask_nothing_moves(form):
    data, noise = gaussian(6, 0), gaussian(6, 1)
    mask = torch.zeros(6, D)
    mask[:, :200] = 1
    moved = made(form, data, noise, 32, weights=mask)
    assert torch.equal(moved[:, 200:], noise[:, 200:])
    before, after = ((data - other)[:, :200].norm(dim=1).mean() for other in (noise, moved))
    assert after < before
    cut = made(form, data[:, :200], noise[:, :200], 32)
    torch.testing.assert_close(moved[:, :200], cut, rtol=1e-4, atol=1e-4)


def test_the_global_generators_stay():
    state = torch.get_rng_state()
    for form in (NearestForm.CLOSED_FORM, NearestForm.DOT_PRODUCT):
        made(form, gaussian(3, 0), gaussian(3, 1), 4)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("k", "expected"), [(1, 0.0), (4, 1.029), (8, 1.424), (16, 1.766), (64, 2.344)]
)
def test_the_mean_of_the_largest_of_k(k, expected):
    assert nearest.largest_of_normals(k) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("k", [2.5, 4.0])
def test_dot_form_draws_the_largest_of_k_also_for_fractions(k):
    """One coordinate has the law with distribution function Phi^k, and the others are as they
    were.
    """
    data = gaussian(1, 0, 16).repeat(1500, 1)
    noise = gaussian(1500, 1, 16)
    moved = made(NearestForm.DOT_PRODUCT, data, noise, k)
    unit = data[0] / data[0].norm()
    along = moved @ unit
    assert stats.kstest(along.numpy(), lambda value: stats.norm.cdf(value) ** k).pvalue > 0.01
    across = moved - along[:, None] * unit
    torch.testing.assert_close(across, noise - (noise @ unit)[:, None] * unit, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module", params=[4, 16])
def laws(request):
    """Coordinate along the image, squared length and distance of 800 noise samples, closed and
    official, for one k.
    """
    k, count, size = request.param, 800, 128
    image = gaussian(1, 5, size)
    data = image.expand(count, size)
    closed = made(NearestForm.CLOSED_FORM, data, gaussian(count, 6, size), k)
    candidates = gaussian(k * count, 8, size).reshape(k, count, size)
    exact = (data[None] - candidates).norm(dim=2).argmin(dim=0)
    official = candidates[exact, torch.arange(count)]
    half = candidates[nearest.official(data, candidates), torch.arange(count)]
    unit = image[0] / image.norm()

    def measures(noise):
        return noise @ unit, noise.square().sum(dim=1), (noise - image).norm(dim=1)

    return (
        k,
        measures(closed),
        measures(official),
        measures(half),
        float(image.square().mean().sqrt()),
        size,
    )


@pytest.mark.parametrize("measure", range(3), ids=["along the image", "squared length", "distance"])
def test_the_closed_form_has_the_law_of_the_official_one(laws, measure):
    _, closed, official, half, *_ = laws
    assert stats.ks_2samp(closed[measure].numpy(), official[measure].numpy()).pvalue > 0.01
    assert stats.ks_2samp(closed[measure].numpy(), half[measure].numpy()).pvalue > 0.01


def test_the_means_that_are_known(laws):
    """E<x, z>/|x| = 2 s m_k / sqrt(2 + 4 s^2), E|z|^2 / D - 1 = -2 m_k / sqrt((2 + 4 s^2) D), for
    large D.
    """
    k, (along, length, _), _, _, s, size = laws
    largest, root = nearest.largest_of_normals(k), math.sqrt(2 + 4 * s * s)
    assert float(along.mean()) == pytest.approx(2 * s * largest / root, abs=0.15)
    assert float(length.mean()) / size - 1 == pytest.approx(
        -2 * largest / (root * math.sqrt(size)), abs=0.03
    )


def test_closed_form_at_three_dimensions_has_the_official_law():
    """Across the image lie D - 1 = 2 degrees of freedom: with 3 the squared length would be half as
    large again.
    """
    count, k, size = 4000, 6, 3
    data = 0.8 * gaussian(1, 5, size).expand(count, size)
    closed = made(NearestForm.CLOSED_FORM, data, gaussian(count, 6, size), k)
    candidates = gaussian(k * count, 8, size).reshape(k, count, size)
    nearest_one = (data[None] - candidates).norm(dim=2).argmin(dim=0)
    official = candidates[nearest_one, torch.arange(count)]
    for measure in (
        lambda noise: noise.square().sum(dim=1),
        lambda noise: (noise - data).norm(dim=1),
    ):
        assert stats.ks_2samp(measure(closed).numpy(), measure(official).numpy()).pvalue > 0.01


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_closed_form_of_a_single_number_is_the_nearest_of_k(sign):
    """D = 1: nothing lies across the image, and the candidates are draws of N(0, 1)."""
    count, k = 3000, 5
    data = torch.full((count, 1), 0.7 * sign)
    closed = made(NearestForm.CLOSED_FORM, data, gaussian(count, 6, 1), k)
    candidates = gaussian(k * count, 8, 1).reshape(k, count, 1)
    official = candidates[(data[None] - candidates).abs().argmin(dim=0)[:, 0], torch.arange(count)]
    assert stats.ks_2samp(closed[:, 0].numpy(), official[:, 0].numpy()).pvalue > 0.01


@pytest.mark.parametrize(
    ("k", "form", "sentence"),
    [
        (0.5, NearestForm.DOT_PRODUCT, "at least 1"),
        (2.5, NearestForm.CLOSED_FORM, "integer k"),
        (2.5, NearestForm.OFFICIAL, "integer k"),
    ],
)
def test_a_k_that_does_not_fit_is_refused(k, form, sentence):
    with pytest.raises(ValueError, match=sentence):
        nearest.check_k(k, form)
