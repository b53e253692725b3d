"""A small network from scratch: both runs see the same images and noise, and assigned noise wins at
one step.
"""

import numpy as np
import pytest
import torch
from glassbox.nodes.noise import scratch_training as method


def test_batches_hold_the_same_images_and_noise_samples_assigned_or_not():
    data = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    (rows, drawn), (same, assigned) = (
        method.Batches(data=data, size=16, assigned=paired, seed=1).next()
        for paired in (False, True)
    )
    assert torch.equal(rows, same)
    assert torch.equal(drawn.sum(1).sort()[0], assigned.sum(1).sort()[0])
    assert (data[rows] - assigned).square().sum() < (data[rows] - drawn).square().sum()


def test_frechet_distance_of_gaussians_is_the_closed_form():
    """|m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)); for diagonal covariances the sum of (s1 -
    s2)^2.
    """
    rng = np.random.default_rng(0)
    a, b = (
        rng.normal(size=(200_000, 3)),
        rng.normal(size=(200_000, 3)) * [2.0, 1.0, 0.5] + [1.0, 0.0, 0.0],
    )
    assert method.frechet(a, b) == pytest.approx(1.0 + 1.0 + 0.25, rel=0.02)


def test_a_run_on_digits_reports_its_steps_and_scores():
    """A run of six steps; which noise is better is seen after hundreds."""
    seen: list[int] = []
    drawn, assigned = (
        method.train_digits(paired, 16, 6, 1, 0, seen.append) for paired in (False, True)
    )
    assert seen == [6, 6]
    assert drawn.samples.shape == (1000, 64) and list(drawn.at_end) == [1, 2, 4, 8, 20]
    assert drawn.over_training == {6: drawn.at_end[1]}
    assert drawn.at_end[1] != assigned.at_end[1]


@pytest.mark.slow
def test_assigned_noise_is_nearer_to_the_digits_at_one_sampling_step():
    seen: list[int] = []
    drawn, assigned = (
        method.train_digits(paired, 128, 400, 1, 0, seen.append) for paired in (False, True)
    )
    assert assigned.at_end[1] < 0.95 * drawn.at_end[1]  # 0.86
    assert seen == [*range(25, 401, 25)] * 2
    assert drawn.samples.shape == (1000, 64) and list(drawn.at_end) == [1, 2, 4, 8, 20]
    assert drawn.over_training[400] == drawn.at_end[1] and len(drawn.over_training) == 8


def test_a_network_of_classes_sees_the_class():
    """And goes without one where none is given, as one without classes does."""
    x, t = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)), torch.rand(3)
    network = method.Perceptron(2, 8, 4)
    outputs = [network(x, t, torch.full((3,), number)) for number in range(4)]
    assert all(output.shape == (3, 2) for output in outputs)
    assert all(not torch.allclose(outputs[0], other) for other in outputs[1:])
    plain = method.Perceptron(2, 8)
    assert torch.equal(plain(x, t, torch.zeros(3, dtype=torch.long)), plain(x, t, None))
