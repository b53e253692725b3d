"""Which workflows show a node: the cards of the template browser, the further ones that ship beside
them, and the blueprints.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
#: In the order in which a help page names them.
_FOLDERS = ("workflows", "workflows/further", "subgraphs")
_NAMED = 3  # at most, on a help page
_DEMO = re.compile(r"demo_|.*\(demo\b")  # names of workflows that need no checkpoint


def workflows_by_node(root: Path = ROOT) -> dict[str, list[Path]]:
    """The files that show each type of node, also inside a subgraph."""
    shown: dict[str, list[Path]] = defaultdict(list)
    for folder in _FOLDERS:
        for path in sorted((root / folder).glob("*.json")):
            for type_ in sorted(node_types(json.loads(path.read_text("utf-8")))):
                shown[type_].append(path)
    return shown


def node_types(saved: dict) -> set[str]:
    """The types of the nodes of a saved workflow and of its subgraphs."""
    graphs = [saved, *saved.get("definitions", {}).get("subgraphs", [])]
    return {node["type"] for graph in graphs for node in graph["nodes"]}


def without_card(root: Path = ROOT) -> list[str]:
    """The ids of nodes, experimental ones too, that no shipped workflow or blueprint shows."""
    contract = json.loads((root / "tests" / "node_contract.json").read_text("utf-8"))
    return sorted(set(contract) - set(workflows_by_node(root)))


def links(node_id: str, shown: dict[str, list[Path]], root: Path = ROOT) -> str:
    """The line of a node's help page that links to workflows with it, demos first."""
    files = sorted(shown.get(node_id, []), key=lambda path: not _DEMO.match(path.name))
    entries = [
        f"[{path.stem}](../../{quote(path.relative_to(root).as_posix())})"
        for path in files[:_NAMED]
    ]
    return f"{', '.join(entries)}." if entries else ""
