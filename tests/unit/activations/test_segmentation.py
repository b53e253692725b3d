"""The few-shot segmenter: its networks against torch's own layers, its votes, its scores, and that
it learns.
"""

import pytest
import torch
from glassbox.nodes.activations import few_shot, pixel_classifier
from glassbox.nodes.activations.activations import Activations, Row
from torch import nn


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def halves(count=2, side=16, seed=0):
    """Activations of images that are one thing left and another right, and their labels at 64
    pixels.
    """
    labels = torch.zeros(count, 64, 64, dtype=torch.int64)
    labels[:, :, 32:] = 1
    coarse = labels[:, :: 64 // side, :: 64 // side].float()
    noise = drawn(count, 3, side, side, seed=seed) * 0.2
    fine = torch.stack([coarse, 1 - coarse, coarse * 0], 1) + noise
    rows = tuple(Row(index) for index in range(count))
    return Activations({"a-out": fine, "b-out": fine[..., ::2, ::2]}, rows, 0.2, 50.0), labels


def networks(members):
    """The members of an ensemble as torch modules of their own."""
    for member in range(pixel_classifier.MEMBERS):
        width, hidden = members.parameters["0.weight"].shape[2], (128, 32)
        classes = members.parameters["6.bias"].shape[1]
        layers = [
            layer
            for a, b in ((width, hidden[0]), hidden)
            for layer in (nn.Linear(a, b), nn.ReLU(), nn.BatchNorm1d(b))
        ]
        network = nn.Sequential(*layers, nn.Linear(hidden[1], classes))
        network.load_state_dict(
            {
                name: value[member]
                for name, value in {**members.parameters, **members.buffers}.items()
            }
        )
        yield network


def test_members_are_separate_networks():
    labels = (drawn(200) > 0).long()
    pixels = drawn(200, 5, seed=1) + labels[:, None]
    members = pixel_classifier.train(lambda rows: pixels[rows], labels, 5, 2, seed=0, epochs=4)
    probabilities = members.probabilities(pixels)
    for member, network in enumerate(networks(members)):
        expected = network.eval()(pixels).softmax(-1)
        assert (probabilities[member] - expected).abs().max() < 1e-5


def test_the_initial_weights_are_normal_with_the_papers_deviation():
    members = pixel_classifier.initial(400, 3, seed=0)
    weight, scale = members.parameters["0.weight"], members.parameters["2.weight"]
    assert weight.std().item() == pytest.approx(0.02, rel=0.01) and abs(weight.mean().item()) < 1e-4
    assert scale.mean().item() == pytest.approx(
        1, abs=2e-3
    ) and scale.std().item() == pytest.approx(0.02, rel=0.1)
    assert not any(
        value.any() for name, value in members.parameters.items() if name.endswith("bias")
    )
    assert not torch.equal(weight[0], weight[1])


def test_a_training_step_is_torchs_own():
    """Gradients, Adam and running moments of one batch, for every member."""
    labels, pixels = (drawn(64) > 0).long(), drawn(64, 5, seed=1)
    members = pixel_classifier.initial(5, 2, seed=0)
    before = list(networks(members))
    optimizer = torch.optim.Adam(list(members.parameters.values()), lr=1e-3)
    chosen = torch.arange(64).expand(pixel_classifier.MEMBERS, -1)
    pixel_classifier.step(members, optimizer, lambda rows: pixels[rows], labels, chosen)
    for member, (network, after) in enumerate(zip(before, networks(members), strict=True)):
        network.train()
        own = torch.optim.Adam(network.parameters(), lr=1e-3)
        nn.functional.cross_entropy(network(pixels), labels).backward()
        own.step()
        for mine, theirs in zip(
            after.state_dict().values(), network.state_dict().values(), strict=True
        ):
            assert (mine - theirs).abs().max() < 1e-5 or mine.dtype == torch.int64, member


def test_it_learns_parts_from_two_images_and_finds_them_in_others():
    activations, labels = halves()
    state = torch.get_rng_state()
    segmenter = few_shot.train(activations, labels, ("right",), 32, seed=0, epochs=4)
    assert torch.equal(torch.get_rng_state(), state)
    others, truth = halves(3, seed=5)
    found = few_shot.segment(segmenter, others)
    assert found.labels.shape == (3, 32, 32) and found.divergence.shape == (3, 32, 32)
    assert few_shot.mean_iou(found.labels, truth[:, ::2, ::2], 2).min() > 0.9
    finer = few_shot.segment(segmenter, others, side=64)
    assert (
        finer.labels.shape == (3, 64, 64) and few_shot.mean_iou(finer.labels, truth, 2).min() > 0.9
    )
    border = found.divergence[:, :, 14:18].mean()
    assert border > found.divergence[:, :, :10].mean() and found.uncertainty.min() >= 0
    again = few_shot.segment(
        few_shot.train(activations, labels, ("right",), 32, seed=0, epochs=4), others
    )
    assert torch.equal(again.labels, found.labels)


def test_it_learns_under_inference_mode():
    with torch.inference_mode():
        activations, labels = halves()
        segmenter = few_shot.train(activations, labels, ("right",), 16, seed=0, epochs=4)
        assert few_shot.segment(segmenter, activations).labels.float().mean() == pytest.approx(
            0.5, abs=0.05
        )


def test_the_vote_is_the_mode_of_the_members():
    """torch.mode over the members' most likely classes; of equal votes the lowest class."""
    activations, labels = halves()
    segmenter = few_shot.train(activations, labels, ("right",), 16, seed=0, epochs=4)
    found = few_shot.segment(segmenter, activations).labels
    table = few_shot.PixelFeatures(activations, 16)
    votes = segmenter.members.probabilities(table(torch.arange(table.count))).argmax(-1)
    counted = torch.stack([(votes == label).sum(0) for label in range(2)])
    assert torch.equal(found.flatten(), counted.argmax(0))


def test_the_first_layer_is_applied_before_interpolation():
    """It is affine and the weights of a pixel's cells sum to 1, so that both orders are equal."""
    activations, labels = halves()
    segmenter = few_shot.train(activations, labels, ("right",), 16, seed=0, epochs=4)
    table = few_shot.PixelFeatures(activations, 40)
    pixels = torch.arange(0, table.count, 7)
    mapped = table.map(segmenter.members.first_layer)
    assert (
        mapped.width == pixel_classifier.MEMBERS * 128
        and mapped.count == table.count
        and table.width == 6
    )
    expected = segmenter.members.probabilities(table(pixels))
    assert (segmenter.members.probabilities_of(mapped(pixels)) - expected).abs().max() < 1e-6


def test_the_score_is_the_official_one():
    """The official compute_iou: intersections and unions summed over all images, 1e-8 below the
    line.
    """
    predicted, truth = (
        torch.randint(0, 4, (3, 9, 9), generator=torch.Generator().manual_seed(s)) for s in (0, 1)
    )
    truth[0, :3] = few_shot.IGNORED
    expected = []
    for label in range(5):
        both = sum(
            ((p == label) & (t == label)).sum().item()
            for p, t in zip(predicted, truth, strict=True)
        )
        either = sum(
            ((p == label) | (t == label)).sum().item()
            for p, t in zip(predicted, truth, strict=True)
        )
        expected.append(both / (either + 1e-8))
    found = few_shot.mean_iou(predicted, truth, 5)
    assert (found - torch.tensor(expected, dtype=torch.float64)).abs().max() < 1e-15
    assert found[4] == 0


def test_scores_of_images_in_pieces_are_those_of_all_images():
    predicted, truth = (
        torch.randint(0, 4, (7, 9, 9), generator=torch.Generator().manual_seed(s)) for s in (0, 1)
    )
    parts = zip(predicted.split([1, 4, 2]), truth.split([1, 4, 2]), strict=True)
    counts = sum(few_shot.count_overlap(*part, 4) for part in parts)
    assert torch.equal(few_shot.iou_of_counts(counts), few_shot.mean_iou(predicted, truth, 4))


def test_reports_in_pieces_are_one_report():
    lines = [f"hair {number}.0%, skin 5.0%; uncertainty 0.1{number}00" for number in range(5)]

    def report(of):
        return "\n".join(f"image {number}: {line}" for number, line in enumerate(of))

    assert few_shot.merge_reports(
        [report(lines[:2]), report(lines[2:3]), report(lines[3:])]
    ) == report(lines)
    with pytest.raises(ValueError, match="Few-Shot Segmenter"):
        few_shot.merge_reports(["another text"])


def test_pixels_are_read_bilinearly():
    activations, _ = halves()
    table = few_shot.PixelFeatures(activations, 24)
    joined = torch.cat(
        [
            activations.tensors["a-out"],
            activations.tensors["b-out"].repeat_interleave(2, 2).repeat_interleave(2, 3),
        ],
        1,
    )
    enlarged = torch.nn.functional.interpolate(
        joined, size=(24, 24), mode="bilinear", align_corners=False
    )
    found = table(torch.arange(table.count))
    assert (found - enlarged.movedim(1, -1).flatten(0, 2)).abs().max() < 1e-5


def test_divergence_is_zero_when_all_agree_and_ln_2_at_most_for_two():
    agree = torch.tensor([0.3, 0.7]).expand(4, 5, 2)
    differ = torch.eye(2).repeat(2, 1)[:, None]
    assert few_shot.jensen_shannon(agree).abs().max() < 1e-6
    assert few_shot.jensen_shannon(differ).item() == pytest.approx(0.693147, abs=1e-6)


def test_labels_of_overlapping_masks():
    weak, strong = torch.full((1, 2, 2), 0.6), torch.zeros(1, 2, 2)
    strong[0, 0, 0], weak[0, 1, 1] = 0.9, 0.4
    assert few_shot.labels_from_masks([weak, strong]).tolist() == [[[2, 1], [1, 0]]]


def test_a_part_of_a_few_pixels_is_not_learned():
    _, labels = halves()
    labels[:, 0, :6] = 2
    labels[:, 40:, 40:] = few_shot.IGNORED
    flat = few_shot._labels_at(labels, 64)
    assert 2 not in flat and (flat == few_shot.IGNORED).sum() == 2 * (6 + 24 * 24)


def test_one_label_and_other_activations_are_refused():
    activations, labels = halves()
    with pytest.raises(ValueError, match="only one label"):
        few_shot.train(activations, labels * 0, ("right",), 16, seed=0, epochs=4)
    segmenter = few_shot.train(activations, labels, ("right",), 16, seed=0, epochs=4)
    with pytest.raises(
        ValueError, match="trained on a-out, b-out, and these activations are different"
    ):
        few_shot.segment(segmenter, activations.select(["a-out"]))
