"""Activations of a model that overflows in its precision."""

import pytest
import torch
from glassbox.nodes.activations import pca, steering


def overflown(value):
    feature = torch.randn(2, 6, 3, 5, generator=torch.Generator().manual_seed(0))
    feature[1, 4, 2, 3] = value
    return feature


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_colors_of_an_overflow_are_one_sentence(value):
    with pytest.raises(ValueError, match=r"NaN or infinity.*bf16 or fp32"):
        pca.pca_colors(overflown(value))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_no_direction_comes_from_an_overflow(value):
    vectors = {"up-0": torch.ones(3), "up-1": overflown(value).mean((0, 2, 3))}
    with pytest.raises(ValueError, match=r"up-1 have NaN or infinity"):
        steering.SteeringDirection(vectors, "Difference of means")


def test_a_direction_on_the_meta_device_has_no_values_to_check():
    vectors = {"up-0": torch.ones(3, device="meta")}
    direction = steering.SteeringDirection(vectors, "shapes alone")
    assert direction.vectors["up-0"].shape == (3,)
