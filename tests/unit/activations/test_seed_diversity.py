"""The seeds that differ most, against every choice of as many."""

import itertools

import pytest
import torch
from glassbox.nodes.activations.seed_scout import diversity, layout_likeness, layout_vectors


def vectors(count, width=6, seed=0):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) + 0.5


def chords(points):
    unit = points.double() / points.double().norm(dim=1, keepdim=True)
    return (unit[:, None] - unit[None]).norm(dim=2)


def least(distances, chosen):
    return min(float(distances[a, b]) for a, b in itertools.combinations(chosen, 2))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("keep", [2, 3, 4, 5])
def test_the_first_are_at_least_half_as_different_as_the_best_choice(seed, keep):
    """The bound of the greedy order; the best two are found."""
    points = vectors(9, seed=seed)
    distances = chords(points)
    order = diversity(points, "test").order()
    reached = least(distances, order[:keep])
    choices = [least(distances, each) for each in itertools.combinations(range(9), keep)]
    assert reached >= 0.5 * max(choices)
    assert reached > sum(choices) / len(choices)
    if keep == 2:
        assert reached == pytest.approx(max(choices), rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_each_seed_is_the_farthest_from_those_before_it(seed):
    points = vectors(8, seed=seed)
    distances = chords(points)
    scores = diversity(points, "test")
    order = scores.order()
    assert sorted(order) == list(range(8))
    for rank in range(2, 8):
        gaps = {
            number: float(distances[number, order[:rank]].min())
            for number in range(8)
            if number not in order[:rank]
        }
        assert order[rank] == max(gaps, key=gaps.get)
        assert float(scores.values[order[rank]]) == pytest.approx(gaps[order[rank]], rel=1e-5)


def test_equal_images_come_last():
    points = vectors(5)
    doubled = torch.cat([points, points[:2]])
    order = diversity(doubled, "test").order()
    assert {number % 5 for number in order[:5]} == set(range(5))


def test_two_seeds():
    assert sorted(diversity(vectors(2), "test").order()) == [0, 1]


def test_layouts_are_compared_by_correlation():
    images = torch.rand(3, 32, 48, 3, generator=torch.Generator().manual_seed(1))
    expected = torch.corrcoef(layout_vectors(images))[0]
    assert torch.allclose(layout_likeness(images, images[:1]).values, expected, atol=1e-5)
