"""What a run that ends before its time leaves: for the nodes behind it, and for the run that goes on with it."""

from __future__ import annotations


class FinishedEarly(Exception):  # noqa: N818, no error
    """The person has pressed Finish now: work ends with what there is, which counts as its result."""
