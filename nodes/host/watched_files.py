"""Files behind inputs: what ComfyUI's cache must know of them beside their names.

A node says in ``READS`` which of its inputs name files, each with a function from the name to a stamp that changes with
them and is empty for what names none, and in ``WRITES`` which one names a file of its own, with a function to its path.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

from comfy_api.latest import io
from comfy_execution.utils import get_executing_context

_made: set[Path] = set()  # by this process
#: Inputs, by the id of their node in a prompt, by which files have come, whatever prompt it was; what came last.
_named: dict[tuple[str, str], Path | None] = {}


def with_watched_files(node: type[io.ComfyNode]) -> type[io.ComfyNode]:
    """The node class, which now runs again when a file that it reads has changed, or one that it made is gone.

    What comes by wire ComfyUI tells only when the node runs: once a file to read has come so, it runs at every queue.
    """
    reads, writes = getattr(node, "READS", {}), getattr(node, "WRITES", {})
    if not reads and not writes:
        return node
    execute = node.execute.__func__

    def fingerprint_inputs(cls, **given) -> str | float:
        values = {name: value[0] if isinstance(value, list | tuple) else value for name, value in given.items()}
        wired = [_place(name) for name in (*reads, *writes) if values.get(name, "") is None]
        made = [_named.get(place) for place in wired if place[1] in writes]
        made += [path for path in _paths(writes, values) if path in _made]
        unknown = any(place[1] in reads and (not place[0] or place in _named) for place in wired)
        if unknown or not all(path is None or path.exists() for path in made):
            return float("nan")
        return "\n".join(_stamp(stamp, values[name]) for name, stamp in reads.items() if values.get(name) is not None)

    @functools.wraps(execute)
    def noting(cls, *args, **given):
        for name, stamp in reads.items():
            every = given.get(name)
            if any(_stamp(stamp, value) for value in (every if isinstance(every, list) else [every])):
                _named[_place(name)] = None
        result = execute(cls, *args, **given)
        for name in writes:
            for path in filter(Path.exists, _paths({name: writes[name]}, given)):
                _made.add(path)
                _named[_place(name)] = path
        return result

    node.fingerprint_inputs = classmethod(fingerprint_inputs)
    node.execute = classmethod(noting)
    return node


def _place(name: str) -> tuple[str, str]:
    """An input of the running node; its id is empty outside of a prompt."""
    running = get_executing_context()
    return "" if running is None else running.node_id, name


def _stamp(stamp, name) -> str:
    try:
        return stamp(name) if isinstance(name, str) else ""
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
