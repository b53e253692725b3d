"""The numbers of README.md and docs/figures.md beside their rivals: `python run.py study rivals`.

Each number with its result file and key, its value and interval, n and unit, and the units that its
settings were fitted on; below it the same of its rivals, or why there is none.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from .headlines import HEADLINES, Headline, Measured

RESULTS = Path(__file__).resolve().parent / "results"


@cache
def _numbers(result: str) -> dict:
    """The numbers of a result file."""
    return json.loads((RESULTS / f"{result}.json").read_text("utf-8"))["numbers"]


def line(measured: Measured) -> str:
    """A number in one line; raises KeyError or FileNotFoundError where it does not exist."""
    number = _numbers(measured.result)[measured.key]
    interval = f" ({number['low']:.3f} to {number['high']:.3f})" if "low" in number else ""
    return (
        f"{measured.result}: {measured.key} = {number['value']:.3f}{interval} {number['unit']}, "
        f"n {number['n']}, fitted on {measured.fitted}: {measured.settings}"
    )


def listing(headlines: Sequence[Headline]) -> Iterator[str]:
    """Lines of every headline and its rivals."""
    for headline in headlines:
        yield line(headline.number)
        for rival in headline.rivals:
            yield f"    rival {line(rival)}"
        if headline.no_rival:
            yield f"    no rival: {headline.no_rival}"


def problems(headlines: Sequence[Headline], stated: set[tuple[str, str]]) -> list[str]:
    """What is wrong with declarations: a number of a page without one, a key that does not exist, a
    rival that is missing without a reason.

    ``stated``: result and key of each number that the pages state.
    """
    lines = []
    declared = {
        (measured.result, measured.key)
        for headline in headlines
        for measured in (headline.number, *headline.rivals)
    }
    for result, key in sorted(stated - declared):
        lines.append(f"{result}: {key} is on a page and not in studies/headlines.py.")
    for result, key in sorted(declared):
        path = RESULTS / f"{result}.json"
        if not path.is_file() or key not in _numbers(result):
            lines.append(f"{result}: {key} does not exist.")
    for headline in headlines:
        name = f"{headline.number.result}: {headline.number.key}"
        if (headline.number.result, headline.number.key) not in stated:
            lines.append(f"{name} is declared and on no page.")
        if not headline.rivals and not headline.no_rival:
            lines.append(f"{name} has no rival and no reason.")
        lines += [
            f"{name}: say how the settings of {measured.key} were found."
            for measured in (headline.number, *headline.rivals)
            if not measured.settings
        ]
    return lines


def main(argv: Sequence[str]) -> int:
    """Print every number of the two pages beside its rivals."""
    parser = argparse.ArgumentParser(
        prog="run.py study rivals", description=__doc__.splitlines()[0]
    )
    parser.parse_args(argv)
    print("\n".join(listing(HEADLINES)))
    return 0
