"""Condition annealing against the paper's formulas, written out again in NumPy at float64."""

import numpy as np
import pytest
import torch
from glassbox.nodes.conditioning import condition_annealing as annealing


def settings(**changed):
    given = {"method": "annealed", "noise_scale": 0.25, "tau1": 0.6, "tau2": 0.9, "seed": 3}
    given |= changed
    return annealing.VarietySettings(
        **{**given, "method": annealing.VarietyMethod(given["method"])}
    )


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def tokens(seed=1):
    """Tokens (2, 5, 16) of sizes a hundredfold apart, none with a mean of zero."""
    sizes = torch.tensor([100.0, 1.0, 0.3, 7.0, 1.0], dtype=torch.float64)
    return (normal(2, 5, 16, seed=seed) + 0.4) * sizes[:, None]


@pytest.mark.parametrize(
    ("time", "gamma"),
    [(1.0, 0.0), (0.93, 0.0), (0.9, 0.0), (0.84, 0.2), (0.675, 0.75), (0.6, 1.0), (0.2, 1.0)],
)
def test_gamma_is_piecewise_linear(time, gamma):
    assert annealing.annealing(time, 0.6, 0.9) == pytest.approx(gamma, abs=1e-12)


def test_gamma_without_a_slope():
    assert annealing.annealing(0.5, 0.5, 0.5) == 1.0
    assert annealing.annealing(0.5001, 0.5, 0.5) == 0.0


@pytest.mark.parametrize("psi", [0.0, 0.35, 1.0])
@pytest.mark.parametrize(("gamma", "scale"), [(0.0, 0.25), (0.37, 0.25), (0.9, 1.7)])
def test_one_vector_of_unit_spread_is_the_papers_formula(gamma, scale, psi):
    """The paper's y is one vector; with a standard deviation of 1 nothing else is left over."""
    y = normal(16, seed=4)
    y = ((y - y.mean()) / y.std(correction=0) + 0.8).numpy()
    n = normal(16, seed=5).numpy()
    y_hat = np.sqrt(gamma) * y + scale * np.sqrt(1 - gamma) * n
    scaled = (y_hat - np.mean(y_hat)) / np.std(y_hat) * np.std(y) + np.mean(y)
    final = psi * scaled + (1 - psi) * y_hat
    changed = annealing.anneal(
        torch.from_numpy(y)[None], torch.from_numpy(n)[None], gamma=gamma, scale=scale, psi=psi
    )
    assert np.allclose(changed[0].numpy(), final, rtol=1e-12, atol=1e-12)


def test_each_token_keeps_its_mean_and_its_deviation():
    y = tokens()
    changed = annealing.anneal(y, normal(2, 5, 16, seed=6), gamma=0.2, scale=0.5, psi=1.0)
    assert torch.allclose(changed.mean(-1), y.mean(-1), rtol=1e-10)
    assert torch.allclose(changed.std(-1), y.std(-1), rtol=1e-10)
    assert not torch.allclose(changed, y, rtol=0.1)


def test_noise_is_in_units_of_the_token():
    """Scaling a token scales what is made of it, so that one scale does for every model."""
    y = tokens()
    n = normal(2, 5, 16, seed=6)
    given = {"gamma": 0.4, "scale": 0.6, "psi": 0.3}
    assert torch.allclose(
        annealing.anneal(50 * y, n, **given), 50 * annealing.anneal(y, n, **given), rtol=1e-10
    )
    assert torch.allclose(annealing.add_noise(50 * y, n, 0.6), 50 * annealing.add_noise(y, n, 0.6))


def test_added_noise_by_hand():
    y = tokens()
    n = normal(2, 5, 16, seed=6)
    by_hand = y.numpy() + 0.7 * np.std(y.numpy(), axis=-1, keepdims=True) * n.numpy()
    assert np.allclose(annealing.add_noise(y, n, 0.7).numpy(), by_hand, rtol=1e-12)


@pytest.mark.parametrize("value", [0.0, 2.5])
def test_a_token_without_spread_stays(value):
    """Zeroed-out conditioning and empty slots have no scale that noise could have."""
    y = torch.full((1, 2, 8), value, dtype=torch.float64)
    noise = normal(1, 2, 8)
    for gamma in (0.0, 0.5):
        changed = annealing.anneal(y, noise, gamma=gamma, scale=0.25, psi=1.0)
        assert torch.allclose(changed, y, atol=1e-9)
    assert torch.equal(annealing.add_noise(y, noise, 0.25), y)


def test_methods_at_a_time():
    y = tokens()
    n = normal(2, 5, 16, seed=6)
    for method in ("annealed", "annealed_fixed"):
        found = settings(method=method).changed(y, n, 0.84)
        expected = annealing.anneal(y, n, gamma=0.2, scale=0.25, psi=1.0)
        assert torch.allclose(found, expected, rtol=1e-10)
    constant = settings(method="constant", tau1=0.3)
    assert [constant.gamma(time) for time in (0.95, 0.31, 0.3)] == [0.0, 0.0, 1.0]
    assert torch.equal(constant.changed(y, n, 0.5), annealing.add_noise(y, n, 0.25))


def test_a_key_draws_the_same_noise_again_and_no_other_key_does():
    before = torch.random.get_rng_state()
    drawn = annealing.draw_noise((7, 5), (1, 2, "y"))
    assert torch.equal(drawn, annealing.draw_noise((7, 5), (1, 2, "y")))
    for key in ((2, 1, "y"), (1, 3, "y"), (1, 2, "z"), (12, "y")):
        assert abs(float((drawn * annealing.draw_noise((7, 5), key)).mean())) < 0.5
    assert torch.equal(before, torch.random.get_rng_state())
    many = annealing.draw_noise((400, 500), (1,))
    assert abs(float(many.mean())) < 0.01
    assert float(many.std()) == pytest.approx(1, abs=0.01)


def test_off():
    assert settings(noise_scale=0.0).is_off
    assert settings(tau1=1.0, tau2=1.0).is_off
    assert not settings().is_off


def test_crossed_times_are_refused():
    with pytest.raises(ValueError, match="set tau1 to at most tau2"):
        settings(tau1=0.8, tau2=0.7)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {},
            "Noise, new at each step, stands for the positive prompt for the first 10 % of "
            "sampling (sigma 11.2); the prompt is whole again after 40 % of sampling (sigma 2.5); "
            "seed 3.",
        ),
        (
            {"method": "constant", "tau1": 0.0},
            "Noise of 0.25 standard deviations is added to each token of the positive prompt for "
            "the first 100 % of sampling (sigma 2.5); seed 3.",
        ),
        ({"noise_scale": 0.0}, "The prompt is left as it is: noise_scale is 0."),
        ({"tau1": 1.0, "tau2": 1.0}, "The prompt is left as it is: tau1 is 1."),
    ],
)
def test_the_report_is_one_sentence(changed, sentence):
    assert annealing.describe(settings(**changed), (11.2, 2.5)) == sentence
