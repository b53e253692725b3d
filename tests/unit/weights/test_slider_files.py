"""Which slider LoRAs a text of strengths names."""

from pathlib import Path

import pytest
from glassbox.nodes.weights.slider_files import (
    NamedStrength,
    SliderFile,
    names_of,
    outline,
    resolve_name,
    short_name,
    strengths_of,
    wired_sliders,
)
from glassbox.nodes.weights.slider_phrases import SliderPhrases

FILES = ["old.safetensors", "details\\film.pt", "old.v2.safetensors", "Smile.sft"]
BEARD = SliderPhrases(increase="majestic beard", decrease="shaven")


def wired(*names: str) -> list[SliderFile]:
    return [SliderFile(name=name, path=Path(f"{name}.safetensors"), labels=None) for name in names]


def named(text: str, *names: str) -> list[tuple[str, str, float]]:
    found = strengths_of(text, wired(*names), FILES)
    return [(each.name, each.file, each.strength) for each in found]


def test_names_are_files_without_their_ending():
    assert list(map(short_name, FILES)) == ["old", "details/film", "old.v2", "Smile"]
    assert strengths_of("old: 0.5", [], FILES) == [
        NamedStrength(name="old", file="old.safetensors", strength=0.5)
    ]
    assert named("old.v2: -1, details/film: 2, old: 1") == [
        ("old.v2", "old.v2.safetensors", -1.0),
        ("details/film", "details\\film.pt", 2.0),
        ("old", "old.safetensors", 1.0),
    ]
    assert named("old.safetensors: 0.5, details\\film: 1")[1] == (
        "details/film",
        "details\\film.pt",
        1.0,
    )


def test_case_does_not_count_unless_two_names_differ_in_it():
    assert named("OLD: 1, smile: 2") == [
        ("old", "old.safetensors", 1.0),
        ("Smile", "Smile.sft", 2.0),
    ]
    assert named("Beard: 1", "beard") == [("beard", "", 1.0)]
    both = names_of(["Old.safetensors", "old.safetensors"])
    assert resolve_name("old", both) == "old.safetensors"
    assert resolve_name("Old", both) == "Old.safetensors"
    assert resolve_name("OLD", both) is None


def test_strengths_of_one_slider_add_up():
    assert named("old: 0.5, smile: 1, Old.safetensors: 0.25") == [
        ("old", "old.safetensors", 0.75),
        ("Smile", "Smile.sft", 1.0),
    ]


def test_of_two_files_with_one_name_the_first_is_meant():
    assert names_of(["a.safetensors", "a.pt"]) == {"a": "a.safetensors"}


def test_a_wired_slider_comes_before_a_file_of_its_name():
    assert named("old: 1", "old") == [("old", "", 1.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("young: 1", r"There is no LoRA 'young' in models/loras: .*such as beard, .*, or connect"),
        ("old", "'old' is not an edit: write a name, a colon and a strength"),
        ("old: much", "is not an edit"),
    ],
)
def test_what_is_no_slider_gets_a_sentence(text, message):
    with pytest.raises(ValueError, match=message):
        strengths_of(text, wired("beard"), FILES)


def test_without_any_file_no_example_is_given():
    with pytest.raises(ValueError, match="without its ending, or connect files"):
        strengths_of("old: 1", [], [])


def test_wired_sliders_are_named_by_their_phrase_or_their_file():
    paths = [Path(name) for name in ("a_00001_.safetensors", "b_00002_.safetensors", "c.pt")]
    paths.append(Path("d_00001_.safetensors"))
    headers = {paths[0]: BEARD.header(), paths[3]: BEARD.header()}
    sliders = wired_sliders(paths, lambda path: headers.get(path, {}))
    assert [slider.name for slider in sliders] == ["majestic_beard", "b", "c", "majestic_beard_2"]
    assert [slider.path for slider in sliders] == paths
    outlines = [outline(slider.name, slider.labels) for slider in sliders]
    assert outlines[0] == {
        "name": "majestic_beard",
        "increase": "majestic beard",
        "decrease": "shaven",
    }
    assert outlines[1] == {"name": "b"}


def test_names_of_wired_sliders_are_all_different():
    """A number that a phrase of its own ends with is not given a second time."""
    headers = [
        SliderPhrases(increase=text, decrease="").header() for text in ("old", "old", "old 2")
    ]
    paths = [Path(f"{number}.safetensors") for number in range(len(headers))]
    sliders = wired_sliders(paths, dict(zip(paths, headers, strict=True)).get)
    assert [slider.name for slider in sliders] == ["old", "old_2", "old_2_2"]
