"""Pools: what they share out, and that what they serve is the Gaussian noise that was drawn."""

import pytest
import torch
from glassbox.nodes.noise.assignment import Groups, Pool, assign, pool_turns


def draw(images: int, noise_samples: int, size: int = 256, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(images, size, generator=generator), torch.randn(
        noise_samples, size, generator=generator
    )


@pytest.mark.parametrize(
    ("size", "count", "expected"), [(1, 4, 1), (4, 4, 1), (5, 4, 2), (256, 4, 64), (256, 3, 86)]
)
def test_turns_are_rounded_up(size, count, expected):
    assert pool_turns(size, count) == expected


def test_every_noise_is_served_once():
    data, noise = draw(6, 48)
    pool = Pool.build(data, noise)
    served = torch.cat([pool.serve(turn) for turn in range(8)])
    assert sorted(served.tolist()) == list(range(48))
    assert torch.equal(pool.serve(8), pool.serve(0))


def test_a_pool_of_the_batch_is_assignment():
    data, noise = draw(12, 12)
    assert torch.equal(Pool.build(data, noise).serve(0), assign(data, noise).permutation)


def test_pool_is_optimal_by_the_assignment_of_copies():
    data, noise = draw(3, 24)
    pool = Pool.build(data, noise)
    copies = data.repeat(8, 1)
    best = assign(copies, noise).permutation
    gained = (data[None] * noise[pool.table]).sum()
    torch.testing.assert_close(gained, (copies * noise[best]).sum())


def test_it_gains_more_than_the_batch_alone():
    """Up to the mean of the largest of N normals along each image, 1.03 for four, against m_4 =
    0.82.
    """
    alone = pooled = 0.0
    for seed in range(20):
        data, noise = draw(4, 64, 256, seed)
        pool = Pool.build(data, noise)
        alone += (
            float((data * noise[assign(data, noise[:4]).permutation]).sum(dim=1).mean()) / 16 / 20
        )
        pooled += float((data[None] * noise[pool.table]).sum(dim=2).mean()) / 16 / 20
    assert alone == pytest.approx(0.82, abs=0.25)
    assert pooled == pytest.approx(1.0, abs=0.1)


def test_one_image_keeps_the_order_of_drawing():
    data, noise = draw(1, 16)
    assert Pool.build(data, noise).table.flatten().tolist() == list(range(16))


def test_groups_keep_their_fraction():
    data, noise = draw(4, 16)
    labels = ["a", "b", "a", "b"]
    table = Pool.build(data, noise, groups=Groups(labels)).table
    assert all(
        labels[table[turn, image] % 4] == labels[image] for turn in range(4) for image in range(4)
    )


def test_every_turn_is_served_alike():
    """The gain of the first turn is that of the last: which noise comes first does not depend on
    its value.
    """
    gains = torch.zeros(4)
    for seed in range(60):
        data, noise = draw(4, 16, 64, seed)
        pool = Pool.build(data, noise)
        gains += (data[None] * noise[pool.table]).sum(dim=2).mean(dim=1) / 60
    spread = gains.max() - gains.min()
    assert gains.mean() > 5
    assert (
        spread < 4 * 8 / (60 * 4) ** 0.5
    )  # the sum over 64 coordinates has a standard deviation of about 8
