"""Exceptions in the middle of a sampling run: inside the network, and inside the pack's own code.

A line of the pack is a place for one when it calls something and is no part of what restores: a
`finally`, an `except`, the end of a `with`. The exception comes at the middle one of the times that
a run passes the line.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import repository

Place = tuple[str, str, int]  # file, function, line
_PACK = tuple(f"{repository.ROOT / folder}/" for folder in ("nodes", "kernels"))


class InjectedError(Exception):
    """What is raised."""


def places(run: Callable[[], object]) -> dict[Place, int]:
    """The places of the pack that a run passes, and how often."""
    passed: Counter[Place] = Counter()
    with _traced(lambda place: passed.update([place])):
        run()
    return dict(sorted(passed.items()))


def last_places(found: dict[Place, int]) -> dict[Place, int]:
    """The last place of each function, where most has been changed."""
    last = {(file, function): (file, function, line) for file, function, line in found}
    return {place: found[place] for place in last.values()}


def breaks_at(run: Callable[[], object], place: Place, time: int) -> bool:
    """Whether a run ends with an exception that is raised when it passes a place for the
    ``time``-th time.
    """
    left = time

    def passed(at: Place) -> None:
        nonlocal left
        left -= at == place
        if at == place and not left:
            raise InjectedError(str(place))

    with _traced(passed):
        return _breaks(run)


def breaks_in_call(run: Callable[[], object], network, number: int) -> bool:
    """The same with the network's ``number``-th call, from 0, which fails as it ends; False when
    there is none.
    """
    calls = 0

    def called(*_) -> None:
        nonlocal calls
        calls += 1
        if calls > number:
            raise InjectedError(f"call {number}")

    handle = network.register_forward_hook(called)
    try:
        return _breaks(run)
    finally:
        handle.remove()


def _breaks(run: Callable[[], object]) -> bool:
    try:
        run()
    except InjectedError:
        return True
    return False


@contextlib.contextmanager
def _traced(passed: Callable[[Place], None]) -> Iterator[None]:
    def line(frame, event, _):
        code = frame.f_code
        if event == "line" and frame.f_lineno in _lines(code.co_filename):
            passed((code.co_filename, code.co_qualname, frame.f_lineno))
        return line

    def called(frame, event, _):
        return line if frame.f_code.co_filename.startswith(_PACK) else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        yield
    finally:
        sys.settrace(before)


@functools.cache
def _lines(file: str) -> frozenset[int]:
    return frozenset(_calling(ast.parse(Path(file).read_text("utf-8")).body))


def _calling(statements: list[ast.stmt]) -> Iterator[int]:
    """The lines where a statement begins that calls something, without those that restore."""
    for statement in statements:
        blocks = [*getattr(statement, "body", []), *getattr(statement, "orelse", [])]
        inner = {id(node) for one in blocks for node in ast.walk(one)}
        calls = any(
            isinstance(node, ast.Call) and id(node) not in inner for node in ast.walk(statement)
        )
        if calls and not isinstance(statement, ast.Try | ast.With | ast.FunctionDef | ast.ClassDef):
            yield statement.lineno
        yield from _calling(blocks)
