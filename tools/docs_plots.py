"""Plots of measured numbers for the documents: one row per number, its value and its 95 % interval.

A line `<!-- plot NAME RESULT: PATTERN -->` in a document is followed by the image docs/images/plots/NAME.png, up to the
line `<!-- end -->`. It shows the numbers of studies/results/RESULT.json whose names match PATTERN; they must share a
unit.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images" / "plots"
_BLOCK = re.compile(
    r"(<!-- plot (?P<name>[\w-]+) (?P<result>[\w.-]+): (?P<pattern>.+?) -->\n).*?(?=<!-- end -->)", re.S
)
_KEY = "Numbers"


def requested(text: str) -> dict[str, dict[str, dict]]:
    """The plots of a document: name -> the matching numbers; raises ValueError where none match or units differ."""
    return {block["name"]: _rows(block) for block in _BLOCK.finditer(text)}


def filled(text: str, document: Path) -> str:
    """A document with the image, its command and its source behind every plot line."""

    def replace(block: re.Match) -> str:
        image, source = (
            Path(os.path.relpath(path, document.parent)).as_posix()
            for path in (FOLDER / f"{block['name']}.png", _source(block))
        )
        command = json.loads(_source(block).read_text("utf-8"))["command"]
        caption = f"*Lines are 95 % intervals. [Numbers]({source}) by `{command}`.*"
        return f"{block[1]}![{', '.join(_rows(block))}]({image})\n\n{caption}\n"

    return _BLOCK.sub(replace, text)


def _source(block: re.Match) -> Path:
    return ROOT / "studies" / "results" / f"{block['result']}.json"


def _rows(block: re.Match) -> dict[str, dict]:
    numbers = json.loads(_source(block).read_text("utf-8"))["numbers"]
    rows = {name: number for name, number in numbers.items() if re.search(block["pattern"], name)}
    if len({number["unit"] for number in rows.values()}) != 1:
        raise ValueError(f"The plot {block['name']} needs numbers of one unit, and has {len(rows)}.")
    return rows


def stale(plots: dict[str, dict[str, dict]]) -> list[Path]:
    """The image files that do not show these numbers, or show what no document names."""
    from PIL import Image

    present = {path.stem: Image.open(path).info.get(_KEY) for path in FOLDER.glob("*.png")}
    wanted = {name: _hash(rows) for name, rows in plots.items()}
    return [FOLDER / f"{name}.png" for name in {**present, **wanted} if present.get(name) != wanted.get(name)]


def write(path: Path, rows: dict[str, dict]) -> None:
    """Draw numbers into a PNG file whose metadata names them."""
    from matplotlib.figure import Figure

    names, numbers = list(rows), list(rows.values())
    figure = Figure(figsize=(7.2, 0.8 + 0.3 * len(names)), layout="constrained")
    axes = figure.add_subplot(xlabel=numbers[0]["unit"])
    places = range(len(names))
    for place, number in zip(places, numbers, strict=True):
        if "low" in number:
            axes.plot([number["low"], number["high"]], [place, place], color="tab:blue", linewidth=2, alpha=0.5)
        axes.plot(number["value"], place, "o", color="tab:blue")
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110, metadata={_KEY: _hash(rows)})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.getvalue())


def _hash(rows: dict[str, dict]) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
