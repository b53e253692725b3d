"""Every figure of the pack, read off before it becomes an image: its numbers, titles, axes and
legends.
"""

from __future__ import annotations

import ast
import math
from pathlib import Path

import figures
import numpy as np
import pytest
import repository
import torch
from figures import assert_bars, assert_flat_bars, assert_line, drawn, image, pairs, running, wavy
from glassbox.nodes.activations import id_chart, quality, seed_scout
from glassbox.nodes.common.loss_curve import SMOOTH
from glassbox.nodes.common.training import run_comparison, training_loop, training_report
from glassbox.nodes.conditioning import metadata_report, noise_rescale, size_sheet
from glassbox.nodes.conditioning.metadata_schedule import GateSchedule
from glassbox.nodes.neurons import merged_results, neuron_figures
from glassbox.nodes.neurons.image_similarity import ImageSimilarity, Remains
from glassbox.nodes.neurons.layer_ablation import LayerEffect
from glassbox.nodes.neurons.mask import NeuronMask, SearchRecord
from glassbox.nodes.neurons.memorization_score import PromptScore
from glassbox.nodes.neurons.nemo_search import SelectionStep
from glassbox.nodes.neurons.neuron_layers import NeuronLayer
from glassbox.nodes.neurons.score_threshold import Threshold
from glassbox.nodes.neurons.unlearning import UnlearningLosses
from glassbox.nodes.noise import composition, noise_report, scratch_training
from glassbox.nodes.noise.pairing import Pairing
from glassbox.nodes.weights import contact_sheet
from matplotlib.colors import to_hex

RED, BLUE = to_hex("tab:red"), to_hex("tab:blue")


def gate_schedule(**changed):
    given = {"curve": "cosine", "exponent": 2.0, "fields": "original_size", "reference_width": 0}
    return GateSchedule(
        **{**given, "reference_height": 0, "mode": "value", "apply_to": "positive", **changed}
    )


STEPS = [
    metadata_report.Step(sigma, u)
    for sigma, u in ((14.6, 1.0), (5.0, 0.7), (1.0, 0.3), (0.1, 0.02))
]


def test_gate():
    panel = drawn(metadata_report.draw_gate, gate_schedule(exponent=4.0), STEPS).panels[0]
    places = [index / 400 for index in range(401)]
    weights = {u: math.cos(math.pi * u / 2) ** 4 for u in (*places, *(step.u for step in STEPS))}
    np.testing.assert_allclose(
        panel.lines["gate"], pairs(places, [weights[u] for u in places]), atol=1e-9
    )
    us = [step.u for step in STEPS]
    np.testing.assert_allclose(
        panel.points["the 4 steps"], pairs(us, [weights[u] for u in us]), atol=1e-9
    )
    half = 2 / math.pi * math.acos(0.5**0.25)
    assert panel.verticals() == {f"one half at {half:.2f}": pytest.approx(half)}
    assert (
        panel.title == "Gate cosine, exponent 4, on original_size"
        and panel.xlim[0] > 1 > 0 > panel.xlim[1]
    )
    assert panel.ylabel == "weight of the metadata" and panel.xlabel.startswith("noise fraction u")
    assert panel.legend == ["gate", "the 4 steps", f"one half at {half:.2f}"]


def test_gate_that_is_always_open_has_no_half():
    panel = drawn(metadata_report.draw_gate, gate_schedule(curve="constant"), STEPS).panels[0]
    assert panel.verticals() == {} and (panel.lines["gate"][:, 1] == 1).all()


def test_conditioning():
    """Two prompts, one of which acts in the first two steps alone, and a gate on the other's
    original size.
    """
    values = {
        "width": 512.0,
        "height": 256.0,
        "crop_w": 9.0,
        "target_width": 640.0,
        "target_height": 768.0,
    }
    prompts = [
        metadata_report.PromptMetadata(canvas=(1024, 768), **entry)
        for entry in (
            {"values": values, "role": "positive", "name": "the first prompt"},
            {"values": {**values, "width": 300.0}, "role": "negative", "name": "n", "last": 2.0},
        )
    ]
    drawing = drawn(metadata_report.draw_conditioning, prompts, [gate_schedule()], STEPS)
    first, second, gate, other_gate = drawing.panels
    weights = [math.cos(math.pi * step.u / 2) ** 2 for step in STEPS]
    assert_line(first, "original width", range(1, 5), [1024 + w * (512 - 1024) for w in weights])
    assert_line(first, "original height", range(1, 5), [768 + w * (256 - 768) for w in weights])
    assert_line(first, "target width", range(1, 5), [640] * 4)
    np.testing.assert_array_equal(
        second.lines["original width"][:, 1], [300, 300, math.nan, math.nan]
    )
    names = ["original width", "original height", "crop left", "target width", "target height"]
    assert first.legend == second.legend == names
    assert first.title == "Size metadata: the first prompt" and second.title == "Size metadata: n"
    assert (first.ylabel, second.xlabel, gate.ylabel, other_gate.ylabel) == (
        "pixels",
        "step",
        "gate",
        "gate",
    )
    np.testing.assert_allclose(gate.areas[0], weights, atol=1e-9)
    np.testing.assert_allclose(other_gate.areas[0], [1] * 4)


def test_sigmas():
    before, after = [14.6, 3.0, 0.5], [29.2, 6.0, 1.0]
    panel = drawn(noise_rescale.draw_sigmas, before, after, 2.0, "128 x 64").panels[0]
    assert_line(panel, "trained schedule", [1, 2, 3], before)
    assert_line(panel, "for this size (s = 2.000)", [1, 2, 3], after)
    assert panel.scales == ("linear", "log") and panel.title == "Noise level at each step: 128 x 64"
    assert (panel.xlabel, panel.ylabel) == ("step", "sigma") and len(panel.legend) == 2


def test_size_sheet():
    rows = {"stock": [image(0), image(1)], "gated": [image(2) + 0.5, image(3)]}
    drawing = drawn(size_sheet.draw_sheet, rows, ["0.5 x", "1 x"], "original_size")
    assert drawing.title == "original_size"
    assert [panel.title for panel in drawing.panels] == ["0.5 x", "1 x", "", ""]
    assert [panel.ylabel for panel in drawing.panels] == ["stock", "", "gated", ""]
    for panel, one in zip(drawing.panels, [*rows["stock"], *rows["gated"]], strict=True):
        np.testing.assert_allclose(panel.images[0], one.clamp(0, 1), atol=1e-6)
        assert panel.xticks == panel.yticks == []


def test_distances_of_pairing():
    before, after = torch.tensor([5.0, 4.0, 6.0]), torch.tensor([3.0, 4.0, 2.5])
    pairing = Pairing(
        noise=[], numbers=[1, 0, 2], before=before, after=after, milliseconds=1.0, moved=True
    )
    panel = drawn(noise_report.draw_distances, pairing, "assign").panels[0]
    np.testing.assert_allclose(panel.points["as drawn"], pairs(range(3), before))
    np.testing.assert_allclose(panel.points["paired"], pairs(range(3), after))
    assert sorted(panel.horizontals().values()) == pytest.approx([9.5 / 3, 5.0])
    assert (panel.title, panel.xlabel, panel.ylabel) == (
        "assign",
        "image",
        "L2 distance to its noise",
    )
    assert panel.legend == ["as drawn", "paired"]
    segments = [[(0, 5), (0, 3)], [(1, 4), (1, 4)], [(2, 6), (2, 2.5)]]
    np.testing.assert_allclose(panel.segments, segments)


def test_gains():
    curve = [(2, 1.0, 1.5), (8, 2.0, 2.5), (32, 4.0, 3.5)]
    panel = drawn(noise_report.draw_gains, curve, 4.0, 6.5).panels[0]
    assert_line(panel, "assign, measured", [2, 8, 32], [1, 2, 4])
    assert_line(panel, "assign, predicted for white latents", [2, 8, 32], [1.5, 2.5, 3.5])
    assert panel.horizontals() == {"nearest of 4": 6.5} and panel.scales == ("log", "linear")
    assert panel.xticks == ["2", "8", "32"] and len(panel.legend) == 3
    assert (panel.xlabel, panel.ylabel) == ("images assigned at once", "reduction of L2 in %")


@pytest.mark.parametrize("validation", [[], [(0, 0.5), (20, 0.25)]])
def test_losses_of_a_training(validation):
    losses = wavy(60)
    history = training_loop.History(losses=losses, validation=validation)
    panel = drawn(training_report.draw_losses, history, 3, "Pairing: off").panels[0]
    steps = [(number + 1) / 3 for number in range(60)]
    assert_line(panel, "training, each batch", steps, losses)
    assert_line(panel, f"training, mean of {SMOOTH}", steps, running(losses))
    names = [
        "training, each batch",
        f"training, mean of {SMOOTH}",
        *(["held-out images"] if validation else []),
    ]
    assert panel.legend == names == list(panel.lines)
    if validation:
        assert_line(panel, "held-out images", [0, 20], [0.5, 0.25])
    assert (panel.title, panel.xlabel, panel.ylabel) == ("Pairing: off", "step", "loss")


def test_comparison_of_trainings():
    """The first has two batches a step; without held-out images there is no legend for them."""
    runs = {
        "a": {"loss": wavy(30), "validation": [(0, 0.5), (15, 0.3)]},
        "b": {"loss": wavy(30, 1)},
    }
    held_out, training = drawn(run_comparison.draw_comparison, runs).panels
    assert_line(held_out, "a", [0, 15], [0.5, 0.3])
    assert_line(
        training, "a", [(number + 1) / 2 for number in range(30)], running(runs["a"]["loss"])
    )
    assert_line(training, "b", range(1, 31), running(runs["b"]["loss"]))
    assert (held_out.title, training.title) == ("Held-out images", "Training, running mean")
    assert (held_out.legend, training.legend) == (["a"], ["a", "b"])
    assert drawn(run_comparison.draw_comparison, {"b": runs["b"]}).panels[0].legend == []


def test_composition():
    """Each panel is the mean over channels of the first image, without what lies outside of the
    band.
    """
    settings = composition.CompositionSettings(strength=0.5, cutoff=2.0)
    before, after, guide = (
        torch.randn(2, 3, 6, 8, generator=torch.Generator().manual_seed(n)) for n in range(3)
    )
    drawing = drawn(composition.draw_composition, settings, before, after, guide)
    assert [panel.title for panel in drawing.panels] == [
        "guide",
        "noise as drawn",
        "composed noise",
    ]
    for panel, latent in zip(drawing.panels, (guide, before, after), strict=True):
        np.testing.assert_allclose(panel.images[0], _low(latent[0].double()).mean(0), atol=1e-9)


def _low(latent, cutoff=2.0):
    """Frequencies below the cutoff, in cycles per side, of a latent (C, H, W): a DCT by its
    definition.
    """
    result = torch.zeros_like(latent)
    height, width = latent.shape[1:]
    for k in range(height):
        for m in range(width):
            if math.hypot(k, m) / 2 < cutoff:
                y = torch.cos(
                    math.pi * k * (torch.arange(height, dtype=torch.float64) + 0.5) / height
                )
                x = torch.cos(
                    math.pi * m * (torch.arange(width, dtype=torch.float64) + 0.5) / width
                )
                wave = y[:, None] * x / (y[:, None] * x).norm()
                result += (latent * wave).sum((1, 2))[:, None, None] * wave
    return result


def test_distances_of_digits():
    plain = scratch_training.DigitsRun({10: 9.0, 100: 4.0}, {1: 8.0, 20: 4.0}, torch.zeros(1, 64))
    assigned = scratch_training.DigitsRun(
        {10: 8.0, 100: 3.0}, {1: 5.0, 20: 3.0}, torch.zeros(1, 64)
    )
    left, right = drawn(scratch_training.draw_distances, plain, assigned, 20).panels
    for name, run in (("noise as drawn", plain), ("assigned noise", assigned)):
        assert_line(left, name, run.over_training, run.over_training.values())
        assert_line(right, name, run.at_end, run.at_end.values())
    assert (left.title, right.title) == ("20 sampling steps", "after 100 training steps")
    assert (left.xlabel, right.xlabel) == (
        "training steps",
        "sampling steps",
    ) and left.ylabel == right.ylabel
    assert (left.scales, right.scales) == (("linear", "log"), ("log", "log")) and right.xticks == [
        "1",
        "20",
    ]
    assert left.legend == right.legend == ["noise as drawn", "assigned noise"]


@pytest.mark.parametrize("notes", [(), ("cat .1", "cat .9", "cat .5")])
def test_seed_sheet(notes):
    images = torch.stack([image(number) for number in range(3)])
    scores = seed_scout.Scores(torch.tensor([0.25, 0.75, 0.5]), "coverage", notes)
    drawing = drawn(seed_scout.draw_sheet, 2, images, [7, 8, 9], scores, 2)
    assert drawing.title == "Ranked by coverage" and [
        panel.visible for panel in drawing.panels
    ] == [True] * 3 + [False]
    titles = ["seed 8\n0.75", "seed 9\n0.5", "seed 7\n0.25"]
    if notes:
        titles = [
            f"{title}\n{notes[index]}" for title, index in zip(titles, (1, 2, 0), strict=True)
        ]
    assert [panel.title for panel in drawing.panels[:3]] == titles
    for panel, index in zip(drawing.panels, (1, 2, 0), strict=False):
        np.testing.assert_allclose(panel.images[0], images[index], atol=1e-6)
    green = to_hex("tab:green")
    assert [panel.frame == (4, green) for panel in drawing.panels[:3]] == [True, True, False]


def test_quality_chart():
    found = {f"id-{n}": quality.Quality(0.1 * n, 0.9 - 0.1 * n, 0.3 * n) for n in range(4)}
    drawing = drawn(quality.draw_chart, found, {"id-1", "id-3"}, "Two images")
    assert drawing.title == "Two images" and len(drawing.panels) == 3
    for panel, name in zip(drawing.panels, ("noise", "granularity", "locality"), strict=True):
        assert_bars(
            panel, [n - 0.4 for n in range(4)], [getattr(one, name) for one in found.values()]
        )
        assert panel.colors == ["#b8c4d0", "#e66101"] * 2 and name in panel.title.lower()
        assert panel.xlim == pytest.approx((-0.419, 3.419))  # 0.5 % beyond the bars
    assert drawing.panels[0].legend == ["kept by the filter", "dropped"] and drawing.panels[
        2
    ].xticks == list(found)


@pytest.mark.parametrize("baseline", [None, 0.3])
def test_bars_of_ids(baseline):
    charts = {"one": {"a": 0.5, "b": -0.25, "c": 0.1}, "other": {"a": 1.0, "b": 2.0, "c": 3.0}}
    drawing = drawn(id_chart.draw_bars, charts, ["b"], baseline)
    for panel, (title, values) in zip(drawing.panels, charts.items(), strict=True):
        assert_bars(panel, [-0.4, 0.6, 1.6], list(values.values()))
        assert panel.title == title and panel.colors == ["#b8c4d0", "#e66101", "#b8c4d0"]
        assert list(panel.horizontals().values()) == ([] if baseline is None else [baseline])
    assert drawing.panels[-1].xticks == ["a", "b", "c"]


def test_lines_of_ids():
    charts = {
        "quality": {"one": {"a": 0.5, "b": 0.25}, "two": {"a": 0.75, "b": 0.1}},
        "cost": {"one": {"a": 1.0, "b": 2.0}},
    }
    drawing = drawn(id_chart.draw_lines, charts)
    for panel, (title, models) in zip(drawing.panels, charts.items(), strict=True):
        assert panel.title == title and list(panel.lines) == list(models)
        for name, values in models.items():
            assert_line(panel, name, [0, 1], values.values())
    assert drawing.panels[0].legend == ["one", "two"] and drawing.panels[-1].xticks == ["a", "b"]


def test_many_ids_are_named_by_the_families_that_they_belong_to():
    figure = figures.new()
    axis = figure.add_subplot()
    ids = [
        f"{stage}-repeat{n // 4}-out{n}"
        for stage in ("down-level0", "mid-block", "up-level1")
        for n in range(10)
    ]
    id_chart.name_axis(axis, ids)
    assert figures.read(figure).panels[0].xticks == ["down-level0", "mid-block", "up-level1"]
    assert list(axis.get_xticks()) == [4.5, 14.5, 24.5]
    assert [line.get_xdata()[0] for line in axis.lines] == [9.5, 19.5]


def test_a_few_ids_and_at_most_24_families_are_named():
    axes = figures.new().subplots(2, 1)
    id_chart.name_axis(axes[0], [f"id-{n}" for n in range(24)])
    id_chart.name_axis(axes[1], [f"vit-block{n}" for n in range(57)])
    names = [[label.get_text() for label in axis.get_xticklabels()] for axis in axes]
    assert names == [[f"id-{n}" for n in range(24)], [f"vit-block{n}" for n in range(0, 57, 3)]]


@pytest.mark.parametrize("grid", [True, False])
def test_contact_sheet(grid):
    images = [image(number) for number in range(6)]
    labels = (
        [f"{c}, {r}" for r in ("beard 0", "beard 1") for c in ("hat 0", "hat 1", "hat 2")]
        if grid
        else list("abcdef")
    )
    drawing = drawn(contact_sheet.draw_sheet, images, labels, 3, "A sheet")
    for panel, one in zip(drawing.panels, images, strict=True):
        np.testing.assert_allclose(panel.images[0], one, atol=1e-6)
    titles = ["hat 0", "hat 1", "hat 2", "", "", ""] if grid else labels
    assert [panel.title for panel in drawing.panels] == titles and drawing.title == "A sheet"
    assert [panel.ylabel for panel in drawing.panels] == (
        ["beard 0", "", "", "beard 1", "", ""] if grid else [""] * 6
    )


def test_counts_of_scores():
    counts = np.arange(merged_results.BINS)
    panel = drawn(merged_results.draw_counts, counts).panels[0]
    assert_bars(panel, np.arange(100) / 100, counts, 0.01)
    assert panel.title == f"Scores of {99 * 50} prompts" and panel.xlim == (0, 1)
    assert (panel.xlabel, panel.ylabel) == ("memorization score", "prompts")


PAIRS = torch.tensor([[1.0, 0.25, 0.5], [0.25, 1.0, 0.75], [0.5, 0.75, 1.0]])


def test_score_of_a_prompt():
    drawing = drawn(neuron_figures.plot_score, "a prompt", PromptScore(PAIRS), 0.5)
    assert (
        drawing.title == "a prompt" and drawing.panels[0].title == "score 0.750 (threshold 0.500)"
    )
    _assert_similarities(drawing)


def test_similarities():
    figure = figures.new()
    neuron_figures.plot_similarity(figure.add_subplot(), figure, PAIRS.numpy(), "before")
    assert figures.read(figure).panels[0].title == "before"
    assert all(
        text.lstrip("\N{MINUS SIGN}").isdigit() for text in figures.read(figure).panels[0].xticks
    )
    _assert_similarities(figures.read(figure))


def _assert_similarities(drawing):
    panel, bar = drawing.panels
    assert np.isnan(np.diag(panel.images[0])).all()
    np.testing.assert_allclose(
        panel.images[0][~np.eye(3, dtype=bool)], PAIRS[~torch.eye(3, dtype=bool)]
    )
    assert (panel.xlabel, panel.ylabel, bar.ylabel, bar.ylim) == (
        "seed",
        "seed",
        "similarity",
        (0, 1),
    )


def test_scores_of_prompts():
    scores = {f"prompt {n}": 0.01 * n for n in range(50)}
    panel = drawn(neuron_figures.plot_scores, scores, 0.4).panels[0]
    shown = [0.01 * n for n in range(49, 9, -1)]
    assert_flat_bars(panel, shown)
    assert panel.colors == [RED if value > 0.4 else BLUE for value in shown]
    assert panel.yticks == [f"prompt {n}" for n in range(49, 9, -1)] and panel.verticals() == {
        "threshold": 0.4
    }
    assert panel.title == "Memorization score; the highest 40 of 50" and panel.legend == [
        "threshold"
    ]
    few = drawn(neuron_figures.plot_scores, {"a": 0.4}, 0.4).panels[0]
    assert few.title == "Memorization score" and few.colors == [BLUE]


@pytest.mark.parametrize("memorized", [(), (0.8, 0.9)])
def test_calibration(memorized):
    normal = tuple(wavy(20))
    panel = drawn(neuron_figures.plot_calibration, Threshold(0.55, normal, memorized)).panels[0]
    every = [*normal, *memorized, 0.55]
    edges = np.linspace(min(every) - 0.01, max(every) + 0.01, 25)
    for number, part in enumerate((normal, memorized) if memorized else (normal,)):
        np.testing.assert_array_equal(
            panel.bars[24 * number : 24 * number + 24, 3], np.histogram(part, edges)[0]
        )
    assert panel.verticals() == {"threshold 0.550": 0.55} and panel.ylabel == "prompts"
    assert set(panel.legend) == {
        "threshold 0.550",
        "ordinary (20)",
        *["memorized (2)"] * bool(memorized),
    }


def test_histogram_of_a_scan():
    scores = wavy(40)
    panel = drawn(neuron_figures.plot_histogram, scores, 0.5).panels[0]
    edges = np.linspace(min(*scores, 0.5) - 0.01, max(*scores, 0.5) + 0.01, 41)
    parts = [[score for score in scores if (score > 0.5) is over] for over in (False, True)]
    for number, (part, color) in enumerate(zip(parts, (BLUE, RED), strict=True)):
        bars = slice(40 * number, 40 * number + 40)
        np.testing.assert_array_equal(panel.bars[bars, 3], np.histogram(part, edges)[0])
        assert set(panel.colors[bars]) == {color}
    assert panel.verticals() == {"threshold 0.500": 0.5} and panel.title == "Scores of 40 prompts"
    assert {f"not memorized ({len(parts[0])})", f"memorized ({len(parts[1])})"} < set(panel.legend)


@pytest.mark.parametrize("masked", [True, False])
def test_sheet_of_a_scan(masked):
    images = [[image(2 * n), image(2 * n + 1)][: 1 + masked] for n in range(3)]
    titles = [f"prompt {n}\nscore {n}" for n in range(5)]
    drawing = drawn(neuron_figures.plot_sheet, images, titles, 3)
    assert drawing.title == (
        "Left: without the mask; right: with it" if masked else "Without a mask"
    )
    assert [panel.title for panel in drawing.panels] == [*titles[:3], "", "", ""]
    for panel, one in zip(drawing.panels, images, strict=False):
        np.testing.assert_allclose(panel.images[0], torch.cat(one, dim=1), atol=1e-6)
        assert not panel.visible


def test_ablation():
    layers = [NeuronLayer(f"layer {n}", None, 8) for n in range(3)]
    effects = [
        LayerEffect(f"name {n}", (layers[n],), 0.9 - 0.2 * n, 0.8 - 0.1 * n) for n in range(3)
    ]
    effects.append(LayerEffect("all", tuple(layers), 0.1, 0.2))
    drawing = drawn(neuron_figures.plot_ablation, 0.95, effects, {"layer 1"})
    left, right = drawing.panels
    assert_flat_bars(left, [0.9, 0.7, 0.5, 0.1])
    assert_flat_bars(right, [0.2, 0.3, 0.4, 0.8])
    assert left.colors == right.colors and [color == RED for color in left.colors] == [
        False,
        True,
        False,
        False,
    ]
    assert left.verticals() == {"untouched 0.950": 0.95} and left.yticks == [
        "name 0",
        "name 1",
        "name 2",
        "all",
    ]
    assert (left.xlabel, right.xlabel) == (
        "remaining memorization score",
        "change of the first step at the same seed",
    )
    assert drawing.title == "Each layer silenced in turn (red: search these)" and left.legend == [
        "untouched 0.950"
    ]


def test_search():
    traces = {"one": [(9, 0.9), (4, 0.6), (7, 0.3)], "x" * 50: [(3, 0.4)]}
    made = {
        name: [
            SelectionStep(theta=1.0, k=1, listed=9, neurons=n, score=score) for n, score in trace
        ]
        for name, trace in traces.items()
    }
    panel = drawn(neuron_figures.plot_search, made, 0.428).panels[0]
    for name, trace in traces.items():
        assert_line(panel, name if len(name) < 40 else "x" * 39 + "…", *zip(*trace, strict=True))
    assert panel.horizontals() == {"target score 0.428": 0.428} and len(panel.legend) == 3
    assert (panel.title, panel.xlabel, panel.ylabel) == (
        "Initial selection",
        "neurons silenced",
        "remaining score",
    )
    assert panel.xlim[0] == 0


def test_losses_of_a_learned_mask():
    losses = [3.0, 1.5, 1.75, 0.5]
    (line,) = (panel := drawn(neuron_figures.plot_learning, losses).panels[0]).lines.values()
    np.testing.assert_allclose(line, pairs([1, 2, 3, 4], losses))
    assert (panel.title, panel.xlabel, panel.ylabel) == ("Loss of the learned mask", "step", "loss")


def test_batches_of_a_report():
    red, blue = (torch.zeros(2, 8, 12, 3) for _ in range(2))
    red[..., 0], blue[..., 2] = 1, 1
    left = {"before": Remains(0.9, 1.0, 1.0), "after": Remains(0.5, 0.25, 0.5)}
    drawing = drawn(
        neuron_figures.plot_batches, {"before": red, "after": blue[:1]}, left, red[:1] / 2
    )
    shown = [np.asarray(panel.images[0]) if panel.images else None for panel in drawing.panels]
    colors = [None if image is None else image[0, 0, :3].tolist() for image in shown]
    assert colors == [None, [0.5, 0, 0], None, None, [1, 0, 0], [1, 0, 0], None, [0, 0, 1], None]


def test_layer_counts():
    mask = NeuronMask(
        {
            "down.0.transformer_blocks.0.to_v": {1: 0.0, 4: 0.5},
            "up.1.transformer_blocks.0.to_v": {2: 0.0},
        }
    )
    panel = drawn(neuron_figures.plot_layer_counts, mask, axes=True).panels[0]
    assert_flat_bars(panel, [2, 1])
    assert (
        panel.yticks == ["down.0", "up.1"]
        and panel.title == "3 masked neurons"
        and panel.xlabel == "neurons"
    )


def test_z():
    values = wavy(30)
    panel = drawn(neuron_figures.plot_z, values, axes=True).panels[0]
    np.testing.assert_array_equal(panel.bars[:, 3], np.histogram(values, 20)[0])
    assert (panel.xlabel, panel.ylabel) == ("z of the found neurons", "neurons")


@pytest.mark.parametrize("z", [True, False])
def test_report_of_a_mask(z):
    """Counts of layers, z-scores where the mask has them, and a matrix for each batch of more than
    one image.
    """
    details = {"z": {"down.0": {"1": 4.5, "6": 3.25}}} if z else {}
    mask = NeuronMask(
        {"down.0": {1: 0.0, 6: 0.0}}, (SearchRecord("a", {"down.0": (1, 6)}, True, details),)
    )
    batches = {"before": PAIRS, "after": PAIRS[:2, :2], "single": PAIRS[:1, :1]}
    measured = {name: ImageSimilarity(between, None) for name, between in batches.items()}
    panels = drawn(neuron_figures.plot_report, mask, measured, size=(12, 4)).panels
    counts, *others = [panel for panel in panels if panel.ylabel != "similarity"]
    assert_flat_bars(counts, [2])
    titles = [*["Activation on the prompts"] * z, "before, median 0.50", "after, median 0.25"]
    assert counts.title == "2 masked neurons" and [panel.title for panel in others] == titles
    if z:
        np.testing.assert_array_equal(others[0].bars[:, 3], np.histogram([4.5, 3.25], 20)[0])
    for panel, between in zip(others[-2:], (PAIRS, PAIRS[:2, :2]), strict=True):
        np.testing.assert_allclose(np.nan_to_num(panel.images[0], nan=1.0), between)


def test_attack():
    losses, similarities = (
        {"before": [0.5, 0.4], "after": [0.6, 0.2]},
        {"before": [0.9, 0.8], "after": [0.1, 0.3]},
    )
    left, right = drawn(
        neuron_figures.plot_attack,
        losses,
        {k: torch.tensor(v) for k, v in similarities.items()},
        0.7,
    ).panels
    assert_line(left, "before", [0, 1], losses["before"])
    assert_line(left, "image", [0, 1], losses["after"])
    np.testing.assert_allclose(
        list(right.points.values()), [[(0, 0.9), (0, 0.8)], [(1, 0.1), (1, 0.3)]], rtol=1e-6
    )
    assert right.horizontals() == {"replication threshold": 0.7} and right.xticks == [
        "before",
        "after",
    ]
    assert (left.xlabel, left.ylabel, right.ylabel) == (
        "step of the attack",
        "diffusion loss",
        "similarity to the target",
    )
    assert (left.title, right.title) == ("Attack", "Did it come back?") and left.legend == [
        "before",
        "image",
    ]


def test_unlearning():
    losses = UnlearningLosses(wavy(40), wavy(30, 1), wavy(30, 2))
    left, right = drawn(neuron_figures.plot_unlearning, losses).panels
    assert_line(left, "surrogates", range(1, 31), running(losses.surrogates))
    assert_line(left, "ordinary prompts", range(1, 31), running(losses.ordinary))
    (line,) = right.lines.values()
    np.testing.assert_allclose(line, pairs(range(1, 41), running(losses.attack)))
    assert (left.xlabel, right.xlabel) == (
        "step of the training",
        "step of the attack",
    ) and left.scales[1] == "log"
    assert (left.title, right.title) == ("Training", "Attack on the image") and len(
        left.legend
    ) == 2


def _that_draw():
    """Every function of the pack that is handed a figure or a panel to draw on, as its module and
    its name.
    """
    for path in sorted((repository.ROOT / "nodes").glob("[!h]*/**/*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and [one.arg for one in node.args.args][:1] in (
                ["figure"],
                ["axes"],
            ):
                yield f"{path.stem}.{node.name}"


def test_every_figure_is_read_off():
    """A new function that draws on a figure needs a test in a file of figures, which reads its
    numbers off.
    """
    found = list(_that_draw())
    assert len(found) > 25
    tests = "".join(
        path.read_text("utf-8") for path in Path(__file__).parent.rglob("test_*figures.py")
    )
    assert [name for name in found if name not in tests] == []
