"""Would the suite notice? Puts faults into a copy of the pack, one at a time, and runs the tests
that concern each.

    python -P tools/faults.py --seed 1                    draw sixty faults, the families in turn,
    and try each python -P tools/faults.py --seed 1 --since COMMIT     of functions that were
    changed since a commit python -P tools/faults.py --seed 1 --again            what was not
    noticed, and replacements python -P tools/faults.py --every 'directions.*fit'   every fault
    whose file, function, kind and source match

Functions are drawn first, then a kind of fault, then its place (fault_draws.py). The tests that
concern a file are those that import it, by however many steps, nearest first: unit, comfy,
robustness. They are collected once, and each fault has a fork of that process (fault_trials.py).
Noticed: a test fails, and passes without the fault. The table is studies/results/faults.csv. Its
column `equivalent` is written by hand: why no test could notice the fault. Such a fault is not
counted, and `--again` draws another one of its family; it also replaces what has not been noticed
and has no place any more.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import runpy
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.fault_draws import Fault
    from tools.fault_trials import Outcome

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "studies" / "results" / "faults.csv"


@dataclass(kw_only=True)
class Row:
    """A line of the table. ``outcome``: noticed, survived (all tests passed), or unfinished (the
    limit came first).

    ``since``: the commit since which the function was changed; empty where it was drawn of the
    whole pack.
    """

    seed: int
    since: str
    family: str
    file: str
    function: str
    kind: str
    before: str
    after: str
    place: int
    outcome: str = ""
    by: str = ""
    equivalent: str = ""

    @property
    def identity(self) -> tuple[str, str, str, str, str, int]:
        """As that of a fault."""
        stem = Path(self.file).stem.removesuffix("_comfy")
        return (stem, self.function, self.kind, self.before, self.after, self.place)


def row_of(fault: Fault, seed: int, since: str) -> Row:
    """The line of a fault that has not been tried."""
    from tools.fault_draws import short

    return Row(
        seed=seed,
        since=since,
        family=fault.family,
        file=fault.file,
        function=fault.function,
        kind=fault.kind,
        before=short(fault.before),
        after=short(fault.after),
        place=fault.place,
    )


def read_table(table: Path = TABLE) -> list[Row]:
    """The lines of the table; none where there is no file."""
    if not table.is_file():
        return []
    with table.open(encoding="utf-8", newline="") as file:
        return [
            Row(**{**row, "seed": int(row["seed"]), "place": int(row["place"])})
            for row in csv.DictReader(file)
        ]


def write_table(rows: list[Row], table: Path = TABLE) -> None:
    """Replace the table."""
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in sorted(rows, key=lambda row: (row.since, row.seed)))


def chosen(root: Path, rows: list[Row], options: argparse.Namespace) -> list[tuple[Fault, Row]]:
    """The faults to be tried with their lines; lines that are new are added to ``rows``."""
    from tools import fault_draws

    own = [row for row in rows if _is_of(row, options)]
    if not options.again:
        rows[:] = [row for row in rows if row not in own or row.equivalent]
        own = [row for row in own if row.equivalent]
    functions = fault_draws.changed_since(ROOT, options.since) if options.since else None
    equivalent = {row.identity for row in rows if row.equivalent}
    drawn = fault_draws.draw(
        root, options.seed, count=options.count, functions=functions, without=equivalent
    )
    pairs = []
    if options.again:
        everywhere = {fault.identity: fault for fault in fault_draws.every_fault(root)}
        # What has no place any more, since its function was changed, is replaced.
        own = [row for row in own if row.outcome == "noticed" or row.identity in everywhere]
        rows[:] = [row for row in rows if row in own or not _is_of(row, options)]
        pairs = [
            (everywhere[row.identity], row)
            for row in own
            if row.outcome != "noticed" and not row.equivalent
        ]
    counted = sum(not row.equivalent for row in own)
    present = {row.identity for row in own}
    for fault in drawn:
        if fault.identity not in present and counted < options.count:
            counted += 1
            row = row_of(fault, options.seed, options.since)
            rows.append(row)
            pairs.append((fault, row))
    return pairs


def _is_of(row: Row, options: argparse.Namespace) -> bool:
    """Whether a line is of a seed and a commit."""
    return (row.seed, row.since) == (options.seed, options.since)


def try_all(
    pairs: list[tuple[Fault, Row]], copy_root: Path, limit: float, save: Callable[[], None]
) -> None:
    """Try faults and note what comes of each in its line, as it comes."""
    from tools import fault_trials

    concern = fault_trials.Concern(copy_root)
    kinds = ("unit", "comfy", "robustness")
    trials = [
        (fault, [name for kind in kinds for name in concern.tests(fault, kind)])
        for fault, _ in pairs
    ]

    def note(number: int, outcome: Outcome, seconds: float) -> None:
        fault, row = pairs[number]
        row.outcome = outcome.result
        row.by = outcome.by if outcome.result != "survived" else ""
        place = f"{fault.file} {fault.function} {fault.kind}: {row.before} -> {row.after}"
        print(f"{number:3d} {seconds:4.0f} s {row.outcome}: {place}", flush=True)
        save()

    _in_a_fork(copy_root, trials, limit, note)
    unnoticed = [
        number
        for number, (fault, row) in enumerate(pairs)
        # No node is executed while modules are imported.
        if row.outcome != "noticed" and not fault.function.endswith(".execute")
    ]
    if unnoticed:
        fault_trials.prepare(Path(os.environ["GLASSBOX_COMFYUI"]))
        fault_trials.forget_tools()
    for number in unnoticed:
        fault, names = trials[number]
        note(number, fault_trials.try_afresh(copy_root, fault, names, limit), 0.0)


def _in_a_fork(
    copy_root: Path, trials: list, limit: float, note: Callable[[int, Outcome, float], None]
) -> None:
    """``serve`` in a process of its own, so that this one stays without ComfyUI and the pack."""
    from tools import fault_trials

    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)

        def tell(number: int, outcome: Outcome, seconds: float) -> None:
            os.write(
                writing, (json.dumps([number, outcome.result, outcome.by, seconds]) + "\n").encode()
            )

        try:
            fault_trials.prepare(None)
            fault_trials.forget_tools()
            fault_trials.serve(copy_root, trials, limit, tell)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as lines:
        for line in lines:
            number, result, by, seconds = json.loads(line)
            note(number, fault_trials.Outcome(result=result, by=by), seconds)
    os.waitpid(child, 0)


def main(argv: list[str]) -> int:
    """Draw, try and write the table."""
    runpy.run_path(str(ROOT / "run.py"))["load_package"]("tools")
    from tools import fault_draws, fault_trials

    options = _options(argv)
    sys.dont_write_bytecode = True
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    os.environ.setdefault("GLASSBOX_COMFYUI", str(next((ROOT / ".cache").glob("comfyui-*"))))
    rows = read_table()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        copy_root = Path(folder).resolve() / "pack"
        copy_root.mkdir()
        fault_trials.copy_pack(ROOT, copy_root)
        if options.every:
            matching = [
                fault
                for fault in fault_draws.every_fault(copy_root)
                if re.search(
                    options.every, f"{fault.file} {fault.function} {fault.kind} {fault.before}"
                )
            ]
            pairs = [(fault, row_of(fault, options.seed, "")) for fault in matching]
        else:
            pairs = chosen(copy_root, rows, options)
        if options.list:
            concern = fault_trials.Concern(copy_root)
            for fault, row in pairs:
                print(row.family, row.file, row.function, row.kind, row.before, "->", row.after)
                print(
                    "   ",
                    *concern.tests(fault, "unit")[:4],
                    "|",
                    *concern.tests(fault, "comfy")[:4],
                )
            return 0
        try_all(
            pairs, copy_root, options.limit, lambda: None if options.every else write_table(rows)
        )
    own = [row for row in rows if _is_of(row, options)]
    tried = (
        [row for _, row in pairs] if options.every else [row for row in own if not row.equivalent]
    )
    noticed = sum(row.outcome == "noticed" for row in tried)
    print(
        f"{noticed} of {len(tried)} noticed; {len(own) - len(tried) if not options.every else 0} "
        "equivalent, replaced"
    )
    return 0


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--since", default="", metavar="COMMIT", help="only functions that were changed since then"
    )
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument(
        "--limit", type=float, default=120.0, help="seconds of computing for a fault"
    )
    parser.add_argument(
        "--again", action="store_true", help="only what the table has as not noticed, or is new"
    )
    parser.add_argument(
        "--every", default="", metavar="PATTERN", help="all faults that match; no table"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the faults and their tests, and try none"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.path[:] = [
        entry for entry in sys.path if Path(entry).resolve() not in (ROOT, ROOT / "tools")
    ]
    sys.exit(main(sys.argv[1:]))
