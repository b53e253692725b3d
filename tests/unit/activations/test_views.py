"""Pictures, similarity and correspondence against scikit-learn, the official numbers and brute force."""

import pytest
import torch
from glassbox.nodes.activations import correspondence, drawing, inputs, picture, queries, similarity
from glassbox.nodes.activations.features import Activations, Row


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 16, 12, 12), (3, 40, 5, 4)])
def test_main_directions_are_scikit_learns(shape):
    """Oracle O10: equal to sklearn's PCA up to the sign, for which we have a rule."""
    from sklearn.decomposition import PCA

    feature = random(*shape) * torch.linspace(1, 3, shape[1])[:, None, None]
    mean, directions = picture.main_directions(feature)
    points = feature.movedim(1, -1).flatten(0, -2)
    reference = PCA(3).fit(points.numpy())
    assert (mean - torch.from_numpy(reference.mean_)).abs().max() < 5e-6
    same = (directions * torch.from_numpy(reference.components_)).sum(1).abs()
    assert (1 - same).abs().max() < 5e-6
    assert (directions.gather(1, directions.abs().argmax(1, keepdim=True)) > 0).all()


def test_the_iteration_for_large_features_agrees(monkeypatch):
    feature = random(2, 24, 8, 8) * torch.linspace(1, 6, 24)[:, None, None]
    exact = picture.main_directions(feature)[1]
    monkeypatch.setattr(picture, "_EXACT", 4)
    assert (1 - (picture.main_directions(feature)[1] * exact).sum(1)).abs().max() < 1e-2


def test_colours_agree_over_the_batch_and_do_not_depend_on_the_run():
    feature = random(1, 9, 6, 6).repeat(2, 1, 1, 1)
    colours = picture.pca_picture(torch.cat([feature, random(1, 9, 6, 6, seed=5)]))
    assert torch.equal(colours[0], colours[1])
    assert colours.amin() == 0 and colours.amax() == 1
    alone = picture.pca_picture(feature, together=False)
    assert torch.equal(alone[0], alone[1])


@pytest.mark.parametrize("shape", [(1, 1, 3, 3), (1, 2, 1, 1), (1, 5, 1, 2)])
def test_features_with_fewer_than_three_directions(shape):
    colours = picture.pca_picture(random(*shape))
    assert colours.shape == (1, *shape[2:], 3) and colours.isfinite().all()


def test_one_channel():
    feature = torch.tensor([[[[0.0, 2.0]]], [[[4.0, 1.0]]]])
    assert picture.channel_picture(feature, 0).flatten().tolist() == [0, 0.5, 1, 0.25]
    with pytest.raises(ValueError, match="There is no channel 1: these activations have 1"):
        picture.channel_picture(feature, 1)


def official_pair():
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(1, 16, 32, 32, generator=generator)
    return a[0], torch.randn(1, 16, 32, 32, generator=generator)[0]


def test_correspondence_gives_the_official_numbers(monkeypatch):
    """Oracle O8: points (y, x) of the official find_nn_source_correspondences on the same random features."""
    source, target = official_pair()
    points = torch.tensor([[10.2, 20.7], [0, 0], [511.9, 300], [63.5, 64.5], [512, 512]]).flip(1)
    monkeypatch.setattr(correspondence, "_STRIP", 4 * 512 * 16 * 100)  # strips of 100 lines, the last one shorter
    found, value = correspondence.nearest_points(source, target, points, 512)
    assert found.flip(1).tolist() == [[77, 400], [223, 199], [218, 326], [491, 467], [31, 394]]
    assert value.min() > 0.5
    scaled = found.flip(1)[0] * torch.tensor([375, 500]) / 512
    assert scaled.tolist() == pytest.approx([56.396, 390.625], abs=1e-3)


def test_similarity_gives_the_official_numbers():
    source, target = official_pair()
    values = similarity.similarity(target[None], source.flatten(1).T[:1]).flatten()[:3]
    assert values.tolist() == pytest.approx([0.134878, -0.058044, 0.225124], abs=2e-6)


@pytest.mark.parametrize("mutual", [False, True])
def test_a_shifted_picture_is_found_again(mutual):
    feature = random(8, 6, 9)
    shifted = feature.roll(2, dims=2)
    points = torch.tensor([[1.0, 1.0], [4.0, 5.0]])
    enlarged = points * torch.tensor([72 / 9, 72 / 6]) + 4
    found, _ = correspondence.nearest_points(feature, shifted, enlarged, 72)
    assert (found - enlarged - torch.tensor([16, 0])).abs().max() <= 5
    assert correspondence.mutual_points(feature, shifted, enlarged, found, 72).all()
    mask = torch.zeros(6, 9)
    mask[2:4, 1:4] = 1
    assert torch.equal(correspondence.carried_mask(feature, shifted, mask, mutual), mask.roll(2, dims=1))


def test_mutual_drops_what_does_not_lead_back():
    source = torch.eye(3)[:, None, :]  # three positions, all different
    target = torch.tensor([[1.0, 0.9, 0], [0.1, 0.0, 0], [0.0, 0.1, 1]])[:, None, :]
    mask = torch.ones(1, 3)
    assert correspondence.carried_mask(source, target, mask, False).tolist() == [[1, 1, 1]]
    assert correspondence.carried_mask(source, target, mask, True).sum() == 2


def test_a_mask_is_the_mean_direction_inside():
    feature = torch.tensor([[[2.0, 0.0]], [[0.0, 3.0]]])
    assert similarity.of_mask(feature, torch.tensor([[1.0, 1.0]])).tolist() == [[0.5, 0.5]]
    assert similarity.of_mask(feature, torch.tensor([[1.0, 0.0]])).tolist() == [[1, 0]]
    with pytest.raises(ValueError, match="mask is empty"):
        similarity.of_mask(feature, torch.zeros(1, 2))


def test_drawings_have_the_sizes_they_should():
    square = torch.rand(1, 4, 8, 3)
    assert drawing.enlarged(square, 32).shape == (1, 16, 32, 3)
    big, factor = drawing.magnified(torch.zeros(1, 128, 96, 3))
    assert (big.shape, factor) == ((1, 512, 384, 3), 4)
    sheet = drawing.sheet([("first", square), ("a longer name", square.repeat(2, 1, 1, 1))], 32, columns=2)
    assert sheet.ndim == 4 and sheet.shape[-1] == 3 and sheet.amin() >= 0 and sheet.amax() <= 1
    picture_ = torch.zeros(64, 64, 3)
    marked = drawing.marked(picture_, torch.tensor([[10.0, 40.0]]))
    assert marked[40, 10].sum() > 0 and marked[10, 40].sum() == 0


def test_rotary_matrices_turn_pairs_of_channels():
    """A quarter of a turn, and angles that grow with the place: products depend on the distance alone."""
    quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]]).expand(1, 1, 1, 1, 2, 2)
    assert queries.turned(torch.tensor([[[[3.0, 5.0]]]]), quarter).flatten().tolist() == [-5.0, 3.0]
    angle = torch.arange(6.0)
    matrices = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).view(1, 1, 6, 1, 2, 2)
    same = queries.turned(torch.tensor([0.6, 0.8]).expand(1, 1, 6, 2), matrices)[0, 0]
    products = same @ same.T
    assert (products.diagonal(2) - products[0, 2]).abs().max() < 1e-6


@pytest.mark.parametrize(("pictures", "frames", "rows", "places"), [
    (3, 1, 3, [0, 1, 2]), (9, 3, 3, [0, 4, 8]), (3, 3, 3, [0, 1, 2]), (10, 3, 6, [0, 2, 4, 5, 7, 9]),
])  # fmt: skip
def test_the_pictures_of_a_decoded_video(pictures, frames, rows, places):
    image = torch.arange(float(pictures)).view(-1, 1, 1, 1).expand(-1, 2, 2, 3)
    tapped = Activations({"vit-block0-out": torch.zeros(rows, 1, 1, 1)}, tuple(map(Row, range(rows))), 1.0, 1.0,
                         {"frames": frames})  # fmt: skip
    assert inputs.pictures_of(image, tapped)[:, 0, 0, 0].tolist() == places


def test_too_few_pictures():
    tapped = Activations({"a": torch.zeros(3, 1, 1, 1)}, tuple(map(Row, range(3))), 1.0, 1.0)
    with pytest.raises(ValueError, match="The activations are of 3 pictures or more and the image batch has 2"):
        inputs.pictures_of(torch.zeros(2, 4, 4, 3), tapped)
