"""The curve of a training on a real canvas: while it runs, after it, and after the page has been
reloaded.
"""

import re
import secrets

import canvas_page
import pytest
from playwright.sync_api import expect

from tools.launcher.canvas import _QUEUE
from tools.workflows.canvas import make

pytestmark = canvas_page.EACH_RENDERER

_NODE, _STEPS = "GBX_TrainLoraImmiscible", 5
_SUMMARY = re.compile(rf"Step {_STEPS} of {_STEPS} · training \S+ · held-out \S+ at {_STEPS}.*")
_NOTE_TEXTS = """status => {
    window.texts = []
    const note = () => window.texts.push(status.textContent)
    new MutationObserver(note).observe(status, { childList: true })
}"""

_TELL = """detail =>
    window.comfyAPI.api.api.dispatchEvent(new CustomEvent("glassbox.curve", { detail }))"""


def _describe(w):
    w.note("Curve", "One.", "Two.", "Three.")
    w.group("Curve")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    images, _, _ = w.add("GBX_DemoPicture", count=3)
    latents = w.add("VAEEncode", pixels=images, vae=vae)
    positive = w.add("CLIPTextEncode", clip=clip, text="portrait")
    outputs = w.add(
        _NODE,
        model=model,
        latents=latents,
        positive=positive,
        vae=vae,
        steps=_STEPS,
        held_out=1,
        validation_interval=2,
        sample_steps=1,
        precision="fp32",
        lora_precision="fp32",
    )
    w.add("PreviewAny", source=outputs[6])  # the report


@pytest.fixture(scope="module")
def trained(canvas, object_info):
    """The panel of a node that has run; window.texts holds what it showed meanwhile."""
    canvas.load(make("curve", _describe, object_info))
    canvas.look_at(_NODE)
    panel = canvas.page.locator(".glassbox-curve")
    expect(panel).to_contain_text("The losses show while it runs.")
    canvas.set(_NODE, "seed", secrets.randbelow(2**40))  # a cached node sends nothing
    panel.locator(".glassbox-status").evaluate(_NOTE_TEXTS)
    canvas.run()
    expect(panel.locator(".glassbox-status")).to_have_text(_SUMMARY)
    return panel


def test_curve_is_drawn_while_the_node_runs(canvas, trained, object_info):
    steps = [
        int(found[1])
        for line in canvas.page.evaluate("window.texts")
        if (found := re.match(r"Step (\d)", line))
    ]
    assert steps == sorted(steps) and steps[0] < _STEPS == steps[-1]
    chart = trained.get_by_role("img")
    expect(chart).to_have_attribute("aria-label", re.compile("Losses; .* held-out"))
    mean = chart.locator(".glassbox-line-mean")
    assert (
        len(re.findall("[ML]", mean.get_attribute("d"))) == _STEPS
        and mean.bounding_box()["width"] > 50
    )
    assert len(trained.locator(".glassbox-up-axis .glassbox-tick").all()) > 1
    # At its lower end: the tabs of Nodes 2.0 may lie over the upper one of so tall a node.
    chart.hover(position={"x": 2, "y": chart.bounding_box()["height"] - 4})
    expect(trained.locator(".glassbox-status")).to_have_text(
        re.compile(r"Step 1 · training \S+ · held-out \S+ at 0")
    )
    fresh = next(
        node for node in make("curve", _describe, object_info)["nodes"] if node["type"] == _NODE
    )
    saved = next(node for node in canvas.saved()["nodes"] if node["type"] == _NODE)
    assert len(saved["widgets_values"]) == len(fresh["widgets_values"]), (
        "the panel has added a value to the file"
    )
    assert saved["properties"].keys() <= {*fresh["properties"], "cnr_id", "aux_id", "ver"}
    assert canvas.errors == []


def test_reloaded_page_shows_the_last_run(canvas, trained):
    saved = canvas.saved()
    canvas.open()
    canvas.load(saved)
    expect(canvas.page.locator(".glassbox-curve .glassbox-status")).to_have_text(_SUMMARY)
    assert canvas.errors == []


def test_in_a_subgraph_the_curve_finds_its_node(canvas, trained, object_info):
    canvas.load(make("curve", _describe, object_info))
    place = canvas.into_subgraph(_NODE)
    curve = {"steps": 9, "smooth": 25, "each": [[1, 0.5]], "mean": [[1, 0.5]], "validation": []}
    canvas.page.evaluate(_TELL, {"node": place, "curve": curve})
    expect(canvas.page.locator(".glassbox-curve .glassbox-status")).to_have_text(
        "Step 1 of 9 · training 0.5"
    )


def test_finish_now_ends_the_node_with_what_it_has(canvas, object_info):
    canvas.load(make("curve", _describe, object_info))
    canvas.look_at(_NODE)
    panel = canvas.page.locator(".glassbox-curve")
    button, status = (
        panel.get_by_role("button", name="Finish now"),
        panel.locator(".glassbox-status"),
    )
    expect(button).to_be_hidden()
    canvas.set(_NODE, "seed", secrets.randbelow(2**40))
    canvas.set(_NODE, "steps", 50_000)
    canvas.page.evaluate(_QUEUE)
    expect(status).to_have_text(re.compile(r"Step [2-9]\d* of 50\D?000"))
    button.click()
    expect(button).to_be_hidden()
    canvas.run()  # which finds it in the cache
    done = int(re.match(r"Step (\d+) of 50\D?000", status.text_content())[1])
    assert 2 <= done < 1000 and canvas.errors == []
