"""What an audit says of the similarities that it has measured."""

import re

import pytest
from glassbox.nodes.neurons.audit import attack_rise, attack_verdict


def test_the_attack_is_compared_with_a_control_image_under_the_same_mask():
    """Each rise is after less before, with its sign: the image falls from .62 to .55, the control
    rises by .13.
    """
    line = attack_rise(0.62, 0.55, 0.41, 0.54)
    assert re.findall(r"[+-]?\d\.\d{3}", line) == ["-0.070", "0.550", "+0.130", "0.540"]
    assert line.index("control image") > line.index("0.550") and "Under the same mask" in line


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        ((0.8, 0.9, None), "without any attack"),
        ((0.5, 0.7, None), "did not come back in this attack"),  # at the threshold is not over it
        ((0.5, 0.9, 0.8), "so did the control"),
        ((0.5, 0.9, 0.7), "and the control image did not"),
        ((0.5, 0.9, None), "The image came back: the mask"),
    ],
)
def test_the_verdict_follows_from_before_after_and_control(measured, says):
    assert says in attack_verdict(*measured, 0.7)
