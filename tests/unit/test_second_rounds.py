"""What shuffles or takes turns, in its second round and later: another order, and again everything
once.
"""

import itertools

import pytest
import torch
from glassbox.nodes.activations import pixel_classifier
from glassbox.nodes.neurons import learned_factors
from glassbox.nodes.weights.space_training import MemberImages, SpaceTraining, SpaceTrainingSettings


def test_each_epoch_of_the_pixel_classifier_has_an_order_of_its_own():
    """Of every member: 130 pixels are two batches of 64, and two are left out in each epoch."""
    count, size, epochs = 130, 64, 3
    labels = (torch.arange(count) % 3 > 0).long()
    values = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    requested = []

    def pixels(rows):
        requested.append(rows.view(pixel_classifier.MEMBERS, -1))
        return values[rows]

    pixel_classifier.train(pixels, labels, 4, 2, seed=5, epochs=epochs)
    assert [rows.shape[1] for rows in requested] == [size] * (2 * epochs)
    orders = [torch.cat(requested[2 * epoch : 2 * epoch + 2], dim=1) for epoch in range(epochs)]
    for order in orders:
        assert all(len(set(row)) == 2 * size for row in order.tolist())  # none comes twice
    every = [tuple(row) for order in orders for row in order.tolist()]
    assert len(set(every)) == epochs * pixel_classifier.MEMBERS
    left_out = {frozenset(range(count)) - set(row) for row in every}
    assert len(left_out) > epochs


@pytest.mark.parametrize(("examples", "count"), [(7, 2), (6, 3), (5, 5), (4, 9)])
def test_examples_of_a_mask_are_all_taken_before_one_comes_again(examples, count):
    """Through three rounds, whose ends lie within a step where the count does not divide them."""
    made = [object() for _ in range(examples)]
    steps = [learned_factors._drawn(made, count, 3, step) for step in range(3 * examples)]
    each = min(count, examples)
    assert all(len(step) == len(set(step)) == each for step in steps)
    if count <= examples:
        taken = list(itertools.chain(*steps))
        for first in range(0, 3 * examples, examples):
            assert set(taken[first : first + examples]) == set(made)
    assert learned_factors._drawn(made, count, 3, 0) == steps[0]
    if examples > count:
        assert steps[0] != steps[1]
        assert any(learned_factors._drawn(made, count, seed, 0) != steps[0] for seed in range(9))


def test_steps_of_a_learned_space_draw_other_members_images_and_noise():
    """Twelve steps of two of five members; each member comes, and no step is another's."""
    images = [[0, 1, 2], [3], [4, 5], [6, 7, 8, 9], [10, 11]]
    data = MemberImages.__new__(MemberImages)
    object.__setattr__(data, "images", images)
    settings = SpaceTrainingSettings(
        steps=12,
        learning_rate=1e-3,
        members=2,
        images=3,
        code_rate=1.0,
        projection_rate=1.0,
        prior=0.0,
        end_percent=0.8,
        caption_dropout=0.3,
        batch_size=4,
        seed=11,
    )
    training = SpaceTraining.__new__(SpaceTraining)
    training.settings = settings
    training.data = data
    draws = [training.draw(step) for step in range(12)]
    assert {member for draw in draws for member in draw.members} == set(range(5))
    assert len({tuple(draw.members) for draw in draws}) > 4
    assert len({tuple(draw.percents) for draw in draws}) == 12
    assert len({draw.seed for draw in draws}) == 12
    firsts = {tuple(row.image for row in draw.rows if row.member == 3)[:1] for draw in draws}
    assert len(firsts - {()}) > 1  # not always the same image of a member first
    for draw in draws:
        for member in draw.members:
            shown = [row.image for row in draw.rows if row.member == member]
            assert len(set(shown)) == min(3, len(images[member]))
    assert training.draw(4) == draws[4]
