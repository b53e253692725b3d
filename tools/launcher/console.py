"""What a person sees in the terminal: a progress bar and a table, in plain ASCII."""

from __future__ import annotations

import sys
from collections.abc import Sequence


class ProgressLine:
    """One line with a bar while a workflow of some nodes runs; nothing where the output is no terminal."""

    def __init__(self, title: str, nodes: int, stream=None):
        from tqdm import tqdm  # here, because the launcher is imported before its environment exists

        stream = stream or sys.stdout
        self._title, self._nodes, self._started = title, max(nodes, 1), set()
        layout = "  [{bar:24}] {percentage:3.0f}%  {desc}"
        self._bar = tqdm(
            total=1.0,
            bar_format=layout,
            ascii="-#",
            leave=False,
            file=stream,
            disable=not stream.isatty(),
            mininterval=0,
        )

    def update(self, node: str, label: str, value: float, maximum: float) -> None:
        """Show that `node`, called `label`, is at step `value` of `maximum` (0 of 0 when it does not say)."""
        self._started.add(node)
        done = len(self._started) - 1 + (min(value / maximum, 1.0) if maximum else 0.0)
        self._bar.n = min(done / self._nodes, 1.0)
        count = f" {value:.0f}/{maximum:.0f}" if maximum else ""
        self._bar.set_description_str(f"{self._title}: {label}{count}")

    def clear(self) -> None:
        """Take the line away."""
        self._bar.close()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows as text in aligned columns below a header."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text)
