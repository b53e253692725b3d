"""The command line of a study in parts, each of which writes a file of results of its own."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence

from . import host, results


def run(
    package: str,
    about: str,
    parts: Mapping[str, str],
    seed: int,
    argv: Sequence[str],
    command: str = "study",
    worlds: Mapping[str, Sequence[str]] | None = None,
) -> int:
    """Measure the parts named in ``argv``, or all, on the shipped model, or on the assets that
    ``worlds`` names.

    ``parts`` says for each name where its numbers come from, as "module:function" within
    ``package``; the function takes whether to be quick. Part P of study S goes to
    studies/results/S_P.json, or S_P_quick.json. A benchmark passes "bench" as ``command``; its
    results are named bench_S_P.
    """
    study = package.rpartition(".")[2]
    started = f"run.py {command} {study}"
    parser = argparse.ArgumentParser(prog=started, description=about.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    parser.add_argument(
        "--quick", action="store_true", help="fewer settings and samples, in under five minutes"
    )
    options = parser.parse_args(argv)
    unknown = [part for part in options.parts if part not in parts]
    if unknown:
        parser.error(f"there is no part {unknown[0]}: choose from {', '.join(parts)}")
    for part in options.parts or parts:
        module, function = parts[part].split(":")
        numbers = getattr(importlib.import_module(f".{module}", package), function)(options.quick)
        name = (
            ("bench_" if command == "bench" else "")
            + f"{study}_{part}"
            + ("_quick" if options.quick else "")
        )
        world = (worlds or {}).get(part, ("avatars-v2",))
        line = f"python {started} {part}" + (" --quick" if options.quick else "")
        print(
            results.write(
                name, line, seed, [host.ROOT / "assets" / each for each in world], numbers
            ),
            flush=True,
        )
    return 0
