"""Sliders that take no part in the run, and Live in two pages at once, on one server."""

import json
import time
import urllib.request

import canvas_page
import pytest
from playwright.sync_api import expect

from tools.workflows.canvas import make

pytestmark = canvas_page.EACH_RENDERER

_MUTED, _BYPASSED = 2, 4
_EDIT, _SLIDERS = "GBX_W2WEdit", "GBX_Sliders"
_TAKES = {_EDIT: "point", _SLIDERS: "model"}  # the input that a bypassed node hands on
_MODE = """([type, mode]) => {
    app.graph.nodes.find(node => node.type === type).mode = mode
    app.canvas.setDirty(true, true)
}"""
_RUN_SECONDS = 300


def _with_edit(w):
    w.note("Edits", "One.", "Two.", "Three.")
    w.group("Edits")
    space = w.add("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")
    space, _ = w.add("GBX_W2WFitDirections", space=space[0], components=8)
    point, _, _ = w.add("GBX_W2WSample", space=space)
    w.add("PreviewAny", source=w.add(_EDIT, point=point, edits="beard: 0.5")[0])


def _with_sliders(w):
    w.note("Sliders", "One.", "Two.", "Three.")
    w.group("Sliders")
    model, _, _ = w.add("GBX_LoadDemoModel")
    w.add("PreviewAny", source=w.add(_SLIDERS, model=model, edits="absent: 0.5")[0])


def _sampling(steps: int, seed: int):
    """A workflow with sliders whose run takes a while."""

    def describe(w):
        w.note("Sampling", "One.", "Two.", "Three.")
        w.group("Sampling")
        model, clip, _ = w.add("GBX_LoadDemoModel")
        text = w.add("CLIPTextEncode", clip=clip, text="portrait")
        empty = w.add("EmptyLatentImage", width=128, height=128)
        given = {"positive": text, "negative": text, "latent_image": empty}
        w.add("PreviewAny", source=w.add("KSampler", model=model, steps=steps, seed=seed, **given))
        space = w.add("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")
        point, _, _ = w.add("GBX_W2WSample", space=space[0])
        w.add("PreviewAny", source=w.add(_EDIT, point=point, edits="PC 1: 0.5")[1])

    return describe


def _entry(prompt: dict, class_type: str) -> dict:
    return next(entry for entry in prompt.values() if entry["class_type"] == class_type)


@pytest.mark.parametrize(
    ("node", "describe"), [(_EDIT, _with_edit), (_SLIDERS, _with_sliders)], ids=[_EDIT, _SLIDERS]
)
def test_a_muted_or_bypassed_node_is_not_queued_and_its_sliders_stay(
    canvas, object_info, node, describe
):
    canvas.load(make("muted", describe, object_info))
    canvas.look_at(node)
    sliders = canvas.page.locator(".glassbox-sliders")
    number = sliders.locator(".glassbox-row input[type=number]").first
    source = _entry(canvas.prompt(), node)["inputs"][_TAKES[node]]
    with canvas.queued("PreviewAny", "source") as queued:
        with canvas.page.expect_response(canvas_page.PROMPT):
            sliders.get_by_label("Live").check()
        canvas.pause()
        for mode, strength, handed in ((_MUTED, "0.3", None), (_BYPASSED, "0.4", source)):
            canvas.page.evaluate(_MODE, [node, mode])
            prompt = canvas.prompt()
            assert node not in {entry["class_type"] for entry in prompt.values()}
            assert _entry(prompt, "PreviewAny")["inputs"].get("source") == handed
            number.fill(strength)
            number.press("Enter")
            assert f": {strength}" in canvas.value(node, "edits")
        canvas.page.wait_for_timeout(1500)
        assert len(queued) == 1, "Live has queued a run that the sliders take no part in"
        canvas.page.evaluate(_MODE, [node, 0])
        with canvas.page.expect_response(canvas_page.PROMPT):
            number.fill("0.6")
            number.press("Enter")
    assert ": 0.6" in _entry(canvas.prompt(), node)["inputs"]["edits"]
    assert canvas.errors == []


def test_saved_with_live_on_and_opened_in_a_new_page(canvas, object_info):
    canvas.load(make("live", _with_edit, object_info))
    canvas.look_at(_EDIT)
    live = canvas.page.locator(".glassbox-sliders").get_by_label("Live")
    with canvas.queued(_EDIT, "edits") as queued:
        with canvas.page.expect_response(canvas_page.PROMPT):
            live.check()
        saved = canvas.saved()
        canvas.open()
        canvas.load(saved)
        canvas.look_at(_EDIT)
        expect(live).to_be_checked()
        canvas.page.wait_for_timeout(1500)
        assert queued == ["beard: 0.5"]
        number = canvas.page.get_by_label("Strength of beard, as a number")
        with canvas.page.expect_response(canvas_page.PROMPT):
            number.fill("0.7")
            number.press("Enter")
    assert queued == ["beard: 0.5", "beard: 0.7"]
    assert canvas.errors == []


@pytest.mark.slow
def test_a_newer_job_of_one_page_leaves_that_of_the_other(canvas, object_info):
    """Both pages are tabs of one browser; the job of the first runs while the second moves on."""
    page = canvas.page.context.new_page()
    second = canvas_page.Canvas(page, canvas.vue, canvas.url)
    second.open()
    seed = time.time_ns() % 2**32  # of samplings that no earlier run has made
    jobs = {}
    for number, (tab, steps) in enumerate(((canvas, 60), (second, 2))):
        tab.load(make(f"tab {number}", _sampling(steps, seed + number), object_info))
        tab.look_at(_EDIT)
        jobs[number] = []
        tab.page.on("response", _noting(jobs[number]))
    for tab in (canvas, second):
        with tab.page.expect_response(canvas_page.PROMPT):
            tab.page.locator(".glassbox-sliders").get_by_label("Live").check()
        tab.pause()
    for strength in ("0.6", "0.7"):
        number = page.get_by_label("Strength of PC 1, as a number")
        with page.expect_response(canvas_page.PROMPT):
            number.fill(strength)
            number.press("Enter")
        second.pause()
    (long,), (*replaced, last) = jobs.values()
    assert len(replaced) == 2
    ends = _ends(canvas.url, {long, last})
    page.close()
    assert ends == {long: "success", last: "success"}
    assert not set(replaced) & _history(canvas.url).keys(), "a job that was replaced has run"


def _noting(jobs: list[str]):
    """Notes the ids of the jobs that a page queues."""

    def note(response):
        if response.request.method == "POST" and canvas_page.PROMPT.search(response.url):
            jobs.append(response.json()["prompt_id"])

    return note


def _history(url: str) -> dict:
    with urllib.request.urlopen(f"{url}/history", timeout=30) as answer:
        return json.load(answer)


def _ends(url: str, jobs: set[str]) -> dict[str, str]:
    """How each job has ended, once all have."""
    deadline = time.monotonic() + _RUN_SECONDS
    while not jobs <= (history := _history(url)).keys():
        assert time.monotonic() < deadline, f"not all of {jobs} have ended in {_RUN_SECONDS} s"
        time.sleep(0.5)
    return {job: history[job]["status"]["status_str"] for job in jobs}
