"""Rates that are promised for few prompts or images: each one is judged by the threshold of all
others.
"""

import numpy as np
import pytest
from glassbox.nodes.neurons import score_threshold
from glassbox.nodes.neurons.image_similarity import calibrate_replication


@pytest.mark.parametrize("deviations", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    "scores", [[0.1, 0.2, 0.9], [0.30, 0.34, 0.31, 0.60], [0.2, 0.9, 0.25, 0.85, 0.22]]
)
def test_a_prompt_is_not_part_of_the_threshold_that_judges_it(scores, deviations):
    """By hand: with itself an outlier widens its own threshold, and few scores can lie over any."""
    over = 0
    for number, score in enumerate(scores):
        others = [other for place, other in enumerate(scores) if place != number]
        mean = sum(others) / len(others)
        variance = sum((other - mean) ** 2 for other in others) / (len(others) - 1)
        over += score > mean + deviations * variance**0.5
    rate, low, high = score_threshold.calibrate(scores, deviations).false_positives
    assert rate == over / len(scores) and low <= rate <= high
    assert high < 1 or over == len(scores)


def test_leaving_out_itself_counts_more_than_the_threshold_of_all():
    scores = [0.30, 0.34, 0.31, 0.60]
    threshold = score_threshold.calibrate(scores, 2.0)
    assert not any(score > threshold.value for score in scores)
    assert threshold.false_positives[0] == 0.25


def test_the_threshold_of_few_prompts_has_the_unbiased_deviation():
    assert score_threshold.calibrate([0.1, 0.2, 0.6], 1.0).value == pytest.approx(
        0.3 + np.sqrt(0.07)
    )


def test_a_control_image_is_not_part_of_the_threshold_that_judges_it():
    """Halfway between the largest of the others, .3, and the median untouched image, .9: .6, under
    .7.
    """
    found = calibrate_replication([0.9, 0.95, 0.8], [0.1, 0.3, 0.7])
    assert found.value == pytest.approx(0.8)
    assert found.false_positives[0] == pytest.approx(1 / 3)
    assert calibrate_replication([0.9, 0.95, 0.8], [0.1, 0.3, 0.5]).false_positives[0] == 0
