"""The few-shot segmenter: its networks against torch's own layers, its votes, its scores, and that it learns."""

import pytest
import torch
from glassbox.nodes.activations import ensemble, segmentation
from glassbox.nodes.activations.features import Activations, Row
from torch import nn


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def halves(count=2, side=16, seed=0):
    """Activations of pictures that are one thing left and another right, and their labels at 64 pixels."""
    labels = torch.zeros(count, 64, 64, dtype=torch.int64)
    labels[:, :, 32:] = 1
    coarse = labels[:, :: 64 // side, :: 64 // side].float()
    noise = drawn(count, 3, side, side, seed=seed) * 0.2
    fine = torch.stack([coarse, 1 - coarse, coarse * 0], 1) + noise
    rows = tuple(Row(index) for index in range(count))
    return Activations({"a-out": fine, "b-out": fine[..., ::2, ::2]}, rows, 0.2, 50.0), labels


def networks(found):
    """The members of an ensemble as torch's own layers."""
    for member in range(ensemble.MEMBERS):
        weights = [weight[member] for weight in found.weights]
        layers = []
        for layer in range(2):
            weight, bias, scale, shift = weights[4 * layer : 4 * layer + 4]
            linear, norm = nn.Linear(*weight.shape), nn.BatchNorm1d(weight.shape[1])
            linear.weight.data, linear.bias.data = weight.T.clone(), bias[0].clone()
            norm.weight.data, norm.bias.data = scale[0].clone(), shift[0].clone()
            mean, variance = (moment[member, 0].clone() for moment in found.moments[layer])
            norm.running_mean, norm.running_var = mean, variance
            layers += [linear, nn.ReLU(), norm]
        last = nn.Linear(*weights[-2].shape)
        last.weight.data, last.bias.data = weights[-2].T.clone(), weights[-1][0].clone()
        yield nn.Sequential(*layers, last)


def test_members_are_torchs_own_layers():
    labels = (drawn(200) > 0).long()
    pixels = drawn(200, 5, seed=1) + labels[:, None]
    found = ensemble.train(lambda rows: pixels[rows], labels, 5, 2, seed=0, epochs=4)
    shapes = [tuple(weight.shape[1:]) for weight in found.weights[::2]]
    assert shapes == [(5, 128), (1, 128), (128, 32), (1, 32), (32, 2)]
    probabilities = found.probabilities(pixels)
    for member, network in enumerate(networks(found)):
        expected = network.eval()(pixels).softmax(-1)
        assert (probabilities[member] - expected).abs().max() < 1e-5


def test_a_training_step_is_torchs_own():
    """Gradients, Adam and running moments of one batch, for every member."""
    labels, pixels = (drawn(64) > 0).long(), drawn(64, 5, seed=1)
    training = ensemble._Training(lambda rows: pixels[rows], labels, 5, 2, 0)
    begun = training._finished()
    stepped = torch.arange(64).expand(ensemble.MEMBERS, -1)
    optimizer = torch.optim.Adam(training._weights, lr=1e-3)
    training._step(optimizer, stepped)
    for member, (before, after) in enumerate(zip(networks(begun), networks(training._finished()), strict=True)):
        before.train()
        own = torch.optim.Adam(before.parameters(), lr=1e-3)
        nn.functional.cross_entropy(before(pixels), labels).backward()
        own.step()
        for mine, theirs in zip(after.state_dict().values(), before.state_dict().values(), strict=True):
            assert (mine - theirs).abs().max() < 1e-5 or mine.dtype == torch.int64, member


def test_it_learns_parts_from_two_pictures_and_finds_them_in_others():
    activations, labels = halves()
    state = torch.get_rng_state()
    segmenter = segmentation.train(activations, labels, ("right",), 32, seed=0, epochs=4)
    assert torch.equal(torch.get_rng_state(), state)
    others, truth = halves(3, seed=5)
    found = segmentation.segment(segmenter, others)
    assert found.labels.shape == (3, 32, 32) and found.divergence.shape == (3, 32, 32)
    assert segmentation.mean_iou(found.labels, truth[:, ::2, ::2], 2).min() > 0.9
    finer = segmentation.segment(segmenter, others, side=64)
    assert finer.labels.shape == (3, 64, 64) and segmentation.mean_iou(finer.labels, truth, 2).min() > 0.9
    border = found.divergence[:, :, 14:18].mean()
    assert border > found.divergence[:, :, :10].mean() and found.uncertainty.min() >= 0
    again = segmentation.segment(segmentation.train(activations, labels, ("right",), 32, seed=0, epochs=4), others)
    assert torch.equal(again.labels, found.labels)


def test_it_learns_under_inference_mode():
    with torch.inference_mode():
        activations, labels = halves()
        segmenter = segmentation.train(activations, labels, ("right",), 16, seed=0, epochs=4)
        assert segmentation.segment(segmenter, activations).labels.float().mean() == pytest.approx(0.5, abs=0.05)


def test_the_vote_is_the_mode_of_the_members():
    """Oracle O9: torch.mode over the members' most likely classes; of equal votes the lowest class."""
    activations, labels = halves()
    segmenter = segmentation.train(activations, labels, ("right",), 16, seed=0, epochs=4)
    found = segmentation.segment(segmenter, activations).labels
    table = segmentation.Table(activations, 16)
    votes = segmenter.members.probabilities(table(torch.arange(table.count))).argmax(-1)
    counted = torch.stack([(votes == label).sum(0) for label in range(2)])
    assert torch.equal(found.flatten(), counted.argmax(0))


def test_the_score_is_the_official_one():
    """Oracle O9: intersections and unions summed over all pictures, 1e-8 below the line."""
    predicted, truth = (torch.randint(0, 4, (3, 9, 9), generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    truth[0, :3] = segmentation.IGNORED
    expected = []
    for label in range(5):
        both = sum(((p == label) & (t == label)).sum().item() for p, t in zip(predicted, truth, strict=True))
        either = sum(((p == label) | (t == label)).sum().item() for p, t in zip(predicted, truth, strict=True))
        expected.append(both / (either + 1e-8))
    found = segmentation.mean_iou(predicted, truth, 5)
    assert (found - torch.tensor(expected, dtype=torch.float64)).abs().max() < 1e-15
    assert found[4] == 0


def test_pixels_are_read_bilinearly():
    activations, _ = halves()
    table = segmentation.Table(activations, 24)
    joined = torch.cat([activations.tensors["a-out"],
                        activations.tensors["b-out"].repeat_interleave(2, 2).repeat_interleave(2, 3)], 1)  # fmt: skip
    enlarged = torch.nn.functional.interpolate(joined, size=(24, 24), mode="bilinear", align_corners=False)
    found = table(torch.arange(table.count))
    assert (found - enlarged.movedim(1, -1).flatten(0, 2)).abs().max() < 1e-5


def test_divergence_is_zero_when_all_agree_and_ln_2_at_most_for_two():
    agree = torch.tensor([0.3, 0.7]).expand(4, 5, 2)
    differ = torch.eye(2).repeat(2, 1)[:, None]
    assert segmentation.jensen_shannon(agree).abs().max() < 1e-6
    assert segmentation.jensen_shannon(differ).item() == pytest.approx(0.693147, abs=1e-6)


def test_labels_of_overlapping_masks():
    weak, strong = torch.full((1, 2, 2), 0.6), torch.zeros(1, 2, 2)
    strong[0, 0, 0], weak[0, 1, 1] = 0.9, 0.4
    assert segmentation.labels_of([weak, strong]).tolist() == [[[2, 1], [1, 0]]]


def test_a_part_of_a_few_pixels_is_not_learned():
    _, labels = halves()
    labels[:, 0, :6] = 2
    labels[:, 40:, 40:] = segmentation.IGNORED
    flat = segmentation._at_side(labels, 64)
    assert 2 not in flat and (flat == segmentation.IGNORED).sum() == 2 * (6 + 24 * 24)


def test_what_cannot_be_learned_or_used():
    activations, labels = halves()
    with pytest.raises(ValueError, match="only one label to learn"):
        segmentation.train(activations, labels * 0, ("right",), 16, seed=0, epochs=4)
    segmenter = segmentation.train(activations, labels, ("right",), 16, seed=0, epochs=4)
    with pytest.raises(ValueError, match="trained on a-out, b-out, and these activations are others"):
        segmentation.segment(segmenter, activations.chosen(["a-out"]))
