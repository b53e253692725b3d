"""Curves of losses for the canvas: as true as few points can be."""

import json
import math

import pytest
from glassbox.nodes.common import loss_curve


def test_the_running_mean():
    losses = [float(number % 7) for number in range(60)]
    wanted = [sum(losses[max(end - 25, 0) : end]) / min(end, 25) for end in range(1, 61)]
    assert loss_curve.running_mean(losses) == pytest.approx(wanted)
    assert loss_curve.running_mean([]) == []


def test_a_short_run_keeps_every_loss():
    losses = [0.5, 0.25, 0.125, 0.75]
    drawn = loss_curve.outline(losses, steps=10, per_step=2, validation=[(0, 0.3), (2, 0.2)])
    assert drawn["each"] == [[0.5, 0.5], [1.0, 0.25], [1.5, 0.125], [2.0, 0.75]]
    assert [loss for _, loss in drawn["mean"]] == pytest.approx(
        loss_curve.running_mean(losses), rel=1e-4
    )
    assert (drawn["steps"], drawn["validation"]) == (10, [[0, 0.3], [2, 0.2]])


@pytest.mark.parametrize("count", [200, 201, 5000, 33_333])
def test_a_long_run_takes_few_points_over_its_whole_length(count):
    losses = [1 + number / count for number in range(count)]
    drawn = loss_curve.outline(losses, count)
    for name in ("each", "mean"):
        steps = [step for step, _ in drawn[name]]
        assert 100 < len(steps) <= 200 and steps[-1] == count and steps == sorted(set(steps))
        for step, loss in drawn[name]:
            assert loss == pytest.approx(losses[int(step) - 1], abs=256 / count + 0.01)
    assert len(json.dumps(drawn)) < 10_000


def test_points_stay_where_they_are_while_a_run_goes_on():
    losses = [math.sin(number) for number in range(400)]
    before, after = (loss_curve.outline(losses[:count], 1000)["each"] for count in (300, 340))
    assert after[: len(before)] == before


def test_losses_that_are_not_finite_are_left_out():
    drawn = loss_curve.outline([1.0], 5, validation=[(0, math.inf), (1, math.nan), (2, 0.5)])
    assert drawn["validation"] == [[2, 0.5]]
    assert loss_curve.outline([], 5) == {
        "steps": 5,
        "smooth": 25,
        "each": [],
        "mean": [],
        "validation": [],
    }
