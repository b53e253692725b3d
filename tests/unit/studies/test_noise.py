"""The reference runs of the noise study, at sizes where their outcome is certain."""

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from studies.noise import small
from studies.noise.pairing import ASSIGN, VANILLA, WITHIN, Batches, nearest, pool


def test_a_ring_is_learned_faster_with_assigned_noise():
    (plain, plain_loss), (paired, paired_loss) = (
        small.ring_run(mode, 0, (200,)) for mode in (VANILLA, ASSIGN)
    )
    assert paired[0] < 0.92 * plain[0]
    assert paired_loss < 0.2 * plain_loss  # by construction: no evidence


@pytest.mark.parametrize("classes", [False, True])
def test_a_short_run_on_digits_scores_each_number_of_sampling_steps(classes):
    looks, seconds, loss = small.digits_run(ASSIGN, 0, (2, 4), batch=32, classes=classes)
    assert [list(scores) for scores in looks] == [[*small.EULER]] * 2 and len(seconds) == 2
    assert np.isfinite([*looks[1].values(), loss]).all() and looks[0] != looks[1]


@pytest.mark.slow
def test_digits_in_few_sampling_steps_are_better_with_assigned_noise():
    (plain, _, _), (paired, _, _) = (
        small.digits_run(mode, 0, (500,)) for mode in (VANILLA, ASSIGN)
    )
    assert paired[0][2] < 0.65 * plain[0][2] and paired[0][4] < 0.8 * plain[0][4]


@pytest.mark.slow
def test_assignment_across_classes_hurts_and_within_them_helps():
    across, plain, within = (
        small.digits_run(mode, 0, (500,), classes=True)[0][0][20]
        for mode in (ASSIGN, VANILLA, WITHIN)
    )
    assert within < plain < across


@pytest.mark.parametrize("mode", [ASSIGN, WITHIN, pool(12), nearest(3)], ids=lambda mode: mode.name)
def test_every_mode_draws_the_same_rows(mode):
    data, labels = torch.randn(30, 16), torch.arange(30) % 3
    plain, paired = (
        Batches(data=data, size=4, mode=one, seed=5, labels=labels) for one in (VANILLA, mode)
    )
    if mode.pool:
        rows, noise = zip(*(paired.next() for _ in range(3)), strict=True)
        assert torch.cat(noise).shape == (12, 16) and len(rows[0]) == 4
    else:
        (rows, drawn), (same, noise) = plain.next(), paired.next()
        assert torch.equal(rows, same)
        nearer = (data[rows] - noise).square().sum() <= (data[rows] - drawn).square().sum()
        assert bool(nearer)


def test_within_keeps_rows_of_several_labels_apart_by_all_of_them():
    data, labels = torch.randn(30, 16), torch.arange(30)[:, None] % torch.tensor([2, 3])
    (rows, drawn), (_, noise) = (
        Batches(data=data, size=24, mode=one, seed=5, labels=labels).next()
        for one in (VANILLA, WITHIN)
    )
    owner = (noise[:, None] == drawn).all(2).int().argmax(1)
    assert torch.equal(labels[rows], labels[rows[owner]]) and not torch.equal(
        owner, torch.arange(24)
    )


def test_the_distance_of_point_sets():
    points = torch.rand(40, 2)
    assert small.wasserstein(points, points[torch.randperm(40)]) == pytest.approx(0, abs=1e-3)
    assert small.wasserstein(points, points + torch.tensor([3.0, 4.0])) == pytest.approx(
        5, abs=1e-3
    )
    assert np.isclose(small.ring(4000, 0).norm(dim=1).mean(), 2, atol=0.02)
