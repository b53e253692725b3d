"""The rules for every node, tried on nodes that break them."""

import copy
import json
import re

import pack_rules
import pytest
import repository

_GOOD = {
    "description": "Samples a model from the space. arXiv 2406.09413.",
    "category": "Glassbox/Weights",
    "input": {
        "required": {"seed": ["INT", {"tooltip": "Which one."}]},
        "optional": {"space": ["W2W_SPACE", {"tooltip": "."}]},
    },
    "output": ["W2W_POINT"],
    "output_name": ["point"],
    "output_tooltips": [None],
}
_PAGE = (
    "# W2W Sample\n\nText.\n\n## Inputs\n\n- `seed`: which.\n- `space`: where.\n\n## Outputs\n\n- "
    "`point`: it.\n"
)


def test_a_good_node_has_no_problem():
    assert pack_rules.node_problems("GBX_W2WSample", _GOOD) == []
    assert pack_rules.help_problems(_GOOD, _PAGE) == []


@pytest.mark.parametrize("node_id", ["W2WSample", "gbx_Sample", "GBX_sample", "GBX_", "GBX_A B"])
def test_a_wrong_id_is_found(node_id):
    assert pack_rules.node_problems(node_id, _GOOD)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("description", ""),
        ("description", "A node of a paper on arXiv."),
        ("category", "weights"),
        ("input", {"required": {"seed": ["INT", {}]}}),
        ("input", {"required": {"seed": ["INT"]}}),
        ("input", {"required": {}, "optional": {"space": ["W2W_SPACE", {"tooltip": ""}]}}),
        ("output_name", ["W2W_POINT"]),
        ("output_name", [""]),
    ],
)
def test_a_missing_text_is_found(field, value):
    assert (
        len(pack_rules.node_problems("GBX_W2WSample", {**copy.deepcopy(_GOOD), field: value})) == 1
    )


def test_a_tooltip_stands_in_for_an_outputs_name():
    info = {**_GOOD, "output_name": ["W2W_POINT"], "output_tooltips": ["A point of the space."]}
    assert pack_rules.node_problems("GBX_W2WSample", info) == []


def test_a_paper_may_be_absent_if_it_says_so():
    assert (
        pack_rules.node_problems("GBX_Load", {**_GOOD, "description": "No paper: the pack's own."})
        == []
    )


@pytest.mark.parametrize(
    "page",
    [
        None,
        "",
        _PAGE.replace("# W2W", "W2W"),
        _PAGE.replace("## ", ""),
        _PAGE.replace("`space`", "space"),
        _PAGE.replace("`point`", "it"),
    ],
)
def test_a_wrong_help_page_is_found(page):
    assert pack_rules.help_problems(_GOOD, page)


def test_no_panel_has_the_name_of_an_input():
    """Nodes 2.0 of front end 1.32 finds panels by name: it showed the input words in place of the
    maps of words.
    """
    contract = json.loads((repository.ROOT / "tests" / "node_contract.json").read_text("utf-8"))
    script = (repository.ROOT / "web" / "glassbox.js").read_text("utf-8")
    panels = re.findall(r"^  (GBX_\w+): \[\"([\w/]+)\"", script, re.MULTILINE)
    assert len(panels) > 15
    for node, module in panels:
        text = (repository.ROOT / "web" / f"{module}.mjs").read_text("utf-8")
        names = set(re.findall(r"addPanel\(node, \"(\w+)\"", text))
        assert names and not names & set(contract[node]["inputs"])
