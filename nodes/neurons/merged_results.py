"""Merge the results of the pieces of a long job: score tables, statistics and masks.

Every function takes what pieces wrote, in any number of pieces, and gives what one run over the
whole list would have given. Nothing is kept of a table but counts, so that a list may be as long as
it likes.
"""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from .mask import NeuronMask
from .neuron_statistics import Statistics, merge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Bins of a histogram of scores: similarities from 0 to 1; what lies beyond counts in the outer
#: bins.
BINS = 100


def merge_tables(tables: Iterable[str]) -> Iterator[str]:
    """The lines of CSV tables of one head as one table: the head, then all rows in the tables'
    order.

    Raises ValueError for a table with another head.
    """
    head = None
    for table in tables:
        first, _, rows = table.partition("\n")
        if head is None:
            head = first
            yield f"{head}\n"
        elif first != head:
            raise ValueError(f"The tables have different columns: {head} and {first}.")
        if rows:
            yield rows if rows.endswith("\n") else f"{rows}\n"


def count_scores(table: str, column: str = "score") -> np.ndarray:
    """How many rows of a CSV table have a score in each of the bins: int64 (BINS,); counts of
    tables add up.
    """
    values = [float(row[column]) for row in csv.DictReader(io.StringIO(table))]
    return np.histogram(np.clip(values, 0.0, 1.0), BINS, (0.0, 1.0))[0]


def memorized_prompts(table: str) -> list[str]:
    """The prompts of a CSV table whose score is over the threshold, in its order."""
    return [
        row["prompt"] for row in csv.DictReader(io.StringIO(table)) if row["is_memorized"] == "True"
    ]


def draw_counts(figure: Figure, counts: np.ndarray) -> None:
    """The histogram of scores on a matplotlib figure."""
    axes = figure.add_subplot()
    edges = np.linspace(0.0, 1.0, BINS + 1)
    axes.bar(edges[:-1], counts, width=1 / BINS, align="edge")
    axes.set(
        xlabel="memorization score",
        ylabel="prompts",
        title=f"Scores of {int(counts.sum())} prompts",
        xlim=(0, 1),
    )


def merge_statistics(parts: Iterable[Statistics]) -> Statistics:
    """The statistics of all prompts of all parts.

    Raises ValueError where there is no part, and for parts of other layers or of another model.
    """
    others = iter(parts)
    first = next(others, None)
    if first is None:
        raise ValueError(
            "There are no statistics. Let the workflow save them, and run the list again."
        )
    return functools.reduce(merge, others, first)


def mask_rows(mask: NeuronMask) -> Iterator[list]:
    """A line of an index for each prompt of a mask: prompt, neurons found, whether the search
    converged.
    """
    for search in mask.searches:
        yield [search.prompt, sum(map(len, search.neurons.values())), search.converged]


MASK_HEAD = ["prompt", "neurons", "converged"]
