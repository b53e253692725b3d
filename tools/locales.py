"""The nodes' own English texts as a locale, in the form that translators start from: locales/en/nodeDefs.json."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

PATH = Path(__file__).resolve().parent.parent / "locales" / "en" / "nodeDefs.json"


def english(schemas: Iterable) -> str:
    """JSON of every node's display name, description, inputs by id and outputs by place, sorted by node id."""
    found = {schema.node_id: _node(schema) for schema in sorted(schemas, key=lambda schema: schema.node_id)}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _node(schema) -> dict:
    return {
        "display_name": schema.display_name,
        "description": schema.description,
        "inputs": {slot.id: _texts(slot.display_name or slot.id, slot.tooltip) for slot in schema.inputs},
        "outputs": {
            str(place): _texts(slot.display_name or slot.io_type, slot.tooltip)
            for place, slot in enumerate(schema.outputs)
        },
    }


def _texts(name: str, tooltip: str) -> dict:
    return {"name": name, "tooltip": tooltip}
