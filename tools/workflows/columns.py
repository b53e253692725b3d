"""Where the few nodes of one of the first templates stand: in columns from left to right, with
straight wires.

The note and what is needed stand at the left, then the node that one plays with, then the image.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from . import layout, wires
from .authoring import NOTE, AuthoringError, Node, Workflow
from .layout import GROUP_GAP, HEADING, MARGIN, NODE_GAP, TITLE, Box, Layout

_STEP, _LOWEST = 20, 560  # how far a column is moved down at a time, and at most
_GAP = 36  # between columns: wires need it to turn
_ROOM = 40  # above a title: Nodes 2.0 draws sockets further apart
_HIGHEST = 1110  # what is higher opens too small


def in_columns(workflow: Workflow) -> Layout:
    """Place each group beside the one before; a column with wires in its way moves down until all
    of them are straight.

    Raises AuthoringError where no place is found: then a node needs fewer wires or less height.
    """
    for node in workflow.nodes:
        node.size = layout.size_of(node)
    columns = _columns(workflow)
    links = [
        (source.node.id, source.slot, node.id, slot)
        for node in workflow.nodes
        for slot, input_ in enumerate(layout.sockets(node))
        if (source := node.sources.get(input_.name))
    ]
    for note_first, offsets in _tried(len(columns)):
        placed = _placed(workflow, columns, note_first, offsets)
        shown = (*placed.nodes.values(), *placed.groups)
        low = max(box.top + box.height for box in shown) <= _HIGHEST
        titles = [
            replace(box, top=box.top - _ROOM, height=box.height + _ROOM)
            for box in placed.titles(workflow.groups)
        ]
        if low and wires.are_straight(placed.nodes, links, titles):
            return placed
    raise AuthoringError(
        f"{workflow.name}: nowhere do its nodes stand so that all wires are straight."
    )


def _columns(workflow: Workflow) -> list[list[Node]]:
    """The nodes of each group by their distance along the links inside it, each distance a
    column.
    """
    columns = []
    for group in range(1, len(workflow.groups) + 1):
        depth: dict[int, int] = {}
        for node in workflow.nodes:
            if node.group == group:
                feeding = (
                    depth[s.node.id] + 1 for s in node.sources.values() if s.node.id in depth
                )
                depth[node.id] = max(feeding, default=0)
        nodes = [node for node in workflow.nodes if node.id in depth]
        columns += [
            [n for n in nodes if depth[n.id] == one] for one in range(max(depth.values()) + 1)
        ]
    return columns


def _tried(count: int) -> Iterator[tuple[bool, tuple[int, ...]]]:
    """Whether the note stands above what is needed, and how far down each column stands; little
    first.
    """
    ways = itertools.product(range(0, _LOWEST, _STEP), repeat=count - 2)
    ways = sorted(ways, key=lambda way: (max(way), sum(way)))
    return ((note_first, (0, *way, 0)) for way in ways for note_first in (True, False))


def _placed(
    workflow: Workflow, columns: list[list[Node]], note_first: bool, offsets: tuple[int, ...]
) -> Layout:
    boxes: dict[int, Box] = {}
    groups: list[Box] = []
    note, left = next(node for node in workflow.nodes if node.type == NOTE), 0
    for number, (column, down) in enumerate(zip(columns, offsets, strict=True)):
        width = max(node.size[0] for node in column)
        height = (
            sum(node.size[1] + TITLE + NODE_GAP for node in column) - NODE_GAP + HEADING + MARGIN
        )
        if not number:
            note_width, note_height = layout.note_size(note, width + 2 * MARGIN)
            width = note_width - 2 * MARGIN
            boxes[note.id] = Box(
                0, TITLE if note_first else height + GROUP_GAP + TITLE, note_width, note_height
            )
            down += note_height + TITLE + GROUP_GAP if note_first else 0
        top = down + HEADING
        for node in column:
            boxes[node.id] = Box(
                left + MARGIN, top + TITLE, width if not number else node.size[0], node.size[1]
            )
            top += node.size[1] + TITLE + NODE_GAP
        frame = Box(left, down, width + 2 * MARGIN, height)
        if column[0].group > len(groups):
            groups.append(frame)
        else:
            groups[-1] = _around(groups[-1], frame)
        left += frame.width + _GAP
    return Layout(boxes, groups)


def _around(one: Box, other: Box) -> Box:
    left, top = min(one.left, other.left), min(one.top, other.top)
    right = max(box.left + box.width for box in (one, other))
    return Box(left, top, right - left, max(box.top + box.height for box in (one, other)) - top)
