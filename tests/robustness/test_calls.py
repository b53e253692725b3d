"""A few of the prompts of `run.py fuzz --calls`: with areas, with areas on both sides, a couple,
tiles.
"""

import pytest
from robustness import call_reference as reference
from robustness.call_subjects import SUBJECTS

pytestmark = pytest.mark.slow

#: Prompts of seed 1, some of which ended wrong before: repeated texts, rows that a couple doubles,
#: tiles, ranges.
_NUMBERS = (0, 5, 2, 3, 36, 63)
_WITH_MASKS, _STEERING = (4, 20, 28), "Activation Steering"


@pytest.fixture(scope="module")
def bench(app):
    return reference.Bench(app)


@pytest.mark.parametrize("number", _NUMBERS)
def test_every_node_ends_as_each_part_alone_or_in_a_sentence(bench, number):
    ends = {
        name: (kind, message)
        for name, kind, message in bench.try_case(reference.make_case(number, 1), SUBJECTS)
    }
    assert ends.keys() == SUBJECTS.keys()
    assert not {name: end for name, end in ends.items() if end[0] in reference.DEFECTS}


def test_the_reference_notices_a_mask_that_is_not_cut(bench, monkeypatch):
    """Squeezed into every area, as it was once."""
    monkeypatch.setattr(
        bench.app.module("nodes.common.network_call").Area, "cut", lambda self, mask: mask
    )
    only = {_STEERING: SUBJECTS[_STEERING]}
    ends = [
        kind
        for number in _WITH_MASKS
        for _, kind, _ in bench.try_case(reference.make_case(number, 1), only)
    ]
    assert ends == ["wrong"] * len(_WITH_MASKS)
