"""Ways of wires around nodes: a wire whose straight line runs behind a node bends at points between the nodes.

A way is a shortest path through points beside the corners of nodes. Wires of one output share their way; those of
different outputs share no point.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.sparse.csgraph import dijkstra

from .layout import TITLE, Box

Point = tuple[int, int]
Wire = tuple[int, int, int, int]  # the node it comes from, that one's output, the node it runs to, that one's input

_CLEAR = 4  # canvas units between a wire and a node
_BESIDE = (8, 5), (18, 9), (28, 13)  # from a corner of a node to the points beside it, across and down
_SLOT, _FIRST = 20, 14  # from a socket to the next, and to the first, as the classic renderer draws them
_END = 6  # from a socket to where a wire may bend
_APART = 10  # between the bends of wires of two outputs
_BEND, _SHARED, _COVERED = 60.0, 0.3, 400.0  # what a bend costs, a way that another wire has, and one upon another's


@dataclass
class _Tree:
    """The ways from one output: the bends up to each of its bends, and what they cost."""

    ways: dict[int, list[int]] = field(default_factory=dict)
    costs: dict[int, float] = field(default_factory=dict)


def bends(boxes: dict[int, Box], wires: list[Wire], others: Iterable[Box] = ()) -> dict[Wire, list[Point]]:
    """The points at which each wire bends, none for those that run straight without touching a node.

    ``others``: further rectangles that wires run around. Where no way is found, a wire stays straight.
    """
    shown = *(replace(box, top=box.top - TITLE, height=box.height + TITLE) for box in boxes.values()), *others
    corners = [(box.left, box.top, box.left + box.width, box.top + box.height) for box in shown]
    nodes = np.array(corners, float)
    points = _points(nodes)
    lengths = np.linalg.norm(points[:, None] - points[None], axis=2)
    steps = np.where(_free(nodes, points[:, None], points[None]), lengths + _BEND, 0.0)  # 0: there is none
    trees: dict[tuple[int, int], _Tree] = {}
    upon: dict[tuple[int, int], np.ndarray] = {}  # by output, the pairs of points between which a wire would cover its
    found: dict[Wire, list[Point]] = {wire: [] for wire in wires}
    ends = {wire: _ends(boxes, wire) for wire in wires}
    for wire in sorted(wires, key=lambda wire: np.linalg.norm(np.subtract(*ends[wire]))):
        start, end = ends[wire]
        if _free(nodes, start, end):
            continue
        output, tree = wire[:2], trees.setdefault(wire[:2], _Tree())
        graph = np.zeros((len(points) + 2, len(points) + 2))  # with the start and the end behind the points
        graph[:-2, :-2] = steps
        for other in upon:
            if other != output:
                graph[:-2, :-2][upon[other] & (steps > 0)] += _COVERED
        taken = [point for other, its in trees.items() if other != output for point in its.ways]
        near = (lengths[taken] < _APART).any(0)
        graph[:-2, :-2][:, near] = 0
        from_start = np.linalg.norm(points - start, axis=1) + _BEND
        graph[-2, :-2] = np.where(_free(nodes, start, points) & ~near, from_start, 0)
        graph[:-2, -1] = np.where(_free(nodes, points, end), np.linalg.norm(points - end, axis=1), 0)
        for point, cost in tree.costs.items():
            graph[-2, point] = _SHARED * cost
        _, before = dijkstra(graph, indices=len(points), return_predecessors=True)
        way, point = [], before[-1]
        while point >= 0 and point != len(points):
            way.insert(0, int(point))
            point = before[point]
        known = [number for number, point in enumerate(way) if point in tree.ways]
        if known:
            way = tree.ways[way[known[-1]]] + way[known[-1] + 1 :]
        for number, point in enumerate(way):
            if point not in tree.ways:
                last = way[number - 1] if number else None
                tree.ways[point] = way[: number + 1]
                step = from_start[point] if last is None else steps[last, point]
                tree.costs[point] = tree.costs.get(last, 0.0) + step
                if last is not None:
                    upon[output] = upon.get(output, False) | _upon(points, last, point)
        found[wire] = [(int(points[point][0]), int(points[point][1])) for point in way]
    return found


def _ends(boxes: dict[int, Box], wire: Wire) -> tuple[np.ndarray, np.ndarray]:
    """Points right of the output and left of the input that a wire connects."""
    source, target = boxes[wire[0]], boxes[wire[2]]
    start = source.left + source.width + _END, source.top + _FIRST + _SLOT * wire[1]
    return np.array(start), np.array((target.left - _END, target.top + _FIRST + _SLOT * wire[3]))


def _points(nodes: np.ndarray) -> np.ndarray:
    """The points beside the corners of nodes that are not upon another one."""
    found = {
        (x, y)
        for left, top, right, bottom in nodes
        for across, down in _BESIDE
        for x in (left - across, right + across)
        for y in (top - down, bottom + down)
    }
    points = np.array(sorted(found))
    return points[~_inside(nodes, points)]


def _inside(nodes: np.ndarray, points: np.ndarray) -> np.ndarray:
    low, high = nodes[:, :2] - _CLEAR, nodes[:, 2:] + _CLEAR
    return ((points[:, None] > low) & (points[:, None] < high)).all(2).any(1)


def _free(nodes: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Whether the straight lines from start to end [..., 2], broadcast against each other, keep clear of all nodes."""
    along = (end - start)[..., None, :]
    along = np.where(np.abs(along) < 1e-9, 1e-9, along)
    ends = [(side - start[..., None, :]) / along for side in (nodes[:, :2] - _CLEAR, nodes[:, 2:] + _CLEAR)]
    first, last = np.minimum(*ends).max(-1), np.maximum(*ends).min(-1)
    return ~(np.maximum(first, 0) < np.minimum(last, 1)).any(-1)


def _upon(points: np.ndarray, first: int, last: int) -> np.ndarray:
    """Of which pairs of points the line covers a part of a horizontal or vertical line between two of them."""
    covered = np.zeros((len(points), len(points)), bool)
    for along, across in ((0, 1), (1, 0)):
        if points[first, across] == points[last, across]:
            low, high = sorted((points[first, along], points[last, along]))
            here = points[:, across] == points[first, across]
            smaller = np.minimum.outer(points[:, along], points[:, along])
            larger = np.maximum.outer(points[:, along], points[:, along])
            covered |= np.outer(here, here) & (smaller < high) & (larger > low)
    return covered
