"""What a person sees in the terminal: progress, how long things took, and a table, in plain
ASCII.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from . import paths

_BETWEEN = 20.0  # seconds between two lines where the output is no terminal


class ProgressLine:
    """What a running workflow of some nodes is at: the node, its step, and the seconds since the
    start.

    On a terminal it is one line with a bar that rewrites itself; elsewhere a line every `_BETWEEN`
    seconds. `clock` gives seconds. `clear` takes the bar away.
    """

    def __init__(
        self,
        title: str,
        nodes: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        from tqdm import (
            tqdm,
        )  # here, because the launcher is imported before its environment exists

        self._stream = stream or sys.stdout
        self._title, self._nodes, self._started = title, max(nodes, 1), set()
        self._clock = clock
        self._start = self._printed = clock()
        layout = "  [{bar:24}] {percentage:3.0f}%  {desc}"
        self._bar = tqdm(
            total=1.0,
            bar_format=layout,
            ascii="-#",
            leave=False,
            file=self._stream,
            disable=not self._stream.isatty(),
            mininterval=0,
            dynamic_ncols=True,
        )

    def update(self, node: str, label: str, value: float, maximum: float) -> None:
        """Show that `node`, called `label`, is at step `value` of `maximum` (0 of 0 when it does
        not say).
        """
        self._started.add(node)
        within = min(value / maximum, 1.0) if maximum else 0.0
        done = min((len(self._started) - 1 + within) / self._nodes, 1.0)
        step = f", step {value:.0f} of {maximum:.0f}" if maximum else ""
        now = self._clock()
        text = f"{self._title}: {label}{step}, {duration(now - self._start)}"
        if not self._bar.disable:
            self._bar.n = done
            self._bar.set_description_str(text)
        elif now - self._printed >= _BETWEEN:
            self._printed = now
            print(f"    {done:4.0%}  {text}", file=self._stream, flush=True)

    def clear(self) -> None:
        """Take the line away."""
        self._bar.close()


def duration(seconds: float) -> str:
    """Seconds as a person says them: 13 s, 4 min 5 s, 1 h 2 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class Durations:
    """How long commands took the last time, by name, in a file; a file that cannot be read knows
    nothing.
    """

    def __init__(self, path: Path):
        self._path = path
        try:
            seconds = json.loads(path.read_text("utf-8"))
            self._seconds = {str(name): float(value) for name, value in seconds.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            self._seconds = {}

    def last(self, *names: str) -> str:
        """What to say of some commands together, such as " (took 13 s last time)"; nothing where
        one is unknown.
        """
        if not names or any(name not in self._seconds for name in names):
            return ""
        return f" (took {duration(sum(self._seconds[name] for name in names))} last time)"

    def keep(self, name: str, seconds: float) -> None:
        """Note how long a command took."""
        self._seconds[name] = round(seconds, 1)
        paths.write_atomically(self._path, json.dumps(self._seconds, indent=1, sort_keys=True))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows as text in aligned columns below a header."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text)
