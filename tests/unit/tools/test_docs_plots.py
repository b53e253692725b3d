"""Plots of measured numbers in documents."""

import json

import pytest

from tools import docs_plots

_NUMBER = {"low": 0.1, "high": 0.3, "n": 9, "what": "something"}


@pytest.fixture
def document(tmp_path, monkeypatch):
    """A document that asks for a plot of two of three numbers."""
    numbers = {
        "a, new": {"value": 0.2, "unit": "fraction", **_NUMBER},
        "b, new": {"value": 0.25, "unit": "fraction", **_NUMBER},
        "c": {"value": 7, "unit": "steps", **_NUMBER},
    }
    results = tmp_path / "studies" / "results"
    results.mkdir(parents=True)
    (results / "made.json").write_text(
        json.dumps({"command": "python run.py study made", "numbers": numbers})
    )
    monkeypatch.setattr(docs_plots, "ROOT", tmp_path)
    monkeypatch.setattr(docs_plots, "FOLDER", tmp_path / "docs" / "images" / "plots")
    return tmp_path / "docs" / "made.md", "<!-- plot made_new made: new$ -->\nold\n<!-- end -->\n"


def test_a_plot_block_gets_image_command_and_source(document):
    path, text = document
    filled = docs_plots.filled(text, path)
    alternative = "Plot of 2 values (fraction), from 0.20 of a, new to 0.25 of b, new."
    assert f"![{alternative}](images/plots/made_new.png)" in filled and "old" not in filled
    assert "[Numbers](../studies/results/made.json) by `python run.py study made`" in filled
    assert docs_plots.filled(filled, path) == filled


def test_a_plot_is_stale_until_it_is_drawn_and_when_a_number_changes(document):
    _, text = document
    plots = docs_plots.requested(text)
    image = docs_plots.FOLDER / "made_new.png"
    assert docs_plots.stale(plots) == [image]
    docs_plots.write(image, plots["made_new"])
    assert docs_plots.stale(plots) == []
    plots["made_new"]["a, new"]["value"] = 0.21
    assert docs_plots.stale(plots) == [image]
    assert docs_plots.stale({}) == [image], "an image that no document shows"


def test_effect_is_set_against_cost(document):
    path, _ = document
    numbers = {
        f"{name}: {axis}": {"value": value, "unit": "fraction", **_NUMBER}
        for name, values in {
            "way 1.0": (0.9, 0.3),
            "way 2.0": (0.5, 0.8),
            "rival": (0.7, 0.6),
        }.items()
        for axis, value in zip(("kept", "reached"), values, strict=True)
    }
    made = {
        "command": "python run.py study made",
        "numbers": numbers | {"floor: reached": {"value": 0.1}},
    }
    (docs_plots.ROOT / "studies" / "results" / "made.json").write_text(json.dumps(made))
    text = "<!-- plot made_both made: way .*|rival; : kept; : reached -->\n<!-- end -->\n"
    plots = docs_plots.requested(text)
    assert list(plots["made_both"]) == ["way 1.0", "way 2.0", "rival"]
    assert plots["made_both"]["rival"]["axes"] == ["kept", "reached"]
    assert "Lines are 95 % intervals" in docs_plots.filled(text, path)
    assert "![Plot of 3 settings: reached over kept.](" in docs_plots.filled(text, path)
    image = docs_plots.FOLDER / "made_both.png"
    docs_plots.write(image, plots["made_both"])
    assert docs_plots.stale(plots) == []
    with pytest.raises(ValueError, match="no point"):
        docs_plots.requested(text.replace("way .*|rival", "nothing"))


def test_a_number_without_an_interval_is_a_point(document):
    path, text = document
    made = docs_plots.ROOT / "studies" / "results" / "made.json"
    made.write_text(made.read_text().replace('"low"', '"least"'))
    assert "*No intervals: fewer than five independent units." in docs_plots.filled(text, path)
    image = docs_plots.FOLDER / "made_new.png"
    docs_plots.write(
        image, {"few": {"value": 0.2, "n": 3, "unit": "fraction", "what": "something"}}
    )
    assert image.is_file()


@pytest.mark.parametrize("pattern", ["nothing", "."])
def test_a_plot_needs_numbers_of_one_unit(document, pattern):
    with pytest.raises(ValueError, match="one unit"):
        docs_plots.requested(f"<!-- plot made_new made: {pattern} -->\n<!-- end -->")


def test_the_front_holds_what_no_other_point_beats(document):
    points = {
        "none": (0, 0),
        "good": (0.1, 0.8),
        "beaten": (0.2, 0.8),
        "best": (0.3, 0.9),
        "worst": (0.4, 0.1),
    }
    numbers = {}
    for name, (cost, effect) in points.items():
        both = {name: effect, f"{name}, changed": cost}
        numbers |= {
            key: {"value": value, "unit": "fraction", **_NUMBER} for key, value in both.items()
        }
    made = {"command": "python run.py study made", "numbers": numbers}
    (docs_plots.ROOT / "studies" / "results" / "made.json").write_text(json.dumps(made))
    line = "<!-- plot made_front made: .*; , changed; ; front -->\n<!-- end -->\n"
    rows = docs_plots.requested(line)["made_front"]
    assert [name for name in rows if "front" in rows[name]] == ["none", "good", "best"]
    assert docs_plots.pareto_front(rows) == ["none", "good", "best"]
    rows = docs_plots.requested(line.replace("; front", ""))["made_front"]
    assert not any("front" in both for both in rows.values())
