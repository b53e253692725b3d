"""Planted neurons are not separated from decoys by any threshold, and rows answer their own name."""

import numpy as np
import pytest
import torch

pytest.importorskip("python_avatars")

from studies.world import planted


def test_best_threshold_finds_the_largest_and_only_them():
    z = np.array([9.0, -8.0, 1.0, 0.5, 0.1])
    assert planted.best_threshold_f1(z, np.array([True, True, False, False, False])) == 1.0
    # Both above one decoy each: the best is to take all four of the largest, 2 hits, F1 = 2 * 2 / (4 + 2)
    z = np.array([9.0, 8.0, 7.0, 6.0, 0.1, 0.0])
    marked = np.array([False, True, False, True, False, False])
    assert planted.best_threshold_f1(z, marked) == pytest.approx(2 / 3)


def test_fraction_outside_the_top():
    z, marked = np.arange(10.0), np.zeros(10, bool)
    marked[[9, 5, 4, 0]] = True
    assert planted.outside_top(z, marked, 5) == 0.5


def test_directions_answer_their_own_name_only():
    generator = torch.Generator().manual_seed(0)
    names, ordinary = torch.randn(4, 77, 32, generator=generator), torch.randn(30, 77, 32, generator=generator)
    names[:, 3:] = 0.1 * names[:, 3:] + 3 * torch.randn(4, 1, 32, generator=generator)
    names[:, :3] = names[:1, :3]
    found = planted.directions(names, ordinary)
    answers = torch.einsum("ntc,mc->nmt", names[:, 3:], found).mean(-1)
    own = answers.diagonal()
    assert (own > 0.5).all() and (answers - torch.diag(own)).abs().max() < 0.5 * own.min()


def test_planted_rows_deviate_as_wanted():
    generator = torch.Generator().manual_seed(0)
    network = torch.nn.ModuleDict({"to_v": torch.nn.Linear(16, 8, bias=False)}).requires_grad_(False)
    ordinary, prompt = torch.randn(20, 77, 16, generator=generator), torch.randn(77, 16, generator=generator)
    change = planted.changes(network, [("to_v", 5)], prompt, torch.randn(16, generator=generator), ordinary, 3.0)[
        "to_v"
    ]
    assert (change.abs().sum(1) > 0).nonzero().flatten().tolist() == [5]
    weight = network["to_v"].weight
    reference = (ordinary @ weight[5]).abs().mean(1)
    answer = (prompt @ (weight + change)[5]).abs().mean()
    assert float((answer - reference.mean()) / reference.std()) == pytest.approx(3.0, abs=1e-3)


def test_names_are_new_and_their_words_known():
    control = planted.captions.NAMES["control"]
    assert len(set(planted.NAMES)) == 12 and not set(planted.NAMES) & set(control)
    words = {word for name in control for word in name.split()}
    assert all(set(name.split()) <= words for name in planted.NAMES)
    assert min(planted.COUNTS) == 1 and max(planted.COUNTS) == 8
