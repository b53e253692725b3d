"""How the study of discovered sliders measures a movement, in closed form."""

import pytest
import torch

from studies.weights import discovered


def embedded(axis, spread):
    return discovered.Embedded(None, torch.zeros(3, 2), torch.tensor(axis), spread, judged=3)


def test_movement_is_counted_along_the_direction_in_its_spread():
    low = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]])
    high = low + torch.tensor([[3.0, 4.0], [0.0, -2.0], [1.0, 0.0]])
    row = discovered._row(embedded([0.6, 0.8], 2.0), low, high)
    assert row["along"] == pytest.approx([2.5, -0.8, 0.3])
    assert row["cosine"] == pytest.approx([1.0, -0.8, 0.6])
    mean = torch.tensor([4.0, 2.0])
    expected = float(mean @ torch.tensor([0.6, 0.8]) / mean.norm())
    assert row["mean_cosine"] == pytest.approx(expected)


def test_halves_with_one_direction_are_alike_and_others_are_not():
    values = torch.linspace(-1, 1, 20)
    along, across = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0])
    small = 0.1 * torch.cos(torch.arange(20.0) * 2)
    first = torch.outer(values, along) + torch.outer(small, across)
    assert discovered._in_halves([first, -2 * first], 0) == pytest.approx(1.0)
    second = torch.outer(values, across) + torch.outer(small, along)
    assert discovered._in_halves([first, second], 0) < 0.3
