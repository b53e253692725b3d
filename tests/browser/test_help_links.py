"""The workflow that a help page links to opens on the canvas."""

import canvas_page
import pytest
import repository

from tools.launcher import workflow
from tools.workflows.canvas import make

pytestmark = canvas_page.EACH_RENDERER

_OPEN = "() => app.extensionManager.workflow.activeWorkflow.filename"
_TRIES = 100
_SELECT = """type => {
    const node = app.graph.nodes.find(node => node.type === type)
    app.canvas.selectItems([node])
    app.canvas.setDirty(true, true)
}"""


def _describe(node: str):
    def describe(w):
        w.note("Help", "One.", "Two.", "Three.")
        w.group("Help")
        w.add("PreviewAny", source=w.add(node)[0])

    return describe


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ("GBX_LoadDemoModel", "demo_weights_edit"),
        ("GBX_TrainingFromScratch", "demo_noise_from_scratch"),  # of the further ones
    ],
)
def test_a_linked_workflow_opens(canvas, object_info, node, name):
    canvas.load(make("help", _describe(node), object_info))
    canvas.look_at(node)
    canvas.page.evaluate(_SELECT, node)
    canvas.page.get_by_test_id("info-button").dispatch_event("click")  # it may lie below the tabs
    path = repository.named(name)
    canvas.page.get_by_role("link", name=path.stem, exact=True).click()
    for _ in range(_TRIES):
        if canvas.page.evaluate(_OPEN) == path.stem:
            break
        canvas.page.wait_for_timeout(200)
    assert canvas.page.evaluate(_OPEN) == path.stem
    assert len(canvas.page.context.pages) == 1, "the link has opened another tab, too"
    types = {entry["type"] for entry in canvas.saved()["nodes"]}
    assert types == {entry["type"] for entry in workflow.load(path)["nodes"]}
