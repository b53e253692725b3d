"""Labels of members from a table: CSV with a column of names, or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import torch

from ..common.atomic_write import read_text
from .space import Space

_YES, _NO = {"1", "true", "yes", "y"}, {"0", "false", "no", "n"}


def parse(text: str, space: Space) -> dict[str, torch.Tensor]:
    """Attributes of a table as float32 (n,) in the order of the space's members, NaN for those it does not name.

    CSV: the first column holds members' names (with or without a file's ending), each further column an attribute.
    JSON: {"member": {"attribute": value}}. Values are numbers, or yes and no. Raises ValueError for anything else, and
    when no name is that of a member.
    """
    table = _json(text) if text.lstrip().startswith("{") else _csv(text)
    rows = {_stem(name): row for row, name in enumerate(space.members)}
    attributes = list(dict.fromkeys(name for values in table.values() for name in values))
    labels = {name: torch.full((len(space.members),), float("nan")) for name in attributes}
    found = 0
    for member, values in table.items():
        row = rows.get(_stem(member))
        if row is None:
            continue
        found += 1
        for name, value in values.items():
            labels[name][row] = _number(value, member, name)
    if not found:
        raise ValueError(
            "No name in the first column is a member of the space: its members have names such as "
            f"'{space.members[0]}'."
        )
    return labels


def read(path: Path, space: Space) -> dict[str, torch.Tensor]:
    """``parse`` of a file's text; errors name the file."""
    text = read_text(path)
    try:
        return parse(text, space)
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


def _csv(text: str) -> dict[str, dict[str, str]]:
    try:
        lines = list(csv.reader(io.StringIO(text.strip()), skipinitialspace=True))
    except csv.Error as error:
        raise ValueError(f"The labels are not a table ({error}): write short cells without quotes.") from None
    if len(lines) < 2 or len(lines[0]) < 2:
        raise ValueError(
            "The labels are not a table: write the line member,beard,glasses and one for each member, such as "
            "face_001,1,0."
        )
    head = [name.strip() for name in lines[0][1:]]
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(head) + 1:
            raise ValueError(f"Line {number} of the labels has {len(line)} cells and the first has {len(head) + 1}.")
    return {line[0].strip(): dict(zip(head, line[1:], strict=True)) for line in lines[1:]}


def _json(text: str) -> dict[str, dict]:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'The labels are not JSON ({error}): write {{"member": {{"beard": 1}}}}.') from None
    if not all(isinstance(values, dict) for values in table.values()):
        raise ValueError('The labels give a member no attributes: write {"member": {"beard": 1}}.')
    return table


def _number(value, member: str, name: str) -> float:
    text = str(value).strip().lower()
    if not text or text in ("none", "nan", "null"):
        return float("nan")
    if text in _YES or text in _NO:
        return float(text in _YES)
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{value!r} of {member} is not a value of {name!r}: write a number, yes or no.") from None


def _stem(name: str) -> str:
    path = PurePosixPath(name)
    return str(path.with_suffix("")) if path.suffix in (".safetensors", ".pt", ".bin") else name
