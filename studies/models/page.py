"""docs/models.md from the results of all versions: marks, and the sentences of refusals."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable

from ..common import host, results
from . import networks

PATH = host.ROOT / "docs" / "models.md"
_MARKS = {1: "●", 0: "○", -1: "✗"}
_INTRODUCTION = """# Which node works on which network

Every node that reads a MODEL, CLIP or LATENT, tried on the networks that ComfyUI loads. They are
ComfyUI's own classes with random weights, narrow and two or three blocks deep: blocks, names,
schedule, latent format and tokenizer are the real ones, images mean nothing. `python run.py models`
does it again on your ComfyUI (`COMFYUI_DIR`), `--only NODE` and `--network NAME` a part of it.

● works: at its neutral setting the run is bit-equal to stock, otherwise the node changes what it is
for, by a formula or by the run with the changed input. ○ refuses, in the sentence below the table.
✗ fails. Empty: not tried, where this ComfyUI lacks a tokenizer or a cell has not run.

Networks stand in the order of their use: the sum of `usage` over local image and video templates of
the package comfyui-workflow-templates 0.11.97 (index of October 2026, 163,650 in all; templates are
of newer models, so SD1.5 and SDXL are used more than they show here). Families share a count.
"""


def write_page() -> None:
    """Write the page from what studies/results holds."""
    PATH.write_text(page_text(), encoding="utf-8")


def page_text() -> str:
    """The page, newest version first."""
    files = sorted(results.RESULTS.glob("models_*.json"), key=_version, reverse=True)
    sections = [_section(json.loads(file.read_text("utf-8")), _version(file)) for file in files]
    return "\n".join([_INTRODUCTION, *sections]).rstrip() + "\n"


def _version(file) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", file.stem))


def _section(result: dict, version: tuple[int, ...]) -> str:
    from . import matrix

    numbers = result["numbers"]
    tried = {cell.rpartition(" on ")[2] for cell in numbers}
    known = networks.configurations()
    names = [name for name in known if name in tried]
    counts = matrix.summary(numbers)
    lines = [f"## ComfyUI {'.'.join(map(str, version))}", "", counts, ""]
    lines += ["| column | network | use |", "|---|---|---|"]
    for column, name in enumerate(names, 1):
        uses = f"{known[name].uses:,}" if known[name].uses else ""
        lines.append(f"| {column} | {known[name].title} (`{name}`) | {uses} |")
    for family, cells in matrix.FAMILIES.items():
        lines += ["", f"### {family}", ""]
        lines.append("| node | " + " | ".join(str(at) for at in range(1, len(names) + 1)) + " |")
        lines.append("|---|" + "---|" * len(names))
        for node in cells:
            marks = (_mark(numbers.get(f"{node} on {name}")) for name in names)
            lines.append(f"| {node} | " + " | ".join(marks) + " |")
        lines += ["", *_sentences(numbers, cells, names)]
    return "\n".join([*lines, ""])


def _mark(number: dict | None) -> str:
    return "" if number is None else _MARKS[number["value"]]


def _sentences(numbers: dict, cells: Iterable[str], names: list[str]) -> list[str]:
    """Equal sentences once, with the nodes and columns that give them."""
    groups: dict[tuple[int, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for node in cells:
        for column, name in enumerate(names, 1):
            number = numbers.get(f"{node} on {name}")
            if number is not None and number["value"] < 1:
                sentence = _plain(number["what"])
                groups[number["value"], sentence][node].append(column)
    lines = []
    for (value, sentence), nodes in groups.items():
        where = "; ".join(
            f"{node} {', '.join(str(column) for column in columns)}"
            for node, columns in nodes.items()
        )
        lines.append(f"- {_MARKS[value]} {sentence} ({where})")
    return lines


def _plain(sentence: str) -> str:
    """A sentence without what Markdown would take for its own."""
    return re.sub(r"([*<~|])", r"\\\1", " ".join(sentence.split()))
