"""Comparisons of two networks, scores of labels, and restored fractions, on features of which the
answer is known.
"""

import itertools
from types import SimpleNamespace

import pytest
import torch
from glassbox.nodes.activations import comparison, id_chart, label_scores, patching
from glassbox.nodes.activations.activation_edit import mask_at
from glassbox.nodes.activations.activations import Activations, Row
from glassbox.nodes.common.network_call import WHOLE


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tapped(feature):
    return Activations(
        {"a": feature}, tuple(Row(image) for image in range(len(feature))), 0.2, 50.0
    )


def test_linear_cka_is_hsic_normalized():
    """Kornblith et al., equation 4: HSIC of the centered Gram matrices over samples."""
    first, second = drawn(3, 5, 4, 4), drawn(3, 7, 4, 4, seed=1)
    x, y = (feature.double().movedim(1, -1).reshape(48, -1) for feature in (first, second))
    center = torch.eye(48, dtype=torch.float64) - 1 / 48
    grams = [center @ one @ one.T @ center for one in (x, y)]
    hsic = [
        (a * b).sum() for a, b in ((grams[0], grams[1]), (grams[0], grams[0]), (grams[1], grams[1]))
    ]
    expected = hsic[0] / (hsic[1] * hsic[2]).sqrt()
    assert comparison.linear_cka(first, second) == pytest.approx(float(expected), rel=1e-9)


def test_linear_cka_ignores_rotation_and_scale():
    feature = drawn(2, 6, 8, 8)
    rotation = torch.linalg.qr(drawn(6, 6, seed=2))[0]
    turned = 3 * torch.einsum("dc,bchw->bdhw", rotation, feature) + 1
    assert comparison.linear_cka(feature, turned) == pytest.approx(1, abs=1e-6)
    assert comparison.linear_cka(feature, drawn(2, 6, 8, 8, seed=3)) < 0.2
    assert comparison.linear_cka(feature, torch.ones(2, 6, 8, 8)) == 0


def test_the_relative_difference_is_that_of_the_lengths():
    feature = drawn(2, 3, 4, 4)
    assert comparison.relative_difference(feature, 1.5 * feature) == pytest.approx(0.5, abs=1e-6)
    assert comparison.relative_difference(feature, feature) == 0


def test_other_images_levels_and_ids_are_not_compared():
    first = tapped(drawn(2, 3, 4, 4))
    comparison.check_same(first, first)
    with pytest.raises(ValueError, match="differ in IDs, sizes or rows"):
        comparison.check_same(first, tapped(drawn(2, 3, 8, 8)))
    with pytest.raises(ValueError, match="differ in noise level or seed"):
        comparison.check_same(first, Activations(first.tensors, first.rows, 0.3, 60.0))


def test_points_are_one_block_per_image():
    found = label_scores.parse_points("1, 2\n3, 4\n \n50%, 50%\n7, 8\n", 2, (20, 40))
    assert found.tolist() == [[[1, 2], [3, 4]], [[20, 10], [7, 8]]]
    for text in ("1, 2", "1, 2\n\n3, 4\n5, 6", "1, 2\n\n3, 4\n\n5, 6"):
        with pytest.raises(ValueError, match="for 2 images"):
            label_scores.parse_points(text, 2, (20, 40))


def test_pck_is_brute_force():
    """Features that name the place of a pattern which is moved: shifted points are found, others
    are not.
    """
    places = torch.eye(64).view(64, 8, 8)
    feature = torch.stack(
        [places, places.roll(2, 2)]
    )  # the second image's content is two positions to the right
    points = torch.tensor(
        [[[20.0, 12.0], [36.0, 44.0]], [[36.0, 12.0], [36.0, 44.0]]]
    )  # in pixels of 64 x 64
    hits = label_scores.point_hits(feature, points, (64, 64), 8, 0.1)
    assert hits.tolist() == [
        [True, False],
        [True, False],
    ]  # 2 positions are 16 pixels; the limit is 6.4
    assert label_scores.same_place_hits(points, (64, 64), 0.1).tolist() == [
        [False, True],
        [False, True],
    ]
    assert label_scores.same_place_hits(points, (64, 64), 0.3).all()


def test_a_feature_that_holds_the_parts_has_iou_1():
    labels = torch.zeros(4, 32, 32, dtype=torch.int64)
    for image, (top, left) in enumerate(itertools.product((0, 12), (2, 14))):
        labels[image, top : top + 16, left : left + 8] = 1
        labels[image, top : top + 16, left + 8 : left + 16] = 2
    truth = torch.nn.functional.one_hot(labels, 3).movedim(-1, 1).float()
    given = {"labels": labels, "trained": 2, "side": 32, "seed": 0, "epochs": 4}
    assert label_scores.part_iou(tapped(truth), **given).min() > 0.99
    guess = label_scores.same_place_iou(labels, 2, 32)
    modes = labels[:2].mode(0).values
    expected = [
        ((modes == one) & (labels[2:] == one)).sum() / ((modes == one) | (labels[2:] == one)).sum()
        for one in range(3)
    ]
    assert guess.tolist() == pytest.approx([float(value) for value in expected], abs=1e-6)


def test_the_restored_fraction_counts_the_masked_area():
    source, target = drawn(2, 4, 8, 8), drawn(2, 4, 8, 8, seed=1)
    assert patching.restored_fraction(source, source, target) == 1
    assert patching.restored_fraction(target, source, target) == 0
    assert patching.restored_fraction((source + target) / 2, source, target) == pytest.approx(
        0.75, abs=1e-6
    )
    half = target.clone()
    half[..., :4] = source[..., :4]
    mask = torch.zeros(1, 64, 64)
    mask[..., :32] = 1
    assert patching.restored_fraction(half, source, target, mask) == 1
    assert patching.restored_fraction(half, source, target, 1 - mask) == 0
    with pytest.raises(ValueError, match="Both prompts give the same image"):
        patching.restored_fraction(source, source, source)


def test_masks_repeat_over_images_and_not_over_frames():
    masks = torch.stack([torch.zeros(4, 4), torch.ones(4, 4)])
    found = mask_at(masks, torch.zeros(12, 3, 2, 2), frames=3, area=WHOLE)
    assert found.shape == (12, 1, 2, 2)
    assert found[:, 0, 0, 0].tolist() == [0, 0, 0, 1, 1, 1] * 2


def test_the_best_ids_come_first():
    scores = {"a": 0.5, "b": 0.9, "c": 0.5}
    assert id_chart.best(scores, 2) == ["b", "a"]
    assert [line.split() for line in id_chart.table({"score": scores}).splitlines()] == [
        ["ID", "score"],
        ["a", "0.500"],
        ["b", "0.900"],
        ["c", "0.500"],
    ]


def test_lines_show_every_model_over_the_ids_in_order():
    from matplotlib.figure import Figure

    models = {"base": {"a": 1.0, "b": 2.0}, "LoRA": {"a": 0.5, "b": 0.25}}
    figure = Figure()
    id_chart.draw_lines(figure, {"quality": models, "cost": models})
    for axis, title in zip(figure.axes, ("quality", "cost"), strict=True):
        assert axis.get_title(loc="left") == title
        assert {line.get_label(): list(line.get_ydata()) for line in axis.lines} == {
            name: list(values.values()) for name, values in models.items()
        }
    assert [label.get_text() for label in figure.axes[-1].get_xticklabels()] == ["a", "b"]
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == list(models)


@pytest.mark.parametrize("strength", [0.0, 0.25, 1.0])
def test_patching_mixes_by_its_strength(strength):
    recorded, feature = drawn(1, 3, 2, 2), drawn(2, 3, 2, 2, seed=1)
    edit = patching.patch(tapped(recorded), patching.PatchingSettings(strength=strength))
    spec, part = SimpleNamespace(id="a"), SimpleNamespace(area=WHOLE, side=True)
    expected = (1 - strength) * feature + strength * recorded
    assert torch.allclose(edit(spec, part, feature, 1), expected, atol=1e-6)
