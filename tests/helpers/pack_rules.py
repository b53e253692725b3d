"""What must hold for every node of the pack, as functions that list what is wrong."""

from __future__ import annotations

import re

from tools.launcher import widgets

_WIDGETS = 9  # with the control of a seed
_ID = re.compile(r"GBX_[A-Z][A-Za-z0-9]*")
_PAPER = re.compile(r"arXiv[ :]*\d{4}\.\d{4,5}|no paper:", re.IGNORECASE)
_HEADING = re.compile(r"^# .+", re.MULTILINE)
_SECTION = re.compile(r"^## .+", re.MULTILINE)


def node_problems(node_id: str, info: dict) -> list[str]:
    """What a node's description in object_info lacks."""
    problems = []
    if not _ID.fullmatch(node_id):
        problems.append("its id is not GBX_ and a name in CamelCase")
    if not _PAPER.search(info["description"]):
        problems.append(
            "its description names neither its paper (arXiv 2406.09413) nor 'No paper: ...'"
        )
    if not info["category"].startswith("Glassbox/"):
        problems.append("its category does not begin with Glassbox/")
    silent = [name for name, options in input_options(info) if not options.get("tooltip")]
    problems += [f"its input {name} has no tooltip" for name in silent]
    seen = [widget for widget in widgets.widgets(info) if not widget.advanced]
    if len(seen) > _WIDGETS:
        problems.append(
            f"it shows {len(seen)} widgets: mark all but {_WIDGETS} of them as advanced"
        )
    tooltips = info.get("output_tooltips") or [None] * len(info["output"])
    for name, kind, tooltip in zip(info["output_name"], info["output"], tooltips, strict=True):
        if not tooltip and name in ("", kind):
            problems.append(f"its output {kind} has neither a tooltip nor a name of its own")
    return problems


def help_problems(info: dict, page: str | None) -> list[str]:
    """What a node's help page in web/docs lacks."""
    if page is None:
        return ["it has no help page"]
    problems = []
    if not _HEADING.search(page) or not _SECTION.search(page):
        problems.append("its help page has no title (#) or no section (##)")
    lines = page.splitlines()
    for name in [name for name, _ in input_options(info)] + list(info["output_name"]):
        if not any(f"`{name}`" in line for line in lines):
            problems.append(f"its help page has no line about `{name}`")
    return problems


def input_options(info: dict) -> list[tuple[str, dict]]:
    """Name and options of each input of a node class."""
    return [
        (name, spec[1] if len(spec) > 1 else {})
        for section in ("required", "optional")
        for name, spec in info["input"].get(section, {}).items()
    ]
