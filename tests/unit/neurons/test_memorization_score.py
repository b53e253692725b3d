"""The similarity of noise differences: the official numbers, and the small-latent variant."""

import pytest
import torch
from glassbox.nodes.neurons import memorization_score
from glassbox.nodes.neurons.memorization_score import pairwise_similarity, similarity

OFFICIAL = {0.35: [0.737618, 0.799768, 0.728472], 1.0: [0.413034, 0.358583, 0.412192]}


def field(q, n=3, c=4, h=64):
    """Numbers without a random generator, the same on every machine, brought to 0..1 by sample and
    channel.
    """
    i = torch.arange(n * c * h * h, dtype=torch.float64)
    x = (
        torch.sin(0.0137 * i + q)
        + 0.5 * torch.sin(0.00291 * (q + 1) * i)
        + 0.3 * torch.cos(0.171 * i + 2 * q)
    )
    return memorization_score.noise_difference(x.view(n, c, h, h), torch.zeros(n, c, h, h))


@pytest.mark.parametrize("q", OFFICIAL)
def test_the_official_numbers(q):
    """torchmetrics 1.3.2 multiscale_structural_similarity_index_measure with the official
    arguments.
    """
    assert similarity(field(0.0), field(q)).tolist() == pytest.approx(OFFICIAL[q], abs=2e-6)


def test_the_official_range_is_that_of_the_batch():
    assert similarity(field(0.0)[:1], field(0.35)[:1]).item() == pytest.approx(0.737582, abs=2e-6)


def test_a_thing_is_like_itself():
    assert similarity(field(0.0), field(0.0)).tolist() == pytest.approx([1, 1, 1], abs=1e-6)
    assert similarity(field(0.0, h=16), field(0.0, h=16)).tolist() == pytest.approx(
        [1, 1, 1], abs=1e-6
    )


def test_the_largest_pair_of_each_seed():
    found = memorization_score.PromptScore(
        pairwise_similarity(torch.cat([field(0.0), field(0.35)]))
    )
    assert found.by_seed.tolist() == pytest.approx(OFFICIAL[0.35] * 2, abs=2e-6)
    assert found.value == pytest.approx(0.799768, abs=2e-6)
    assert found.memorized_seeds(0.73) == [0, 1, 3, 4]


@pytest.mark.parametrize(("side", "official"), [(44, True), (43, False), (16, False), (7, False)])
def test_small_latents_have_a_variant_of_their_own(side, official):
    a, b = field(0.0, h=side), field(0.35, h=side)
    assert memorization_score.has_official_score(side) == official
    assert all(-1 <= value <= 1 for value in similarity(a, b).tolist())


def test_the_variant_does_not_depend_on_the_batch():
    a, b = field(0.0, h=16), field(0.35, h=16)
    assert torch.allclose(similarity(a, b)[:1], similarity(a[:1], b[:1]), atol=1e-6)


def test_the_variant_is_ssim_by_its_formula():
    """One window of 7 by 7, computed plainly."""
    a, b = (field(q, n=1, c=1, h=7)[0, 0].double() for q in (0.0, 0.35))
    offsets = torch.arange(7).double() - 3
    window = torch.exp(-(offsets[:, None] ** 2 + offsets**2) / (2 * 1.5**2))
    window /= window.sum()
    mean_a, mean_b = (window * a).sum(), (window * b).sum()
    var_a, var_b = (window * a * a).sum() - mean_a**2, (window * b * b).sum() - mean_b**2
    both = (window * a * b).sum() - mean_a * mean_b
    expected = (2 * mean_a * mean_b + 1e-4) * (2 * both + 9e-4)
    expected /= (mean_a**2 + mean_b**2 + 1e-4) * (var_a + var_b + 9e-4)
    found = similarity(a.float()[None, None], b.float()[None, None]).item()
    assert found == pytest.approx(expected.item(), abs=1e-5)


def test_too_small_images_are_refused():
    with pytest.raises(ValueError, match="56 pixels"):
        similarity(field(0.0, h=6), field(0.0, h=6))
    with pytest.raises(ValueError, match="two or more"):
        pairwise_similarity(field(0.0, n=1))


def test_the_difference_is_between_0_and_1_and_survives_a_constant():
    noise = torch.zeros(1, 2, 8, 8)
    scaled = memorization_score.noise_difference(noise + 3, noise)
    assert torch.equal(scaled, torch.zeros_like(scaled))


def test_the_noise_is_drawn_as_the_official_code_draws_it():
    torch.manual_seed(1)
    assert torch.equal(memorization_score.seeded_noise((4, 8, 8), 10, 1), torch.randn(10, 4, 8, 8))
