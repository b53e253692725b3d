"""What a job costs beside its pieces: `python run.py bench batch [PART ...] [--quick]`.

Parts: `overhead` (time per piece beside the piece's own work), `driver` (its memory over 100,000
empty pieces), `soak` (1,000 pieces of the demo model on two workers, and the memory of a worker),
`threads` (two workers of one thread against one process of two threads, alternating), `scale`
(large jobs on paper, from the first). Each writes `studies/results/batch_<part>.json`. Times are
those of a machine that other work shares: processor seconds are given beside them, and the load.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil

from studies.common import host, results
from tools.launcher import comfyui
from tools.launcher.batch import cluster, lists
from tools.launcher.batch.job import Job, pieces, resolved
from tools.launcher.batch.ledger import Ledger
from tools.launcher.batch.store import Store
from tools.launcher.batch.worker import Settings, Worker
from tools.workflows.titles import path_of

from . import arithmetic, empty_engine, machines
from .arithmetic import exact

_ASSETS = host.ROOT / "assets" / "avatars-v2"
_WORKFLOW = path_of("demo_world_text_to_image")


def overhead(quick: bool) -> dict[str, dict]:
    """Seconds per piece of empty pieces: the plain loop, the job in one process, and the job on
    Ray.
    """
    pieces_, rounds = (100, 5) if quick else (1000, 7)
    plain, files, job, processor = [], [], [], []
    for _ in range(rounds):
        with _job(pieces_) as (worker, made, entries, out):
            worker.take(made)
            plain.append(_seconds(lambda: _plain(worker._engine, made, entries), pieces_)[0])
            files.append(_seconds(lambda: _only_files(out, pieces_), pieces_)[0])
            wall, cpu = _seconds(
                lambda: worker.run_all(pieces(made, entries, 1), Store(out), _ledger(pieces_, out)),
                pieces_,
            )
            job.append(wall - plain[-1])
            processor.append(cpu)
    numbers = {
        "one process, added": results.bootstrap(
            1000 * np.array(job),
            f"added to the plain loop by keys, results and the bar, {pieces_} empty pieces",
            "ms",
            np.median,
        ),
        "one process, files alone": results.bootstrap(
            1000 * np.array(files),
            "a plain loop that makes a folder with one small file and renames it",
            "ms",
            np.median,
        ),
        "start of a worker": exact(
            _start(), "s", "ComfyUI's imports and nodes in a process of its own"
        ),
        "one process, processor": results.bootstrap(
            1000 * np.array(processor), "processor time of the job per empty piece", "ms", np.median
        ),
    }
    with machines.cluster(1) as (made, _):
        walls, drivers = zip(*_on_ray(made.address, pieces_, 1, rounds=rounds), strict=True)
    numbers["Ray, one worker"] = results.bootstrap(
        1000 * np.array(walls),
        f"per empty piece on one worker, starting left out, {pieces_} pieces",
        "ms",
        np.median,
    )
    numbers["Ray, processor of the driver"] = results.bootstrap(
        1000 * np.array(drivers), "processor time of the driver per empty piece", "ms", np.median
    )
    return numbers


def driver(quick: bool) -> dict[str, dict]:
    """The driver's memory over empty pieces in one process and, again, on a worker of a cluster."""
    total = 2_000 if quick else 100_000
    numbers = {}
    with _job(total) as (worker, job, entries, out):
        worker.take(job)
        found = _Driver(total)
        wall, cpu = _seconds(
            lambda: worker.run_all(
                pieces(job, entries, 1), Store(out), _ledger(total, out, found.ledger)
            ),
            total,
        )
        numbers |= found.numbers("one process")
        numbers["one process, rate"] = exact(1 / wall, "1/s", "empty pieces run and written")
        numbers["one process, processor"] = exact(
            1000 * cpu, "ms", "processor time per piece, pieces and results included"
        )
    found = _Driver(total)
    with machines.cluster(1) as (made, _):
        ((wall, cpu),) = _on_ray(made.address, total, 1, found.ledger)
    numbers |= found.numbers("Ray")
    numbers["Ray, rate"] = exact(1 / wall, "1/s", "empty pieces run and written by one worker")
    numbers["driver, processor"] = exact(
        1000 * cpu, "ms", "processor time of the driver per piece on Ray"
    )
    return numbers


class _Driver:
    """The resident memory of this process at a hundredth, a tenth, half and all of the pieces."""

    def __init__(self, total: int):
        self._marks = [total // 100, total // 10, total // 2, total]
        self._found: dict[int, float] = {}

    def ledger(self, *given) -> Ledger:
        marks, found, process = set(self._marks), self._found, psutil.Process()

        class Watching(Ledger):
            def finished(self) -> None:
                super().finished()
                if self.done in marks:
                    found[self.done] = process.memory_info().rss / 1e6

        return Watching(*given)

    def numbers(self, where: str) -> dict[str, dict]:
        first, last = self._marks[0], self._marks[-1]
        growth = (self._found[last] - self._found[first]) / (last - first) * 1e6
        sizes = {
            f"{where}, after {mark:,} pieces": exact(
                self._found[mark], "MB", "resident memory of the driver"
            )
            for mark in self._marks
        }
        return sizes | {
            f"{where}, growth": exact(
                growth, "bytes", f"per piece, from {first:,} to {last:,} pieces"
            )
        }


def soak(quick: bool) -> dict[str, dict]:
    """Pieces of the demo model on two workers of one thread, twice: the second time all must be
    found.
    """
    total = 20 if quick else 1000
    watched = _Memory()
    with machines.cluster(2) as (made, _), _demo(made.address, (2, 1)) as (run,):
        done, wall = run(0, total, watched.ledger)
        again, _ = run(0, total)
    early, late = watched.early_and_late()
    return {
        "pieces done": exact(
            done.done, "pieces", f"of {total}, one step at 64 x 64 with the demo model, two workers"
        ),
        "pieces failed": exact(done.failed, "pieces", "after three tries"),
        "pieces found": exact(again.found, "pieces", "when the same job runs again"),
        "seconds": exact(wall, "s", "for all pieces, starting left out"),
        "worker, early": exact(
            early, "MB", "resident memory of the larger worker, mean of the second tenth"
        ),
        "worker, late": exact(late, "MB", "the same in the last tenth"),
    }


def threads(quick: bool) -> dict[str, dict]:
    """Two workers of one thread against one worker of two threads, alternating, on the same pieces.

    Needs two idle cores: where other processes want them, the two threads wait for each other at
    every operation.
    """
    total, rounds = (4, 5) if quick else (8, 7)
    ratios, rates = [], ([], [])
    with (
        machines.cluster(4) as (made, _),
        _demo(made.address, (2, 1), (1, 2), steps=4, side=128) as runs,
    ):
        for number in range(rounds):
            seconds = {}
            for which in (0, 1) if number % 2 else (1, 0):
                _, seconds[which] = runs[which](number * total, total)
                rates[which].append(total / seconds[which])
            ratios.append(seconds[1] / seconds[0])
    what = f"images of 4 steps at 128 x 128, {total} a round"
    return {
        "two workers of one thread": results.bootstrap(np.array(rates[0]), what, "1/s", np.median),
        "one worker of two threads": results.bootstrap(np.array(rates[1]), what, "1/s", np.median),
        "ratio": results.bootstrap(
            np.array(ratios), "rate of two workers over that of one", "ratio", np.median
        ),
    }


@contextlib.contextmanager
def _job(total: int) -> Iterator[tuple]:
    """A worker with the empty engine, its job over so many seeds, the list, and a folder for
    results.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        entries = lists.opened(f"0-{total - 1}")
        worker = Worker(Settings(out, engine=Path(empty_engine.__file__)))
        prompt, kinds, _ = worker.read(empty_engine.PROMPT)
        yield worker, Job(prompt, resolved(prompt, ["1.seed"], entries, 1, kinds)), entries, out


def _start() -> float:
    """Seconds in which a ComfyUI starts in a process of its own."""
    code = (
        "import runpy, sys, tempfile, pathlib; "
        "runpy.run_path(sys.argv[1])['load_package']('tools');from tools.launcher.batch.worker "
        "import Settings, Worker;Worker(Settings(pathlib.Path(tempfile.mkdtemp()), threads=1))"
    )
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, "-P", "-c", code, str(host.ROOT / "run.py")],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - begun


def _plain(engine, job: Job, entries: lists.Entries) -> None:
    for (seed,) in entries.read():
        engine.run(job.filled({"seed": seed}), seed, Path())


def _only_files(out: Path, total: int) -> None:
    """The least that writing each result once and whole takes: what of the job's time is the file
    system's.
    """
    for number in range(total):
        (out / "part").mkdir()
        (out / "part" / "result.json").write_text("{}")
        (out / "part").rename(out / f"{number}")


def _seconds(run, total: int) -> tuple[float, float]:
    """Wall and processor seconds per piece."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return (time.perf_counter() - wall) / total, (time.process_time() - cpu) / total


def _ledger(total: int, out: Path, kind=Ledger) -> Ledger:
    return kind(total, out, io.StringIO())


def _on_ray(
    address: str, total: int, workers: int, kind=Ledger, rounds: int = 1
) -> list[tuple[float, float]]:
    """Wall seconds, and processor seconds of the driver, per empty piece, in each round; starting
    is left out.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        cluster.start(address, None)
        made = cluster.Cluster(
            Settings(out, threads=1, engine=Path(empty_engine.__file__)), workers
        )
        try:
            prompt, kinds, _ = made.read(empty_engine.PROMPT)
            made.wait()
            found = []
            for number in range(rounds):
                entries = lists.opened(f"{number * total}-{(number + 1) * total - 1}")
                job = Job(prompt, resolved(prompt, ["1.seed"], entries, 1, kinds))
                made.take(job)
                found.append(
                    _seconds(functools.partial(_run_all, made, job, entries, out, kind), total)
                )
            return found
        finally:
            made.close()


def _run_all(
    made: cluster.Cluster, job: Job, entries: lists.Entries, out: Path, kind=Ledger
) -> None:
    ledger = _ledger(entries.count, out, kind)
    made.run(job, pieces(job, entries, 1), Store(out), ledger)
    if ledger.done != entries.count:
        raise RuntimeError(f"{ledger.done} of {entries.count} pieces ran.")


@contextlib.contextmanager
def _demo(address: str, *kinds: tuple[int, int], steps: int = 1, side: int = 64) -> Iterator[list]:
    """For each kind (how many workers, and threads of each) a function that samples images of the
    demo model.

    It takes the first seed and how many, and returns the ledger and the seconds; all workers have
    loaded the model.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        cluster.start(address, None)
        sizes = {"batch_size": 1, "steps": steps, "width": side, "height": side}
        runs = []
        for workers, threads_ in kinds:
            out = Path(folder) / f"{workers}_{threads_}"
            out.mkdir()
            made = cluster.Cluster(
                Settings(out, base=comfyui.prepare_base(), threads=threads_), workers
            )
            if not runs:
                stack.callback(
                    made.close
                )  # leaves the cluster, which ends the workers of all kinds
            prompt, kinds_, _ = made.read(json.loads(_WORKFLOW.read_text("utf-8")))
            for node in prompt.values():
                node["inputs"].update(
                    {name: value for name, value in sizes.items() if name in node["inputs"]}
                )
            made.wait()
            runs.append(functools.partial(_sample, made, prompt, kinds_, out))
            runs[-1](1_000_000, 2 * workers)
        yield runs


def _sample(
    made: cluster.Cluster, prompt: dict, kinds: dict, out: Path, first: int, total: int, kind=Ledger
) -> tuple:
    entries = lists.opened(f"{first}-{first + total - 1}")
    job = Job(prompt, resolved(prompt, ["KSampler.seed"], entries, 1, kinds))
    job = replace(job, files=made.take(job))
    ledger = _ledger(total, out, kind)
    begun = time.perf_counter()
    made.run(job, pieces(job, entries, 1), Store(out), ledger)
    return ledger, time.perf_counter() - begun


class _Memory:
    """The resident memory of the larger worker while pieces are finished."""

    def __init__(self):
        self.found: list[float] = []

    def ledger(self, *given) -> Ledger:
        watched = self

        class Watching(Ledger):
            def finished(self) -> None:
                super().finished()
                if self.done % 10 == 0:
                    watched.look()

        return Watching(*given)

    def look(self) -> None:
        sizes = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if (process.cmdline() or [""])[0].startswith(("ray::BatchWorker", "ray::piece")):
                    sizes.append(process.memory_info().rss / 1e6)
        self.found.append(max(sizes))

    def early_and_late(self) -> tuple[float, float]:
        tenth = max(len(self.found) // 10, 1)
        return float(np.mean(self.found[tenth : 2 * tenth])), float(np.mean(self.found[-tenth:]))


def scale(quick: bool) -> dict[str, dict]:
    """Large jobs on 8 and 64 GPUs, on paper."""
    return arithmetic.numbers()


_PARTS = {one.__name__: one for one in (overhead, driver, soak, threads, scale)}


def main(argv: Sequence[str]) -> int:
    """Measure the parts named, or all."""
    parser = argparse.ArgumentParser(prog="run.py bench batch", description=__doc__.splitlines()[0])
    parser.add_argument(
        "parts", nargs="*", choices=[*_PARTS, []], metavar="PART", help=", ".join(_PARTS)
    )
    parser.add_argument("--quick", action="store_true", help="fewer pieces")
    options = parser.parse_args(argv)
    for name in options.parts or _PARTS:
        numbers = _PARTS[name](options.quick)
        numbers["load"] = exact(
            os.getloadavg()[1],
            "processes",
            f"of the machine's {os.cpu_count()} cores, five minutes",
        )
        suffix, option = ("_quick", " --quick") if options.quick else ("", "")
        path = results.write(
            f"batch_{name}{suffix}",
            f"python run.py bench batch {name}{option}",
            0,
            _ASSETS,
            numbers,
        )
        print(
            path,
            *itertools.starmap("{}: {}".format, ((k, v["value"]) for k, v in numbers.items())),
            sep="\n  ",
        )
    return 0
