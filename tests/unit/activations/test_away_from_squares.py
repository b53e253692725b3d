"""Correspondence, scores and patching on images that are not square, with masks that are not 0 or
1.
"""

import itertools

import pytest
import torch
from glassbox.nodes.activations import correspondence, label_scores, patching
from torch.nn import functional as F

SIZE = (40, 96)  # height, width


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def nearest(source, target, point, side):
    """By its definition: both features enlarged to one square, the position of the largest
    cosine.
    """
    source, target = (
        F.interpolate(one[None], (side, side), mode="bilinear")[0] for one in (source, target)
    )
    x, y = (int(value) for value in point.clamp(0, side - 1).round())
    similarity = F.cosine_similarity(target, source[:, y, x, None, None], dim=0)
    best = int(similarity.argmax())
    return torch.tensor([best % side, best // side])


@pytest.mark.parametrize("threshold", [0.1, 0.25, 0.5])
def test_points_found_in_wide_images(threshold):
    """PCK's hits by their definition: x and y by the image's own sides, the distance by its longer
    one.
    """
    feature, side = gaussian(3, 5, 5, 12), 48
    points = torch.rand(3, 9, 2, generator=torch.Generator().manual_seed(1)) * torch.tensor(
        [SIZE[1], SIZE[0]]
    )
    found = label_scores.point_hits(feature, points, SIZE, side, threshold)
    wanted = []
    for first, second in itertools.permutations(range(3), 2):
        row = []
        for one, truth in zip(points[first], points[second], strict=True):
            match = nearest(
                feature[first], feature[second], one * side / torch.tensor([SIZE[1], SIZE[0]]), side
            )
            in_pixels = match * torch.tensor([SIZE[1], SIZE[0]]) / side
            row.append(bool((in_pixels - truth).norm() <= threshold * max(SIZE)))
        wanted.append(row)
    assert torch.equal(found, torch.tensor(wanted)) and found.any() and not found.all()


def test_the_guess_of_the_same_place_in_wide_images():
    points = torch.tensor([[[10.0, 5.0], [90.0, 30.0]], [[10.0, 35.0], [70.0, 30.0]]])
    assert (
        label_scores.same_place_hits(points, SIZE, 0.25).tolist() == [[False, True]] * 2
    )  # 30 and 20 of 24 pixels
    assert label_scores.same_place_hits(points, SIZE, 0.32).tolist() == [[True, True]] * 2


def test_points_of_wide_images_are_x_then_y():
    assert label_scores.parse_points("90, 30\n\n10, 39", 2, SIZE).tolist() == [
        [[90, 30]],
        [[10, 39]],
    ]
    with pytest.raises(ValueError, match="30, 90"):
        label_scores.parse_points("30, 90\n\n10, 39", 2, SIZE)


def test_a_match_holds_both_ways_within_one_cell_of_each_side():
    """Cells of 4 x 12 are three times as high as wide on the square that both are resized to."""
    source, target, side = gaussian(6, 4, 12), gaussian(6, 4, 12, seed=3), 48
    points = torch.stack(
        torch.meshgrid(torch.arange(2, 48, 4), torch.arange(2, 48, 4), indexing="xy"), -1
    ).view(-1, 2)
    matches = torch.stack([nearest(source, target, point.float(), side) for point in points])
    back = torch.stack([nearest(target, source, point.float(), side) for point in matches])
    wanted = ((back - points).abs() <= torch.tensor([4, 12])).all(1)
    assert torch.equal(correspondence.mutual_points(source, target, points, matches, side), wanted)
    assert wanted.any() and not wanted.all()


@pytest.mark.parametrize("mutual", [False, True])
def test_a_fractional_mask_of_a_wide_image_is_transferred(mutual):
    source, target = gaussian(7, 3, 8), gaussian(7, 5, 6, seed=4)
    mask = torch.rand(6, 32, generator=torch.Generator().manual_seed(2))
    cells = mask.view(3, 2, 8, 4).mean((1, 3))
    rows = {(y, x): target[:, y, x] for y in range(5) for x in range(6)}
    columns = {(y, x): source[:, y, x] for y in range(3) for x in range(8)}

    def best(one, among):
        return max(among, key=lambda place: float(F.cosine_similarity(one, among[place], dim=0)))

    wanted = torch.zeros(5, 6)
    for place, one in rows.items():
        match = best(one, columns)
        wanted[place] = cells[match] if not mutual or best(columns[match], rows) == place else 0.0
    torch.testing.assert_close(correspondence.transfer_mask(source, target, mask, mutual), wanted)


def test_the_direction_inside_a_fractional_mask():
    feature = gaussian(4, 3, 6)
    mask = torch.rand(3, 6, generator=torch.Generator().manual_seed(5))
    wanted = (
        sum(mask[y, x] * F.normalize(feature[:, y, x], dim=0) for y in range(3) for x in range(6))
        / mask.sum()
    )
    torch.testing.assert_close(correspondence.mask_direction(feature, mask)[0], wanted)


@pytest.mark.parametrize("value", [0.25, 0.5])
def test_a_fractional_mask_weighs_what_is_restored(value):
    """1 - sum m |patched - source|^2 / sum m |target - source|^2, with m between 0 and 1 over a
    part of the area.
    """
    source, target, patched = (gaussian(2, 3, 4, 6, seed=seed) for seed in range(3))
    mask = torch.zeros(1, 4, 6)
    mask[:, 1:3, 2:5], mask[:, 3] = value, 1.0
    error, distance = (
        sum(
            float(mask[0, y, x]) * float((one - source)[:, :, y, x].square().sum())
            for y in range(4)
            for x in range(6)
        )
        for one in (patched, target)
    )
    found = patching.restored_fraction(patched, source, target, mask)
    assert found == pytest.approx(1 - error / distance, rel=1e-5)
    assert found != pytest.approx(patching.restored_fraction(patched, source, target), rel=1e-3)
    assert found != pytest.approx(
        patching.restored_fraction(patched, source, target, mask.ceil()), rel=1e-3
    )


def test_half_a_patch_moves_a_latent_half_way():
    source, target = gaussian(1, 3, 4, 6), gaussian(1, 3, 4, 6, seed=1)
    assert patching.restored_fraction((source + target) / 2, source, target) == pytest.approx(0.75)


def test_the_guess_of_parts_is_the_most_frequent_label_of_a_place():
    """In wide label maps, resized to a square by the nearest pixel."""
    labels = torch.zeros(4, 2, 8, dtype=torch.long)
    labels[:2, :, 4:], labels[2, 0, :4], labels[3, :, 6:] = 1, 2, 1
    found = label_scores.same_place_iou(labels, 3, 8)
    # Of three maps two have 1 on the right half; of the last map its right quarter is 1, and 2 is
    # nowhere.
    assert found[:2].tolist() == pytest.approx([0.5 / 0.75, 0.25 / 0.5])
