"""Plots of measured numbers for the documents: one row per number, its value and its 95 % interval.

A line `<!-- plot NAME RESULT: PATTERN -->` in a document is followed by the image
docs/images/plots/NAME.png, up to the line `<!-- end -->`. It shows the numbers of
studies/results/RESULT.json whose names match PATTERN; they must share a unit. `<!-- plot NAME
RESULT: PATTERN; COST; EFFECT -->` sets one against the other: a point for every name that PATTERN
matches whole, between the numbers of that name with COST and with EFFECT behind it. `; front` at
its end joins those that no other point beats at both (more effect for less cost).
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
    r"(<!-- plot (?P<name>[\w-]+) (?P<result>[\w.-]+): (?P<pattern>.+?) -->\n).*?(?=<!-- end -->)",
    re.S,
)
_KEY = "Numbers"


def requested(text: str) -> dict[str, dict[str, dict]]:
    """The plots of a document: name -> the matching numbers; raises ValueError where none match or
    units differ.
    """
    return {block["name"]: _rows(block) for block in _BLOCK.finditer(text)}


def filled(text: str, document: Path) -> str:
    """A document with the image, its command and its source behind every plot line."""

    def replace(block: re.Match) -> str:
        image, source = (
            Path(os.path.relpath(path, document.parent)).as_posix()
            for path in (FOLDER / f"{block['name']}.png", _source(block))
        )
        command = json.loads(_source(block).read_text("utf-8"))["command"]
        rows = _rows(block)
        given = any("low" in number.get("effect", number) for number in rows.values())
        lines = (
            "Lines are 95 % intervals"
            if given
            else "No intervals: fewer than five independent units"
        )
        return (
            f"{block[1]}![{_sentence(rows)}]({image})\n\n*{lines}. [Numbers]({source}) by "
            f"`{command}`.*\n"
        )

    return _BLOCK.sub(replace, text)


def _sentence(rows: dict[str, dict]) -> str:
    """What a plot shows, for those who do not see it: where its values end, or its axes."""
    axes = next(iter(rows.values())).get("axes")
    if axes:
        cost, effect = axes
        return f"Plot of {len(rows)} settings: {effect or 'reached'} over {cost}."
    values = {name: number["value"] for name, number in rows.items()}
    low, high = min(values, key=values.get), max(values, key=values.get)
    unit = next(iter(rows.values()))["unit"]
    return (
        f"Plot of {len(rows)} values ({unit}), from {values[low]:.2f} of {low} to "
        f"{values[high]:.2f} of {high}."
    )


def _source(block: re.Match) -> Path:
    return ROOT / "studies" / "results" / f"{block['result']}.json"


def _rows(block: re.Match) -> dict[str, dict]:
    numbers = json.loads(_source(block).read_text("utf-8"))["numbers"]
    pattern, *axes = block["pattern"].split("; ")
    if axes:
        front, axes = axes[2:] == ["front"], axes[:2]
        cost, effect = (re.sub(r"^\W*", "", axis) for axis in axes)
        names = [name.removesuffix(axes[0]) for name in numbers if name.endswith(axes[0])]
        found = {
            name: [numbers[name + axis] for axis in axes]
            for name in names
            if re.fullmatch(pattern, name)
        }
        if not found:
            raise ValueError(f"The plot {block['name']} needs one unit an axis, and has no point.")
        rows = {
            name: {"cost": both[0], "effect": both[1], "axes": [cost, effect]}
            for name, both in found.items()
        }
        for name in pareto_front(rows) if front else ():
            rows[name]["front"] = True
        return rows
    rows = {name: number for name, number in numbers.items() if re.search(block["pattern"], name)}
    if len({number["unit"] for number in rows.values()}) != 1:
        raise ValueError(
            f"The plot {block['name']} needs numbers of one unit, and has {len(rows)}."
        )
    return rows


def pareto_front(rows: dict[str, dict]) -> list[str]:
    """The names of the points, by cost, that no other point equals or beats in cost and in
    effect.
    """
    points = {
        name: (both["cost"]["value"], -both["effect"]["value"]) for name, both in rows.items()
    }
    return sorted(
        (
            name
            for name, (x, y) in points.items()
            if not any(a <= x and b <= y and (a, b) != (x, y) for a, b in points.values())
        ),
        key=points.__getitem__,
    )


def stale(plots: dict[str, dict[str, dict]]) -> list[Path]:
    """The image files that do not show these numbers, or show what no document names."""
    from PIL import Image

    present = {path.stem: Image.open(path).info.get(_KEY) for path in FOLDER.glob("*.png")}
    wanted = {name: _hash(rows) for name, rows in plots.items()}
    return [
        FOLDER / f"{name}.png"
        for name in {**present, **wanted}
        if present.get(name) != wanted.get(name)
    ]


def write(path: Path, rows: dict[str, dict]) -> None:
    """Draw numbers into a PNG file whose metadata names them."""
    from matplotlib.figure import Figure

    names, numbers = list(rows), list(rows.values())
    if "effect" in numbers[0]:
        _save(_against(rows), path, rows)
        return
    figure = Figure(figsize=(7.2, 0.8 + 0.3 * len(names)), layout="constrained")
    axes = figure.add_subplot(xlabel=numbers[0]["unit"])
    places = range(len(names))
    for place, number in zip(places, numbers, strict=True):
        if "low" in number:
            axes.plot(
                [number["low"], number["high"]],
                [place, place],
                color="tab:blue",
                linewidth=2,
                alpha=0.5,
            )
        axes.plot(number["value"], place, "o", color="tab:blue")
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    _save(figure, path, rows)


def _against(rows: dict[str, dict]):
    """Effect over cost; names that differ in a last number alone are one line with its numbers at
    the points.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    cost, effect = next(iter(rows.values()))["axes"]
    axes = figure.add_subplot(xlabel=cost, ylabel=effect or "reached")
    lines: dict[str, list[tuple[str, dict]]] = {}
    for name, both in rows.items():
        strength = re.search(r" (-?[\d.]+)$", name)
        lines.setdefault(name[: strength.start()] if strength else name, []).append(
            (strength[1] if strength else "", both)
        )
    for number, (name, points) in enumerate(lines.items()):
        color = f"C{number % 10}"
        x, y = ([both[axis]["value"] for _, both in points] for axis in ("cost", "effect"))
        axes.plot(
            x,
            y,
            "o-" if len(points) > 1 else "Ds"[number // 10 % 2],
            color=color,
            label=name,
            alpha=0.8,
        )
        for (strength, both), *place in zip(points, x, y, strict=True):
            for axis, draw in (("cost", axes.hlines), ("effect", axes.vlines)):
                if "low" in both[axis]:
                    other = place[axis == "cost"]
                    draw(other, both[axis]["low"], both[axis]["high"], color=color, alpha=0.35)
            axes.annotate(
                strength, place, textcoords="offset points", xytext=(4, 3), fontsize=7, color=color
            )
    front = [rows[name] for name in pareto_front(rows) if "front" in rows[name]]
    if front:
        x, y = ([both[axis]["value"] for both in front] for axis in ("cost", "effect"))
        axes.plot(x, y, "k--", linewidth=1, alpha=0.5, zorder=0, label="Pareto front")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _save(figure, path: Path, rows: dict[str, dict]) -> None:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110, metadata={_KEY: _hash(rows)})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.getvalue())


def _hash(rows: dict[str, dict]) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
