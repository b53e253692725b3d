"""The report of a rescaled schedule names both shifts."""

from glassbox.nodes.conditioning import noise_rescale


def test_a_schedule_that_is_shifted_already_is_named_with_both_shifts():
    text = noise_rescale.describe_shift(3.0, 1.15)
    assert "shifted already (3 instead of 1.15)" in text and "remove one of the two nodes" in text
