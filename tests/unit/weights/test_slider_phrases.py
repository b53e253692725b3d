"""Phrases of sliders as a person writes them, and the labels in a slider's file."""

import pytest
from glassbox.nodes.weights.slider_phrases import (
    LABELS,
    SliderPhrases,
    labels_of,
    lines_of,
    parse_sliders,
    prompt_of,
    prompts_of,
)


def test_one_slider_a_line():
    sliders = parse_sliders("old, wrinkled\n beard \n", "young\n\n")
    assert sliders == [
        SliderPhrases(increase="old, wrinkled", decrease="young"),
        SliderPhrases(increase="beard", decrease=""),
    ]
    assert [slider.name for slider in sliders] == ["old, wrinkled / young", "beard"]
    assert [slider.slug for slider in sliders] == ["old_wrinkled", "beard"]
    assert parse_sliders("old", "") == [SliderPhrases(increase="old", decrease="")]
    assert parse_sliders("a\nb\nc", "d\n\nf")[1] == SliderPhrases(increase="b", decrease="")


@pytest.mark.parametrize(
    ("increase", "decrease", "message"),
    [
        ("", "young", "There is no phrase"),
        (" \n ", "", "There is no phrase"),
        ("old", "young\nshaven", "Phrases in increase: 1, lines in decrease: 2"),
        ("old\n\nbeard", "young\nshaven\nbald", "Phrases in increase: 2"),
    ],
)
def test_phrases_that_are_no_sliders_get_a_sentence(increase, decrease, message):
    with pytest.raises(ValueError, match=message):
        parse_sliders(increase, decrease)


def test_prompts_of_every_scene_phrase_and_preserved_concept_once():
    sliders = parse_sliders("old", "")
    prompts = prompts_of(["a man", "a cat"], sliders, ["tall", ""])
    assert prompts == [
        "a man",
        "a cat",
        "a man, tall, old",
        "a man, tall",
        "a man, old",
        "a cat, tall, old",
        "a cat, tall",
        "a cat, old",
    ]
    assert prompt_of("", "", "old") == "old"
    assert lines_of(" a \n\n b") == ["a", "b"]


@pytest.mark.parametrize(
    ("base_prompt", "phrases", "prompt"),
    [
        ("portrait, WORD, blue hoodie", ("", "old"), "portrait, old, blue hoodie"),
        ("portrait, WORD, blue hoodie", ("man", "old"), "portrait, man, old, blue hoodie"),
        ("portrait, WORD, blue hoodie", ("", ""), "portrait, blue hoodie"),
        ("photo of a WORD person", ("old",), "photo of a old person"),
        ("photo of a WORD person", (), "photo of a person"),
        ("WORD", (), ""),
        ("a SWORD, WORDS", ("old",), "a SWORD, WORDS, old"),
        ("a SWORD, WORDS", (), "a SWORD, WORDS"),
        ("portrait, WORD", (r"C:\1",), r"portrait, C:\1"),
    ],
)
def test_phrases_take_the_place_of_word(base_prompt, phrases, prompt):
    assert prompt_of(base_prompt, *phrases) == prompt


def test_a_scene_with_a_place_for_phrases_is_its_own_prompt_without_it():
    assert prompts_of(["a man, WORD, indoors"], parse_sliders("old", "young"), [""]) == [
        "a man, indoors",
        "a man, old, indoors",
        "a man, young, indoors",
    ]


def test_labels_of_a_file():
    slider = SliderPhrases(increase='old "man"', decrease="young")
    assert labels_of(slider.header()) == slider
    for text in ("", "[", "[]", "1", '{"increase": 1, "decrease": "a"}', "[" * 100_000):
        assert labels_of({LABELS: text}) is None
    assert labels_of({}) is None
    long = SliderPhrases(increase="a " * 500, decrease="\n")
    assert len(labels_of(long.header()).increase) == 80 and labels_of(long.header()).decrease == ""
    assert SliderPhrases(increase="???", decrease="").slug == "slider"
    assert SliderPhrases(increase="", decrease="").name == "slider"
    assert len(SliderPhrases(increase="x" * 300, decrease="").slug) == 40


@pytest.mark.parametrize("decrease", ["young\n\nbald", "\nyoung\n\nbald", "\n\nyoung\n\nbald"])
def test_empty_lines_above_keep_the_pairs(decrease):
    sliders = parse_sliders("\n\nold\nbeard\nhair", decrease)
    assert [slider.decrease for slider in sliders] == ["young", "", "bald"]


def test_an_empty_partner_of_the_first_slider_stays():
    assert [slider.decrease for slider in parse_sliders("old\nhair", "\nbald")] == ["", "bald"]
