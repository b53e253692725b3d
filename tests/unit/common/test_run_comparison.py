"""Two runs compared: which is lower, at which of their common steps, and what cannot be
compared.
"""

import matplotlib.figure
import pytest
from glassbox.nodes.common.training import run_comparison

RUNS = {
    "plain": {"loss": [1.0, 0.5, 0.4, 0.4], "validation": [[0, 0.9], [1, 0.5], [2, 0.6]]},
    "paired": {"loss": [0.9, 0.4], "validation": [[0, 0.9], [2, 0.48]]},
}


def test_common_steps_and_the_difference_are_reported():
    assert run_comparison.shared_steps(RUNS) == [(0, [0.9, 0.9]), (2, [0.6, 0.48])]
    text = run_comparison.describe_comparison(RUNS)
    assert "At step 2 paired is 20.00 % below plain; so it is at 1 of 2 steps." in text
    assert "plain: lowest held-out loss 0.5 at step 1, last 0.6." in text


def test_a_run_that_was_finished_early_is_named():
    runs = {"short": {**RUNS["paired"], "finished_at": [2, 32]}, "plain": RUNS["plain"]}
    text = run_comparison.describe_comparison(runs)
    assert (
        text.startswith("short: finished at 2 of 32 steps.\nshort: lowest")
        and text.count("finished at") == 1
    )


def test_runs_without_held_out_images_say_what_to_set():
    runs = {"a": {"loss": [1.0]}, "b": RUNS["plain"]}
    assert "a: no held-out loss; set held_out" in run_comparison.describe_comparison(runs)
    assert run_comparison.shared_steps(runs) == []


def test_training_losses_lie_at_optimizer_steps():
    """Four batches in two steps: half a step each."""
    figure = matplotlib.figure.Figure()
    run_comparison.draw_comparison(figure, RUNS)
    held_out, training = figure.axes
    assert [line.get_label() for line in held_out.lines] == ["plain", "paired"]
    assert training.lines[0].get_xdata().tolist() == [0.5, 1.0, 1.5, 2.0]
    assert training.lines[1].get_xdata().tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("runs", "sentence"),
    [
        ({"a": RUNS["plain"]}, "Both runs have the same name"),
        ({"a\nb": {"loss": []}, "c": {}}, r"^'a\\nb' holds no losses"),
    ],
)
def test_loss_maps_that_cannot_be_compared_are_refused(runs, sentence):
    with pytest.raises(ValueError, match=sentence):
        run_comparison.check_loss_maps(runs)
