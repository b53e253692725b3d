"""What several schedules of mode embedding cost."""

import pytest


@pytest.mark.parametrize("count", [1, 2, 4])
def test_n_schedules_have_2_to_the_n_minus_1_references(app, count):
    """One for every combination with a closed gate, under a name of its own."""
    choices = app.module("nodes.conditioning.metadata_schedule_comfy")._choices([None] * count)
    assert len(set(choices.values())) == 2**count - 1
    assert all(len(closed) == count and any(closed) for closed in choices.values())
