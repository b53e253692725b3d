"""Files behind inputs: what ComfyUI's cache must know of them beside their names.

A node says in ``READS`` which of its inputs name files, each with a function from the name to a stamp that changes with
them, and in ``WRITES`` which one names a file of its own, with a function to its path.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

from comfy_api.latest import io

_made: set[Path] = set()  # by this process


def with_watched_files(node: type[io.ComfyNode]) -> type[io.ComfyNode]:
    """The node class, which now runs again when a file that it reads has changed, or one that it made is gone.

    It runs at every queue where a name comes by wire, since ComfyUI does not say what comes.
    """
    reads, writes = getattr(node, "READS", {}), getattr(node, "WRITES", {})
    if not reads and not writes:
        return node
    execute = node.execute.__func__

    def fingerprint_inputs(cls, **given) -> str | float:
        values = {name: value[0] if isinstance(value, list | tuple) else value for name, value in given.items()}
        if any(values.get(name, "") is None for name in reads) or any(not path.exists() for path in _written(values)):
            return float("nan")
        return "\n".join(_stamp(stamp, values[name]) for name, stamp in reads.items() if name in values)

    def _written(values: dict) -> list[Path]:
        return [path for path in _paths(writes, values) if path in _made]

    @functools.wraps(execute)
    def noting(cls, *args, **given):
        result = execute(cls, *args, **given)
        _made.update(_paths(writes, given))
        return result

    node.fingerprint_inputs = classmethod(fingerprint_inputs)
    node.execute = classmethod(noting)
    return node


def _stamp(stamp, name) -> str:
    try:
        return stamp(name)
    except (ValueError, TypeError, OSError):
        return "absent"


def _paths(writes: dict, values: dict) -> list[Path]:
    found = []
    for name, place in writes.items():
        value = values.get(name)
        value = value[0] if isinstance(value, list | tuple) else value
        with contextlib.suppress(ValueError):
            if isinstance(value, str) and value.strip():
                found.append(place(value))
    return found
