"""Results of pieces on disk: written once, whole or not at all, and found again by their key."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import uuid
from pathlib import Path

_RECORD, _PIECES, _WORK = "result.json", "pieces", "work"
_LEFT = 7 * 24 * 3600.0  # seconds


class Store:
    """A folder of results: ``pieces/ab/abcd…/`` holds a piece's files and ``result.json``, its
    record.

    A piece is made in ``work``, a folder of this object's own, and that is renamed: workers on any
    machine that shares the file system may write at the same time, and of two that make the same
    piece the first counts.
    """

    def __init__(self, root: Path):
        self.root = root
        self.work = root / _WORK / uuid.uuid4().hex

    def folder(self, key: str) -> Path:
        """Where the result of a key lies or will lie."""
        return self.root / _PIECES / key[:2] / key

    def begin(self) -> None:
        """Make ``work`` an empty folder."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)

    def finish(self, key: str, record: dict) -> None:
        """Publish a piece: its files are those in ``work``."""
        files = sorted(path for path in self.work.rglob("*") if path.is_file())
        record = {
            **record,
            "files": {
                path.relative_to(self.work).as_posix(): path.stat().st_size for path in files
            },
        }
        (self.work / _RECORD).write_text(
            json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False) + "\n", "utf-8"
        )
        target = self.folder(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(self.work, target)
        except OSError:
            if (
                self.read(key) is None
            ):  # neither another worker's result nor one that can be replaced
                raise
            shutil.rmtree(self.work)

    def read(self, key: str) -> dict | None:
        """The record of a result, or None where there is none; one that has lost files is
        removed.
        """
        folder = self.folder(key)
        try:
            record = json.loads((folder / _RECORD).read_text("utf-8"))
            if all(
                (folder / name).stat().st_size == size for name, size in record["files"].items()
            ):
                return record
        except FileNotFoundError:
            if not folder.is_dir():
                return None
        except (ValueError, KeyError, AttributeError, TypeError, NotADirectoryError):
            pass
        # Renamed first: of two that find it damaged, neither removes what the other has made since.
        with contextlib.suppress(OSError):
            broken = self.root / _WORK / f"{uuid.uuid4().hex}.damaged"
            broken.parent.mkdir(parents=True, exist_ok=True)
            os.rename(folder, broken)
            shutil.rmtree(broken, ignore_errors=True)
        return None

    def close(self) -> None:
        """Remove ``work``."""
        shutil.rmtree(self.work, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what workers that were killed have left: nothing has changed in it for a week."""
        for left in (self.root / _WORK).glob("*"):
            with contextlib.suppress(OSError):
                if (
                    time.time() - max(path.stat().st_mtime for path in (left, *left.rglob("*")))
                    > _LEFT
                ):
                    shutil.rmtree(left)
