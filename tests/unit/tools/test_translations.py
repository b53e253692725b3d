"""The report of texts without a Chinese translation."""

import json
from types import SimpleNamespace

from tools import translations

_SCHEMA = SimpleNamespace(
    node_id="GBX_Made", inputs=[SimpleNamespace(id="seed")], outputs=[SimpleNamespace()]
)
_TEXTS = {"name": "x", "tooltip": "x"}
_TRANSLATED = {
    "display_name": "x",
    "description": "x",
    "inputs": {"seed": _TEXTS},
    "outputs": {"0": _TEXTS},
}


def test_a_translated_node_has_nothing_missing():
    assert translations.missing_node_texts([_SCHEMA], {"GBX_Made": _TRANSLATED}) == []


def test_a_new_node_misses_every_text():
    missing = translations.missing_node_texts([_SCHEMA], {})
    assert missing == [
        "GBX_Made: display_name",
        "GBX_Made: description",
        "GBX_Made.inputs.seed: name",
        "GBX_Made.inputs.seed: tooltip",
        "GBX_Made.outputs.0: name",
        "GBX_Made.outputs.0: tooltip",
    ]


def test_a_new_input_misses_its_tooltip():
    node = _TRANSLATED | {"inputs": {"seed": {"name": "x"}}}
    assert translations.missing_node_texts([_SCHEMA], {"GBX_Made": node}) == [
        "GBX_Made.inputs.seed: tooltip"
    ]


def test_panels_and_workflows_are_read(tmp_path):
    for name, text in {
        "locales/zh/nodeDefs.json": "{}",
        "web/text/chinese.json": '{"Old": "x"}',
        "web/text/chinese_workflows.json": '{"Model": "x"}',
        "web/panel.mjs": 'say("Old"); say("New")',
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    nodes = [
        {"type": "MarkdownNote", "title": "About", "widgets_values": ["One line.\n\nAnother."]},
        {"type": "KSampler"},
    ]
    inner = {"nodes": [{"type": "KSampler", "title": "Inside"}]}
    saved = {"nodes": nodes, "groups": [{"title": "Model"}]}
    saved["definitions"] = {"subgraphs": [inner]}
    path = tmp_path / "a.json"
    path.write_text(json.dumps(saved), "utf-8")
    assert translations.missing([], [path], tmp_path) == [
        "panel: New",
        "workflow: About",
        "workflow: Another.",
        "workflow: Inside",
        "workflow: One line.",
    ]


def test_the_report_names_the_first_and_counts_the_rest():
    assert translations.report([]) == "Every text has its Chinese translation."
    lines = translations.report([f"line {number}" for number in range(12)]).splitlines()
    assert lines[0].startswith("12 texts") and lines[1] == "  line 0"
    assert lines[-1] == "  and 2 more" and len(lines) == 12
