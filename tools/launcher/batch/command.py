"""`run.py batch WORKFLOW.json --over LIST`: reads the arguments, runs the pieces, and joins their
results.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import logging
import math
import os
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .. import comfyui, environment, paths
from ..errors import LaunchError
from . import cluster, joining, lists
from .job import Job, count, pieces, placed, resolved
from .ledger import Ledger
from .store import Store
from .worker import Settings, Worker

_OUT = paths.CACHE / "batch"


def run(argv: Sequence[str]) -> int:
    """Run a job and return 1 if a piece failed; a file that cannot be read or written ends it with
    a sentence.
    """
    try:
        return _run(_options(argv))
    except OSError as error:
        about = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise LaunchError(
            f"{about}. What is done is kept: mend it, and the same command continues."
        ) from error


def _run(options: argparse.Namespace) -> int:
    saved = _saved(options.workflow)
    plan = (saved.get("extra") or {}).get("glassbox_batch") or {}
    out = (options.out or _OUT / options.workflow.stem).expanduser().absolute()
    out.mkdir(parents=True, exist_ok=True)
    joins = dict.fromkeys(["index", *(options.join or plan.get("join") or [])])
    entries = lists.opened(options.over)
    chunk = options.chunk or plan.get("chunk") or 1
    with contextlib.ExitStack() as stack:
        workers = _workers(options, out, stack)
        prompt, kinds, roots = workers.read(saved)
        targets = resolved(prompt, options.map or plan.get("map") or [], entries, chunk, kinds)
        entries = placed(entries, roots)
        made_with = {"arguments": options.comfyui, **({} if options.engine else _versions())}
        job = Job(prompt, targets, roots=tuple(roots), made_with=made_with)
        job = replace(job, files=workers.take(job))
        store, ledger = Store(out), Ledger(count(entries, chunk), out)
        stack.callback(setattr, logging.root, "handlers", logging.root.handlers)
        logging.root.handlers = [_Lines(ledger)]
        try:
            if isinstance(workers, Worker):
                workers.take(job)
                workers.run_all(pieces(job, entries, chunk), store, ledger)
            else:
                workers.run(job, pieces(job, entries, chunk), store, ledger)
        except KeyboardInterrupt:
            ledger.show(
                f"{ledger.done + ledger.found} of {ledger.total} pieces are done: the same command "
                "continues."
            )
            raise
        ledger.close()
        store.sweep()
    if ledger.failed == ledger.total:
        raise LaunchError("Every piece failed: there is nothing to join.")
    for name in joins:
        try:
            made = joining.JOINS[name](joining.results(store, pieces(job, entries, chunk)), out)
        except ValueError as error:
            raise LaunchError(
                f"The pieces are done, but cannot be joined as {name}: {error}"
            ) from error
        print(f"{name}: {', '.join(map(str, made))}", flush=True)
    return int(ledger.failed > 0)


class _Lines(logging.Handler):
    """Warnings of nodes on lines of their own, above the bar.

    Left out is the trace that ComfyUI's execution.py logs of a node that fails: the ledger names it
    in a sentence.
    """

    def __init__(self, ledger: Ledger):
        super().__init__(logging.WARNING)
        self._ledger = ledger
        self.addFilter(lambda record: record.module != "execution")

    def emit(self, record: logging.LogRecord) -> None:
        self._ledger.show(self.format(record))


def _workers(
    options: argparse.Namespace, out: Path, stack: contextlib.ExitStack
) -> Worker | cluster.Cluster:
    cpu = options.cpu or (options.ray in (None, cluster.LOCAL) and environment.needs_cpu())
    arguments = tuple(options.comfyui)
    settings = Settings(
        out,
        _absolute(options.base_directory),
        _absolute(options.input_directory),
        options.cores,
        cpu,
        options.gpus,
        arguments,
        _absolute(options.engine),
    )
    if options.ray is None:
        print("Starting ComfyUI ...", flush=True)
        worker = Worker(settings)
        stack.callback(worker.close)
        return worker
    if options.cores is None:
        settings = replace(settings, threads=min(4, os.cpu_count() or 1))
    environment_of = (
        json.loads(options.runtime_env.read_text("utf-8")) if options.runtime_env else None
    )
    dashboard = cluster.start(options.ray, environment_of)
    if dashboard:
        print(f"Ray's dashboard: http://{dashboard}", flush=True)
    print("Starting workers ...", flush=True)
    wait = 0.0 if options.ray == cluster.LOCAL else 60 * options.wait
    workers = cluster.Cluster(settings, options.workers, wait, options.deadline)
    stack.callback(workers.close)
    return workers


def _versions() -> dict[str, str]:
    comfyui_version = (comfyui.locate() / "comfyui_version.py").read_text("utf-8")
    pack = tomllib.loads((paths.ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    return {
        "comfyui": comfyui_version.strip(),
        "glassbox": pack,
        "torch": importlib.metadata.version("torch"),
    }


def _saved(path: Path) -> dict:
    try:
        saved = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise LaunchError(f"The workflow {path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise LaunchError(
            f"{path.name} is no JSON file ({error}): save the workflow again."
        ) from error
    if not isinstance(saved, dict):
        raise LaunchError(f"{path.name} holds no workflow: save it again.")
    return saved


def _absolute(path: Path | None) -> Path | None:
    return path.expanduser().absolute() if path else None


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "run.py batch",
        description=(
            "Run a workflow over a list, in pieces. Starting the same command again goes on."
        ),
    )
    parser.add_argument(
        "workflow", type=Path, metavar="WORKFLOW.json", help="a saved canvas, or its API form"
    )
    parser.add_argument(
        "--over",
        required=True,
        metavar="LIST",
        help=(
            "a .txt (one prompt per line), a .csv (named columns), a folder of files or of "
            "folders, or seeds such as 0-999"
        ),
    )
    parser.add_argument(
        "--map",
        action="append",
        metavar="COLUMN=NODE.input",
        help="the input that a column fills; NODE is an id, a title or a class; repeatable",
    )
    parser.add_argument(
        "--chunk",
        type=_positive,
        metavar="N",
        help="entries of the list in one piece, one per line",
    )
    parser.add_argument(
        "--join",
        action="append",
        metavar="WHAT",
        choices=sorted(joining.JOINS),
        help=f"how results are joined ({', '.join(sorted(joining.JOINS))}); repeatable",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where results go (.cache/batch/WORKFLOW)"
    )
    parser.add_argument(
        "--ray",
        nargs="?",
        const=cluster.LOCAL,
        metavar="ADDRESS",
        help="run on Ray: on this machine, or on the cluster of that address",
    )
    parser.add_argument(
        "--workers",
        type=_positive,
        metavar="N",
        help="with --ray: how many (default: as many as fit)",
    )
    parser.add_argument(
        "--cores", type=_positive, metavar="N", help="cores and threads of a worker"
    )
    parser.add_argument(
        "--gpus",
        type=_number,
        default=1.0,
        metavar="N",
        help="with --ray: GPUs of a worker, such as 2 or 0.5 (1)",
    )
    parser.add_argument(
        "--deadline",
        type=_number,
        metavar="SECONDS",
        help=(
            "with --ray: a worker that takes longer for one piece is replaced; 0: none (20 times "
            "the longest piece so far, and at least ten minutes; an hour for the first)"
        ),
    )
    parser.add_argument(
        "--wait",
        type=_number,
        default=10.0,
        metavar="MINUTES",
        help=(
            "with --ray ADDRESS: how long to wait for the first machine with room for a worker (10)"
        ),
    )
    parser.add_argument("--cpu", action="store_true", help="do not use GPUs")
    parser.add_argument(
        "--runtime-env", type=Path, metavar="FILE", help="with --ray: its runtime_env, as JSON"
    )
    parser.add_argument(
        "--base-directory",
        type=Path,
        metavar="DIR",
        help="where ComfyUI's models, input and custom_nodes are (COMFYUI_DIR)",
    )
    parser.add_argument(
        "--input-directory", type=Path, metavar="DIR", help="ComfyUI's input folder"
    )
    parser.add_argument(
        "--comfyui",
        action="append",
        default=[],
        metavar="ARGUMENT",
        help="a further argument of ComfyUI's main.py, such as --comfyui=--fp16-unet",
    )
    parser.add_argument("--engine", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _number(text: str) -> float:
    number = float(text)
    if not 0 <= number < math.inf:
        raise ValueError
    return number
