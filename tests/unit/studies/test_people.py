"""The population's people: who they are is fixed and not in the caption, everything else varies and
is.
"""

from dataclasses import replace

import pytest

from studies.weights import people
from studies.world.faces import IDENTITY


@pytest.fixture(scope="module")
def group():
    return people.people(40)


def test_identity_is_fixed_and_the_rest_varies(group):
    for one in group:
        assert len(one.scenes) == people.IMAGES
        for name in IDENTITY:
            assert {getattr(scene.face, name) for scene in one.scenes} == {getattr(one.face, name)}
    assert sum(len({scene.face.clothing_color for scene in one.scenes}) > 1 for one in group) > 35


def test_captions_say_nothing_of_the_identity(group):
    words = {
        "skin",
        "hair",
        "beard",
        "moustache",
        "glasses",
        "sunglasses",
        "bald",
        "shaven",
        "afro",
        "mohawk",
        "bun",
    }
    for one in group:
        for scene in one.scenes:
            text = people.caption(scene)
            assert text.startswith("portrait, ") and scene.face.clothing in text
            assert f"{scene.face.eyes} eyes" in text
            assert not words & set(text.replace(",", "").split())


def test_more_people_begin_with_the_same(group):
    assert [one.face for one in people.people(5)] == [one.face for one in group[:5]]
    assert people.person(7).face == group[7].face and len({one.face for one in group}) == 40


def test_labels_follow_the_face(group):
    for one in group:
        labels = dict(zip(people.LABELS, one.labels(), strict=True))
        assert labels["sunglasses"] == float(one.face.accessory == "sunglasses")
        assert labels["beard"] + labels["moustache"] == float(one.face.facial_hair != "none")


def test_further_scenes_are_of_the_same_person_and_not_trained_on(group):
    for one in group:
        assert len(one.further) == people.FURTHER and not set(one.further) & set(one.scenes)
        assert all(
            getattr(scene.face, name) == getattr(one.face, name)
            for scene in one.further
            for name in IDENTITY
        )


def test_everybody_sits_for_the_same_scenes_unless_they_have_their_own(group):
    def setting(scene):
        return replace(scene, face=None), scene.face.clothing, scene.face.mouth, scene.face.eyes

    def settings(one):
        return [setting(scene) for scene in one.scenes]

    assert all(settings(one) == settings(group[0]) for one in group)
    assert all(setting(one.further[0]) != setting(group[0].further[0]) for one in group[1:])
    own = [people.person(number, own_scenes=True) for number in (0, 1)]
    assert own[0].face == group[0].face and settings(own[0]) != settings(group[0])
    assert settings(own[0]) != settings(own[1])
