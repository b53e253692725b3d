"""What saved workflows and API programs rely on: every node's inputs, outputs and option values, as
one table.

`python run.py study report` writes it to tests/node_contract.json; a change there is a change for
every saved workflow. What a widget takes and shows is in tests/node_widgets.json: a range that
shrinks refuses values that were saved.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

PATH = Path(__file__).resolve().parent.parent / "tests" / "node_contract.json"
WIDGETS = PATH.with_name("node_widgets.json")
#: What every ComfyUI that the pack runs on says of a widget.
_OF_WIDGETS = (
    *("default", "min", "max", "step", "round", "optional"),
    *("multiline", "dynamicPrompts", "control_after_generate", "forceInput"),
)
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_FILE = re.compile(r".+\.\w+|\[None\]")


def table(schemas: Iterable) -> str:
    """JSON: node id -> category, inputs (name -> type, or the option values of a combo) and outputs
    (name: type).
    """
    found = {
        schema.node_id: _node(schema)
        for schema in sorted(schemas, key=lambda schema: schema.node_id)
    }
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def widgets(schemas: Iterable) -> str:
    """JSON: node id -> input -> its default, range, step and form, a line for each input."""
    nodes = []
    for schema in sorted(schemas, key=lambda schema: schema.node_id):
        lines = ",\n".join(
            f"  {json.dumps(field.id)}: {json.dumps(_widget(field), ensure_ascii=False)}"
            for field in schema.inputs
        )
        nodes.append(f" {json.dumps(schema.node_id)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(nodes) + "\n}\n"


def _widget(field) -> dict:
    described = field.as_dict()
    if kind(field) == "FILE":  # whose default is a file on the machine
        described.pop("default", None)
    return {key: described[key] for key in _OF_WIDGETS if key in described}


def _node(schema) -> dict:
    return {
        "category": schema.category,
        "inputs": {field.id: kind(field) for field in schema.inputs},
        "outputs": [
            f"{slot.display_name or slot.io_type}: {slot.io_type}" for slot in schema.outputs
        ],
    }


def kind(field) -> str | list:
    """An input's type, or the values to choose from; "FILE" where those are files on the
    machine.
    """
    options = getattr(field, "options", None)
    if options is None:
        return field.get_io_type()
    files = any(_FILE.fullmatch(str(option)) for option in options)
    return "FILE" if files or options in ([], ["none"]) else list(options)


def bad_names(contract: dict) -> list[str]:
    """Inputs, outputs and option values that are no identifiers such as ``noise_level``."""
    problems = []
    for node_id, node in contract.items():
        names = [*node["inputs"], *(output.partition(":")[0] for output in node["outputs"])]
        values = [
            value for kind in node["inputs"].values() if isinstance(kind, list) for value in kind
        ]
        problems += [f"{node_id}: {name}" for name in names if not _NAME.fullmatch(name)]
        problems += [
            f"{node_id}: {value}"
            for value in values
            if isinstance(value, str) and re.search(r"[^\w.+-]", value)
        ]
    return problems
