"""A small network from scratch: both runs see the same images and noise, and assigned noise wins at one step."""

import numpy as np
import pytest
import torch
from glassbox.nodes.noise import scratch_training as method


def test_batches_hold_the_same_images_and_noise_samples_assigned_or_not():
    data = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    (rows, drawn), (same, assigned) = (method.Batches(data, 16, paired, 1).next() for paired in (False, True))
    assert torch.equal(rows, same)
    assert torch.equal(drawn.sum(1).sort()[0], assigned.sum(1).sort()[0])
    assert (data[rows] - assigned).square().sum() < (data[rows] - drawn).square().sum()


def test_frechet_distance_of_gaussians_is_the_closed_form():
    """|m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)); for diagonal covariances the sum of (s1 - s2)^2."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(200_000, 3)), rng.normal(size=(200_000, 3)) * [2.0, 1.0, 0.5] + [1.0, 0.0, 0.0]
    assert method.frechet(a, b) == pytest.approx(1.0 + 1.0 + 0.25, rel=0.02)


def test_assigned_noise_is_nearer_to_the_digits_at_one_sampling_step():
    seen: list[int] = []
    drawn, assigned = (method.train_digits(paired, 128, 400, 1, 0, seen.append) for paired in (False, True))
    assert assigned.at_end[1] < 0.95 * drawn.at_end[1]  # 0.86
    assert seen == [*range(25, 401, 25)] * 2
    assert drawn.samples.shape == (1000, 64) and list(drawn.at_end) == [1, 2, 4, 8, 20]
    assert drawn.over_training[400] == drawn.at_end[1] and len(drawn.over_training) == 8
