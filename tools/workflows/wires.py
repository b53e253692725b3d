"""Ways of wires around nodes: a wire whose straight line runs behind a node bends at points between
the nodes.

A way is a shortest path through points beside the corners of nodes. Wires of one output share their
way; those of different outputs share no point. The canvas draws a wire as a curve, which swings out
where a long piece of it bends: where it would swing behind a node, further points hold it to its
way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.sparse.csgraph import dijkstra

from .layout import TITLE, Box

Point = tuple[int, int]
Wire = tuple[
    int, int, int, int
]  # the node it comes from, that one's output, the node it runs to, that one's input

_CLEAR = 4  # canvas units between a wire and a node
_BESIDE = (
    (8, 5),
    (18, 9),
    (28, 13),
)  # from a corner of a node to the points beside it, across and down
_SLOT, _FIRST = (
    20,
    14,
)  # from a socket to the next, and to the first, as the classic renderer draws them
_OUTPUT, _INPUT = 9, 10  # how far sockets lie within a node
_END = 6  # from a socket to where a wire may bend
_APART = 10  # between the bends of wires of two outputs
_SWING, _LARGEST_SWING = (
    0.25,
    20.0,
)  # how far a curve is pulled at its ends, of its length and at a bend at most
_BEHIND = 4  # canvas units behind a node from which on a curve counts as running there
_HELD = 30, 42, 54, 18, 70, 90  # from an end of a piece to a point that may hold it
_PASSES = 8  # how often all pieces are looked at
_BEND, _SHARED, _COVERED = (
    60.0,
    0.3,
    400.0,
)  # what a bend costs, a way that another wire has, and one upon another's


@dataclass
class _Tree:
    """The ways from one output: the bends up to each of its bends, and what they cost."""

    ways: dict[int, list[int]] = field(default_factory=dict)
    costs: dict[int, float] = field(default_factory=dict)


def bends(
    boxes: dict[int, Box], wires: list[Wire], others: Iterable[Box] = ()
) -> dict[Wire, list[Point]]:
    """The points at which each wire bends, none for those that run straight without touching a
    node.

    ``others``: further rectangles that wires run around. Where no way is found, a wire stays
    straight.
    """
    shown = (
        *(replace(box, top=box.top - TITLE, height=box.height + TITLE) for box in boxes.values()),
        *others,
    )
    corners = [(box.left, box.top, box.left + box.width, box.top + box.height) for box in shown]
    nodes = np.array(corners, float)
    points = _points(nodes)
    lengths = np.linalg.norm(points[:, None] - points[None], axis=2)
    steps = np.where(
        _free(nodes, points[:, None], points[None]), lengths + _BEND, 0.0
    )  # 0: there is none
    trees: dict[tuple[int, int], _Tree] = {}
    upon: dict[
        tuple[int, int], np.ndarray
    ] = {}  # by output, the pairs of points between which a wire would cover its
    found: dict[Wire, list[Point]] = {wire: [] for wire in wires}
    ends = {wire: _ends(boxes, wire) for wire in wires}
    for wire in sorted(wires, key=lambda wire: np.linalg.norm(np.subtract(*ends[wire]))):
        start, end = ends[wire]
        if _free(nodes, start, end):
            continue
        output, tree = wire[:2], trees.setdefault(wire[:2], _Tree())
        graph = np.zeros(
            (len(points) + 2, len(points) + 2)
        )  # with the start and the end behind the points
        graph[:-2, :-2] = steps
        for other in upon:
            if other != output:
                graph[:-2, :-2][upon[other] & (steps > 0)] += _COVERED
        taken = [point for other, its in trees.items() if other != output for point in its.ways]
        near = (lengths[taken] < _APART).any(0)
        graph[:-2, :-2][:, near] = 0
        from_start = np.linalg.norm(points - start, axis=1) + _BEND
        graph[-2, :-2] = np.where(_free(nodes, start, points) & ~near, from_start, 0)
        graph[:-2, -1] = np.where(
            _free(nodes, points, end), np.linalg.norm(points - end, axis=1), 0
        )
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
    titles = [_bare(box) for box in others]
    for _ in range(_PASSES):
        if not _hold(boxes, titles, found):
            break
    return found


def are_straight(boxes: dict[int, Box], wires: list[Wire], others: Iterable[Box] = ()) -> bool:
    """Whether all wires run to the right without a bend, clear of nodes, and with curves clear of
    ``others``.
    """
    shown = (replace(box, top=box.top - TITLE, height=box.height + TITLE) for box in boxes.values())
    nodes = np.array(
        [(box.left, box.top, box.left + box.width, box.top + box.height) for box in shown], float
    )
    starts, ends = np.array([_ends(boxes, wire) for wire in wires], float).transpose(1, 0, 2)
    if (ends[:, 0] < starts[:, 0]).any() or not _free(nodes, starts, ends).all():
        return False
    return not any(
        is_behind(box, curve)
        for wire, _, curve, _ in curves(boxes, {wire: [] for wire in wires})
        for box in (
            *map(_bare, others),
            *(box for id_, box in boxes.items() if id_ not in (wire[0], wire[2])),
        )
    )


def curves(
    boxes: dict[int, Box], ways: dict[Wire, list[Point]]
) -> Iterator[tuple[Wire, int, np.ndarray, list[float]]]:
    """Each piece of each wire as the canvas draws it: the wire, its number, points [n, 2], and its
    swing at both ends.

    A curve leaves an output to the right and comes to an input from the left. At a bend its
    direction is the mean of those of the pieces before and behind.
    """
    sockets = {wire: _sockets(boxes, wire) for wire in ways}
    lines = {wire: [sockets[wire][0], *way, sockets[wire][1]] for wire, way in ways.items()}
    turns: dict[
        tuple, tuple[float, list[float]]
    ] = {}  # of a bend: the direction to it, and of each wire behind it
    for wire, line in lines.items():
        for before, at, after in zip(line, line[1:], line[2:], strict=False):
            turns.setdefault((*wire[:2], at), (_direction(before, at), []))[1].append(
                _direction(at, after)
            )
    for wire, line in lines.items():
        for number, (start, end) in enumerate(itertools.pairwise(line)):
            length, along = math.dist(start, end), _direction(start, end)
            pulls = []
            for at, last in ((start, number == 0), (end, number == len(line) - 2)):
                angle = 0.0 if last else _tangent(*turns[*wire[:2], at])
                pulls.append(
                    (length * _SWING if last else min(length * _SWING, _LARGEST_SWING), angle)
                )
            (pull, angle), (other_pull, other_angle) = pulls
            controls = (
                start,
                (start[0] + pull * math.cos(angle), start[1] + pull * math.sin(angle)),
                (
                    end[0] - other_pull * math.cos(other_angle),
                    end[1] - other_pull * math.sin(other_angle),
                ),
                end,
            )
            part = np.linspace(0, 1, max(9, int(length / 8)))[:, None]
            weights = (1 - part) ** 3, 3 * (1 - part) ** 2 * part, 3 * (1 - part) * part**2, part**3
            swings = [abs(pull * math.sin(angle - along)) for pull, angle in pulls]
            yield (
                wire,
                number,
                sum(w * np.array(c) for w, c in zip(weights, controls, strict=True)),
                swings,
            )


def is_behind(box: Box, curve: np.ndarray) -> bool:
    """Whether a curve runs behind a node or its title."""
    low = np.array((box.left, box.top - TITLE)) + _BEHIND
    high = np.array((box.left + box.width, box.top + box.height)) - _BEHIND
    return bool(((curve > low) & (curve < high)).all(1).any())


def _bare(title: Box) -> Box:
    """The title of a group as a node whose body and title together are as large, at which
    ``is_behind`` looks whole.
    """
    left, top = title.left - _BEHIND, title.top + TITLE - _BEHIND
    return Box(left, top, title.width + 2 * _BEHIND, title.height - TITLE + 2 * _BEHIND)


def _hold(boxes: dict[int, Box], titles: list[Box], ways: dict[Wire, list[Point]]) -> bool:
    """Add a point to each piece behind a node or over a title, near the end at which it swings
    most; whether to any.

    All wires of an output that have the piece get the point.
    """
    added: dict[tuple, Point] = {}
    bends = {(*wire[:2], point) for wire, way in ways.items() for point in way}
    for wire, number, curve, swings in curves(boxes, ways):
        others = [*titles, *(box for id_, box in boxes.items() if id_ not in (wire[0], wire[2]))]
        if not any(is_behind(box, curve) for box in others):
            continue
        first, last = _ends(boxes, wire)
        start, end = np.array([first, *ways[wire], last])[number : number + 2]
        length = math.dist(start, end)
        near = _HELD if swings[0] >= swings[1] else [length - held for held in _HELD]
        for along in (*near, *(length - along for along in near)):
            point = tuple(round(float(value)) for value in start + (end - start) * (along / length))
            apart = all(
                math.dist(point, bend) >= _APART
                for *output, bend in bends
                if tuple(output) != wire[:2]
            )
            if apart and 2 * min(_HELD) <= length and 0 < along < length:
                added[_piece(wire, ways[wire], number)] = point
                bends.add((*wire[:2], point))
                break
    for wire, way in ways.items():
        pieces = [_piece(wire, way, number) for number in range(len(way) + 1)]
        ways[wire] = [
            point
            for piece, bend in itertools.zip_longest(pieces, way)
            for point in (added.get(piece), bend)
            if point is not None
        ]
    return bool(added)


def _piece(wire: Wire, way: list[Point], number: int) -> tuple:
    """What is the same for all wires of an output that share a piece: its ends, or the wire where
    it is the last.
    """
    line = [None, *way]
    return (*wire[:2], line[number], line[number + 1] if number < len(way) else wire)


def _sockets(boxes: dict[int, Box], wire: Wire) -> tuple[Point, Point]:
    source, target = boxes[wire[0]], boxes[wire[2]]
    start = source.left + source.width - _OUTPUT, source.top + _FIRST + _SLOT * wire[1]
    return start, (target.left + _INPUT, target.top + _FIRST + _SLOT * wire[3])


def _direction(start: Point, end: Point) -> float:
    return math.atan2(end[1] - start[1], end[0] - start[0])


def _tangent(before: float, behind: list[float]) -> float:
    """The direction of a curve at a bend, as the front end computes it."""
    half = (before - sum(behind) / len(behind)) / 2
    return before - half - (math.pi if abs(half) > math.pi / 2 else 0)


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
    """Whether the straight lines from start to end [..., 2], broadcast against each other, keep
    clear of all nodes.
    """
    along = (end - start)[..., None, :]
    along = np.where(np.abs(along) < 1e-9, 1e-9, along)
    ends = [
        (side - start[..., None, :]) / along
        for side in (nodes[:, :2] - _CLEAR, nodes[:, 2:] + _CLEAR)
    ]
    first, last = np.minimum(*ends).max(-1), np.maximum(*ends).min(-1)
    return ~(np.maximum(first, 0) < np.minimum(last, 1)).any(-1)


def _upon(points: np.ndarray, first: int, last: int) -> np.ndarray:
    """Of which pairs of points the line covers a part of a horizontal or vertical line between two
    of them.
    """
    covered = np.zeros((len(points), len(points)), bool)
    for along, across in ((0, 1), (1, 0)):
        if points[first, across] == points[last, across]:
            low, high = sorted((points[first, along], points[last, along]))
            here = points[:, across] == points[first, across]
            smaller = np.minimum.outer(points[:, along], points[:, along])
            larger = np.maximum.outer(points[:, along], points[:, along])
            covered |= np.outer(here, here) & (smaller < high) & (larger > low)
    return covered
