"""A worker: one ComfyUI that keeps its models, and runs one piece after another into the store."""

from __future__ import annotations

import os
import runpy
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .. import comfyui
from ..errors import LaunchError
from .job import Job, Piece
from .ledger import Ledger
from .store import Store

TRIES = 3


class PieceError(Exception):
    """A piece that ComfyUI refused or that failed; its text is one sentence."""


@dataclass(frozen=True)
class Place:
    """Where ComfyUI and its folders are on a machine, and how it computes."""

    comfyui: Path
    base: Path  # models, input and custom_nodes lie there
    inputs: Path | None = None  # another input folder
    threads: int | None = None
    cpu: bool = True
    arguments: tuple[str, ...] = ()  # further ones of ComfyUI's main.py


@dataclass(frozen=True)
class Settings:
    """What a person requests of every worker, whichever machine it is on."""

    out: Path
    base: Path | None = None
    inputs: Path | None = None
    threads: int | None = None
    cpu: bool = True
    gpus: float = 1.0  # of a worker on a cluster; a fraction shares one
    arguments: tuple[str, ...] = ()
    engine: Path | None = (
        None  # a Python file with another class Engine, for tests and measurements
    )

    def place(self) -> Place:
        """The folders on this machine: those of COMFYUI_DIR where it is set, else what `run.py` has
        set up.
        """
        folder, named = comfyui.locate(), os.environ.get("COMFYUI_DIR")
        base = self.base or (folder if named else comfyui.prepare_base())
        if not base.is_dir():
            raise LaunchError(
                f"{socket.gethostname()} has no folder {base}: give another --base-directory."
            )
        return Place(folder, base, self.inputs, self.threads, self.cpu, self.arguments)


class Worker:
    """Starts its ComfyUI when it is made. Raises LaunchError when that cannot be, or when it cannot
    see the results.
    """

    def __init__(self, settings: Settings):
        self.name = f"{socket.gethostname()} (process {os.getpid()})"
        if not settings.out.is_dir():
            raise LaunchError(
                f"{self.name} does not see {settings.out}: give as --out a folder that all "
                "machines share."
            )
        self._store = Store(settings.out)
        if settings.engine is None:
            from .engine import Engine

            self._engine = Engine(settings.place())
        else:
            self._engine = runpy.run_path(str(settings.engine))["Engine"](settings)
        self._job: Job | None = None

    def read(self, saved: dict) -> tuple[dict, dict, list[Path]]:
        """The prompt of a workflow, the types of its nodes' inputs by class, and the folders of
        files.
        """
        prompt = self._engine.prompt(saved)
        return prompt, self._engine.kinds(prompt), self._engine.roots

    def take(self, job: Job) -> dict[str, str]:
        """Take a job; the digests of the files that its fixed inputs name, as they are on this
        machine.
        """
        self._job = job
        return self._engine.files(job.fixed())

    def has(self, key: str) -> bool:
        """Whether a piece's result is there."""
        return self._store.read(key) is not None

    def run(self, key: str, values: dict[str, str]) -> None:
        """Run a piece and publish its result. Raises PieceError when it fails, or a file cannot be
        read or written.
        """
        try:
            self._store.begin()
            texts = self._engine.run(self._job.filled(values), key, self._store.work)
            self._store.finish(key, {"values": values, "texts": texts})
        except ValueError as error:
            raise PieceError(str(error)) from error
        except OSError as error:
            raise PieceError(
                f"{self.name}: {error.strerror or error} ({error.filename or self._store.root})"
            ) from error

    def run_all(self, todo: Iterable[Piece], store: Store, ledger: Ledger) -> None:
        """Run every piece that the store lacks; one that fails three times is named and left
        out.
        """
        for piece in todo:
            if store.read(piece.key) is not None:
                ledger.reused()
                continue
            for attempt in range(1, TRIES + 1):
                try:
                    self.run(piece.key, piece.values)
                except PieceError as error:
                    if attempt == TRIES:
                        ledger.skipped(piece, str(error))
                else:
                    ledger.finished()
                    break

    def close(self) -> None:
        """Remove what is left of a piece that was not finished."""
        self._store.close()


def other_files(name: str, mine: dict[str, str], first: str, its: dict[str, str]) -> str | None:
    """The sentence for files that differ between two workers, or None where they are the same."""
    for file in sorted(mine.keys() | its.keys()):
        if mine.get(file) == its.get(file):
            continue
        digests = ((first, its.get(file)), (name, mine.get(file)))
        listed = ", ".join(f"{who} has {of[:12] if of else 'none'}" for who, of in digests)
        return (
            f"The file {file} is not the same everywhere ({listed}): copy one to all machines, and "
            "start again."
        )
    return None
