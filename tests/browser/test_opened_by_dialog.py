"""Templates opened one after another from ComfyUI's dialog, with the settings that people have.

The dialog opens by itself on a first visit. The only setting that differs is the one on trial:
which renderer draws.
"""

import re

import pytest
import repository
from playwright.sync_api import expect

from tools.launcher import workflow
from tools.launcher.comfyui import PACK_NAME

_WINDOW = {"width": 1920, "height": 940}  # of a browser on a screen of 1920 x 1080
_SETTINGS = re.compile(r"/settings$")
_READY = "() => window.app?.extensionManager && window.app.graph"
_OPENED = """ids => {
    const nodes = app.graph.nodes.map(node => Number(node.id)).sort((a, b) => a - b)
    return nodes.join() === ids.join()
}"""
# The boxes of nodes as drawn, with their titles, and of groups, in canvas units; and the part of
# the canvas that the window shows.
_DRAWN = """() => {
    const { scale, offset } = app.canvas.ds
    const canvas = app.canvas.canvas.getBoundingClientRect()
    const title = LiteGraph.NODE_TITLE_HEIGHT
    const box = node => {
        const element = document.querySelector(`[data-node-id="${node.id}"]`)
        if (!LiteGraph.vueNodesMode || !element)
            return [node.pos[0], node.pos[1] - title, node.size[0], node.size[1] + title]
        const { left, top, width, height } = element.getBoundingClientRect()
        const place = (pixel, start, axis) => (pixel - start) / scale - offset[axis]
        const corner = [place(left, canvas.left, 0), place(top, canvas.top, 1)]
        return [...corner, width / scale, height / scale]
    }
    return {
        nodes: Object.fromEntries(app.graph.nodes.map(node => [node.id, box(node)])),
        groups: app.graph.groups.map(group => [...(group.boundingRect ?? group._bounding)]),
        window: [-offset[0], -offset[1], canvas.width / scale, canvas.height / scale],
    }
}"""
_IN_A_ROW = (
    "demo_weights_sample",
    "demo_activations_token_heat_map",
    "demo_weights_edit",
    "sdxl_noise_composition",
)
_TOLERANCE = 8  # canvas units: two thirds of the margin of a group


@pytest.mark.parametrize(
    ("name", "vue"),
    [
        ("server", True),
        ("server", False),
        pytest.param("newest_server", True, marks=pytest.mark.slow),
    ],
    ids=["pinned-nodes2", "pinned-classic", "newest-nodes2"],
)
def test_every_node_stands_in_its_group_and_in_sight(browser, request, name, vue):
    page = browser.new_context(viewport=_WINDOW).new_page()
    settings = {"Comfy.VueNodes.Enabled": vue}
    page.route(_SETTINGS, lambda route: route.fulfill(json=settings))
    page.goto(request.getfixturevalue(name).url, timeout=120_000)
    page.wait_for_function(_READY, timeout=120_000)
    for number, template in enumerate(_IN_A_ROW):
        path = repository.named(template)
        if number:
            page.evaluate("() => app.extensionManager.command.execute('Comfy.BrowseTemplates')")
        page.get_by_role("dialog").get_by_text(PACK_NAME, exact=True).first.click(timeout=60_000)
        page.get_by_test_id(f"template-workflow-{path.stem}").click(timeout=60_000)
        saved = workflow.load(path)
        ids = sorted(node["id"] for node in saved["nodes"])
        page.wait_for_function(_OPENED, arg=ids, timeout=120_000)
        expect(page.get_by_test_id(f"template-workflow-{path.stem}")).to_have_count(
            0, timeout=60_000
        )
        page.wait_for_timeout(1500)
        drawn = page.evaluate(_DRAWN)
        assert _outside(saved, drawn) == [], template


def _outside(saved: dict, drawn: dict) -> list[tuple]:
    """The nodes, by id, that are drawn beyond the group in which they stand in the file, or beyond
    the window.
    """
    found = []
    for node in saved["nodes"]:
        box = drawn["nodes"][str(node["id"])]
        if not _holds(drawn["window"], box):
            found.append((node["id"], "window", box, drawn["window"]))
        for group, around in zip(saved["groups"], drawn["groups"], strict=True):
            if _holds(group["bounding"], [*node["pos"], 0, 0]) and not _holds(around, box):
                found.append((node["id"], group["title"], box, around))
    return found


def _holds(outer: list[float], inner: list[float]) -> bool:
    return all(
        outer[axis] - _TOLERANCE <= inner[axis]
        and inner[axis] + inner[axis + 2] <= outer[axis] + outer[axis + 2] + _TOLERANCE
        for axis in (0, 1)
    )
