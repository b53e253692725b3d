"""Lists of prompts: lines of a text, or a file or folder of them."""

from __future__ import annotations

import csv
import io
from pathlib import Path

_COLUMNS = ("caption", "prompt", "text")
_CSV, _TXT = ".csv", ".txt"


def of_text(text: str) -> list[str]:
    """One prompt a line, without empty lines."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def given(text: str, path: Path | None = None, least: int = 0) -> list[str]:
    """The prompts of a text, and of a file or folder. Raises ValueError for fewer than ``least``."""
    found = of_text(text) + (of_path(path) if path else [])
    if len(found) < least:
        raise ValueError(
            f"{least} or more prompts are needed and there are {len(found)}: write one a line, or name a file."
        )
    return found


def of_path(path: Path) -> list[str]:
    """The prompts of a .txt (one a line), a .csv with a column Caption, or a folder of .txt files, each one prompt.

    Raises ValueError for anything else.
    """
    if path.is_dir():
        found = [" ".join(_read(file).split()) for file in sorted(path.glob(f"*{_TXT}"))]
    elif path.suffix.lower() == _CSV:
        found = _of_table(path)
    elif path.suffix.lower() == _TXT:
        found = of_text(_read(path))
    else:
        raise ValueError(f"{path.name} is no list of prompts: give a .txt, a .csv with a column Caption, or a folder "
                         "of "
                         ".txt files.")  # fmt: skip
    return [prompt for prompt in found if prompt]


def _of_table(path: Path) -> list[str]:
    text = _read(path)
    head = text.partition("\n")[0]
    rows = csv.reader(io.StringIO(text), delimiter=";" if head.count(";") > head.count(",") else ",")
    names = [name.strip().lower() for name in next(rows, [])]
    column = next((names.index(name) for name in _COLUMNS if name in names), None)
    if column is None:
        raise ValueError(f"{path.name} has no column Caption, Prompt or Text: name one so in its first line.")
    return [row[column].strip() for row in rows if len(row) > column]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} cannot be read as UTF-8 text ({error}): save it as such.") from None
