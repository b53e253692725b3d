"""`run.py demo --screenshots`: every workflow on the canvas, in both renderers, and close-ups of
the pack's panels.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from . import canvas, paths, workflow

RENDERERS = {"classic": False, "nodes2": True}
_LARGEST = (2600, 1500)  # pixels of an image
_SCALE, _MARGIN = 0.7, 40
_LOAD_SECONDS = 120  # for images, on a busy machine
_VIEWPORT = {"width": 1600, "height": 1000}
_SETTINGS = {
    "Comfy.Minimap.Visible": False,
    "Comfy.Graph.CanvasMenu": False,
    "Comfy.Graph.CanvasInfo": False,
    "Comfy.NodeBadge.NodeSourceBadgeMode": "None",
}
_BARE = """() => {
    localStorage.setItem("vueNodesBannerDismissed", "true")
    const textContent =
        ".p-toast, .graph-canvas-menu, .comfy-menu-hamburger { display: none !important }"
    addEventListener("load", () => document.head.append(
        Object.assign(document.createElement("style"), { textContent })))
}"""
_FOCUS = "() => { app.extensionManager.focusMode = true }"
_BOUNDS = """() => {
    const boxes = [...app.graph.nodes, ...app.graph.groups].map(shown => shown.boundingRect)
    const ends = [0, 1].map(side => [Math.min(...boxes.map(box => box[side])),
        Math.max(...boxes.map(box => box[side] + box[side + 2]))])
    return [ends[0][0], ends[1][0], ends[0][1] - ends[0][0], ends[1][1] - ends[1][0]]
}"""
_ALONE = """type => {
    const node = app.graph.nodes.find(node => node.type === type)
    node.pos = [1e5, 1e5]
    app.canvas.links_render_mode = LiteGraph.HIDDEN_LINK
    const title = LiteGraph.NODE_TITLE_HEIGHT
    return [1e5, 1e5 - title, node.size[0], node.size[1] + title]
}"""
_TOGETHER = "() => { app.canvas.links_render_mode = LiteGraph.SPLINE_LINK }"
_SHOW = """([left, top, scale]) => {
    const { ds } = app.canvas
    ds.scale = scale
    ds.offset[0] = -left
    ds.offset[1] = -top
    app.canvas.setDirty(true, true)
}"""

# The classic renderer fetches the images of a run when it draws their nodes, which do not have them
# before. A loader whose file is not on the server never gets one.
_IMAGES_LOADED = """() => {
    const absent = node => node.widgets?.some(({ name, value, options }) =>
        name === "image" && Array.isArray(options?.values) && !options.values.includes(value))
    const shown = app.graph.nodes.filter(
        node => app.nodeOutputs[node.id]?.images?.length && !absent(node)
        && !LiteGraph.vueNodesMode)
    app.canvas.setDirty(true, true)
    return shown.every(node => node.imgs?.length || node.animatedImages)
        && [...document.images, ...app.graph.nodes.flatMap(node => node.imgs ?? [])]
            .every(image => image.complete)
}"""


@dataclass(frozen=True)
class CloseUp:
    """A node with its panel in a workflow, and values to set before; ``again`` runs the workflow
    with them.
    """

    name: str
    workflow: str
    node: str
    values: dict = field(default_factory=dict)
    again: bool = False


CLOSE_UPS = (
    CloseUp(
        "canvas_sliders",
        "demo_weights_edit",
        "GBX_W2WEdit",
        {"edits": "beard: 0.8, long hair: -0.5"},
    ),
    CloseUp("canvas_network_map", "demo_activations_tap_and_pca", "GBX_LayerActivationTap"),
    CloseUp("canvas_neuron_chart", "demo_neurons_find_and_mask", "GBX_NemoNeuronMask"),
    CloseUp("canvas_point_picker", "demo_activations_point_similarity", "GBX_ActivationSimilarity"),
    CloseUp("canvas_live_curve", "demo_weights_invert", "GBX_W2WInvert", {"seed": 2}, again=True),
)


class Camera:
    """Saves screenshots in a folder, from a thread of its own: Playwright must stay in the thread
    that started it.

    ``settings``: those of the front end for a renderer and the number of the workflow. ``taken``:
    the names of workflows, each with its images.
    """

    def __init__(
        self, out: Path, settings: Callable[[str, int], dict] = lambda renderer, number: {}
    ):
        self.out, self.settings, self.taken = out, settings, []
        self._stack, self._thread = ExitStack(), ThreadPoolExecutor(1)
        self._browser, self._canvases = None, {}

    def __enter__(self) -> Camera:
        try:
            self._browser = self._do(self._stack.enter_context, canvas.chromium())
        except BaseException:
            self._thread.shutdown()
            raise
        return self

    def __exit__(self, *exception) -> None:
        self._do(self._stack.close)
        self._thread.shutdown()

    def take(self, url: str, name: str, path: Path, run: bool) -> None:
        """Write NAME_classic.jpg, NAME_nodes2.jpg and close-ups of a workflow; ``run`` queues it
        before.
        """
        images = [self._do(self._take, url, name, path, renderer, run) for renderer in RENDERERS]
        self.taken.append((name, images))

    def _do(self, work, *arguments):
        return self._thread.submit(work, *arguments).result()

    def _take(self, url: str, name: str, path: Path, renderer: str, run: bool) -> Path:
        opened = self._canvas(url, renderer)
        opened.page.set_viewport_size(_VIEWPORT)
        opened.load(workflow.load(path))
        if run:
            opened.run()
        target = whole(opened, self.out / f"{name}_{renderer}.jpg")
        for close_up in CLOSE_UPS:
            if run and not opened.vue and close_up.workflow == name:
                _take_close_up(opened, close_up, self.out / f"{close_up.name}.png")
        return target

    def _canvas(self, url: str, renderer: str) -> canvas.Canvas:
        """The renderer's page with its settings, opened once for all workflows that have the
        same.
        """
        settings = self.settings(renderer, len(self.taken))
        key = url, renderer, *settings.values()
        if key not in self._canvases:
            self._canvases[key] = open_bare(self._browser, url, RENDERERS[renderer], settings)
        return self._canvases[key]


def settings_of(theme: str, locale: str) -> dict:
    """The front end's settings for a theme (dark or light) and a language."""
    return {"Comfy.ColorPalette": theme, "Comfy.Locale": locale}


def paired(renderer: str, number: int, newest: bool) -> dict:
    """Settings for the workflow of a number, so that few screenshots show all pairs.

    Of each workflow, its two renderers on both front ends show every pair of renderer, front end
    and theme; of two that follow each other, every pair of these with a language too.
    """
    dark = RENDERERS[renderer] == newest
    return settings_of("dark" if dark else "light", "zh" if dark != bool(number % 2) else "en")


def whole(opened: canvas.Canvas, target: Path) -> Path:
    """Save all of the workflow as an image."""
    _show_whole(opened)
    paths.write_atomically(target, opened.page.screenshot(type="jpeg", quality=88))
    return target


def screenshot_of(opened: canvas.Canvas) -> Image.Image:
    """All of the workflow as an image."""
    _show_whole(opened)
    return Image.open(io.BytesIO(opened.page.screenshot()))


def _show_whole(opened: canvas.Canvas) -> None:
    left, top, width, height = opened.page.evaluate(_BOUNDS)
    scale = min(_SCALE, (_LARGEST[0] - 2 * _MARGIN) / width, (_LARGEST[1] - 2 * _MARGIN) / height)
    size = {
        "width": round(width * scale) + 2 * _MARGIN,
        "height": round(height * scale) + 2 * _MARGIN,
    }
    opened.page.set_viewport_size(size)
    _show(opened, left - _MARGIN / scale, top - _MARGIN / scale, scale)


def _take_close_up(opened: canvas.Canvas, close_up: CloseUp, target: Path) -> None:
    """The node alone, with few colors to keep the file small."""
    for name, value in close_up.values.items():
        opened.set(close_up.node, name, value)
    if close_up.again:
        opened.run()
    look_at_alone(opened, close_up.node)
    with Image.open(io.BytesIO(opened.page.screenshot())) as opened_image:
        content = io.BytesIO()
        opened_image.convert("RGB").quantize(200, Image.Quantize.MEDIANCUT).save(
            content, "PNG", optimize=True
        )
    paths.write_atomically(target, content.getvalue())
    opened.page.evaluate(_TOGETHER)


def open_bare(browser, url: str, vue: bool, settings: dict | None = None) -> canvas.Canvas:
    """Open the canvas of a server without what lies over it; ``settings``: further ones of the
    front end.
    """
    context = browser.new_context(viewport=_VIEWPORT)
    context.add_init_script(f"({_BARE})()")
    opened = canvas.Canvas(context.new_page(), vue, url)
    opened.open(_SETTINGS | (settings or {}))
    opened.page.evaluate(_FOCUS)
    return opened


def look_at_alone(opened: canvas.Canvas, node_type: str) -> None:
    """Make the page as large as the first node of a type, and show nothing else."""
    left, top, width, height = opened.page.evaluate(_ALONE, node_type)
    opened.page.set_viewport_size({"width": round(width) + 40, "height": round(height) + 40})
    _show(opened, left - 20, top - 20, 1.0)


def _show(opened: canvas.Canvas, left: float, top: float, scale: float) -> None:
    """Bring a corner of the canvas to the page's, and wait for images to load."""
    opened.page.evaluate(_SHOW, [left, top, scale])
    opened.page.wait_for_function(_IMAGES_LOADED, timeout=1000 * _LOAD_SECONDS)
    opened.page.wait_for_timeout(700)
    opened.settle()
