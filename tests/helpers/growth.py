"""Counts what a piece of work does in Python: every line that runs, in whichever file, loops of one
line included.
"""

import sys
from collections.abc import Callable


def steps(work: Callable[[], object]) -> int:
    """Lines of Python that ``work`` runs."""
    count = 0

    def local(frame, event, argument):
        nonlocal count
        count += event == "line"
        return local

    before = sys.gettrace()
    sys.settrace(lambda *_: local)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
