"""Masks that are uneven in both directions: whatever brings a mask to another size, against means
over its cells.
"""

import pytest
import torch
from glassbox.nodes.activations import activation_edit, correspondence, sparse_autoencoder
from glassbox.nodes.common.network_call import WHOLE, Area
from glassbox.nodes.common.training.training_data import collect_training_data
from glassbox.nodes.noise import composition
from glassbox.nodes.weights import inversion

HEIGHT, WIDTH = 24, 40  # of the mask
ROWS, COLUMNS = 6, 5  # of what it is brought to: cells of 4 x 8


@pytest.fixture
def mask():
    """An L and a spot, on no axis of symmetry, with soft values."""
    drawn = torch.zeros(1, HEIGHT, WIDTH)
    drawn[:, 2:19, 3:11] = 1
    drawn[:, 13:19, 3:30] = 1
    drawn[:, 21:23, 33:39] = 0.6
    return drawn


def cells(mask, rows=ROWS, columns=COLUMNS):
    """The mean of a mask (H, W) over each cell, in float64."""
    height, width = mask.shape
    return mask.double().reshape(rows, height // rows, columns, width // columns).mean((1, 3))


def close(found, expected):
    return torch.allclose(found.double(), expected, atol=1e-6)


def test_the_mask_tells_directions_apart(mask):
    small = cells(mask[0])
    for other in (
        small.flip(0),
        small.flip(1),
        small.flip(0, 1),
        small.mean(0).expand(ROWS, COLUMNS),
    ):
        assert (small - other).abs().max() > 0.2
    assert (small - small.mean(1, keepdim=True)).abs().max() > 0.2


def test_of_a_feature(mask):
    found = activation_edit.mask_at(mask, torch.zeros(3, 2, ROWS, COLUMNS), 1, WHOLE)
    assert found.shape == (3, 1, ROWS, COLUMNS) and all(
        close(row[0], cells(mask[0])) for row in found
    )


def test_of_a_feature_of_an_area(mask):
    """Rows 2 to 5 and columns 1 to 3 of a latent of 6 x 5, which the feature has at half the cells'
    size.
    """
    area = Area(begin=(2, 1), size=(3, 3), of=(ROWS, COLUMNS))
    found = activation_edit.mask_at(mask, torch.zeros(1, 2, 6, 6), 1, area)
    assert close(found[0, 0], cells(mask[0, 8:20, 8:32], 6, 6))


def test_of_an_area_whose_edges_lie_between_the_masks_pixels(mask):
    """A latent of 9 x 7, in which no edge of the area is one of the mask: the mask comes to the
    latent first.
    """
    area = Area(begin=(2, 1), size=(4, 5), of=(9, 7))
    large = torch.nn.functional.interpolate(mask.double()[:, None], size=(9, 7), mode="area")[:, 0]
    assert close(area.cut(mask)[0], large[0, 2:6, 1:6])


def test_of_a_latent_in_an_inversion(mask):
    found = inversion.latent_mask(mask, torch.zeros(1, 4, ROWS, COLUMNS))
    assert torch.equal(found[0, 0], (cells(mask[0]) > 0.5).float()) and 0 < found.mean() < 1


def test_of_latents_in_training(mask):
    latents, captions = (
        [{"samples": torch.zeros(2, 4, ROWS, COLUMNS)}],
        [[[torch.zeros(1, 2, 3), {}]]],
    )
    second = mask.flip(2)
    data = collect_training_data(latents, captions, 0, [], [], [], [torch.cat([mask, second])])
    assert [
        close(weights[0, 0], cells(one[0]))
        for weights, one in zip(data.weights, (mask, second), strict=True)
    ] == [
        True,
        True,
    ]


def test_of_a_guide_of_two_colors(mask):
    like, inside, outside = (
        torch.zeros(1, 2, ROWS, COLUMNS),
        torch.tensor([2.0, -1.0]),
        torch.tensor([0.5, 3.0]),
    )
    found = composition.mask_guide(mask, like, inside, outside)[0]
    small = cells(mask[0])
    for channel in range(2):
        assert close(
            found[channel], float(inside[channel]) * small + float(outside[channel]) * (1 - small)
        )


def test_of_mean_colors(mask):
    latents = torch.randn(3, 4, ROWS, COLUMNS, generator=torch.Generator().manual_seed(2))
    small, mean = cells(mask[0]), latents.double().mean(0)
    found = composition.part_means(latents, mask)
    for means, weights in zip(found, (small, 1 - small), strict=True):
        assert close(means, (mean * weights).sum((1, 2)) / weights.sum())


def test_of_a_mean_direction(mask):
    feature = torch.randn(7, ROWS, COLUMNS, generator=torch.Generator().manual_seed(3))
    weights = cells(mask[0])
    directions = feature.double() / feature.double().norm(dim=0)
    expected = (directions * weights).sum((1, 2)) / weights.sum()
    assert close(correspondence.mask_direction(feature, mask[0])[0], expected)


def test_of_the_scores_of_features(mask):
    maps = torch.rand(5, ROWS, COLUMNS, generator=torch.Generator().manual_seed(4))
    weights = cells(mask[0])
    means = [(maps.double() * part).sum((1, 2)) / part.sum() for part in (weights, 1 - weights)]
    assert close(sparse_autoencoder.feature_scores(maps, mask), means[0] - means[1])


def test_of_a_transferred_mask(mask):
    """Every position of the target has its match at the source's position turned by half."""
    source = torch.eye(ROWS * COLUMNS).reshape(ROWS * COLUMNS, ROWS, COLUMNS)
    for mutual in (False, True):
        found = correspondence.transfer_mask(source, source.flip(1, 2), mask[0], mutual)
        assert close(found, cells(mask[0]).flip(0, 1))
