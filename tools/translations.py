"""Which texts have no Chinese translation yet. The front ends show English in their place, so this
is a report for translators: `python run.py study report` prints it, and no test fails for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LISTED = 10  # lines of the report


def missing_node_texts(schemas: Iterable, translated: dict) -> list[str]:
    """Names and tooltips of nodes, inputs and outputs that ``translated`` (nodeDefs.json) lacks."""
    missing = []
    for schema in schemas:
        node = translated.get(schema.node_id, {})
        missing += [
            f"{schema.node_id}: {text}"
            for text in ("display_name", "description")
            if not node.get(text)
        ]
        slots = {"inputs": [field.id for field in schema.inputs]}
        slots["outputs"] = [str(place) for place in range(len(schema.outputs))]
        for kind, names in slots.items():
            for name in names:
                entry = node.get(kind, {}).get(name, {})
                missing += [
                    f"{schema.node_id}.{kind}.{name}: {text}"
                    for text in ("name", "tooltip")
                    if not entry.get(text)
                ]
    return missing


def panel_sentences(web: Path = ROOT / "web") -> set[str]:
    """Every sentence that the scripts of the canvas show."""
    scripts = [path.read_text("utf-8") for path in web.rglob("*.*js")]
    return {sentence for text in scripts for sentence in re.findall(r'\bsay\("([^"]+)"', text)}


def workflow_texts(saved: dict) -> Iterator[str]:
    """Titles of nodes and groups, and lines of the note, of a saved workflow."""
    subgraphs = saved.get("definitions", {}).get("subgraphs", [])
    for graph in (saved, *subgraphs):
        for node in graph["nodes"]:
            if node.get("title"):
                yield node["title"]
            if node["type"] == "MarkdownNote":
                yield from filter(None, node["widgets_values"][0].splitlines())
    yield from (group["title"] for group in saved["groups"])


def missing(schemas: Iterable, workflows: Iterable[Path], root: Path = ROOT) -> list[str]:
    """Every text without a Chinese one: of nodes, panels and workflows."""
    nodes = _read(root / "locales" / "zh" / "nodeDefs.json")
    panels = _read(root / "web" / "text" / "chinese.json")
    notes = _read(root / "web" / "text" / "chinese_workflows.json")
    lines = missing_node_texts(schemas, nodes)
    lines += [f"panel: {text}" for text in sorted(panel_sentences(root / "web") - set(panels))]
    shown = {text for path in workflows for text in workflow_texts(_read(path))}
    proper_names = {"NeMo", "W2W Apply"}
    return lines + [f"workflow: {text}" for text in sorted(shown - set(notes) - proper_names)]


def report(lines: list[str]) -> str:
    """The number of missing texts, and the first of them."""
    if not lines:
        return "Every text has its Chinese translation."
    shown = [f"  {line}" for line in lines[:_LISTED]]
    rest = [f"  and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    return "\n".join([f"{len(lines)} texts have no Chinese translation yet:", *shown, *rest])


def _read(path: Path) -> dict:
    return json.loads(path.read_text("utf-8"))
