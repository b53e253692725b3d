"""The workflows and blueprints that a help page links to open on the canvas."""

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


def _follow(canvas, node, title):
    """Click a link on the help page of a node; what it names is then the active workflow."""
    canvas.look_at(node)
    canvas.page.evaluate(_SELECT, node)
    canvas.page.get_by_test_id("info-button").dispatch_event("click")  # it may lie below the tabs
    canvas.page.get_by_role("link", name=title, exact=True).click()
    for _ in range(_TRIES):
        if canvas.page.evaluate(_OPEN) == title:
            break
        canvas.page.wait_for_timeout(200)
    assert canvas.page.evaluate(_OPEN) == title
    assert len(canvas.page.context.pages) == 1, "the link has opened another tab, too"


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ("GBX_LoadDemoModel", "demo_weights_edit"),
        ("GBX_TrainingFromScratch", "demo_noise_from_scratch"),  # of the further ones
    ],
)
def test_a_linked_workflow_opens(canvas, object_info, node, name):
    canvas.load(make("help", _describe(node), object_info))
    path = repository.named(name)
    _follow(canvas, node, path.stem)
    types = {entry["type"] for entry in canvas.saved()["nodes"]}
    assert types == {entry["type"] for entry in workflow.load(path)["nodes"]}


def _describe_inversion(w):
    w.note("Help", "One.", "Two.", "Three.")
    w.group("Help")
    model, clip, _ = w.add("GBX_LoadDemoModel")
    positive = w.add("CLIPTextEncode", clip=clip, text="portrait")
    latent = w.add("EmptyLatentImage", width=128, height=128)
    noise = w.add("GBX_ImageToNoise", model=model, positive=positive, latent=latent)
    w.add("PreviewAny", source=noise[0])


def test_a_linked_blueprint_opens(canvas, object_info):
    name = "Change a word in an image"
    canvas.load(make("help", _describe_inversion, object_info))
    _follow(canvas, "GBX_ImageToNoise", name)
    (node,) = canvas.saved()["nodes"]
    assert canvas.missing() == []
    definitions = canvas.saved()["definitions"]["subgraphs"]
    assert [entry["name"] for entry in definitions if entry["id"] == node["type"]] == [name]
