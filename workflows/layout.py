"""Where the nodes of a workflow stand: groups from left to right, in each the nodes in columns along the links."""

from __future__ import annotations

from dataclasses import dataclass

from launch.widgets import inputs, widgets

from .authoring import NOTE, Node, Workflow

# All lengths in canvas units. The newer renderer draws nodes taller than the classic one: the gaps allow for both.
_TITLE, _SLOT, _WIDGET, _TEXT, _FRAME = 30, 20, 28, 120, 16
_WIDTH, _TEXT_WIDTH, _NOTE_WIDTH = 280, 400, 420
_PICTURE = (340, 380)  # room for the picture that an output node shows
_GAP, _MARGIN, _HEADING = 70, 40, 60
_SHOWS_PICTURE = {"SaveImage", "PreviewImage"}
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
    "GBX_W2WInvert": 210,
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


def arrange(workflow: Workflow) -> Layout:
    """Place every node and group without overlaps."""
    placed: dict[int, Box] = {}
    groups = []
    left = _place_column([node for node in workflow.nodes if node.group == 0], 0, placed)
    for number in range(1, len(workflow.groups) + 1):
        members = [node for node in workflow.nodes if node.group == number]
        right = left + _MARGIN
        for column in _columns(members):
            right = _place_column(column, right, placed)
        bottom = max((placed[node.id].top + placed[node.id].height for node in members), default=0)
        width = max(right - _GAP + _MARGIN, left + _WIDTH) - left
        groups.append(Box(left, -_HEADING - _TITLE, width, bottom + _MARGIN + _HEADING + _TITLE))
        left += width + _GAP
    return Layout(placed, groups)


def _columns(members: list[Node]) -> list[list[Node]]:
    """The nodes of a group by their distance along the links that stay inside it."""
    inside = {node.id for node in members}
    depth: dict[int, int] = {}
    for node in members:  # a node is described after those that feed it
        feeding = [depth[source.node.id] for source in node.sources.values() if source.node.id in inside]
        depth[node.id] = max(feeding, default=-1) + 1
    return [[node for node in members if depth[node.id] == level] for level in sorted(set(depth.values()))]


def _place_column(column: list[Node], left: int, placed: dict[int, Box]) -> int:
    """Stack nodes downwards from the top at `left`; returns where the next column may begin."""
    top = 0
    for node in column:
        width, height = node.size or _size(node)
        placed[node.id] = Box(left, top, width, height)
        top += height + _TITLE + _GAP
    return left + max((placed[node.id].width + _GAP for node in column), default=0)


def _size(node: Node) -> tuple[int, int]:
    """Width and height that a node needs for its slots, widgets and texts."""
    if node.type == NOTE:
        lines = sum(2 + len(line) // 52 for line in str(node.values["text"]).splitlines() if line)
        return _NOTE_WIDTH, _FRAME + 40 + 20 * lines
    texts = [input_ for input_ in inputs(node.info) if input_.is_widget and input_.options.get("multiline")]
    sockets = [input_ for input_ in inputs(node.info) if not input_.is_widget]
    height = _SLOT * max(len(sockets), len(node.info["output"])) + _WIDGET * len(widgets(node.info))
    height += _FRAME + _TEXT * len(texts) + _PANELS.get(node.type, 0)
    if node.type in _SHOWS_PICTURE:
        return _PICTURE[0], height + _PICTURE[1] - _FRAME
    if node.type == _SHOWS_TEXT:
        return _TEXT_WIDTH, height + _TEXT
    return (_TEXT_WIDTH if texts else _WIDTH), height
