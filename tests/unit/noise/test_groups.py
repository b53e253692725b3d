"""Assignment that heeds conditions."""

import itertools

import numpy as np
import pytest
import torch
from glassbox.nodes.noise.assignment import Groups, assign, dot_cost
from glassbox.nodes.noise.pairing import PairingSettings

LABELS = ["cat", "dog", "cat", "dog", "cat", "bird", "dog"]


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(7, 40, generator=generator), torch.randn(7, 40, generator=generator)


def test_within_groups_noise_stays_in_its_group_and_is_the_best_of_such():
    data, noise = batch()
    found = assign(data, noise, groups=Groups(LABELS)).permutation.tolist()
    assert [LABELS[column] for column in found] == LABELS
    table = -(data @ noise.T).double().numpy()
    inside = [
        order
        for order in itertools.permutations(range(7))
        if all(LABELS[i] == LABELS[j] for i, j in enumerate(order))
    ]
    least = min(table[np.arange(7), list(order)].sum() for order in inside)
    assert table[np.arange(7), found].sum() == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize("penalty", [0.0, 0.5, 2.0])
def test_a_penalty_by_brute_force(penalty):
    data, noise = batch()
    table = dot_cost(data, noise).double().numpy()
    different = np.array([[one != other for other in LABELS] for one in LABELS])
    table = table + penalty * table.std() * different
    least = min(
        table[np.arange(7), list(order)].sum() for order in itertools.permutations(range(7))
    )
    found = assign(data, noise, groups=Groups(LABELS, penalty)).permutation.numpy()
    assert table[np.arange(7), found].sum() == pytest.approx(least, abs=1e-5)


def test_a_penalty_goes_from_ignoring_groups_to_staying_within_them():
    data, noise = batch()
    free = assign(data, noise, groups=Groups(LABELS, 0.0)).permutation
    assert torch.equal(free, assign(data, noise).permutation)
    strict = assign(data, noise, groups=Groups(LABELS, 1000.0)).permutation
    assert torch.equal(strict, assign(data, noise, groups=Groups(LABELS)).permutation)


def test_equal_images_of_different_groups_do_not_trade():
    data, noise = batch()
    data[:] = data[0].clone()
    data[2:4] += torch.randn(2, 40, generator=torch.Generator().manual_seed(2))
    found = assign(data, noise, groups=Groups(LABELS)).permutation.tolist()
    assert [LABELS[column] for column in found] == LABELS


def test_one_image_a_group_has_nothing_to_gain():
    data, noise = batch()
    assert assign(data, noise, groups=Groups(list("abcdefg"))).permutation.tolist() == list(
        range(7)
    )


def test_grouping_options():
    labels = ["a", "a", "b"]
    assert PairingSettings(grouping="ignore").groups(labels) is None
    assert PairingSettings(grouping="within_groups").groups(labels) == Groups(labels)
    assert PairingSettings(grouping="penalty", penalty=2.0).groups(labels) == Groups(labels, 2.0)
