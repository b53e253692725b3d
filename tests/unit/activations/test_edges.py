"""Colors of several rows by themselves, and the uncertainty of maps of any size."""

import pytest
import torch
from glassbox.nodes.activations import few_shot, pca


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_colors_of_rows_by_themselves_and_together():
    """Components by numpy's SVD in float64: up to their sign, each stretched over the rows that it
    is fitted to.
    """
    feature = gaussian(3, 5, 4, 6) * torch.tensor([3.0, 1.0, 2.0])[:, None, None, None]
    for joint, groups in ((True, [feature]), (False, feature.split(1))):
        wanted = torch.cat([colors(group) for group in groups])
        torch.testing.assert_close(
            pca.pca_colors(feature, joint).double(), wanted, atol=1e-4, rtol=1e-4
        )


def colors(rows):
    points = rows.double().movedim(1, -1).reshape(-1, 5)
    centered = points - points.mean(0)
    vectors = torch.linalg.svd(centered, full_matrices=False)[2][:3]
    vectors = vectors * vectors.gather(1, vectors.abs().argmax(1, keepdim=True)).sign()
    values = centered @ vectors.T
    low, high = values.amin(0), values.amax(0)
    return ((values - low) / (high - low)).reshape(len(rows), 4, 6, 3)


@pytest.mark.parametrize("side", [1, 2, 3, 5, 12])
def test_uncertainty_is_the_mean_of_the_largest_tenth(side):
    """Of at least one pixel, in each image by itself."""
    divergence = torch.rand(3, side, side, generator=torch.Generator().manual_seed(1))
    found = few_shot.Segmentation(
        torch.zeros(3, side, side, dtype=torch.long), divergence
    ).uncertainty
    count = max(side * side // 10, 1)
    wanted = [sum(sorted(one.flatten().tolist())[-count:]) / count for one in divergence]
    assert found.tolist() == pytest.approx(wanted)
