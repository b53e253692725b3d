"""What a person sees in the terminal: a progress bar and a table, in plain ASCII."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

_BAR = 24


class ProgressLine:
    """One line that is written over and over while a workflow runs; silent where the output is no terminal."""

    def __init__(self, title: str, steps: int, stream=None):
        self.title = title
        self.steps = max(steps, 1)
        self.stream = stream or sys.stdout
        self._visible = self.stream.isatty()
        self._started: list[str] = []

    def update(self, node: str, label: str, value: float, maximum: float) -> None:
        """Show that `node`, called `label`, is at step `value` of `maximum` (0 of 0 when it does not say)."""
        if node not in self._started:
            self._started.append(node)
        if not self._visible:
            return
        inside = min(value / maximum, 1.0) if maximum else 0.0
        share = min((len(self._started) - 1 + inside) / self.steps, 1.0)
        bar = ("#" * round(share * _BAR)).ljust(_BAR, "-")
        count = f" {value:.0f}/{maximum:.0f}" if maximum else ""
        width = shutil.get_terminal_size().columns - 1
        line = f"  [{bar}] {share:4.0%}  {self.title}: {label}{count}"
        self._write(line[:width].ljust(width))

    def clear(self) -> None:
        """Take the line away."""
        if self._visible:
            self._write(" " * (shutil.get_terminal_size().columns - 1))
            self._write("")

    def _write(self, line: str) -> None:
        self.stream.write("\r" + line)
        self.stream.flush()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows as text in aligned columns below a header."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text)
