"""What is learned on numbers that were brought to a mean of 0 and a size of 1, in the units of the
numbers themselves: offsets move with the mean and grow with the size.
"""

import numpy as np
import pytest
import torch
from glassbox.nodes.activations import autoencoder_training
from glassbox.nodes.activations.autoencoder_training import Trainer, TrainingSettings
from glassbox.nodes.weights import directions

SETTINGS = TrainingSettings(features=20, k=3, learning_rate=2e-2, dead_after=50, seed=0)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def trained(points):
    trainer = Trainer.start(SETTINGS, points)
    for _ in range(10):
        for batch in points.split(64):
            trainer.step(batch)
    return trainer


@pytest.mark.parametrize(("size", "offset"), [(1.0, 0.0), (30.0, -400.0), (0.02, 5.0)])
def test_an_autoencoder_is_what_was_trained_in_the_units_of_the_activation(size, offset):
    """Beside the trainer's own numbers, one operation at a time in float64."""
    points = size * drawn(256, 10) @ drawn(10, 10, seed=1) + offset * drawn(10, seed=2)
    trainer = trained(points)
    state = {name: value.double() for name, value in trainer.state().items()}
    assert state["latent_bias"].abs().max() > 0.05 and state["pre_bias"].abs().max() > 0.05
    scaled = (points.double() - state["center"]) / state["scale"]
    values = (scaled - state["pre_bias"]) @ state["encoder"].T + state["latent_bias"]
    largest, places = values.topk(SETTINGS.k, dim=1)
    features = torch.zeros_like(values).scatter(1, places, largest.relu())
    again = features @ state["decoder"] + state["pre_bias"]

    autoencoder = trainer.autoencoder("a", {})
    wide = float(state["scale"])
    found = autoencoder.encode(points).double()
    assert (found - wide * features).abs().max() <= 2e-4 * wide * float(features.max())
    expected = state["center"] + wide * again
    error = (autoencoder.reconstruct(points).double() - expected).abs().max()
    assert error <= 2e-4 * float(expected.abs().max())
    active = state["counts"] > 0
    usual = wide * state["sums"][active] / state["counts"][active]
    torch.testing.assert_close(autoencoder.usual[active].double(), usual, rtol=1e-5, atol=0)
    unexplained = (scaled - again).square().sum() / (scaled - scaled.mean(0)).square().sum()
    variance = autoencoder_training.explained_variance(autoencoder, points)
    assert variance == pytest.approx(1 - float(unexplained), abs=1e-3)


def test_the_same_activation_in_other_units_has_the_same_features_in_these_units():
    """Eightfold and shifted: powers of two, which change no digit before the shift."""
    points = drawn(256, 10) @ drawn(10, 10, seed=1)
    plain = trained(points).autoencoder("a", {})
    larger = trained(8 * points + 64).autoencoder("a", {})
    one = plain.encode(points)
    other = larger.encode(8 * points + 64)
    same = (one > 0) == (other > 0)
    assert float(same.float().mean()) > 0.99
    both = (one > 0) & (other > 0)
    assert (other[both] / one[both]).median() == pytest.approx(8, rel=1e-3)
    active = plain.usual > 0
    torch.testing.assert_close(larger.usual[active], 8 * plain.usual[active], rtol=0.05, atol=0)


def test_a_ridge_direction_has_an_intercept_for_labels_and_members_off_center():
    """Labels in other units give the direction in these units, whatever their mean; the mean of
    the members does not count.
    """
    generator = np.random.default_rng(2)
    numbers = generator.normal(size=(60, 12))
    target = numbers @ generator.normal(size=12) + 0.3 * generator.normal(size=60)
    plain = directions.fit_ridge(numbers, target)
    assert np.abs(plain).max() > 0.5
    shifted = directions.fit_ridge(numbers + 40.0, 5 * target - 300.0)
    np.testing.assert_allclose(shifted, 5 * plain, rtol=1e-6, atol=1e-8)


def test_a_conditional_difference_does_not_depend_on_the_mean_of_its_label():
    generator = np.random.default_rng(3)
    numbers = generator.normal(size=(50, 6))
    numbers -= numbers.mean(axis=0)
    others = [generator.normal(size=50) + 9.0]
    target = (numbers[:, 0] + others[0] - 9.0 > 0).astype(float)
    plain = directions.fit_conditional_difference(
        numbers, directions.without_others(target, others)
    )
    moved = [column - 70.0 for column in others]
    again = directions.fit_conditional_difference(
        numbers, directions.without_others(target + 4.0, moved)
    )
    np.testing.assert_allclose(again, plain, rtol=1e-9, atol=1e-12)
