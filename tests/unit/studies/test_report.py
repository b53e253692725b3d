"""Documents get their tables from the result files."""

import json
from types import SimpleNamespace

import pytest
import repository

from tools import docs_numbers

NUMBER = {"value": 0.5, "low": 0.25, "high": 0.75, "n": 8, "unit": "fraction", "what": "half"}
TEXT = "before\n<!-- numbers x: ^a -->\nold\n<!-- end -->\nafter\n"


@pytest.fixture
def results(tmp_path):
    content = {"command": "python run.py study x", "numbers": {"a one": NUMBER, "b two": NUMBER}}
    (tmp_path / "x.json").write_text(json.dumps(content))
    return tmp_path


def test_a_table_is_made_again(results):
    text = docs_numbers.filled(TEXT, results)
    assert (
        "| a one | 0.500 fraction | 0.250 to 0.750 | 8 | half |" in text
        and "old" not in text
        and "b two" not in text
    )
    assert "Made by `python run.py study x`." in text and text.endswith("<!-- end -->\nafter\n")
    assert docs_numbers.filled(text, results) == text


def test_a_single_number_stays_within_its_line(results):
    text = (
        "It is <!-- value x: a one -->?<!-- end --> (<!-- interval x: a one -->!<!-- end -->) here."
    )
    assert docs_numbers.filled(text, results) == text.replace("?", "0.50").replace(
        "-->!<", "-->0.25 to 0.75<"
    )


def test_a_pattern_without_a_number_is_an_error(results):
    with pytest.raises(ValueError, match="No number"):
        docs_numbers.filled(TEXT.replace("^a", "^c"), results)


def test_numbers_of_a_result_are_printed(results, monkeypatch, capsys):
    monkeypatch.setattr(docs_numbers, "RESULTS", results)
    assert docs_numbers.show(["x", "^b"]) == 0
    printed = capsys.readouterr().out
    assert "| b two | 0.500 fraction |" in printed and "a one" not in printed
    assert docs_numbers.show(["x"]) == 0 and "a one" in capsys.readouterr().out
    assert (
        docs_numbers.show(["y"]) == 1
        and capsys.readouterr().out == "There is no result named y: there are x.\n"
    )
    assert docs_numbers.show(["x", "^c"]) == 1 and "No number" in capsys.readouterr().out


def test_nodes_are_listed():
    text = docs_numbers.with_nodes(
        "<!-- nodes -->\n<!-- end -->", [("A Node", "glassbox/x", "Does it.")]
    )
    assert "| **A Node** | glassbox/x | Does it. |\n<!-- end -->" in text


def _field(id_, kind, tooltip="What it is.", optional=False, **given):
    return SimpleNamespace(
        id=id_, get_io_type=lambda: kind, tooltip=tooltip, optional=optional, **given
    )


@pytest.mark.parametrize(
    ("field", "line"),
    [
        (_field("model", "MODEL"), "- `model` (MODEL): What it is."),
        (_field("mask", "MASK", optional=True), "- `mask` (MASK, optional): What it is."),
        (
            _field("k", "INT", default=8, min=1, max=64),
            "- `k` (INT, 1 to 64, default `8`): What it is.",
        ),
        (
            _field("cfg", "FLOAT", default=0.5, min=0.0, max=30.0),
            "- `cfg` (FLOAT, 0 to 30, default `0.5`): What it is.",
        ),
        (
            _field("seed", "INT", default=0, min=0, max=2**64 - 1),
            "- `seed` (INT, default `0`): What it is.",
        ),
        (
            _field("on", "BOOLEAN", default=False, optional=True),
            "- `on` (BOOLEAN, default `false`): What it is.",
        ),
        (
            _field("form", "COMBO", options=["a", "b_c"]),
            "- `form` (one of `a`, `b_c`): What it is.",
        ),
        (
            _field("form", "COMBO", options=["a", "b"], default="b"),
            "- `form` (one of `a`, `b`, default `b`): What it is.",
        ),
        (
            _field("many", "COMBO", options=[*"abcdefghi"], default="c"),
            "- `many` (COMBO, default `c`): What it is.",
        ),
        (_field("file", "COMBO", options=["a.safetensors"]), "- `file` (file): What it is."),
        (
            _field("ids", "STRING", "Such as up-*-q,\n<end> or _z.", default=""),
            r"- `ids` (STRING): Such as up-\*-q, / \<end> or \_z.",
        ),
    ],
)
def test_the_inputs_of_a_help_page_come_from_the_schema(field, line):
    page = "## Inputs\n\n<!-- inputs -->\n- `old`: x\n<!-- end -->\n\n- `ids`: more.\n"
    text = docs_numbers.with_inputs(page, [field])
    assert text == f"## Inputs\n\n<!-- inputs -->\n{line}\n<!-- end -->\n\n- `ids`: more.\n"
    assert docs_numbers.with_inputs(text, [field]) == text


def test_costs_have_a_row_a_node(tmp_path):
    about = {"n": 3, "unit": "", "what": "one word"}
    values = {
        "takes": 7.0,
        "rival": 14.0,
        "over rival": 0.5,
        "of an evaluation": 0.00123,
        "memory": 3.25,
    }
    numbers = {
        f"TokenHeatMap, SD1.5: {name}": {"value": value, **about} for name, value in values.items()
    }
    numbers["SD1.5, network: operations"] = {"value": 1.6, **about}
    path = tmp_path / "bench_nodes.json"
    path.write_text(json.dumps({"numbers": numbers}))
    text = docs_numbers.with_costs(
        "<!-- costs -->\nold\n<!-- end -->", {"GBX_TokenHeatMap": "Token Heat Map"}, path
    )
    assert (
        "| Token Heat Map | one word | one word | 7 · 0.12 % · 0.5 | 3.2 |" in text
        and "old" not in text
    )
    assert docs_numbers.with_costs(text, {"GBX_TokenHeatMap": "Token Heat Map"}, path) == text


def test_rows_of_costs_and_reasons_name_nodes_once():
    """A node without either is not timed yet."""
    from benchmarks.nodes.rows import ROWS, WITHOUT_ROW

    named = [row.node for row in ROWS] + [
        node for nodes in WITHOUT_ROW.values() for node in nodes.split()
    ]
    assert len(named) == len(set(named))
    assert {f"GBX_{node}" for node in named} <= set(repository.listed_ids())
