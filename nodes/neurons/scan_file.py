"""A scan over a long list of prompts on disk: one CSV row per prompt, written as it is done, so
that it resumes.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from ..common.atomic_write import atomic_write
from ..common.headers import HeaderError, read_section
from ..common.resume import (
    Identity,
    append_line,
    check_format,
    check_identity,
    damaged,
    whole_lines,
)
from .detectors import DETECTORS, with_anisotropy
from .memorization_score import PromptScore

KIND = "scan"
VERSION = 2
_PROMPT = "prompt"
_ERROR = "error"

Row = dict[str, str]


class ScanFile:
    """The rows of a scan by prompt. ``columns`` follow the prompt; an error column names prompts
    that failed.

    ``identity``, all that a row depends on but for the prompt, is kept beside the table, in
    NAME.settings.json, and so is a digest of the ``embeddings`` in each prompt that names any:
    prompts may be added later, with embeddings of their own. Raises ValueError for a file of
    another identity, other columns, or rows of other embeddings. A row that a crash cut off is
    dropped.
    """

    def __init__(
        self,
        path: Path,
        columns: list[str],
        identity: Identity,
        embeddings: Mapping[str, str] | None = None,
    ):
        self._path = path
        self._columns = [_PROMPT, *columns, _ERROR]
        self.rows: dict[str, Row] = {}
        beside = path.with_suffix(".settings.json")
        encoded: dict[str, str] = {}
        if path.is_file():
            encoded = self._check(beside, identity)
            self._read()
            self._check_embeddings(encoded, embeddings or {})
        content: dict[str, object] = {"format": f"glassbox {KIND}", "format_version": str(VERSION)}
        content["identity"] = dict(identity)
        content["embeddings"] = {**encoded, **(embeddings or {})}
        with atomic_write(beside) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        self._write_all()

    def add(self, prompt: str, row: Row | None, error: Exception | None = None) -> None:
        """Append the row of a prompt, or the error that it failed with, and flush it to the
        disk.
        """
        message = "" if error is None else f"{type(error).__name__}: {error}"
        self.rows.pop(prompt, None)  # a prompt that is tried again goes to the end, as in the file
        self.rows[prompt] = {
            **dict.fromkeys(self._columns, ""),
            **(row or {}),
            _PROMPT: prompt,
            _ERROR: message,
        }
        append_line(self._path, self._line(self.rows[prompt]))

    def done(self, prompt: str) -> Row | None:
        """The row of a prompt that was scanned without an error."""
        row = self.rows.get(prompt)
        return row if row is not None and not row[_ERROR] else None

    def keep(self, count: int) -> None:
        """Drop the rows after the first ``count`` prompts that were scanned without an error.

        Raises ValueError where there are fewer.
        """
        done = [prompt for prompt in self.rows if self.done(prompt) is not None]
        if len(done) < count:
            raise ValueError(f"{self._path.name} has lost rows of its scan: choose another name.")
        if len(done) > count:
            dropped = set(done[count:])
            self.rows = {prompt: row for prompt, row in self.rows.items() if prompt not in dropped}
            self._write_all()

    def _check(self, beside: Path, identity: Identity) -> dict[str, str]:
        """Refuse rows of another identity; the embeddings of the rows."""
        before: Mapping = {}
        with contextlib.suppress(OSError, HeaderError):
            before = read_section(beside.read_bytes(), beside.name, "it")
        check_format(
            self._path.name,
            KIND,
            version=VERSION,
            its_format=before.get("format"),
            its_version=before.get("format_version"),
        )
        check_identity(self._path.name, before.get("identity"), identity)
        embeddings = before.get("embeddings")
        return embeddings if isinstance(embeddings, dict) else {}

    def _check_embeddings(self, before: Mapping[str, str], embeddings: Mapping[str, str]) -> None:
        """Refuse a row whose prompt was encoded with other embeddings."""
        for prompt, digest in embeddings.items():
            if self.done(prompt) is not None and before.get(prompt) != digest:
                raise ValueError(
                    f"{self._path.name} was made with another embedding in the prompt "
                    f"{prompt[:60]!r}: restore it to go on, or choose another name."
                )

    def _read(self) -> None:
        try:
            rows = [*csv.reader(io.StringIO(whole_lines(self._path)))]
        except csv.Error:
            raise damaged(self._path.name) from None
        if rows and rows[0] != self._columns:
            raise ValueError(
                f"{self._path.name} has other columns, {', '.join(rows[0])[:100]!r}: choose "
                "another name."
            )
        for row in rows[1:]:
            if len(row) == len(self._columns):
                self.rows.pop(row[0], None)
                self.rows[row[0]] = dict(zip(self._columns, row, strict=True))

    def _write_all(self) -> None:
        with atomic_write(self._path) as temporary:
            head = dict(zip(self._columns, self._columns, strict=True))
            text = "".join(map(self._line, [head, *self.rows.values()]))
            temporary.write_text(text, encoding="utf-8", newline="")

    def _line(self, row: Row) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow([row[name] for name in self._columns])
        return text.getvalue()


class Pace:
    """How far a scan is, and the time left, from the prompts done in this run."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic):
        self.total = total
        self._clock = clock
        self._begun = clock()
        self._done = 0
        self._failed = 0

    def step(self, prompts: int = 1, failed: bool = False) -> str:
        """Count prompts, those that ``failed`` too, and say how far the scan is."""
        self._done += prompts
        self._failed += prompts * failed
        each = (self._clock() - self._begun) / self._done
        minutes = math.ceil((self.total - self._done) * each / 60)
        failures = f" ({self._failed} failed)" if self._failed else ""
        left = f"{minutes // 60}:{minutes % 60:02d} h left"
        return f"{self._done} of {self.total} prompts{failures}, {each:.3g} s each, {left}"


def score_columns(seeds: int) -> list[str]:
    """The columns of ``score_row``."""
    pairs = (f"pair_{first}_{second}" for first, second in itertools.combinations(range(seeds), 2))
    return ["score", *DETECTORS, *pairs]


def score_row(score: PromptScore) -> Row:
    """A score as a row: its value, the detectors, and the similarity of every pair of seeds."""
    seeds = len(score.pairs)
    values = (
        score.pairs[first, second] for first, second in itertools.combinations(range(seeds), 2)
    )
    detectors = (
        repr(score.detectors[name]) if name in score.detectors else "" for name in DETECTORS
    )
    cells = [repr(score.value), *detectors, *(repr(float(value)) for value in values)]
    return dict(zip(score_columns(seeds), cells, strict=True))


def score_from_row(row: Row, seeds: int) -> PromptScore:
    """What ``score_row`` was made from, to the last bit."""
    pairs = torch.eye(seeds)
    for first, second in itertools.combinations(range(seeds), 2):
        pairs[first, second] = pairs[second, first] = float(row[f"pair_{first}_{second}"])
    return PromptScore(
        pairs, with_anisotropy({name: float(row[name]) for name in DETECTORS if row[name]})
    )
