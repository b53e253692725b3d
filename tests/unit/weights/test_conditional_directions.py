"""The difference of members that differ in one label alone, against least squares on all labels at
once.
"""

import numpy as np
import torch
from glassbox.nodes.weights import directions
from glassbox.nodes.weights.flat_layout import Layout
from glassbox.nodes.weights.learned_space import LearnedUpdates

N, K = 400, 40


def made(seed=0, noise=0.6):
    """Members whose codes are sums of what each label adds, and labels of which two go together."""
    random = np.random.default_rng(seed)
    beard = random.random(N) < 0.4
    dark = random.random(N) < np.where(beard, 0.8, 0.2)
    red = random.random(N) < 0.1
    labels = np.stack([beard, dark, red], axis=1).astype(float)
    added = 0.4 * random.normal(size=(3, K))
    return labels, added, labels @ added + noise * random.normal(size=(N, K)) + 2.0


def test_it_is_the_slope_on_all_labels_at_once():
    labels, added, numbers = made()
    whole = np.concatenate([labels - labels.mean(axis=0)], axis=1)
    slopes = np.linalg.lstsq(whole, numbers - numbers.mean(axis=0), rcond=None)[0]
    for column in range(3):
        own = directions.without_others(
            labels[:, column], [labels[:, one] for one in range(3) if one != column]
        )
        found = directions.fit_normal(numbers, own, "conditional_difference")
        np.testing.assert_allclose(found, slopes[column], rtol=0.05, atol=0.05)
        assert abs(np.linalg.norm(found - added[column])) < 1.0
    plain = directions.fit_normal(numbers, labels[:, 0], "mean_difference")
    assert np.linalg.norm(plain - added[0]) > 1.2  # a beard brings a skin with it


def test_alone_it_is_the_mean_difference_and_unknown_labels_count_as_their_mean():
    labels, _, numbers = made()
    own = directions.without_others(labels[:, 0], [])
    found = directions.fit_normal(numbers, own, "conditional_difference")
    np.testing.assert_allclose(
        found, directions.fit_normal(numbers, labels[:, 0], "mean_difference"), atol=1e-9
    )
    other = labels[:, 1].copy()
    other[:200] = np.nan
    filled = np.where(np.isnan(other), np.nanmean(other), other)
    np.testing.assert_allclose(
        directions.without_others(labels[:, 0], [other]),
        directions.without_others(labels[:, 0], [filled]),
    )


def test_alternatives_and_parts_of_an_attribute_are_not_held():
    """Of colors that exclude each other one follows from the others, which would leave nothing of
    it but a penalty.
    """
    random = np.random.default_rng(3)
    color = random.choice(4, size=N, p=(0.5, 0.3, 0.15, 0.05))
    colors = [(color == one).astype(float) for one in range(4)]
    dark = (random.random(N) < np.where(color == 2, 0.8, 0.3)).astype(float)
    part = colors[2] * (random.random(N) < 0.5)  # of those with the label alone
    found = directions.without_others(colors[2], [colors[0], colors[1], colors[3], part, dark])
    np.testing.assert_array_equal(found, directions.without_others(colors[2], [dark]))
    added = 0.4 * random.normal(size=(2, K))
    numbers = np.stack([colors[2], dark], axis=1) @ added + 0.3 * random.normal(size=(N, K))
    direction = directions.fit_normal(numbers, found, "conditional_difference")
    assert np.linalg.norm(direction - added[0]) < 0.15 * np.linalg.norm(added[0]) + 0.3
    assert 0.8 < np.linalg.norm(direction) / np.linalg.norm(added[0]) < 1.2


def learned(numbers):
    """A learned space whose members have these numbers (N, K) as codes."""
    layout = Layout.of({"mid_block.attn1.to_q": ((1, 3), (60, 1))}, 1, 1.0)
    updates = LearnedUpdates(layout, N, K, 0)
    with torch.no_grad():
        updates.codes.copy_(torch.from_numpy(numbers).float())
        updates.directions.copy_(torch.eye(K, 60))
    return updates.space(tuple(map(str, range(N))), "toy", "toy")


def test_fitted_in_a_space_it_leaves_the_other_label_alone():
    labels, added, numbers = made()
    space = learned(numbers)
    given = {
        name: torch.from_numpy(labels[:, column]).float()
        for column, name in enumerate(("beard", "dark", "red"))
    }
    fitted = directions.fit(
        space, {"beard": given["beard"]}, K, "conditional_difference", beside=given
    )["beard"]
    assert not fitted.noise and "split-half reliability" in fitted.about
    in_codes = (
        (fitted.vector @ space.basis)[3 : 3 + K].double().numpy()
    )  # up factors follow the three of down
    assert np.linalg.norm(in_codes - added[0]) < 1.0
    by_default = directions.fit(space, {"beard": given["beard"]}, K, "most_reliable", beside=given)[
        "beard"
    ]
    assert (
        torch.equal(by_default.vector, fitted.vector)
        and "conditional_difference" in by_default.about
    )


def test_reliability_counts_every_axis_alike():
    """Where few axes hold most of the variance, a label's difference passes and those of random
    labels do not.
    """
    random = np.random.default_rng(11)
    label = (random.random(N) < 0.25).astype(float)
    shift = np.where(np.arange(K) < 5, 0.0, random.choice([-0.8, 0.8], K))
    numbers = (random.normal(size=(N, K)) + np.outer(label, shift)) * np.geomspace(100, 0.5, K)
    reliability, floor = directions.split_half(numbers, label, "conditional_difference")
    assert reliability > floor + 0.2
    by_chance = [(random.random(N) < 0.25).astype(float) for _ in range(20)]
    passed = [directions.split_half(numbers, one, "conditional_difference") for one in by_chance]
    assert sum(found > bar for found, bar in passed) <= 1


def test_too_few_members_are_named_and_no_nan():
    labels, _, numbers = made()
    space = learned(numbers)
    beard = torch.from_numpy(labels[:, 0]).float()
    chosen = torch.cat(
        [(beard == value).nonzero().flatten()[:count] for value, count in ((0, 5), (1, 3))]
    )
    few = torch.full_like(beard, torch.nan)
    few[chosen] = beard[chosen]
    (fitted,) = directions.fit(space, {"beard": few}, 2, "mean_difference").values()
    assert "8 members" in fitted.about and "nan" not in fitted.about, fitted.about
    assert "too few members with and without it" in fitted.about and fitted.noise
