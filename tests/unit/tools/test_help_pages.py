"""Help pages that come from a node's schema: a new node needs none by hand."""

import types

import documents
import pytest

from tools import docs_numbers


def _output(name: str, kind: str, tooltip: str) -> types.SimpleNamespace:
    return types.SimpleNamespace(display_name=name, get_io_type=lambda: kind, tooltip=tooltip)


@pytest.fixture
def schema():
    return types.SimpleNamespace(
        node_id="GBX_New",
        display_name="New Node",
        description="Does *one* thing (arXiv 0000.00000).",
        inputs=[],
        outputs=[_output("figure", "IMAGE", "A plot."), _output("report", "STRING", "Text.")],
    )


def test_a_new_node_gets_a_page_from_its_schema(schema, tmp_path, monkeypatch):
    monkeypatch.setattr(docs_numbers, "HELP", tmp_path)
    page = docs_numbers.help_page(schema, "[demo](../../workflows/demo.json).")
    assert page.startswith("# New Node\n\nDoes \\*one\\* thing (arXiv 0000.00000).\n")
    assert (
        "<!-- outputs -->\n- `figure` (IMAGE): A plot.\n- `report` (STRING): Text.\n<!-- end -->"
        in page
    )
    assert "<!-- workflows -->\n[demo](../../workflows/demo.json).\n<!-- end -->" in page


def test_a_page_from_the_schema_needs_a_paper_and_no_more(schema, tmp_path, monkeypatch):
    monkeypatch.setattr(docs_numbers, "HELP", tmp_path)
    page = tmp_path / "GBX_New.md"
    page.write_text(docs_numbers.help_page(schema, ""), "utf-8")
    assert documents.help_problems(page, []) == []
    assert documents.help_problems(page, ["seed"]) == ["no line of its list begins with seed"]
    page.write_text(page.read_text("utf-8").replace("arXiv 0000.00000", ""), "utf-8")
    assert documents.help_problems(page, []) == ["it names no paper"]
    page.write_text(page.read_text("utf-8") + "\n## Details\n\nBy hand.\n", "utf-8")
    assert len(documents.help_problems(page, [])) == 4


def test_a_written_page_keeps_its_words(schema, tmp_path, monkeypatch):
    monkeypatch.setattr(docs_numbers, "HELP", tmp_path)
    written = "# New Node\n\nBy hand.\n\n## Outputs\n\n<!-- outputs -->\nold\n<!-- end -->\n"
    (tmp_path / "GBX_New.md").write_text(written, "utf-8")
    page = docs_numbers.help_page(schema, "")
    assert "By hand." in page and "old" not in page and "- `figure` (IMAGE): A plot." in page
    by_hand = "# New Node\n\n## Outputs\n\n- `figure`: by hand.\n"
    (tmp_path / "GBX_New.md").write_text(by_hand, "utf-8")
    assert docs_numbers.help_page(schema, "") == by_hand
