"""What a person sees of a job while it runs: pieces done, rate, time left, failures."""

from __future__ import annotations

import collections
import csv
import shutil
import sys
import time
from pathlib import Path

from .job import Piece

_BAR = 24
_WINDOW = 300.0  # seconds over which the rate is taken
_EVERY = 0.2  # seconds between two drawings of the bar
_LINES = 60.0  # and between two lines where the output is no terminal
FAILURES = "failures.csv"


class Ledger:
    """Counts pieces, draws the bar, and writes what failed to ``failures.csv`` as it happens."""

    def __init__(self, total: int, out: Path, stream=None, clock=time.monotonic):
        self.total, self.done, self.found, self.failed = total, 0, 0, 0
        self.named: list[str] = []  # the first failures, for the end
        self._stream, self._clock, self._out = stream or sys.stdout, clock, out / FAILURES
        self._drawn = self._begun = clock()
        self._recent: collections.deque[tuple[float, int]] = collections.deque([(self._begun, 0)])
        self._out.unlink(missing_ok=True)

    def reused(self) -> None:
        """A piece that was there already."""
        self.found += 1
        self._update()

    def finished(self) -> None:
        """A piece that was run."""
        self.done += 1
        self._update()

    def skipped(self, piece: Piece, reason: str) -> None:
        """A piece that failed every time."""
        self.failed += 1
        if len(self.named) < 10:
            self.named.append(f"Piece {piece.name} failed: {reason}")
        new = not self._out.exists()
        try:
            with self._out.open("a", encoding="utf-8", newline="") as file:
                lines = csv.writer(file, lineterminator="\n")
                if new:
                    lines.writerow(["piece", "key", "reason", *piece.values])
                lines.writerow([piece.number, piece.key, reason, *piece.values.values()])
        except OSError as error:  # the job goes on
            self.show(
                f"Piece {piece.name} failed: {reason} It is not in {self._out} ({error.strerror})."
            )
        self._update()

    @property
    def rate(self) -> float:
        """Pieces run in a second, of late; 0 where none has been."""
        begun, before = self._recent[0]
        seconds = self._clock() - begun
        return (self.done + self.failed - before) / seconds if seconds > 0 else 0.0

    def line(self) -> str:
        """The bar as text."""
        all_ = self.done + self.found + self.failed
        fraction = all_ / max(self.total, 1)
        parts = [f"[{('#' * round(fraction * _BAR)).ljust(_BAR, '-')}] {all_}/{self.total}"]
        if self.rate:
            parts.append(f"{self.rate:.2f}/s" if self.rate >= 1 else f"{1 / self.rate:.1f} s each")
            parts.append(f"{_duration((self.total - all_) / self.rate)} left")
        if self.found:
            parts.append(f"{self.found} found")
        parts.append(f"{self.failed} failed")
        return ", ".join(parts)

    def show(self, line: str) -> None:
        """Print a line in the place of the bar, which comes back below it."""
        if self._stream.isatty():
            self._stream.write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
        print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Take the bar away and show how it went."""
        seconds = _duration(self._clock() - self._begun)
        self.show(f"{self.done} pieces run in {seconds}, {self.found} found, {self.failed} failed.")
        for line in [*self.named, f"All that failed: {self._out}"] if self.named else []:
            print(line, file=self._stream)

    def _update(self) -> None:
        now = self._clock()
        terminal = self._stream.isatty()
        if now - self._drawn < (_EVERY if terminal else _LINES):
            return
        self._drawn = now
        self._recent.append((now, self.done + self.failed))
        while len(self._recent) > 2 and now - self._recent[0][0] > _WINDOW:
            self._recent.popleft()
        width = shutil.get_terminal_size().columns - 1
        line = self.line()
        self._stream.write("\r" + line[:width].ljust(width) if terminal else line + "\n")
        self._stream.flush()


def _duration(seconds: float) -> str:
    """Seconds in words, such as 3 h 05 min."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
