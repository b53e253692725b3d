"""Chunks of Train Sparse Autoencoder through several epochs: items in shuffled order, each once
before one comes again, none of those that are held out.
"""

import pytest
import torch

ITEMS, HELD_OUT, SEED, CHUNKS = 23, 2, 77, 8


@pytest.fixture
def source(app, monkeypatch):
    """Of numbered prompts: an item's positions are its number, the seed of its noise, and a place
    of two.
    """
    module = app.module("nodes.activations.nodes_train_autoencoder")

    def sampled(self, prompt, seed):
        rows = torch.tensor([[float(prompt), seed, place] for place in range(2)])
        return rows[:, :, None, None]

    monkeypatch.setattr(module._Source, "_sampled", sampled)
    given = dict.fromkeys(("model", "clip", "vae", "latent", "spec"))
    items = [str(number) for number in range(ITEMS)]
    return module._Source(**given, items=items, caption="", seed=SEED, steps=1, cfg=1.0)


def order_of(chunk):
    """The items of a chunk in the order of their seeds."""
    return [int(row[0]) for row in sorted(chunk.tolist(), key=lambda row: row[1]) if row[2] == 0]


def test_each_epoch_shows_every_item_once_in_an_order_of_its_own(source):
    """Eight items a chunk of 21 in an epoch, so that epochs end inside of chunks."""
    chunks = [source.chunk(number) for number in range(CHUNKS)]
    assert all(chunk.shape == (16, 3) for chunk in chunks)
    items = [item for chunk in chunks for item in order_of(chunk)]
    training = ITEMS - HELD_OUT
    epochs = [items[first : first + training] for first in range(0, 3 * training, training)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(HELD_OUT, ITEMS))
    assert len({tuple(epoch) for epoch in [*epochs, sorted(epochs[0])]}) == 4
    # The fourth epoch, which is cut, has an order of its own as well.
    rest = items[3 * training :]
    assert len(rest) == 1 and len(items) == 64


def test_every_item_has_noise_of_its_own(source):
    """The seeds follow the node's own; those of no two visits of an item are equal."""
    rows = torch.cat([source.chunk(number) for number in range(CHUNKS)])
    assert sorted(rows[:, 1].tolist()) == [
        float(seed) for seed in range(SEED + 1, SEED + 1 + 64) for _ in range(2)
    ]
    visits = {(item, seed) for item, seed, _ in rows.tolist()}
    assert len(visits) == 64
    held_out = source.held_out()
    assert {(item, seed) for item, seed, _ in held_out.tolist()} == {(0, SEED), (1, SEED + 1)}
    assert len(held_out) == 4


def test_positions_of_a_chunk_are_shuffled_each_time_in_another_way(source):
    """By their seeds: else a batch would hold positions of one image alone."""
    places = []
    for number in range(CHUNKS):
        chunk = source.chunk(number)
        found = (2 * (chunk[:, 1] - SEED - 1 - 8 * number) + chunk[:, 2]).long()
        assert sorted(found.tolist()) == list(range(16))
        places.append(tuple(found.tolist()))
    assert len({*places, tuple(range(16))}) == CHUNKS + 1


def test_a_chunk_is_the_same_whenever_it_is_made(source):
    """Which is how a training resumes in its second epoch."""
    late = source.chunk(5)
    source.chunk(0)
    assert torch.equal(source.chunk(5), late)


@pytest.mark.parametrize("count", [4, 6, 9])
def test_of_few_items_a_chunk_is_one_epoch(source, count):
    """At most as many as a chunk holds, with one that is held out."""
    few = type(source)(**{**vars(source), "items": source.items[:count]})
    orders = [tuple(order_of(few.chunk(number))) for number in range(6)]
    assert all(sorted(order) == list(range(1, count)) for order in orders)
    assert len(set(orders)) > 1
