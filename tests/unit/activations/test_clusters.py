"""k-means over positions: what it finds, in which order, and that it stays so."""

import pytest
import torch
from glassbox.nodes.activations import kmeans


def blobs(sizes, spread=0.05, seed=0):
    """A feature (2, 6, H, W) of unit directions around as many axes as there are sizes, and their
    numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.full((size,), number) for number, size in enumerate(sizes)])
    labels = labels[torch.randperm(len(labels), generator=generator)]
    points = torch.eye(6)[labels] * 3 + spread * torch.randn(len(labels), 6, generator=generator)
    return points.view(2, -1, 8, 6).movedim(-1, 1), labels.view(2, -1, 8)


def test_separate_groups_are_found_largest_first():
    feature, truth = blobs([32, 96, 64, 64])
    found = kmeans.cluster(feature, 4, seed=0)
    assert found.shape == truth.shape
    assert torch.bincount(found.flatten()).tolist() == [96, 64, 64, 32]
    assert torch.equal(found == 0, truth == 1) and torch.equal(found == 3, truth == 0)


def test_the_order_does_not_depend_on_the_seed_nor_on_the_scale():
    feature, _ = blobs([32, 96, 64, 64])
    first = kmeans.cluster(feature, 4, seed=0)
    scale = torch.rand(2, 1, *feature.shape[2:], generator=torch.Generator().manual_seed(1)) + 0.5
    assert torch.equal(kmeans.cluster(feature * scale, 4, seed=5), first)


def test_as_tight_as_scikit_learns():
    cluster = pytest.importorskip("sklearn.cluster")
    feature = torch.randn(2, 6, 12, 12, generator=torch.Generator().manual_seed(3))
    points = torch.nn.functional.normalize(feature, dim=1).movedim(1, -1).flatten(0, -2)

    def spread(labels):
        groups = [points[labels == label] for label in range(5)]
        return sum(float((group - group.mean(0)).square().sum()) for group in groups)

    theirs = cluster.KMeans(5, n_init=4, random_state=0).fit(points.numpy()).labels_
    ours = kmeans.cluster(feature, 5, seed=0).flatten()
    assert spread(ours) <= spread(torch.from_numpy(theirs)) * 1.01


def test_equal_vectors_leave_clusters_empty():
    found = kmeans.cluster(torch.ones(1, 3, 4, 4), 3, seed=0)
    assert torch.equal(found, torch.zeros(1, 4, 4, dtype=torch.int64))


def test_more_clusters_than_positions():
    with pytest.raises(ValueError, match="There are 4 positions for 5 clusters"):
        kmeans.cluster(torch.ones(1, 3, 2, 2), 5, seed=0)


def test_the_global_generator_is_left_alone():
    state = torch.get_rng_state()
    kmeans.cluster(torch.randn(1, 3, 4, 4, generator=torch.Generator().manual_seed(0)), 3, seed=0)
    assert torch.equal(torch.get_rng_state(), state)


def test_labels_are_enlarged_to_labels():
    labels = torch.tensor([[[0, 1], [2, 2]]])
    large = kmeans.resize_labels(labels, 3, (8, 8))
    assert large.shape == (1, 8, 8) and torch.equal(large[:, ::7, ::7], labels)
