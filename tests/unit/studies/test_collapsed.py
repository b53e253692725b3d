"""Distribution matching, and ways at equal losses, where the answers are known."""

import numpy as np
import pytest
import torch

from studies.common.training import Plan
from studies.conditioning import collapsed

SPREAD, FAKE_MEAN, REAL_MEAN = 0.7, -1.5, 2.0
LEVELS = (0.2, 1.0, 6.0)


def predicted(noised, level, mean, spread=SPREAD):
    """The mean clean value behind a noised one where clean values are normal."""
    return (spread**2 * noised + level**2 * mean) / (spread**2 + level**2)


def score(noised, level, mean, spread=SPREAD):
    """The slope of the log density of noised values, by differentiation."""
    x = noised.clone().requires_grad_(True)
    density = torch.distributions.Normal(mean, (spread**2 + level**2) ** 0.5)
    return torch.autograd.grad(density.log_prob(x).sum(), x)[0]


def outputs(mean, seed=0):
    draws = torch.Generator().manual_seed(seed)
    clean = mean + SPREAD * torch.randn(6, 2, 4, 5, generator=draws, dtype=torch.float64)
    return clean, torch.randn(clean.shape, generator=draws, dtype=torch.float64)


@pytest.mark.parametrize("level", LEVELS)
def test_the_gradient_is_the_difference_of_scores_by_equations_7_and_8(level):
    clean, noise = outputs(FAKE_MEAN)
    noised = clean + level * noise
    fake, real = (predicted(noised, level, mean) for mean in (FAKE_MEAN, REAL_MEAN))
    found = collapsed.gradient(clean, real, fake)
    difference = score(noised, level, FAKE_MEAN) - score(noised, level, REAL_MEAN)
    distance = (clean - real).abs().mean(dim=(1, 2, 3), keepdim=True)
    assert torch.allclose(found, level**2 * difference / distance)
    # Down the gradient: from the mean of the outputs to the teacher's.
    assert (-found).sign().eq(np.sign(REAL_MEAN - FAKE_MEAN)).all()


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_moves_where_the_two_scores_agree(level):
    clean, noise = outputs(REAL_MEAN)
    same = predicted(clean + level * noise, level, REAL_MEAN)
    assert not collapsed.gradient(clean, same, same.clone()).any()
    assert not collapsed.gradient(same, same, same).any()


@pytest.mark.parametrize("level", LEVELS)
def test_a_lag_draws_outputs_together_where_the_scores_agree(level):
    clean, noise = outputs(REAL_MEAN)
    same = predicted(clean + level * noise, level, REAL_MEAN)
    distance = (clean - same).abs().mean(dim=(1, 2, 3), keepdim=True)
    found = collapsed.gradient(clean, same, same, 0.3)
    assert torch.allclose(found, 0.3 * (clean - same) / distance)
    # A step down the gradient leaves them nearer to the mean.
    moved = clean - 0.2 * distance * found
    assert (moved - REAL_MEAN).square().mean() < (clean - REAL_MEAN).square().mean()


def test_a_followed_mean_arrives_at_the_teachers():
    mean = torch.tensor(FAKE_MEAN, dtype=torch.float64, requires_grad=True)
    for step in range(120):
        offsets, noise = outputs(0, seed=step)
        clean, level = mean + offsets, LEVELS[step % len(LEVELS)]
        noised = (clean + level * noise).detach()
        real, fake = (predicted(noised, level, m) for m in (REAL_MEAN, float(mean.detach())))
        slope = collapsed.gradient(clean.detach(), real, fake)
        (moved,) = torch.autograd.grad(collapsed.surrogate(clean, slope), mean)
        mean = (mean - 0.2 * moved).detach().requires_grad_(True)
    assert float(mean.detach()) == pytest.approx(REAL_MEAN, abs=0.05)


def test_the_loss_has_the_given_gradient():
    clean, slope = outputs(0.0)
    clean.requires_grad_(True)
    (found,) = torch.autograd.grad(collapsed.surrogate(clean, slope), clean)
    assert torch.allclose(found, slope / slope.numel())


def test_latents_before_each_step_are_those_of_euler():
    sigmas, target = torch.tensor([8.0, 3.0, 0.5, 0.0]), 0.25
    noise = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    calls = []

    def predict(x, levels, texts):
        calls.append((levels.tolist(), texts))
        return torch.full_like(x, target)

    found = list(collapsed.passed(predict, noise, sigmas, "texts"))
    first = noise * 65**0.5
    for (before, levels), sigma in zip(found, sigmas[:-1], strict=True):
        # Towards one clean latent the way is straight.
        assert torch.allclose(before, target + (first - target) * sigma / 8, atol=1e-5)
        assert levels.tolist() == [sigma] * 2
    assert calls == [([sigma] * 2, "texts") for sigma in (8.0, 3.0, 0.5)]


def test_other_settings_are_another_student(monkeypatch):
    settings = collapsed.taught(64, collapsed.PLAN)
    assert settings == collapsed.taught(64, collapsed.PLAN)
    assert settings != collapsed.taught(65, collapsed.PLAN)
    assert settings != collapsed.taught(64, Plan(steps=1, learning_rate=1e-4))
    monkeypatch.setattr(collapsed, "REAL_CFG", collapsed.REAL_CFG + 1)
    assert settings != collapsed.taught(64, collapsed.PLAN)


def test_the_gain_at_a_loss_lies_between_two_settings():
    lost, gained = np.array([0.1, 0.5]), np.array([0.04, 0.2])
    assert collapsed.gain_at(lost, gained, 0.05) == pytest.approx(0.02)
    assert collapsed.gain_at(lost, gained, 0.3) == pytest.approx(0.12)
    assert collapsed.gain_at(lost, gained, 0.9) == pytest.approx(0.2)
    # A stronger setting that gains less does not count, nor does a way that only harms.
    assert collapsed.gain_at(np.array([0.1, 0.2]), np.array([0.3, 0.1]), 0.5) == pytest.approx(0.3)
    assert collapsed.gain_at(np.array([0.1]), np.array([-0.3]), 0.5) == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("annealed, tau1 0.6", collapsed.OWN),
        ("constant, whole run, 0.25", "constant, whole run"),
        ("noise times 1.05", "noise times"),
    ],
)
def test_a_way_is_a_name_without_its_setting(name, expected):
    assert collapsed.way(name) == expected


def test_ways_are_compared_at_equal_losses_by_prompt():
    ones = np.ones(8)
    measured = {
        "stock": {"captions": ones, "features": 0.1 * ones},
        "annealed, tau1 0.6": {"captions": 0.9 * ones, "features": 0.2 * ones},
        "late prompt, from 0.8": {"captions": 0.8 * ones, "features": 0.4 * ones},
    }
    found = collapsed.at_equal_losses(measured)
    values = {name: number["value"] for name, number in found.items()}
    assert values["annealed, tau1: gain at 0.05 of captions lost"] == pytest.approx(0.05)
    assert values["late prompt, from: gain at 0.05 of captions lost"] == pytest.approx(0.075)
    assert values["late prompt, from: gain at 0.1 of captions lost"] == pytest.approx(0.15)
    less = "annealed, tau1 less late prompt, from: gain at 0.1 of captions lost"
    assert values[less] == pytest.approx(-0.05)
