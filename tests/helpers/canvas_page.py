"""ComfyUI's canvas in a browser: load a workflow there, and read what the front end makes of it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import playwright.sync_api
import pytest
import repository

from tools.launcher import canvas
from tools.workflows import layout

#: Every front end with each of its renderers: the fixture of the server, and whether Nodes 2.0
#: draws.
KINDS = {
    "pinned-classic": ("server", False),
    "pinned-nodes2": ("server", True),
    "newest-classic": ("newest_server", False),
    "newest-nodes2": ("newest_server", True),
}
#: For what is tried in each renderer and with each front end, but not with all pairs of them.
_PAIRS = ("pinned-classic", "newest-nodes2")
EACH_RENDERER = pytest.mark.parametrize(
    "canvas", [KINDS[name] for name in _PAIRS], ids=_PAIRS, indirect=True, scope="module"
)

#: The address to which the page queues.
PROMPT = re.compile("/prompt$")
_MISSING = """() => app.graph.nodes
    .filter(node => !(node.type in LiteGraph.registered_node_types))
    .map(node => node.type)"""
_SAVED = "() => JSON.parse(JSON.stringify(app.graph.serialize()))"
_PROMPT = "async () => JSON.parse(JSON.stringify((await app.graphToPrompt()).output))"
_CLASSIC_BOXES = """() => app.graph.nodes.map(node => {
    const title = LiteGraph.NODE_TITLE_HEIGHT
    return [Number(node.id), node.pos[0], node.pos[1] - title, node.size[0], node.size[1] + title]
})"""
_VUE_BOXES = """() => [...document.querySelectorAll('[data-node-id]')].map(element => {
    const box = element.getBoundingClientRect()
    return [Number(element.dataset.nodeId), box.x, box.y, box.width, box.height]
})"""
# Nodes that stand in a group and are drawn further down than it is, by more than two thirds of its
# margin: by how much.
_OUTGROWN = """() => {
    const { scale, offset } = app.canvas.ds
    const top = app.canvas.canvas.getBoundingClientRect().top
    const bottom = node => {
        const element = LiteGraph.vueNodesMode
            && document.querySelector(`[data-node-id="${node.id}"]`)
        return element
            ? (element.getBoundingClientRect().bottom - top) / scale - offset[1]
            : node.pos[1] + node.size[1]
    }
    return app.graph.groups.flatMap(group => {
        const [left, upper, width, height] = group.boundingRect ?? group._bounding
        const within = ({ pos: [x, y] }) =>
            x >= left && x < left + width && y >= upper && y < upper + height
        return app.graph.nodes.filter(within).flatMap(node => {
            const beyond = Math.round(bottom(node) - upper - height)
            return beyond > 8 ? [`${node.title || node.type}: ${beyond}`] : []
        })
    })
}"""
# What a run shows, all at once: a long text in each Preview Any, and a preview in each node that
# samples.
_SHOW_RESULTS = """async samplers => {
    const { api } = await import("/scripts/api.js")
    const square = Object.assign(document.createElement("canvas"), { width: 512, height: 512 })
    const blob = await new Promise(done => square.toBlob(done))
    const text = Array(40).fill("a line of a report that is longer than its node").join("\\n")
    const samples = node => samplers.includes(node.type) || node.subgraph?.nodes.some(samples)
    for (const node of app.graph.nodes) {
        const [id, promptId] = [String(node.id), "run"]
        const places = {
            nodeId: id, displayNodeId: id, parentNodeId: id, realNodeId: id,
            jobId: promptId, promptId,
        }
        if (samples(node)) api.dispatchCustomEvent("b_preview_with_metadata", { blob, ...places })
        if (node.type === "PreviewAny") {
            const output = { text: [text] }
            const detail = { node: id, display_node: id, output, prompt_id: promptId }
            api.dispatchCustomEvent("executed", detail)
        }
    }
    app.canvas.setDirty(true, true)
}"""
_FRESH_WIDGETS = """types => types.map(type => (LiteGraph.createNode(type).widgets ?? [])
    .filter(widget => widget.serialize !== false)
    .map(widget => [widget.name, widget.options?.serialize !== false]))"""
_FRESH_NODES = """types => {
    app.graph.clear()
    app.canvas.ds.scale = 1
    return types.map((type, index) => {
        const node = LiteGraph.createNode(type)
        node.pos = [1000 * (index % 10), 2000 * Math.floor(index / 10)]
        app.graph.add(node)
        return Number(node.id)
    })
}"""
# Of the paths of links and of bends that the canvas has drawn: those that some points are not upon.
_OFF_THE_WIRES = """expected => {
    const context = document.createElement("canvas").getContext("2d")
    Object.assign(context, { lineWidth: 8, lineCap: "round" })
    return expected.filter(([kind, id, points]) => {
        const drawn = kind === "link" ? app.graph.links.get(id) : app.graph.reroutes.get(id)
        return !points.every(([x, y]) => context.isPointInStroke(drawn.path, x, y))
    }).map(([kind, id]) => `${kind} ${id}`)
}"""
_LOOK_AT = """type => {
    const node = app.graph.nodes.find(node => node.type === type)
    const { ds } = app.canvas
    // Panels are hidden below a scale of 0.6; of a node too high for that the end is looked at,
    // where they are.
    ds.scale = Math.max(0.65, Math.min(1, 800 / (node.size[1] + 100)))
    ds.offset[0] = 500 / ds.scale - node.pos[0]
    const top = 120 / ds.scale + 30 - node.pos[1]
    ds.offset[1] = Math.min(top, (innerHeight - 60) / ds.scale - node.pos[1] - node.size[1])
    app.canvas.setDirty(true, true)
}"""
_VALUE = """([type, name]) => app.graph.nodes.find(node => node.type === type)
    .widgets.find(widget => widget.name === name).value"""
_COPY = """type => {
    const node = app.graph.nodes.find(node => node.type === type)
    app.canvas.selectItems([node])
    app.canvas.copyToClipboard([node])
    app.canvas.pasteFromClipboard({ position: [node.pos[0], node.pos[1] + 900] })
    return app.graph.nodes.filter(node => node.type === type).at(-1).serialize().widgets_values
}"""
_INTO_SUBGRAPH = """async ([type, promoted]) => {
    const node = app.graph.nodes.find(node => node.type === type)
    const host = app.graph.convertToSubgraph(new Set([node])).node
    const inner = host.subgraph.nodes.find(node => node.type === type)
    if (promoted) {
        const input = inner.inputs.find(input => input.widget?.name === promoted)
        host.subgraph.addInput(promoted, input.type).connect(input, inner)
    }
    app.canvas.openSubgraph(host.subgraph, host)
    inner.pos = [0, 0]
    Object.assign(app.canvas.ds, { scale: 1 })
    app.canvas.ds.offset.splice?.(0, 2, 400, 120) ?? app.canvas.ds.offset.set([400, 120])
    app.canvas.setDirty(true, true)
    return `${host.id}:${inner.id}`
}"""

# What this front end says on a ComfyUI that is older than itself, without a way to the internet, or
# of a subgraph that a script has made.
_NOT_OURS = (
    "Failed to load resource",
    "JobsApiError",
    "Failed to fetch queue",
    "cleanup event listeners for graph",
)


@dataclass
class Canvas(canvas.Canvas):
    """A page with the canvas of a server, and what goes wrong there."""

    errors: list[str] = field(default_factory=list)

    def load(self, workflow: dict) -> None:
        """Open a saved workflow; what the page says from here on counts as its error."""
        self.errors.clear()
        super().load(workflow)

    def missing(self) -> list[str]:
        """The types of nodes that the front end does not know."""
        return self.page.evaluate(_MISSING)

    def saved(self) -> dict:
        """What Save would write."""
        return self.page.evaluate(_SAVED)

    def prompt(self) -> dict:
        """What Run would queue."""
        return self.page.evaluate(_PROMPT)

    def fresh_widgets(self, types: list[str]) -> dict[str, list]:
        """For new nodes of some types: the name of each saved widget, and whether it goes into the
        prompt.
        """
        return dict(zip(types, self.page.evaluate(_FRESH_WIDGETS, types), strict=True))

    def fresh_sizes(self, types: list[str]) -> dict[str, tuple[float, float]]:
        """Width and height of new nodes of some types as drawn, with the title."""
        nodes = self.page.evaluate(_FRESH_NODES, types)
        self.pause()
        boxes = {
            box[0]: tuple(box[3:])
            for box in self.page.evaluate(_VUE_BOXES if self.vue else _CLASSIC_BOXES)
        }
        return {type_: boxes[node] for type_, node in zip(types, nodes, strict=True)}

    def overlaps(self) -> list[tuple[int, int]]:
        """Pairs of nodes that cover each other as drawn, by id."""
        boxes = self.page.evaluate(_VUE_BOXES if self.vue else _CLASSIC_BOXES)
        return [
            (a[0], b[0])
            for index, a in enumerate(boxes)
            for b in boxes[index + 1 :]
            if _overlap(a[1:], b[1:])
        ]

    def outgrown(self) -> list[str]:
        """The nodes that are drawn further down than the group they stand in."""
        return self.page.evaluate(_OUTGROWN)

    @contextlib.contextmanager
    def queued(self, node_type: str, widget: str) -> Iterator[list]:
        """What the nodes of a type are given by the prompts that the page queues, none of which
        runs.
        """
        values = []

        def answer(route):
            if route.request.method != "POST":
                route.continue_()
                return
            entries = route.request.post_data_json["prompt"].values()
            values.append(
                next(
                    entry["inputs"][widget] for entry in entries if entry["class_type"] == node_type
                )
            )
            route.fulfill(
                json={"prompt_id": f"held back {len(values)}", "number": 0, "node_errors": {}}
            )

        self.page.route(PROMPT, answer)
        try:
            yield values
        finally:
            self.page.unroute(PROMPT)

    def show_results(self) -> None:
        """Show long texts and previews as a run does, without the run."""
        self.page.evaluate(_SHOW_RESULTS, sorted(layout.PREVIEWS))
        for _ in range(
            2
        ):  # an image that has loaded is drawn by the canvas, which then makes room for it
            self.pause()
            self.page.evaluate("() => app.canvas.setDirty(true, true)")
        self.settle()

    def off_the_wires(self, expected: list[tuple[str, int, list]]) -> list[str]:
        """Which of the pieces of wires, each "link" or "reroute", its id, and points, are drawn
        elsewhere.
        """
        return self.page.evaluate(_OFF_THE_WIRES, expected)

    def drawn(self) -> int:
        """How many nodes stand on the page as elements: all of them in Nodes 2.0, none in the
        classic renderer.
        """
        return len(self.page.evaluate(_VUE_BOXES))

    def look_at(self, node_type: str) -> None:
        """Zoom to the first node of a type."""
        self.page.evaluate(_LOOK_AT, node_type)
        self.settle()

    def value(self, node_type: str, widget: str):
        """The value of a widget of the first node of a type."""
        return self.page.evaluate(_VALUE, [node_type, widget])

    def into_subgraph(self, node_type: str, promoted: str | None = None) -> str:
        """Put the first node of a type into a subgraph and open that; returns where the server sees
        the node.

        ``promoted``: a widget whose value the subgraph's node shall hold.
        """
        place = self.page.evaluate(_INTO_SUBGRAPH, [node_type, promoted])
        self.pause()
        return place

    def copied(self, node_type: str) -> list:
        """Copy and paste the first node of a type; the values of what was pasted, as Save writes
        them.
        """
        return self.page.evaluate(_COPY, node_type)

    def pause(self) -> None:
        """Let a moment pass: what changes within 50 ms of another change is one step of undo for
        front end 1.58.
        """
        self.page.wait_for_timeout(300)

    def undo(self) -> None:
        """Press Ctrl+Z; the canvas loads the state before a moment later."""
        self.page.locator("body").press("Control+z")


class Browser:
    """Chromium, launched again where it has crashed: one crash then fails no later test."""

    def __init__(self, stack: contextlib.ExitStack):
        self._stack = stack
        self._launched = stack.enter_context(canvas.chromium())

    @property
    def running(self) -> bool:
        return self._launched.is_connected()

    def new_context(self, **options):
        """A fresh profile; ``options`` as Playwright's ``new_context`` takes them."""
        if not self.running:
            self._stack.close()
            self._launched = self._stack.enter_context(canvas.chromium())
        return self._launched.new_context(**options)

    def new_page(self):
        """A page of a fresh profile."""
        return self.new_context().new_page()

    def crash(self) -> None:
        """End the browser as a fault of its own would."""
        with contextlib.suppress(playwright.sync_api.Error):
            self._launched.new_browser_cdp_session().send("Browser.crash")


def open_canvas(browser: Browser, url: str, vue: bool) -> Canvas:
    """Open the canvas of the server in a fresh profile; a second time if the browser crashes."""
    try:
        return _opened(browser, url, vue)
    except playwright.sync_api.Error:
        if browser.running:
            raise
        return _opened(browser, url, vue)


def _opened(browser: Browser, url: str, vue: bool) -> Canvas:
    opened = Canvas(
        browser.new_context(viewport={"width": 1600, "height": 1000}).new_page(), vue, url
    )
    opened.page.on("console", lambda message: _note(opened, message))
    opened.page.on("pageerror", lambda error: opened.errors.append(str(error)))
    opened.open({})
    return opened


def _note(opened: Canvas, message) -> None:
    address = (message.location or {}).get("url", "")
    ours = repository.LINKED_AS in address or "GBX_" in message.text
    if message.type == "error" and (
        ours or not any(phrase in message.text for phrase in _NOT_OURS)
    ):
        opened.errors.append(f"{message.text} ({address})")


def _overlap(a: list[float], b: list[float]) -> bool:
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]
