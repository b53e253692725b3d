"""Seed Scout: its scores against brute force and NumPy, the order of the seeds, and the sheet."""

import numpy as np
import pytest
import torch
from glassbox.nodes.activations.seed_scout import (
    Scores,
    draw_sheet,
    layout_likeness,
    report,
    word_coverage,
)


def drawn(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def test_coverage_is_the_least_focus_of_the_words():
    """Word by word and position by position."""
    maps = {word: drawn(5, 4, 6, seed=number) for number, word in enumerate(("red", "hat", "dog"))}
    scores = word_coverage(maps)
    focus = {
        word: [max(values) / (sum(values) / 24) for values in one.flatten(1).tolist()]
        for word, one in maps.items()
    }
    for index in range(5):
        relative = {word: values[index] / (sum(values) / 5) for word, values in focus.items()}
        assert float(scores.values[index]) == pytest.approx(min(relative.values()), abs=1e-5)
        assert scores.notes[index] == min(relative, key=relative.get)


def test_a_word_that_gets_little_attention_in_every_seed_does_not_decide():
    strong, weak = drawn(4, 8, 8), drawn(4, 8, 8, seed=1)
    assert torch.allclose(
        word_coverage({"a": strong, "b": weak}).values,
        word_coverage({"a": strong, "b": weak / 1000}).values,
    )


def test_layout_likeness_is_the_correlation_of_block_means():
    images, reference = drawn(3, 32, 48, 3), drawn(1, 64, 64, 3, seed=1)
    found = layout_likeness(images, reference).values

    def blocks(image):
        return (
            image.numpy()
            .reshape(16, image.shape[0] // 16, 16, image.shape[1] // 16, 3)
            .mean((1, 3))
            .ravel()
        )

    expected = [np.corrcoef(blocks(image), blocks(reference[0]))[0, 1] for image in images]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)
    assert float(layout_likeness(images[:1] * 0.5, images[:1]).values) == pytest.approx(1, abs=1e-5)


def test_seeds_are_ranked_best_first_and_ties_keep_their_order():
    scores = Scores(torch.tensor([0.2, 0.9, 0.2, 0.5]), "test", ("a", "b", "c", "d"))
    assert scores.order() == [1, 3, 0, 2]
    assert report([7, 8, 9, 10], scores, 2).splitlines() == [
        "Ranked by test; the first 2 are selected.",
        "1. seed 8  0.9000  b",
        "2. seed 10  0.5000  d",
        "3. seed 7  0.2000  a",
        "4. seed 9  0.2000  c",
    ]


def test_the_sheet_names_every_seed():
    from matplotlib.figure import Figure

    figure = Figure()
    draw_sheet(figure, 3, drawn(4, 8, 8, 3), [7, 8, 9, 10], Scores(torch.arange(4.0), "test"), 1)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["seed 10\n3", "seed 9\n2", "seed 8\n1", "seed 7\n0", "", ""]
    assert [axes.spines["left"].get_linewidth() for axes in figure.axes[:2]] == [4, 1]
