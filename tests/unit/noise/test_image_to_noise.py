"""Following an image upward to its noise: against the closed form for Gaussian data, and against
the sampler that comes down again.
"""

import functools

import pytest
import torch
from glassbox.nodes.noise import image_to_noise

_LEVELS = [14.6, 9.0, 5.2, 2.9, 1.5, 0.7, 0.3, 0.1, 0.0]
_SPREAD = 1.7
_MEAN = 0.4


def gaussian(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def denoise(state, sigma):
    """The mean of Gaussian data, given a noised state."""
    share = _SPREAD**2 / (_SPREAD**2 + sigma**2)
    return _MEAN + share * (state - _MEAN)


def curved(state, sigma):
    """The mean of data around -1 and 1, given a noised state: no linear function of it."""
    variance = 0.9**2
    share = variance / (variance + sigma**2)
    center = torch.tanh(state / (variance + sigma**2))
    return center + share * (state - center)


def test_many_steps_follow_the_exact_flow_of_gaussian_data():
    """x(sigma) = mean + (x0 - mean) sqrt(spread^2 + sigma^2) / spread."""
    latent = _MEAN + _SPREAD * gaussian(2, 3, 5, 7)
    sigmas = torch.linspace(6.0, 0.0, 4001, dtype=torch.float64)
    state = image_to_noise.follow_upward(denoise, latent, sigmas)
    grown = (_SPREAD**2 + 36.0) ** 0.5 / _SPREAD
    assert torch.allclose(state, _MEAN + (latent - _MEAN) * grown, rtol=2e-3, atol=2e-3)


def test_one_step_by_hand():
    latent = gaussian(1, 2, 3, 4)
    step = 2.0 - 0.5
    slope = (latent - curved(latent, 0.5)) / 0.5
    by_hand = latent + step * slope
    assert torch.equal(image_to_noise.follow_upward(curved, latent, [2.0, 0.5]), by_hand)
    corrected = latent + step * (by_hand - curved(by_hand, 2.0)) / 2.0
    assert torch.equal(image_to_noise.follow_upward(curved, latent, [2.0, 0.5], 1), corrected)


def test_the_first_slope_is_taken_above_zero():
    seen = []

    def watched(state, sigma):
        seen.append(sigma)
        return denoise(state, sigma)

    image_to_noise.follow_upward(watched, gaussian(1, 1, 2, 2), [1.0, 0.3, 0.0])
    assert seen == [image_to_noise.FIRST_LEVEL, 0.3]


@pytest.mark.parametrize("prediction", [denoise, curved])
def test_corrections_bring_the_sampler_back_to_the_image(prediction):
    latent = gaussian(2, 3, 4, 6)
    errors = []
    for corrections in (0, 1, 3, 40):
        state = image_to_noise.follow_upward(prediction, latent, _LEVELS, corrections)
        returned = image_to_noise.follow_downward(prediction, state, _LEVELS)
        errors.append(float(image_to_noise.relative_error(latent, returned).max()))
    assert errors[1] < errors[0]
    assert errors[2] < errors[1]
    assert errors[3] < 1e-6


def test_the_error_is_of_each_image_in_its_own_standard_deviations():
    latent = torch.stack([3 * gaussian(2, 4, 4, seed=1), gaussian(2, 4, 4, seed=2)])
    returned = latent + torch.tensor([0.6, 0.0]).double().reshape(2, 1, 1, 1)
    errors = image_to_noise.relative_error(latent, returned)
    assert float(errors[0]) == pytest.approx(0.6 / float(latent[0].std()), rel=1e-6)
    assert float(errors[1]) == 0


def by_variance(noise, latent, *, sigma):
    return latent + sigma * noise


def by_variance_at_the_maximum(noise, latent, *, sigma):
    return latent + (1 + sigma**2) ** 0.5 * noise


def by_flow(noise, latent, *, sigma):
    return (1 - sigma) * latent + sigma * noise


@pytest.mark.parametrize("sigma", [0.35, 0.9])
@pytest.mark.parametrize("scaling", [by_variance, by_variance_at_the_maximum, by_flow])
def test_a_sampler_begins_at_the_state(scaling, sigma):
    at = functools.partial(scaling, sigma=sigma)
    state, latent, drawn = (gaussian(2, 3, 4, 5, seed=seed) for seed in range(3))
    noise = image_to_noise.noise_behind(at, state, latent)
    assert torch.allclose(at(noise, latent), state, atol=1e-12)
    for_drawn = image_to_noise.latent_behind(at, state, drawn)
    assert torch.allclose(at(drawn, for_drawn), state, atol=1e-12)


def test_no_latent_where_the_sampler_drops_it():
    at = functools.partial(by_flow, sigma=1.0)
    state, drawn = gaussian(1, 2, 3, 4), gaussian(1, 2, 3, 4, seed=1)
    assert image_to_noise.latent_behind(at, state, drawn) is None
    assert torch.allclose(image_to_noise.noise_behind(at, state, drawn), state)
