"""Labels of members from a table: CSV with a column of names, or JSON."""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from ..common.atomic_write import read_text
from ..common.headers import as_number
from ..common.lora_reader import SUFFIXES
from .space import Space

_SHOWN = 3
_YES = {"1", "true", "yes", "y"}
_NO = {"0", "false", "no", "n"}


def parse(text: str, space: Space, remarks: list[str] | None = None) -> dict[str, torch.Tensor]:
    """Attributes of a table as float32 (n,) in the order of the space's members, NaN for those it
    does not name.

    CSV, also with semicolons or tabs: the first column holds members' names, each further column an
    attribute. JSON: {"member": {"attribute": value}}. Values are numbers, or yes and no. Names
    count without a file's ending, in any case, Unicode form and kind of slash. ``remarks`` gets a
    sentence on rows of no member and one on rows that stand twice, of which the last counts. Raises
    ValueError for anything else, and when no name is that of a member.
    """
    table = _json(text) if text.lstrip().startswith("{") else _csv(text)
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(space.members):
        rows.setdefault(_key(name), []).append(row)
    labels: dict[str, torch.Tensor] = {}
    unknown = []
    twice = []
    seen = set()
    for member, values in table:
        own = rows.get(_key(member), [])
        if len(own) > 1:  # names that differ by case or ending alone
            own = [row for row in own if space.members[row] == member]
            if not own:
                raise ValueError(
                    f"{member} may be two members: write "
                    f"{' or '.join(_named(space, rows, member))}."
                )
        if not own:
            unknown.append(member)
            continue
        if own[0] in seen:
            twice.append(member)
        seen.add(own[0])
        for name, value in values.items():
            if name not in labels:
                labels[name] = torch.full((len(space.members),), float("nan"))
            labels[name][own[0]] = _number(value, member, name)
    if not seen:
        raise ValueError(
            "No name in the first column is a member of the space: its members have names such as "
            f"'{space.members[0]}'."
        )
    if remarks is not None:
        missing = len(space.members) - len(seen)
        found = (
            (unknown, "rows of the labels name no member"),
            (twice, "rows stand twice, and the last counts"),
        )
        remarks += [f"{len(names)} {what}: {_some(names)}." for names, what in found if names]
        remarks += [f"{missing} of {len(space.members)} members have no row."] if missing else []
    return labels


def _named(space: Space, rows: dict[str, list[int]], member: str) -> list[str]:
    return [space.members[row] for row in rows[_key(member)]]


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (
        f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    )


def read(path: Path, space: Space, remarks: list[str] | None = None) -> dict[str, torch.Tensor]:
    """``parse`` of a file's text; errors name the file."""
    text = read_text(path)
    try:
        return parse(text, space, remarks)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def to_csv(members: Sequence[str], labels: Mapping[str, torch.Tensor]) -> str:
    """Labels of members as the CSV that ``parse`` reads; empty cells where unknown."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["member", *labels])
    for row, member in enumerate(members):
        values = [float(column[row]) for column in labels.values()]
        table.writerow([member, *("" if value != value else f"{value:g}" for value in values)])
    return text.getvalue().rstrip("\n")


def _csv(text: str) -> list[tuple[str, dict[str, str]]]:
    text = text.lstrip("\ufeff").strip("\r\n")
    first = text.lstrip().partition("\n")[0]
    separator = next((mark for mark in ("\t", ";") if mark in first and "," not in first), ",")
    try:
        lines = list(csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True))
    except csv.Error as error:
        raise ValueError(
            f"The labels are not a table ({error}): write short cells without quotes."
        ) from None
    numbered = [
        (number, line) for number, line in enumerate(lines, 1) if any(cell.strip() for cell in line)
    ]
    if len(numbered) < 2 or len(numbered[0][1]) < 2:
        raise ValueError(
            "The labels are not a table: write the line member,beard,glasses and one for each "
            "member, such as face_001,1,0."
        )
    head = [name.strip() for name in numbered[0][1][1:]]
    if double := next((name for name in head if head.count(name) > 1), None):
        raise ValueError(f"The labels have two columns {double!r}: remove one of them.")
    for number, line in numbered[1:]:
        if len(line) != len(head) + 1:
            raise ValueError(
                f"Line {number} of the labels has {len(line)} cells and the first has "
                f"{len(head) + 1}."
            )
    if separator == ";":  # where a comma is the decimal point
        numbered = [
            (number, [line[0], *(cell.replace(",", ".") for cell in line[1:])])
            for number, line in numbered
        ]
    return [(line[0].strip(), dict(zip(head, line[1:], strict=True))) for _, line in numbered[1:]]


def _json(text: str) -> list[tuple[str, dict]]:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f'The labels are not JSON ({error}): write {{"member": {{"beard": 1}}}}.'
        ) from None
    if not all(isinstance(values, dict) for values in table.values()):
        raise ValueError('The labels give a member no attributes: write {"member": {"beard": 1}}.')
    return list(table.items())


def _number(value: Any, member: str, name: str) -> float:
    text = str(value).strip().lower()
    if not text or text in ("none", "nan", "null"):
        return float("nan")
    if text in _YES or text in _NO:
        return float(text in _YES)
    try:
        return as_number(float(text))
    except (ValueError, OverflowError):
        raise ValueError(
            f"{value!r} of {member} is not a value of {name!r}: write a number, yes or no."
        ) from None


def _key(name: str) -> str:
    """What names of one member have in common, however they are written."""
    name = (
        unicodedata.normalize("NFC", name).casefold().strip().replace("\\", "/").removeprefix("./")
    )
    path = PurePosixPath(name)
    return str(path.with_suffix("")) if path.suffix in SUFFIXES else name
