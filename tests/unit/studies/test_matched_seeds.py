"""What the study of edits with four noise seeds measures on whom."""

import numpy as np

from studies.weights import matched_seeds, phrases, setup
from studies.weights.people import SEED, person
from studies.world.faces import COLORLESS_HAIR


class _Space:
    members = tuple(f"person_{number:04}" for number in range(512))


def study():
    return setup.Study(_Space(), None, None, 0)


def test_people_are_none_of_the_other_study_and_of_no_trained_scene():
    order = np.random.default_rng(20261122).permutation(512)
    late = {person(int(number), SEED).name for number in order[-phrases.SCENES :]}
    for name in setup.EDITS:
        group = matched_seeds.lacking(study(), name, matched_seeds.MEMBERS)
        assert len(group) == matched_seeds.MEMBERS
        measured = {one.name for one in study().members(without=name, count=50)}
        names = {one.name for one in group}
        assert not names & measured and not names & late


def test_prompts_name_red_hair_in_the_own_style_of_each():
    group = matched_seeds.lacking(study(), "red hair", 5)
    assert all(one.face.hair not in COLORLESS_HAIR for one in group)
    texts = matched_seeds.asking(group, "red hair", matched_seeds.OWN_STYLE)
    for one, text in zip(group, texts, strict=True):
        assert " red" in text and text.startswith("portrait, ")
        styled = {"bun": "red bun", "long": "long red hair", "bob": "red bob"}
        assert styled.get(one.face.hair, "red") in text
    assert all(
        "short red hair" in text for text in matched_seeds.asking(group, "red hair", "prompt")
    )
