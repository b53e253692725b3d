"""Where the nodes of a workflow stand: groups along the links, from left to right and from top to bottom.

A workflow opens zoomed out until all of it is in sight. So columns are as tall as brings the canvas closest to a
window's proportions: ``arrange`` tries heights and takes the one that opens largest.
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.launcher.widgets import inputs, widgets

from .authoring import NOTE, Node, Workflow

# All lengths in canvas units. The newer renderer draws nodes taller than the classic one: the gaps allow for both.
_TITLE, _SLOT, _WIDGET, _TEXT, _FRAME = 30, 20, 32, 100, 16
_WIDTH, _TEXT_WIDTH, _PANEL_WIDTH, _NOTE_WIDTH, _LETTER = 270, 340, 400, 400, 7.2
_IMAGE = (230, 270)  # room for the image that an output node shows
_COLUMN_GAP, _NODE_GAP, _GROUP_GAP, _MARGIN, _HEADING = 50, 48, 36, 24, 44
#: The front end opens a workflow on three quarters of a window of 1600 x 1000.
WINDOW = (1200, 750)
_HEIGHTS = range(500, 2600, 50)
_PARTS = (1.0, 0.75, 0.6, 0.5, 0.4, 0.3)  # of a column's height that a group may take
_ENOUGH = 0.8  # text is easy to read: a workflow that opens larger gets no better
_SHOWS_IMAGE = {"SaveImage", "PreviewImage"}
_SHOWS_TEXT = "PreviewAny"
# Heights of the panels that the pack's scripts add to nodes (web/widgets).
_PANELS = {
    "GBX_ActivationCatalog": 390,
    "GBX_ActivationCorrespondence": 320,
    "GBX_ActivationSimilarity": 320,
    "GBX_LayerActivationTap": 390,
    "GBX_NemoLocalize": 240,
    "GBX_NemoNeuronMask": 240,
    "GBX_NeuronMaskEdit": 240,
    "GBX_TrainLoraImmiscible": 330,  # its many rows are taller in the newer renderer
    "GBX_W2WEdit": 270,
    "GBX_W2WInvert": 240,
}


@dataclass(frozen=True)
class Box:
    """A rectangle on the canvas; a node's box leaves out the title bar above it."""

    left: int
    top: int
    width: int
    height: int


@dataclass(frozen=True)
class Layout:
    """The boxes of a workflow's nodes by id, and of its groups in their order."""

    nodes: dict[int, Box]
    groups: list[Box]

    @property
    def zoom(self) -> float:
        """How large the workflow opens in a window of 1600 x 1000."""
        boxes = [*self.nodes.values(), *self.groups]
        width = max(box.left + box.width for box in boxes) - min(box.left for box in boxes)
        height = max(box.top + box.height for box in boxes) - min(box.top for box in boxes)
        return min(WINDOW[0] / width, WINDOW[1] / height)


def arrange(workflow: Workflow) -> Layout:
    """Place every node and group without overlaps."""
    for node in workflow.nodes:
        width, height = node.size or _size(node)
        title = node.title or node.info.get("display_name") or node.type
        node.size = max(width, round(60 + _LETTER * len(title))), height
    layouts = [
        _arranged(workflow, height, round(height * part), layered)
        for layered in (True, False)
        for height in _HEIGHTS
        for part in _PARTS
    ]
    return max(layouts, key=lambda layout: min(layout.zoom, _ENOUGH))  # the first of equals


def _arranged(workflow: Workflow, height: int, inner: int, layered: bool) -> Layout:
    """Groups of at most ``inner`` stacked in columns of at most ``height``.

    ``layered``: no column holds two levels of links.
    """
    members = [[node for node in workflow.nodes if node.group == number] for number in range(len(workflow.groups) + 1)]
    levels = _group_levels(members)
    placed: dict[int, Box] = {}
    groups: dict[int, Box] = {}
    left = top = right = 0
    level = None
    for number in sorted((n for n, nodes in enumerate(members) if nodes), key=lambda n: (n > 0, levels[n])):
        inside = _columns(members[number], inner - _HEADING - _MARGIN if number else height)
        size = _place(inside, 0, 0, {}, framed=number > 0)
        begins = layered and level not in (None, levels[number])
        if placed and (begins or top + size.height > height):
            left, top = right + _GROUP_GAP, 0
        box = _place(inside, left, top, placed, framed=number > 0)
        if number:
            groups[number], level = box, levels[number]
        top, right = box.top + box.height + _GROUP_GAP, max(right, left + box.width)
    return Layout(placed, [groups.get(number, Box(0, 0, 0, 0)) for number in range(1, len(members))])


def _group_levels(members: list[list[Node]]) -> list[int]:
    """How many groups come before each along the links."""
    group_of = {node.id: number for number, nodes in enumerate(members) for node in nodes}
    levels = [0] * len(members)
    for number, nodes in enumerate(members):  # a group is described after those that feed it
        feeding = {group_of.get(source.node.id) for node in nodes for source in node.sources.values()} - {number, None}
        levels[number] = max((levels[group] + 1 for group in feeding if group < number), default=0)
    return levels


def _columns(members: list[Node], height: int) -> list[list[Node]]:
    """The nodes of a group by their distance along the links inside it, in columns of at most ``height``."""
    inside = {node.id for node in members}
    depth: dict[int, int] = {}
    for node in members:  # a node is described after those that feed it
        feeding = [depth[source.node.id] for source in node.sources.values() if source.node.id in inside]
        depth[node.id] = max(feeding, default=-1) + 1
    columns: list[list[Node]] = []
    for level in range(max(depth.values()) + 1):
        column = [node for node in members if depth[node.id] == level]
        if columns and _stacked([*columns[-1], *column]) <= height:
            columns[-1] += column  # a level stays together: what is parallel stands in rows
            continue
        columns.append([])
        for node in column:
            if columns[-1] and _stacked([*columns[-1], node]) > height:
                columns.append([])
            columns[-1].append(node)
    return columns


def _stacked(column: list[Node]) -> int:
    return sum(node.size[1] + _TITLE + _NODE_GAP for node in column) - _NODE_GAP


def _place(columns: list[list[Node]], left: int, top: int, placed: dict[int, Box], framed: bool) -> Box:
    """Put the columns of a group beside each other; returns the group's box."""
    right, bottom = left + (_MARGIN if framed else 0), top
    for column in columns:
        below = top + (_HEADING if framed else 0)
        for node in column:
            width, height = node.size
            placed[node.id] = Box(right, below + _TITLE, width, height)
            below += _TITLE + height + _NODE_GAP
        right += max(placed[node.id].width for node in column) + _COLUMN_GAP
        bottom = max(bottom, below - _NODE_GAP)
    margin = _MARGIN if framed else 0
    return Box(left, top, right - _COLUMN_GAP + margin - left, bottom + margin - top)


def _size(node: Node) -> tuple[int, int]:
    """Width and height that a node needs for its slots, widgets and texts."""
    if node.type == NOTE:
        lines = sum(2 + len(line) // 49 for line in str(node.values["text"]).splitlines() if line)
        return _NOTE_WIDTH, _FRAME + 40 + 20 * lines
    texts = [input_ for input_ in inputs(node.info) if input_.is_widget and input_.options.get("multiline")]
    sockets = [input_ for input_ in inputs(node.info) if not input_.is_widget]
    # Advanced ones too: front ends up to 1.58 show them in a node that is opened.
    height = _SLOT * max(len(sockets), len(node.info["output"])) + _WIDGET * len(widgets(node.info))
    height += _FRAME + _TEXT * len(texts) + _PANELS.get(node.type, 0)
    if node.type in _SHOWS_IMAGE:
        return _IMAGE[0], height + _IMAGE[1] - _FRAME
    if node.type == _SHOWS_TEXT:
        return _TEXT_WIDTH, height + _TEXT
    return (_PANEL_WIDTH if node.type in _PANELS else _TEXT_WIDTH if texts else _WIDTH), height
