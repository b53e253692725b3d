"""PCA, similarity and correspondence against scikit-learn, the official numbers and brute force."""

import pytest
import torch
from glassbox.nodes.activations import correspondence, overlays, pca, tap_inputs
from glassbox.nodes.activations.activations import Activations, Row
from torch.nn import functional as F


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 16, 12, 12), (3, 40, 5, 4)])
def test_main_directions_are_scikit_learns(shape):
    """Equal to sklearn.decomposition.PCA up to the sign."""
    from sklearn.decomposition import PCA

    feature = random(*shape) * torch.linspace(1, 3, shape[1])[:, None, None]
    mean, directions = pca.principal_components(feature)
    points = feature.movedim(1, -1).flatten(0, -2)
    reference = PCA(3).fit(points.numpy())
    assert (mean - torch.from_numpy(reference.mean_)).abs().max() < 5e-6
    same = (directions * torch.from_numpy(reference.components_)).sum(1).abs()
    assert (1 - same).abs().max() < 5e-6
    assert (directions.gather(1, directions.abs().argmax(1, keepdim=True)) > 0).all()


def test_the_iteration_for_large_features_agrees(monkeypatch):
    feature = random(2, 24, 8, 8) * torch.linspace(1, 6, 24)[:, None, None]
    exact = pca.principal_components(feature)[1]
    monkeypatch.setattr(pca, "_EXACT", 4)
    assert (1 - (pca.principal_components(feature)[1] * exact).sum(1)).abs().max() < 1e-2


def test_colors_agree_over_the_batch_and_do_not_depend_on_the_run():
    feature = random(1, 9, 6, 6).repeat(2, 1, 1, 1)
    colors = pca.pca_colors(torch.cat([feature, random(1, 9, 6, 6, seed=5)]))
    assert torch.equal(colors[0], colors[1])
    assert colors.amin() == 0 and colors.amax() == 1
    alone = pca.pca_colors(feature, joint=False)
    assert torch.equal(alone[0], alone[1])


@pytest.mark.parametrize("shape", [(1, 1, 3, 3), (1, 2, 1, 1), (1, 5, 1, 2)])
def test_features_with_fewer_than_three_directions(shape):
    colors = pca.pca_colors(random(*shape))
    assert colors.shape == (1, *shape[2:], 3) and colors.isfinite().all()


def test_a_channel_is_stretched_over_the_batch():
    feature = torch.tensor([[[[0.0, 2.0]]], [[[4.0, 1.0]]]])
    assert pca.channel_image(feature, 0).flatten().tolist() == [0, 0.5, 1, 0.25]
    with pytest.raises(ValueError, match="There is no channel 1: these activations have 1"):
        pca.channel_image(feature, 1)


def official_pair():
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(1, 16, 32, 32, generator=generator)
    return a[0], torch.randn(1, 16, 32, 32, generator=generator)[0]


def test_correspondence_gives_the_official_numbers(monkeypatch):
    """Points (y, x) of the official find_nn_source_correspondences on the same random features."""
    source, target = official_pair()
    points = torch.tensor([[10.2, 20.7], [0, 0], [511.9, 300], [63.5, 64.5], [512, 512]]).flip(1)
    monkeypatch.setattr(
        correspondence, "_ENLARGED", 4 * 512 * 512 * 2
    )  # two points at a time, the last one alone
    found, value = correspondence.nearest_points(source, target, points, 512)
    assert found.flip(1).tolist() == [[77, 400], [223, 199], [218, 326], [491, 467], [31, 394]]
    assert value.min() > 0.5
    scaled = found.flip(1)[0] * torch.tensor([375, 500]) / 512
    assert scaled.tolist() == pytest.approx([56.396, 390.625], abs=1e-3)


def enlarged_first(source, target, points, side):
    """The definition: both features resized, all channels, then the cosine of every pair of
    positions.
    """
    sizes = {"size": (side, side), "mode": "bilinear", "align_corners": False}
    source, target = (
        F.normalize(F.interpolate(one[None].float(), **sizes)[0], dim=0) for one in (source, target)
    )
    columns, rows = points.clamp(0, side - 1).round().long().unbind(1)
    return (source[:, rows, columns].T @ target.flatten(1)).view(-1, side, side)


@pytest.mark.parametrize(
    ("shape", "target_shape", "side"),
    [
        ((640, 16, 16), (640, 16, 16), 128),
        ((1280, 8, 12), (1280, 13, 7), 96),
        ((7, 5, 9), (7, 1, 1), 40),
    ],
)
@pytest.mark.parametrize("kind", ["noise", "smooth", "opposite", "half"])
def test_points_and_cosines_are_those_of_enlarged_channels(shape, target_shape, side, kind):
    """Also where neighboring cells nearly cancel each other, and where the target is coarser than
    what is searched.
    """
    source, target = random(*shape), random(*target_shape, seed=1)
    if kind == "smooth":
        target += 30 * random(target_shape[0], 1, 1, seed=2)
    elif kind == "opposite":
        signs = (-1.0) ** (torch.arange(target_shape[1])[:, None] + torch.arange(target_shape[2]))
        target = random(target_shape[0], 1, 1, seed=2) * signs + 1e-3 * target
    elif kind == "half":
        source, target = source.half(), target.half()
    points = torch.rand(9, 2, generator=torch.Generator().manual_seed(3)) * side
    expected = enlarged_first(source.double(), target.double(), points, side)
    found, value = correspondence.nearest_points(source, target, points, side)
    assert found.dtype == torch.int64 and value.dtype == torch.float32
    best = expected.flatten(1).amax(1)
    if kind != "opposite":  # float32 itself, enlarged first, is off by more there
        assert (value - best).abs().max() <= 1e-6
    assert (best - expected[torch.arange(9), found[:, 1], found[:, 0]]).max() <= 1e-6
    if kind == "noise" and target_shape[1] > 1:
        assert torch.equal(found[:, 1] * side + found[:, 0], expected.flatten(1).argmax(1))


def test_equal_matches_go_to_the_upper_left():
    """Beyond the outermost cells' centers positions are equal, and the corner comes first."""
    feature = random(6, 3, 3)
    points = torch.tensor([[0.0, 0.0], [31.0, 31.0], [31.0, 0.0]])
    found, value = correspondence.nearest_points(feature, feature, points, 32)
    assert found.tolist() == [[0, 0], [27, 27], [27, 0]]
    assert (value - 1).abs().max() < 1e-6
    nothing, zero = correspondence.nearest_points(feature, feature * 0, points, 32)
    assert nothing.tolist() == [[0, 0]] * 3 and zero.tolist() == [0, 0, 0]


def test_no_channel_is_enlarged():
    """Work at the searched resolution grows with the points, not with the channels: the largest
    tensor that is made.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = {}

    class Largest(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            result = operation(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest[channels] = max(largest.get(channels, 0), result.numel())
            return result

    for channels in (16, 64):
        feature = random(channels, 8, 8)
        with Largest():
            correspondence.nearest_points(feature, feature, torch.zeros(3, 2), 128)
    assert largest[16] == largest[64] == 3 * 128 * 128


def test_similarity_gives_the_official_numbers():
    source, target = official_pair()
    values = correspondence.similarity(target[None], source.flatten(1).T[:1]).flatten()[:3]
    assert values.tolist() == pytest.approx([0.134878, -0.058044, 0.225124], abs=2e-6)


@pytest.mark.parametrize("mutual", [False, True])
def test_a_shifted_image_is_found_again(mutual):
    feature = random(8, 6, 9)
    shifted = feature.roll(2, dims=2)
    points = torch.tensor([[1.0, 1.0], [4.0, 5.0]])
    enlarged = points * torch.tensor([72 / 9, 72 / 6]) + 4
    found, _ = correspondence.nearest_points(feature, shifted, enlarged, 72)
    assert (found - enlarged - torch.tensor([16, 0])).abs().max() <= 5
    assert correspondence.mutual_points(feature, shifted, enlarged, found, 72).all()
    mask = torch.zeros(6, 9)
    mask[2:4, 1:4] = 1
    assert torch.equal(
        correspondence.transfer_mask(feature, shifted, mask, mutual), mask.roll(2, dims=1)
    )


def test_the_search_can_be_stopped_between_strips(monkeypatch):
    class StoppedError(Exception):
        pass

    def stop(parts):
        for part in parts:
            if part:
                raise StoppedError
            yield part

    feature, point = random(8, 6, 6), torch.zeros(3, 2)
    monkeypatch.setattr(correspondence, "_ENLARGED", 4 * 60 * 60)
    monkeypatch.setattr(correspondence, "_QUERIES", 10)
    with pytest.raises(StoppedError):
        correspondence.nearest_points(feature, feature, point, 60, stop)
    with pytest.raises(StoppedError):
        correspondence.mutual_points(feature, feature, point, point, 60, stop)
    with pytest.raises(StoppedError):
        correspondence.transfer_mask(feature, feature, torch.ones(6, 6), False, stop)
    with pytest.raises(StoppedError):
        overlays.resize_nearest(torch.zeros(1, 4, 4, 3), 1024, stop)


def test_a_mask_is_matched_in_parts_as_in_one(monkeypatch):
    from glassbox.kernels import best_match

    source, target, mask = random(5, 7, 9), random(5, 6, 8, seed=1), random(7, 9, seed=2).sigmoid()
    queries, targets = target.flatten(1).T, source.flatten(1).T
    _, index, mutual = best_match(queries, targets, True)
    monkeypatch.setattr(correspondence, "_QUERIES", 13)
    expected = mask.flatten()[index]
    assert torch.equal(
        correspondence.transfer_mask(source, target, mask, False).flatten(), expected
    )
    assert torch.equal(
        correspondence.transfer_mask(source, target, mask, True).flatten(), expected * mutual
    )


@pytest.mark.parametrize(
    ("height", "width", "side"), [(7, 9, 64), (16, 16, 512), (5, 3, 301), (33, 21, 16)]
)
def test_enlarging_is_torchs_nearest_exact(height, width, side):
    image = torch.rand(2, height, width, 3, generator=torch.Generator().manual_seed(0))
    found = overlays.resize_nearest(image, side)
    size = tuple(found.shape[1:3])
    expected = torch.nn.functional.interpolate(
        image.movedim(-1, 1), size=size, mode="nearest-exact"
    )
    assert max(size) == side and torch.equal(found, expected.movedim(1, -1))


def test_mutual_points_tolerate_one_cell_of_each_axis(monkeypatch):
    """On a grid of 3 x 2 cells a cell is 20 pixels wide and 30 high: not the other way around."""
    back = torch.tensor([[15, 0], [25, 0], [0, 25], [0, 35]])
    monkeypatch.setattr(correspondence, "nearest_points", lambda *_, **__: (back, None))
    feature, points = torch.zeros(1, 2, 3), torch.zeros(4, 2)
    assert correspondence.mutual_points(feature, feature, points, points, 60).tolist() == [
        True,
        False,
        True,
        False,
    ]


def test_mutual_drops_what_does_not_lead_back():
    source = torch.eye(3)[:, None, :]  # three positions, all different
    target = torch.tensor([[1.0, 0.9, 0], [0.1, 0.0, 0], [0.0, 0.1, 1]])[:, None, :]
    mask = torch.ones(1, 3)
    assert correspondence.transfer_mask(source, target, mask, False).tolist() == [[1, 1, 1]]
    assert correspondence.transfer_mask(source, target, mask, True).sum() == 2


def test_a_mask_is_the_mean_direction_inside():
    feature = torch.tensor([[[2.0, 0.0]], [[0.0, 3.0]]])
    assert correspondence.mask_direction(feature, torch.tensor([[1.0, 1.0]])).tolist() == [
        [0.5, 0.5]
    ]
    assert correspondence.mask_direction(feature, torch.tensor([[1.0, 0.0]])).tolist() == [[1, 0]]
    with pytest.raises(ValueError, match="mask is empty"):
        correspondence.mask_direction(feature, torch.zeros(1, 2))


def test_drawings_have_the_sizes_they_should():
    square = torch.rand(1, 4, 8, 3)
    assert overlays.resize_nearest(square, 32).shape == (1, 16, 32, 3)
    big, factor = overlays.magnify(torch.zeros(1, 128, 96, 3))
    assert (big.shape, factor) == ((1, 512, 384, 3), 4)
    sheet = overlays.contact_sheet(
        [("first", square), ("a longer name", square.repeat(2, 1, 1, 1))], 32, columns=2
    )
    assert sheet.ndim == 4 and sheet.shape[-1] == 3 and sheet.amin() >= 0 and sheet.amax() <= 1
    image_ = torch.zeros(64, 64, 3)
    marked = overlays.draw_points(image_, torch.tensor([[10.0, 40.0]]))
    assert marked[40, 10].sum() > 0 and marked[10, 40].sum() == 0


def test_marks_scale_with_the_image():
    for side, radius in ((256, 6), (512, 12), (1024, 24)):
        marked = overlays.draw_points(
            torch.zeros(side, side, 3), torch.tensor([[side / 2, side / 2]])
        )
        column = marked[:, side // 2].sum(-1) > 0
        assert column.sum().item() == pytest.approx(2 * radius + 1, abs=1)
        labels, scale = torch.full((1, side, side), -1), max(side // 512, 1)
        named = overlays.draw_labels(torch.zeros(1, side, side, 3), labels, 0.5, ("hair",))[0]
        assert (named[:, 12 * scale].sum(-1) > 0).sum().item() == pytest.approx(
            13 * scale, abs=2 * scale
        )


@pytest.mark.parametrize(
    ("images", "frames", "rows", "places"),
    [
        (3, 1, 3, [0, 1, 2]),
        (9, 3, 3, [0, 4, 8]),
        (3, 3, 3, [0, 1, 2]),
        (10, 3, 6, [0, 2, 4, 5, 7, 9]),
    ],
)
def test_the_images_of_a_decoded_video(images, frames, rows, places):
    image = torch.arange(float(images)).view(-1, 1, 1, 1).expand(-1, 2, 2, 3)
    tapped = Activations(
        {"vit-block0-out": torch.zeros(rows, 1, 1, 1)},
        tuple(map(Row, range(rows))),
        1.0,
        1.0,
        {"frames": frames},
    )
    assert tap_inputs.images_of(image, tapped)[:, 0, 0, 0].tolist() == places


def test_too_few_images():
    tapped = Activations({"a": torch.zeros(3, 1, 1, 1)}, tuple(map(Row, range(3))), 1.0, 1.0)
    with pytest.raises(ValueError, match="belong to at least 3 images, and the image batch has 2"):
        tap_inputs.images_of(torch.zeros(2, 4, 4, 3), tapped)
