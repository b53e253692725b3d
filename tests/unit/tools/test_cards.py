"""Which workflows show a node, on pages made for it."""

import json

import pytest
import repository

from tools import cards, docs_numbers

#: Nodes that no demo workflow holds: they need large images, or files of a person's own.
_WITHOUT_DEMO = {"GBX_ResizeToBuckets", "GBX_SteeringDirection", "GBX_TrainSparseAutoencoder"}


@pytest.fixture
def house(tmp_path):
    """A repository of three nodes and three workflows, one of them with a subgraph."""
    graphs = {
        "workflows/11 Card (SDXL).json": ["GBX_A"],
        "workflows/01 First (demo).json": ["GBX_A"],
        "workflows/further/demo_b.json": ["GBX_A", "sub"],
    }
    for name, types in graphs.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        saved = {"nodes": [{"type": type_} for type_ in types]}
        if "sub" in types:
            saved["definitions"] = {"subgraphs": [{"nodes": [{"type": "GBX_B"}]}]}
        path.write_text(json.dumps(saved), "utf-8")
    contract = tmp_path / "tests" / "node_contract.json"
    contract.parent.mkdir()
    contract.write_text(json.dumps(dict.fromkeys(("GBX_A", "GBX_B", "GBX_C"))), "utf-8")
    return tmp_path


def test_a_node_in_no_workflow_is_named(house):
    assert cards.without_card(house) == ["GBX_C"]


def test_a_workflow_of_the_tests_is_no_card(house):
    path = house / "tests" / "workflows" / "c.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"nodes": [{"type": "GBX_C"}]}), "utf-8")
    assert cards.without_card(house) == ["GBX_C"]


def test_links_name_demos_first(house):
    shown = cards.workflows_by_node(house)
    first, second, third = cards.links("GBX_A", shown, house).split(", ")
    assert first == "[01 First (demo)](../../workflows/01%20First%20%28demo%29.json)"
    assert second == "[demo_b](../../workflows/further/demo_b.json)"
    assert third == "[11 Card (SDXL)](../../workflows/11%20Card%20%28SDXL%29.json)."
    assert cards.links("GBX_C", shown, house) == ""


def test_a_demo_is_known_by_its_name_whatever_its_number(house):
    (house / "workflows" / "27 Last (demo).json").write_text('{"nodes": [{"type": "GBX_A"}]}')
    linked = cards.links("GBX_A", cards.workflows_by_node(house), house)
    assert "27 Last" in linked and "11 Card" not in linked


def test_every_help_page_links_to_a_demo_where_one_holds_the_node():
    shown = cards.workflows_by_node()
    demos = set(repository.DEMOS)
    linked = {node: cards.links(node, shown) for node in repository.listed_ids()}
    assert [node for node, line in linked.items() if not line] == []
    without = {node for node in linked if not demos & set(shown[node])}
    assert without == _WITHOUT_DEMO
    assert {node for node, line in linked.items() if "demo" not in line} == _WITHOUT_DEMO


def test_the_line_of_a_page_is_made_again():
    page = "## Workflows\n\n<!-- workflows -->\nold\n<!-- end -->\n"
    assert docs_numbers.with_workflows(page, "new") == page.replace("old", "new")
