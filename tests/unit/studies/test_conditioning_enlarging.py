"""What is measured on enlarged images, on numbers that are worked out by hand."""

import numpy as np
import pytest

pytest.importorskip("python_avatars")
from studies.conditioning import enlarging


def test_an_image_is_halved_by_averaging():
    images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    halved = enlarging.halved(images)
    assert halved.shape == (2, 2, 2, 3) and halved.dtype == np.uint8
    for image, row, column in ((0, 0, 0), (1, 1, 0)):
        block = images[image, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        expected = np.round(block.astype(float).mean((0, 1)))
        assert halved[image, row, column].tolist() == expected.tolist()


def test_sharpness_is_the_mean_size_of_the_laplacian():
    """A point of brightness 90 on black: its four neighbors have 90, itself 4 x 90, of 9 inner
    pixels; a slope has none.
    """
    point = np.zeros((1, 5, 5, 3), np.uint8)
    point[0, 2, 2] = 90
    slope = np.broadcast_to(np.arange(0, 50, 10, dtype=np.uint8)[:, None], (5, 5))
    images = np.concatenate([point, np.repeat(slope[None, ..., None], 3, -1)])
    assert enlarging.sharpness(images).tolist() == pytest.approx([8 * 90 / 9, 0.0], abs=1e-9)


def test_enlarged_images_have_twice_the_trained_side():
    images = np.full((2, 128, 128, 3), 77, np.uint8)
    enlarged = enlarging.enlarge(images)
    assert enlarged.shape == (2, 256, 256, 3) and (enlarged == 77).all()


def test_a_window_puts_the_largest_region_of_skin_where_the_render_has_it():
    color = enlarging.SKIN["pale"]
    pixel = enlarging.ImageColor.getrgb(color)
    truth, image = np.zeros((128, 128, 3), np.uint8), np.zeros((256, 256, 3), np.uint8)
    truth[60:80, 50:70] = pixel
    image[200:220, 30:50] = pixel
    image[5:10, 5:10] = pixel  # a speck
    assert enlarging.skin_center(image, color).tolist() == [209.5, 39.5]
    assert enlarging.skin_center(np.zeros((6, 8, 3), np.uint8), color).tolist() == [2.5, 3.5]
    (window,) = enlarging.around_faces(image[None], [truth], ["pale"])
    assert (window == truth).all()


def test_a_smaller_render_stands_on_the_lower_edge_of_its_ground():
    image = np.full((128, 128, 3), 9, np.uint8)
    image[64:] = 200
    found = enlarging.smaller(image, 64)
    assert (found[:64] == 9).all() and (found[64:, :32] == 9).all()
    assert (found[96:, 32:96] == 200).all() and (found[64:96, 32:96] == 9).all()
