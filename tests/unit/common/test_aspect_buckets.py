"""Aspect-ratio buckets: sizes within the area, the nearest shape, and images resized and cut
without distortion.
"""

import itertools
import math

import pytest
import torch
from glassbox.nodes.common.training import aspect_buckets


@pytest.mark.parametrize(
    ("side", "step", "ratio"), [(512, 64, 2.0), (1024, 64, 4.0), (128, 8, 1.0), (1000, 96, 3.0)]
)
def test_sizes_are_the_largest_within_the_area(side, step, ratio):
    """Against every multiple of the step: inside area and ratio, and not to be enlarged in height
    or in width.
    """
    sizes = aspect_buckets.bucket_sizes(side, step, ratio)
    multiples = range(step, 8 * side, step)
    inside = {
        (w, h)
        for w in multiples
        for h in multiples
        if w * h <= side * side and max(w, h) <= ratio * min(w, h)
    }
    assert set(sizes) <= inside and len(set(sizes)) == len(sizes)
    assert {(h, w) for w, h in sizes} == set(sizes)
    full = {
        (w, h) for w, h in inside if w * (h + step) > side * side or (w + step) * h > side * side
    }
    assert set(sizes) == full
    square = side // step * step
    assert (square, square) in sizes


def test_a_step_larger_than_the_side_is_one_sentence():
    with pytest.raises(ValueError, match="step 96 is larger than resolution 64"):
        aspect_buckets.bucket_sizes(64, 96, 2.0)


@pytest.mark.parametrize(("width", "height"), [(512, 512), (1920, 1080), (400, 3000), (333, 500)])
def test_the_nearest_shape_is_that_of_brute_force(width, height):
    sizes = aspect_buckets.bucket_sizes(512, 64, 2.0)
    found = aspect_buckets.nearest_bucket(width, height, sizes)
    away = {size: abs(math.log(size[0] / size[1]) - math.log(width / height)) for size in sizes}
    assert away[found] == pytest.approx(min(away.values()))


def test_a_gradient_keeps_its_slope_and_its_middle():
    """A ramp over the longer side is cut alike on both ends, and its value per pixel is that of the
    scale.
    """
    ramp = torch.linspace(0.1, 0.9, 300)[None, :, None].expand(100, 300, 3)
    made = aspect_buckets.resize_and_crop(ramp, (64, 64))
    assert made.shape == (64, 64, 3)
    assert float(made.mean()) == pytest.approx(0.5, abs=1e-3)
    slope = float(made[32, 40, 0] - made[32, 24, 0]) / 16
    assert slope == pytest.approx(0.8 / 299 * 100 / 64, rel=0.02)
    assert torch.allclose(aspect_buckets.resize_and_crop(ramp, (300, 100)), ramp, atol=1e-5)


def test_the_report_counts_sizes_cuts_and_enlarged_images():
    text = aspect_buckets.describe_buckets([(100, 100), (200, 100)], [(128, 128), (100, 100)])
    assert (
        "100 x 100: 1 images" in text
        and "Cut off: 25.0 %" in text
        and "1 images are smaller" in text
    )


@pytest.mark.parametrize("turned", [False, True])
def test_between_two_shapes_the_geometric_mean_of_their_ratios_decides(turned):
    """Just inside of it on both sides: the mean of the ratios themselves lies elsewhere, and is no
    boundary.
    """
    sizes = aspect_buckets.bucket_sizes(512, 64, 2.0)
    for narrow, wide in itertools.pairwise(sorted(sizes, key=lambda size: size[0] / size[1])):
        low, high = narrow[0] / narrow[1], wide[0] / wide[1]
        middle, plain = math.sqrt(low * high), (low + high) / 2
        assert plain > 1.005 * middle
        for ratio, expected in ((0.998 * middle, narrow), (1.002 * middle, wide), (plain, wide)):
            width, height = round(100_000 * ratio), 100_000
            if turned:
                assert aspect_buckets.nearest_bucket(height, width, sizes) == expected[::-1]
            else:
                assert aspect_buckets.nearest_bucket(width, height, sizes) == expected


def test_of_equally_near_sizes_the_largest_is_taken():
    assert aspect_buckets.nearest_bucket(300, 300, [(128, 128), (512, 512), (256, 256)]) == (
        512,
        512,
    )
