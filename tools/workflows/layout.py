"""Where the nodes of a workflow stand: groups along the links, from left to right and from top to
bottom.

A workflow opens zoomed out until all of it is in sight. So ``arrange`` cuts a rectangle again and
again into two parts, for nodes in a group and for groups, and takes the cuts that open largest with
few links that run back.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tools.launcher.widgets import Input, inputs, widgets

from .authoring import ANY, NOTE, Node, Workflow

# All lengths in canvas units. The newer renderer draws nodes taller than the classic one: the gaps
# allow for both.
TITLE, _FRAME, _SLOT, _WIDGET = (
    30,
    24,
    24,
    34,
)  # as Nodes 2.0 draws them, which needs more than the classic renderer
_WIDTH, _TEXT_WIDTH, _PANEL_WIDTH, _LETTER = 260, 300, 380, 7.2
_NOTE_WIDTHS = (320, 420, 520, 640)
_NOTE_LETTER, _NOTE_LINE = 9.4, 22.5
_FURTHER_TEXT = 40  # what newer front ends give a second text of a subgraph beyond its lines
_IMAGE, _REPORT = (230, 190), (300, 92)  # room for what an output node shows
_CAPTION = 16  # Nodes 2.0 draws an image nearly as wide as its node, with its size below
_COLUMN_GAP, NODE_GAP, GROUP_GAP, MARGIN, HEADING = 36, 18, 16, 12, 36
#: What a layout is made for: three quarters of a window of 1600 x 1000.
WINDOW = (1200, 750)
_LARGEST = (4000, 2500)  # what opens smaller is not worth trying
_BACK, _BEHIND = (
    0.2,
    0.6,
)  # what a layout loses whose links all run to the left or straight down, or behind nodes
_GROUP_LETTER = 13
_ORDERS = 60  # of the groups, at most
_READABLE, _MOST_BACK = 0.65, 0.4  # what counts first
_ENOUGH = 0.8  # text is easy to read: a workflow that opens larger gets no better
_SHOWS_IMAGE = {"SaveImage", "PreviewImage"}
_SHOWS_TEXT = "PreviewAny"
#: What shows previews while it runs, besides nodes that hold one of these.
PREVIEWS = {"KSampler", "KSamplerAdvanced", "SamplerCustom", "SamplerCustomAdvanced"}
PREVIEWS |= {"GBX_SeedScout", "GBX_TrainLoraImmiscible", "GBX_TrainSlider", "GBX_W2WInvert"}
PREVIEWS |= {"GBX_W2WTrainSpace"}
PREVIEW = 84  # their height, to which web/canvas/room.js holds them
# Heights of the panels that the pack's scripts (web/widgets) and Nodes 2.0 add to nodes.
_PANELS = {
    "LoadImage": 248,
    "GBX_ActivationCatalog": 388,
    "GBX_ActivationCorrespondence": 300,
    "GBX_ActivationSimilarity": 300,
    "GBX_CompositionNoise": 30,
    "GBX_EditByWords": 261,
    "GBX_LayerActivationTap": 388,
    "GBX_MemorizationReport": 220,
    "GBX_MixSteeringDirections": 261,
    "GBX_NemoLocalize": 200,
    "GBX_NemoNeuronMask": 200,
    "GBX_NeuronMaskEdit": 230,
    "GBX_OptimizeNeuronMask": 200,
    "GBX_Sliders": 261,
    "GBX_TokenHeatMap": 390,
    "GBX_TrainLoraImmiscible": 250,
    "GBX_TrainSlider": 250,
    "GBX_W2WEdit": 261,
    "GBX_W2WInvert": 250,
    "GBX_W2WSheet": 260,
    "GBX_W2WTrainSpace": 250,
}
_SWITCHED = {
    "GBX_ActivationSteering",
    "GBX_SparseFeatureSteering",
}  # with the switch "Live" alone, as high as a widget


@dataclass(frozen=True)
class Box:
    """A rectangle on the canvas; a node's box leaves out the title bar above it."""

    left: int
    top: int
    width: int
    height: int


#: What a browser on a screen of 1920 x 1080 shows between ComfyUI's bars, in pixels of the canvas.
SIGHT = Box(left=80, top=130, width=1800, height=780)


@dataclass(frozen=True)
class Layout:
    """The boxes of a workflow's nodes by id, and of its groups in their order."""

    nodes: dict[int, Box]
    groups: list[Box]

    def titles(self, groups: list[str]) -> list[Box]:
        """Where the titles of the groups are written, so high that no wire fits between one and the
        nodes below.
        """
        sizes = [(round(_GROUP_LETTER * len(title)), HEADING - 8) for title in groups]
        return [
            Box(box.left, box.top, *size)
            for box, size in zip(self.groups, sizes, strict=True)
            if box.width
        ]

    @property
    def zoom(self) -> float:
        """How large the workflow opens in a window of 1600 x 1000."""
        boxes = [*self.nodes.values(), *self.groups]
        width = max(box.left + box.width for box in boxes) - min(box.left for box in boxes)
        height = max(box.top + box.height for box in boxes) - min(box.top for box in boxes)
        return min(WINDOW[0] / width, WINDOW[1] / height)

    @property
    def bounds(self) -> Box:
        """The smallest box around all nodes, with their titles, and groups."""
        titled = [
            replace(box, top=box.top - TITLE, height=box.height + TITLE)
            for box in self.nodes.values()
        ]
        boxes = [*titled, *(box for box in self.groups if box.width)]
        left = min(box.left for box in boxes)
        top = min(box.top for box in boxes)
        return Box(
            left=left,
            top=top,
            width=max(box.left + box.width for box in boxes) - left,
            height=max(box.top + box.height for box in boxes) - top,
        )

    @property
    def view(self) -> dict[str, float | list[float]]:
        """The zoom and the offset, in canvas units, at which all of it stands in the middle of
        ``SIGHT``; as ``extra.ds`` of a file keeps them.

        Without it the front end fits its view while it measures the nodes, and Nodes 2.0 of front
        end 1.32 takes the places that they have at the zoom before for those at the zoom after.
        """
        bounds = self.bounds
        fitting = min(1.0, SIGHT.width / bounds.width, SIGHT.height / bounds.height)
        scale = math.floor(fitting * 1000) / 1000
        middle_x = (SIGHT.left + SIGHT.width / 2) / scale
        middle_y = (SIGHT.top + SIGHT.height / 2) / scale
        offset = [
            round(middle_x - bounds.left - bounds.width / 2),
            round(middle_y - bounds.top - bounds.height / 2),
        ]
        return {"scale": scale, "offset": offset}


def arrange(workflow: Workflow) -> Layout:
    """Place every node and group without overlaps, with room for images as Nodes 2.0 draws them
    where there is any.
    """
    given = [node.size for node in workflow.nodes]
    for roomy in (True, False):
        for node, size in zip(workflow.nodes, given, strict=True):
            node.size = size
            width, height = size_of(node)
            if roomy and node.type in _SHOWS_IMAGE and not size:
                height += max(width + _CAPTION - _IMAGE[1], 0)
            node.size = width, height
        choices = itertools.product((True, False), repeat=2)
        layouts = itertools.chain.from_iterable(_layouts(workflow, *choice) for choice in choices)
        best = max(layouts, key=lambda layout: _score(workflow, layout))  # the first of equals
        if _score(workflow, best)[:2] == (True, _READABLE):
            break
    return best


def _score(workflow: Workflow, layout: Layout) -> tuple[bool, float, float]:
    """Whether most links run to the right, how large a workflow opens up to readable, and all that
    counts.
    """
    boxes = layout.nodes
    links = [
        (boxes[source.node.id], boxes[node.id], source.slot)
        for node in workflow.nodes
        for source in node.sources.values()
        if source.node.id in boxes
    ]
    count = max(len(links), 1)
    back = sum(target.left < source.left + source.width for source, target, _ in links) / count
    readable = min(layout.zoom, _READABLE)
    if back > _MOST_BACK or readable < _READABLE:
        return back <= _MOST_BACK, readable, min(layout.zoom, _ENOUGH) * (1 - _BACK * back)
    behind = sum(_runs_behind(*link, boxes.values()) for link in links) / count
    return True, readable, min(layout.zoom, _ENOUGH) * (1 - _BACK * back - _BEHIND * behind)


def _runs_behind(source: Box, target: Box, slot: int, boxes: Iterable[Box]) -> bool:
    """Whether the straight line of a link runs behind another node."""
    x, y = source.left + source.width, source.top + _SLOT * (slot + 0.5)
    across, down = target.left - x, target.top + _SLOT - y

    def covers(box: Box) -> bool:
        first, last = 0.0, 1.0
        for start, length, low, high in (
            (x, across, box.left, box.left + box.width),
            (y, down, box.top - TITLE, box.top + box.height),
        ):
            ends = sorted(((low - start) / (length or 1e-9), (high - start) / (length or 1e-9)))
            first, last = max(first, ends[0]), min(last, ends[1])
        return first < last

    return any(covers(box) for box in boxes if box not in (source, target))


@dataclass(frozen=True)
class _Shape:
    """A rectangle of the node or group of that ``id`` or of none, and what stands in it, from its
    left top corner.
    """

    width: int
    height: int
    id: str | int | None = None
    parts: tuple[tuple[_Shape, int, int], ...] = ()

    def places(self, left: int = 0, top: int = 0) -> Iterator[tuple[str | int, Box]]:
        """The boxes of all nodes and groups in it."""
        if self.id is not None:
            yield self.id, Box(left, top, self.width, self.height)
        for part, right, below in self.parts:
            yield from part.places(left + right, top + below)


def _layouts(workflow: Workflow, forward_nodes: bool, forward_groups: bool) -> Iterator[Layout]:
    """Layouts of different proportions and orders of the groups.

    ``forward_nodes``, ``forward_groups``: none stands below what feeds it.
    """
    members = [
        [node for node in workflow.nodes if node.group == number]
        for number in range(len(workflow.groups) + 1)
    ]
    group_of = {node.id: number for number, nodes in enumerate(members) for node in nodes}
    links = {
        (source.node.id, node.id) for node in workflow.nodes for source in node.sources.values()
    }
    shapes = {}
    for number, nodes in enumerate(members):
        if not nodes:
            continue
        inside = []
        for ordered in _node_orders(nodes):
            ids = [node.id for node in ordered]
            feeding = {(ids.index(a), ids.index(b)) for a, b in links if a in ids and b in ids}
            blocks = [_shapes(node) for node in ordered]
            inside += _packed(blocks, feeding if forward_nodes else set(), (_COLUMN_GAP, NODE_GAP))
        inside = _smallest(inside)
        shapes[number] = (
            [_framed(shape, workflow.groups, number) for shape in inside] if number else inside
        )
    feeding = {(group_of[a], group_of[b]) for a, b in links if a in group_of} - {
        (number, number) for number in shapes
    }
    for order in itertools.islice(_orders(list(shapes), feeding), _ORDERS):
        between = (
            {(order.index(a), order.index(b)) for a, b in feeding} if forward_groups else set()
        )
        for shape in _packed([shapes[number] for number in order], between, (GROUP_GAP, GROUP_GAP)):
            boxes = dict(shape.places())
            nodes = {node.id: boxes[node.id] for node in workflow.nodes}
            yield Layout(
                {
                    id_: replace(box, top=box.top + TITLE, height=box.height - TITLE)
                    for id_, box in nodes.items()
                },
                [
                    boxes.get(f"group {number}", Box(0, 0, 0, 0))
                    for number in range(1, len(members))
                ],
            )


def _orders(groups: list[int], feeding: set[tuple[int, int]]) -> Iterator[list[int]]:
    """The orders in which each group comes after those that feed it, and the note first; as
    described, first of all.
    """
    if not groups:
        yield []
    for group in groups[:1] if groups[:1] == [0] else groups:
        if not any((before, group) in feeding for before in groups):
            for others in _orders([other for other in groups if other != group], feeding):
                yield [group, *others]


def _framed(inside: _Shape, titles: list[str], number: int) -> _Shape:
    width = max(inside.width + 2 * MARGIN, round(_GROUP_LETTER * len(titles[number - 1])))
    return _Shape(
        width, inside.height + HEADING + MARGIN, f"group {number}", ((inside, MARGIN, HEADING),)
    )


def _packed(
    blocks: list[list[_Shape]], links: set[tuple[int, int]], gaps: tuple[int, int]
) -> list[_Shape]:
    """Shapes of all blocks in their order, cut again and again into two parts, side by side or one
    above the other.

    ``links``: pairs of blocks of which the second must not stand below the first; ``gaps``: across
    and down.
    """
    found: dict[tuple[int, int], list[_Shape]] = {}
    for length, first in itertools.product(range(1, len(blocks) + 1), range(len(blocks))):
        last = first + length
        if last > len(blocks):
            continue
        shapes = list(blocks[first]) if length == 1 else []
        for cut in range(first + 1, last):
            before, after = found[first, cut], found[cut, last]
            shapes += _beside(before, after, gaps[0])
            if not any((a, b) in links for a in range(first, cut) for b in range(cut, last)):
                shapes += _stacked(before, after, gaps[1])
        found[first, last] = _smallest(shapes)
    return found[0, len(blocks)]


def _beside(before: list[_Shape], after: list[_Shape], gap: int) -> Iterator[_Shape]:
    for height in {shape.height for shape in (*before, *after)}:
        pair = [
            next((shape for shape in shapes if shape.height <= height), None)
            for shapes in (before, after)
        ]
        if None not in pair:
            right = pair[0].width + gap
            yield _Shape(
                right + pair[1].width, height, None, ((pair[0], 0, 0), (pair[1], right, 0))
            )


def _stacked(above: list[_Shape], below: list[_Shape], gap: int) -> Iterator[_Shape]:
    for width in {shape.width for shape in (*above, *below)}:
        pair = [
            next((shape for shape in shapes[::-1] if shape.width <= width), None)
            for shapes in (above, below)
        ]
        if None not in pair:
            down = pair[0].height + gap
            yield _Shape(width, down + pair[1].height, None, ((pair[0], 0, 0), (pair[1], 0, down)))


def _smallest(shapes: list[_Shape]) -> list[_Shape]:
    """From narrow and high to wide and low, without those that a narrower one is not higher
    than.
    """
    kept: list[_Shape] = []
    for shape in sorted(shapes, key=lambda shape: (shape.width, shape.height)):
        if not kept or shape.height < kept[-1].height:
            kept.append(shape)
    return [
        shape for shape in kept if shape.width <= _LARGEST[0] and shape.height <= _LARGEST[1]
    ] or kept


def _node_orders(members: list[Node]) -> Iterator[list[Node]]:
    """The nodes of a group by their distance along the links inside it, there also by height, and
    as described.
    """
    depth: dict[int, int] = {}
    for node in members:  # a node is described after those that feed it
        depth[node.id] = max(
            (depth[s.node.id] + 1 for s in node.sources.values() if s.node.id in depth), default=0
        )
    yield sorted(members, key=lambda node: depth[node.id])
    yield sorted(members, key=lambda node: (depth[node.id], -node.size[1]))
    yield members


def sockets(node: Node) -> list[Input]:
    """A node's sockets in the canvas' order: plain ones, then those of widgets, which are there
    only when linked.

    Of a node whose widgets its subgraph shows, all are there: front end 1.32 takes their places for
    those of all.
    """
    described = list(inputs(node.info))
    shown = any(source.type == ANY for source in node.sources.values())
    fed = [
        input_
        for input_ in described
        if input_.is_widget and (shown or input_.name in node.sources)
    ]
    return [input_ for input_ in described if not input_.is_widget] + fed


def _shapes(node: Node) -> list[_Shape]:
    """A node has one shape, a note one for each width."""
    sizes = [note_size(node, width) for width in _NOTE_WIDTHS] if node.type == NOTE else [node.size]
    return _smallest([_Shape(width, height + TITLE, node.id) for width, height in sizes])


def note_size(node: Node, width: int) -> tuple[int, int]:
    width = max(width, _title_width(node))
    lines = [
        textwrap.wrap(line, int((width - 30) / _NOTE_LETTER))
        for line in str(node.values["text"]).splitlines()
    ]
    return width, 42 + round(_NOTE_LINE * sum(map(len, lines)))


def size_of(node: Node) -> tuple[int, int]:
    """Width and height that a node is given or needs, wide enough for its title."""
    width, height = node.size or _needed(node)
    return max(width, _title_width(node)), height


def _needed(node: Node) -> tuple[int, int]:
    """For its slots, widgets and texts, in the renderer that needs most."""
    if node.type == NOTE:
        return note_size(node, _NOTE_WIDTHS[0])
    texts = [
        input_.name
        for input_ in inputs(node.info)
        if input_.is_widget and input_.options.get("multiline")
    ]
    # A widget of a subgraph that is linked has its row beside its socket.
    given = [input_ for input_ in sockets(node) if node.inside or not input_.is_widget]
    # Advanced ones too: front ends up to 1.58 show them in a node that is opened.
    rows = [
        widget for widget in widgets(node.info) if widget.in_prompt and widget.name not in texts
    ]
    height = _FRAME + _SLOT * max(len(given), len(node.info["output"]))
    height += _WIDGET * (len(rows) + (node.type in _SWITCHED))
    height += sum(_text_height(str(node.values[text])) for text in texts) + _PANELS.get(
        node.type, 0
    )
    if node.inside is not None:
        height += _FURTHER_TEXT * max(len(texts) - 1, 0)
    if _previews(node):
        height += PREVIEW
    if node.type in _SHOWS_IMAGE:
        return _IMAGE[0], height + _IMAGE[1]
    if node.type == _SHOWS_TEXT:
        return _REPORT[0], height + _REPORT[1]
    return (_PANEL_WIDTH if node.type in _PANELS else _TEXT_WIDTH if texts else _WIDTH), height


def _previews(node: Node) -> bool:
    return node.type in PREVIEWS or (
        node.inside is not None and any(map(_previews, node.inside.workflow.nodes))
    )


def _text_height(text: str) -> int:
    lines = sum(1 + len(line) // 43 for line in text.splitlines())
    return min(max(56, 24 + 16 * lines), 136)


def _title_width(node: Node) -> int:
    return round(60 + _LETTER * len(node.title or node.info.get("display_name") or node.type))
