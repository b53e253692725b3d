"""The sliders of W2W Edit on a real canvas, used as a person would."""

import itertools
import re

import canvas_page
import members
import pytest
import release
from playwright.sync_api import expect

from tools.workflows.canvas import make

pytestmark = canvas_page.EACH_RENDERER

_NODE = "GBX_W2WEdit"
# Where the middle of each thumb is at zero, in pixels of the page; a thumb is 12 wide at a zoom of
# 1.
_ZEROS = """sliders => sliders.map(slider => {
    const { left, width } = slider.getBoundingClientRect()
    const { scale } = app.canvas.ds
    const part = -slider.min / (slider.max - slider.min)
    return left + 6 * scale + (width - 12 * scale) * part
})"""
_SPACE = "avatars-v2-w2w.safetensors"
_LABELS = 13
_SEEDS = itertools.count(100)
_QUESTION = "**/glassbox/space?*"
_QUEUING = re.compile("/(prompt|queue)$")
_INTERRUPT = re.compile("/interrupt$")
# Where panel and text begin, and how high the text is, in canvas units.
_PLACES = """type => {
    const node = app.graph.nodes.find(node => node.type === type)
    const box = element => element.getBoundingClientRect()
    const panel = box(document.querySelector(".glassbox-sliders"))
    const text = box(document.querySelector("[data-node-id]:has(.glassbox-sliders) textarea")
        ?? node.widgets.find(widget => widget.name === "edits").element)
    return { panel: panel.top, text: text.top, lines: text.height / app.canvas.ds.scale }
}"""
_DRAG = """slider => {
    for (slider.value of [0.1, 0.2, 0.3]) slider.dispatchEvent(new Event("input"))
}"""
_STEPS = "() => app.extensionManager.workflow.activeWorkflow.changeTracker.undoQueue.length"
_OFFSET = "() => [...app.canvas.ds.offset].map(length => length * app.canvas.ds.scale)"
# Whether the panel of a new node redraws when the graph changes: in no graph, and in one.
_TOUCHED = """type => {
    const node = LiteGraph.createNode(type)
    let touched = false
    const element = node.widgets.find(({ name }) => name === "sliders").element
    Object.defineProperty(element, "isConnected", { get: () => (touched = true) })
    const change = () => {
        touched = false
        const detail = app.graph.serialize()
        window.comfyAPI.api.api.dispatchEvent(new CustomEvent("graphChanged", { detail }))
        return touched
    }
    const alone = change()
    app.graph.add(node)
    const there = change()
    app.graph.remove(node)
    return [alone, there]
}"""

# What Preview as Text shows.
_SHOWN = """() => JSON.stringify(
    Object.values(app.nodeOutputs ?? {}).map((output) => output.text ?? ""))"""

_WITHOUT_POINT = """type => {
  const node = app.graph.nodes.find((node) => node.type === type);
  node.disconnectInput(node.findInputSlot("point"));
}"""


def _describe(w):
    w.note("Edits", "One.", "Two.", "Three.")
    w.group("Edits")
    space = w.add("GBX_W2WLoadSpace", space_name=_SPACE)
    space, _ = w.add("GBX_W2WFitDirections", space=space[0], components=8)
    point, _, _ = w.add("GBX_W2WSample", space=space)
    _, name = w.add(_NODE, point=point, edits="beard: 0.5, bald: -0.25")
    w.add("PreviewAny", source=name)


@pytest.fixture
def sliders(canvas, object_info):
    """The panel of a fresh node, its rows there."""
    canvas.load(make("edits", _describe, object_info))
    canvas.look_at(_NODE)
    panel = canvas.page.locator(".glassbox-sliders")
    expect(panel.locator(".glassbox-row")).to_have_count(_LABELS)
    return panel


def _row(panel, name: str):
    return panel.locator(
        ".glassbox-row", has=panel.page.get_by_label(f"Strength of {name}", exact=True)
    )


def _number(panel, name: str):
    return _row(panel, name).locator("input[type=number]")


def _queued(canvas) -> str:
    return next(
        entry["inputs"]["edits"]
        for entry in canvas.prompt().values()
        if entry["class_type"] == _NODE
    )


def test_sliders_show_the_text(canvas, sliders):
    expect(_number(sliders, "beard")).to_have_value("0.5")
    expect(_number(sliders, "bald")).to_have_value("-0.25")
    expect(_number(sliders, "afro")).to_have_value("0")
    canvas.set(_NODE, "edits", "afro: 0.75, horns: 1")
    expect(_number(sliders, "beard")).to_have_value("0")
    expect(_number(sliders, "afro")).to_have_value("0.75")
    expect(sliders.get_by_role("status")).to_have_text("The space has no direction 'horns'.")
    canvas.set(_NODE, "edits", "afro")
    expect(sliders.get_by_role("status")).to_contain_text("'afro' is no edit")


def test_mouse_and_keyboard_change_the_text(canvas, sliders):
    slider = _row(sliders, "moustache").locator("input[type=range]")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    middle = box["y"] + box["height"] / 2
    canvas.page.mouse.move(box["x"] + box["width"] / 2, middle)
    canvas.page.mouse.down()
    canvas.page.mouse.move(box["x"] + box["width"] * 0.75, middle, steps=4)
    canvas.page.mouse.up()
    dragged = re.fullmatch(r"beard: 0.5, bald: -0.25, moustache: (0\.\d+)", _queued(canvas))
    assert dragged and 0.4 < float(dragged[1]) < 0.6
    slider.press("ArrowRight")
    assert _queued(
        canvas
    ) == f"beard: 0.5, bald: -0.25, moustache: {float(dragged[1]) + 0.01:.2f}".rstrip("0")
    slider.press("Home")
    _number(sliders, "bald").fill("0.125")
    _number(sliders, "bald").press("Tab")
    expect(_row(sliders, "bald").get_by_role("button")).to_be_focused()
    lowest = f"moustache: {float(slider.get_attribute('min')):g}"  # -1, or that of an earlier run
    assert _queued(canvas) == f"beard: 0.5, bald: 0.125, {lowest}"
    _row(sliders, "beard").get_by_role("button").click()
    assert _queued(canvas) == canvas.value(_NODE, "edits") == f"bald: 0.125, {lowest}"
    assert len(canvas.saved()["nodes"]) == 6, "a key pressed in the panel has reached the canvas"
    assert canvas.errors == []


def test_a_drag_can_be_undone_at_once(canvas, sliders):
    slider = _row(sliders, "moustache").locator("input[type=range]")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    canvas.pause()
    canvas.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    canvas.page.mouse.down()
    canvas.page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + box["height"] / 2, steps=4)
    canvas.page.mouse.up()
    assert "moustache" in _queued(canvas)
    canvas.page.keyboard.press("Control+z")
    expect(_number(sliders, "moustache")).to_have_value("0")


@pytest.mark.parametrize("way", ["typed", "dragged out of the row", "dragged to 0", "stepped"])
def test_a_change_is_one_step_of_undo(canvas, sliders, way):
    row, page = _row(sliders, "beard"), canvas.page
    box = row.locator("input[type=range]").bounding_box()
    middle = box["y"] + box["height"] / 2
    canvas.pause()
    before = page.evaluate(_STEPS)
    if way in ("typed", "stepped"):
        row.locator("input[type=number]").click()
        page.keyboard.press("Control+a")
        if way == "typed":
            page.keyboard.type("-0.725", delay=120)
            page.keyboard.press("Enter")
        else:
            page.keyboard.press("ArrowUp")
        canvas.pause()
        row.locator("input[type=number]").blur()
    else:
        low, high = (
            float(row.locator("input[type=range]").get_attribute(end)) for end in ("min", "max")
        )
        target, below = (low, 300) if way == "dragged out of the row" else (0, 0)
        ends = [
            box["x"] + 6 + (box["width"] - 12) * (one - low) / (high - low) for one in (0.5, target)
        ]
        page.mouse.move(ends[0], middle)
        page.mouse.down()
        for step in range(1, 9):
            page.mouse.move(ends[0] + (ends[1] - ends[0]) * step / 8, middle + below * step / 8)
            page.wait_for_timeout(60)
        page.mouse.up()
    canvas.pause()
    assert "beard: 0.5," not in _queued(canvas) and ("beard" in _queued(canvas)) == (
        way != "dragged to 0"
    )
    assert page.evaluate(_STEPS) == before + 1
    canvas.undo()
    expect(_number(sliders, "beard")).to_have_value("0.5")
    assert _queued(canvas) == "beard: 0.5, bald: -0.25"


def test_saved_loaded_copied_undone(canvas, sliders, object_info):
    _number(sliders, "afro").fill("0.3")
    _number(sliders, "afro").press("Enter")
    edits = "beard: 0.5, bald: -0.25, afro: 0.3"
    saved = canvas.saved()
    values = next(node["widgets_values"] for node in saved["nodes"] if node["type"] == _NODE)
    fresh = next(
        node for node in make("edits", _describe, object_info)["nodes"] if node["type"] == _NODE
    )
    assert values == [edits, *fresh["widgets_values"][1:]], (
        "the panel has added a value to the file"
    )
    assert canvas.copied(_NODE) == values
    canvas.load(saved)
    assert _queued(canvas) == edits
    canvas.look_at(_NODE)
    expect(_number(sliders, "afro")).to_have_value("0.3")
    canvas.pause()
    _number(sliders, "afro").fill("0.9")
    _number(sliders, "afro").press("Enter")
    _number(sliders, "afro").blur()
    canvas.undo()
    expect(_number(sliders, "afro")).to_have_value("0.3")
    assert _queued(canvas) == edits


def test_buttons_change_the_text(canvas, sliders):
    sliders.get_by_label("Hide at zero").check()
    expect(sliders.locator(".glassbox-row:visible")).to_have_count(2)
    canvas.load(canvas.saved())
    expect(sliders.locator(".glassbox-row:visible")).to_have_count(2)
    canvas.look_at(_NODE)
    sliders.get_by_role("button", name="Randomize").click()
    assert len(_queued(canvas).split(",")) > _LABELS / 2
    sliders.get_by_role("button", name="Reset", exact=True).click()
    assert _queued(canvas) == ""


def test_live_queues_the_last_of_many_changes(canvas, sliders):
    queued, canceled = [], []

    def answered(route):
        request = route.request
        if request.method != "POST":
            route.continue_()
        elif request.url.endswith("/queue"):
            canceled.append(request.post_data_json)
            route.fulfill(json={})
        else:
            entries = request.post_data_json["prompt"].values()
            queued.append(
                next(entry["inputs"]["edits"] for entry in entries if entry["class_type"] == _NODE)
            )
            route.fulfill(json={"prompt_id": f"live {len(queued)}", "number": 0, "node_errors": {}})

    canvas.page.route(_QUEUING, answered)
    try:
        _number(sliders, "beard").fill("0.7")
        with canvas.page.expect_response(_QUEUING):
            sliders.get_by_label("Live").check()
        with canvas.page.expect_response(re.compile("/prompt$")):
            _row(sliders, "beard").locator("input[type=range]").evaluate(_DRAG)
    finally:
        canvas.page.unroute(_QUEUING)  # the tests that follow queue what runs
    assert queued == ["beard: 0.7, bald: -0.25", "beard: 0.3, bald: -0.25"]
    assert canceled == [{"delete": ["live 1"]}]


def test_live_follows_typing_undo_and_redo_one_job_at_a_time(canvas, sliders):
    """Each newer job ends the one before: the server gets a request to stop it."""
    queued, ended = [], []

    def answered(route):
        entries = route.request.post_data_json["prompt"].values()
        queued.append(
            next(entry["inputs"]["edits"] for entry in entries if entry["class_type"] == _NODE)
        )
        route.fulfill(json={"prompt_id": f"live {len(queued)}", "number": 0, "node_errors": {}})

    def interrupted(route):
        ended.append(route.request.post_data_json["prompt_id"])
        route.fulfill(json={})

    page = canvas.page
    page.route(canvas_page.PROMPT, answered)
    page.route(_INTERRUPT, interrupted)
    try:
        with page.expect_response(canvas_page.PROMPT):
            sliders.get_by_label("Live").check()
        canvas.pause()
        for text in ("beard: 0.5, ba", "beard: 0.5, horns: 1"):  # half typed, and no direction
            canvas.set(_NODE, "edits", text)
            page.wait_for_timeout(1200)
        assert len(queued) == 1
        with page.expect_response(canvas_page.PROMPT):
            canvas.set(_NODE, "edits", "beard: 0.25")
        canvas.pause()
        _number(sliders, "afro").fill("0.3")
        with page.expect_response(canvas_page.PROMPT):
            _number(sliders, "afro").press("Enter")
        _number(sliders, "afro").blur()
        canvas.pause()
        with page.expect_response(canvas_page.PROMPT):
            canvas.undo()
        canvas.pause()
        with page.expect_response(canvas_page.PROMPT):
            page.locator("body").press("Control+y")
        page.wait_for_timeout(1500)
    finally:
        page.unroute(canvas_page.PROMPT)
        page.unroute(_INTERRUPT)
    assert queued == [
        "beard: 0.5, bald: -0.25",
        "beard: 0.25",
        "beard: 0.25, afro: 0.3",
        "beard: 0.5, bald: -0.25",  # a text that a script has set is no step of its own
        "beard: 0.25, afro: 0.3",
    ]
    # The first job ends that of an earlier test, if there was any.
    assert ended[-4:] == ["live 1", "live 2", "live 3", "live 4"]


@pytest.mark.parametrize("moment", ["quiet", "drawn again", "changed"])
def test_live_queues_nothing_when_a_workflow_is_opened(canvas, sliders, moment):
    """Nor when the panel of the workflow before has just been drawn or changed."""
    with canvas.queued(_NODE, "edits") as queued:
        with canvas.page.expect_response(canvas_page.PROMPT):
            sliders.get_by_label("Live").check()
        canvas.page.wait_for_timeout(1500)
        saved = canvas.saved()
        node = next(node for node in saved["nodes"] if node["type"] == _NODE)
        node["widgets_values"][0] = "beard: 1"
        if moment == "drawn again":
            sliders.dispatch_event("pointerenter")
            canvas.page.wait_for_timeout(50)
        if moment == "changed":
            _number(sliders, "afro").fill("0.3")
            _number(sliders, "afro").press("Enter")
        canvas.load(saved)
        canvas.page.wait_for_timeout(1500)
    assert queued == ["beard: 0.5, bald: -0.25"]


def test_names_in_any_case_blanks_and_values_beyond_the_range(canvas, sliders):
    canvas.set(_NODE, "edits", "Beard 0.5, AFRO = -0.25")
    expect(sliders.locator(".glassbox-row")).to_have_count(_LABELS)
    expect(_number(sliders, "beard")).to_have_value("0.5")
    expect(_number(sliders, "afro")).to_have_value("-0.25")
    _number(sliders, "beard").fill("0.75")
    _number(sliders, "beard").press("Enter")
    assert _queued(canvas) == "beard: 0.75, AFRO = -0.25"
    canvas.set(_NODE, "edits", "PC 1: 100")
    expect(sliders.get_by_role("status")).to_contain_text("'PC 1' is beyond its range, -3 to 3")


def test_dust_is_no_edit(canvas, sliders):
    slider = _row(sliders, "moustache").locator("input[type=range]")
    slider.evaluate(
        """slider => {
            for (slider.value of [0.6, 0]) slider.dispatchEvent(new Event("input"))
            slider.dispatchEvent(new Event("change"))
        }"""
    )
    assert _queued(canvas) == "beard: 0.5, bald: -0.25"
    _number(sliders, "moustache").fill("-1e-16")
    _number(sliders, "moustache").press("Enter")
    assert _queued(canvas) == "beard: 0.5, bald: -0.25"


def test_the_panel_stands_above_a_text_of_two_lines(canvas, sliders):
    heights = canvas.page.evaluate(_PLACES, _NODE)
    assert heights["panel"] < heights["text"]
    assert 30 < heights["lines"] < 60


def test_a_component_has_a_slider_while_the_text_names_it(canvas, sliders):
    canvas.set(_NODE, "edits", "pc 2: 1.5")
    expect(_number(sliders, "pc 2")).to_have_value("1.5")
    expect(_row(sliders, "pc 2").locator("input[type=range]")).to_be_enabled()
    expect(sliders.get_by_role("status")).to_contain_text(f"1 of {_LABELS + 1} in use")
    canvas.set(_NODE, "edits", "PC 1000000: 1")
    expect(sliders.get_by_role("status")).to_have_text("The space has no direction 'PC 1000000'.")


def test_without_a_space_the_edits_stay(canvas, sliders):
    canvas.page.mouse.move(
        1, 1
    )  # after the test before it may be inside the panel, which it then could not enter
    canvas.pause()
    canvas.page.evaluate(_WITHOUT_POINT, _NODE)
    sliders.hover()
    expect(sliders.get_by_role("status")).to_contain_text("connect a loader")
    expect(sliders.locator(".glassbox-row")).to_have_count(2)
    expect(sliders.locator(".glassbox-strange")).to_have_count(0)
    expect(sliders.get_by_role("button", name="Randomize")).to_be_disabled()
    assert canvas.value(_NODE, "edits") == "beard: 0.5, bald: -0.25"


def test_missing_file_is_searched_for_again(canvas, object_info):
    """With R, which makes the front end search for new files."""
    no_space = {"status": 400, "json": {"error": "There is no weight space."}}
    canvas.page.route(_QUESTION, lambda route: route.fulfill(**no_space))
    try:
        canvas.load(make("edits", _describe, object_info))
        canvas.page.locator("body").press("r")  # earlier answers are forgotten
        canvas.look_at(_NODE)
        panel = canvas.page.locator(".glassbox-sliders")
        expect(panel.get_by_role("status")).to_have_text("There is no weight space.")
        expect(panel.get_by_role("button", name="Randomize")).to_be_disabled()
    finally:
        canvas.page.unroute(_QUESTION)
    canvas.page.locator("body").press("r")
    expect(panel.locator(".glassbox-row")).to_have_count(_LABELS)


def test_a_direction_that_is_noise_is_off_until_a_number_is_typed(canvas, object_info):
    def answer(route):
        found = route.fetch().json()
        about = "accuracy 0.51 (majority 0.52), reliability 0.03"
        found["directions"] = [
            {
                "name": name,
                "low": -1.0,
                "high": 1.0,
                "raw": 1.0,
                "noise": name == "afro",
                "about": about,
            }
            for name in ("afro", "moustache")
        ]
        route.fulfill(json=found)

    canvas.page.route(_QUESTION, answer)
    try:
        canvas.load(make("edits", _describe, object_info))
        canvas.page.locator("body").press("r")  # earlier answers are forgotten
        canvas.look_at(_NODE)
        panel = canvas.page.locator(".glassbox-sliders")
        noise, good = (
            _row(panel, name).locator("input[type=range]") for name in ("afro", "moustache")
        )
        expect(noise).to_be_disabled()
        expect(good).to_be_enabled()
        before = canvas.value(_NODE, "edits")
        box = noise.bounding_box()
        canvas.page.mouse.click(box["x"] + box["width"] * 0.7, box["y"] + box["height"] / 2)
        assert canvas.value(_NODE, "edits") == before
        expect(panel.get_by_text("afro (noise)")).to_have_attribute(
            "title", re.compile("reliability 0.03")
        )
        panel.get_by_role("button", name="Randomize").click()
        assert "afro" not in canvas.value(_NODE, "edits") and "moustache" in canvas.value(
            _NODE, "edits"
        )
        _number(panel, "afro").fill("0.4")
        _number(panel, "afro").press("Enter")
        expect(noise).to_be_enabled()
        assert "afro: 0.4" in _queued(canvas)
    finally:
        canvas.page.unroute(_QUESTION)
        canvas.page.locator("body").press("r")


def test_what_was_measured_of_a_direction_stands_below_its_slider(canvas, object_info):
    """Before a run for the method that was measured, after a run as the run says."""
    measured = {
        "afro": {"reached": 0.9375, "appears": [0.4, 0.6]},
        "bald": {"reached": 0.375, "appears": [1.0, 1.0]},
    }

    def answer(route):
        found = route.fetch().json()
        labels = ["afro", "bald", "beard"]
        route.fulfill(json=found | {"labels": labels, "directions": [], "measured": measured})

    canvas.page.route(_QUESTION, answer)
    try:
        canvas.load(make("edits", _describe, object_info))
        canvas.page.locator("body").press("r")  # earlier answers are forgotten
        canvas.look_at(_NODE)
        panel = canvas.page.locator(".glassbox-sliders")
        expect(panel.locator(".glassbox-row")).to_have_count(3)
        ends = {name: _row(panel, name).locator(".glassbox-ends") for name in (*measured, "beard")}
        expect(ends["afro"]).to_have_text("shows at 0.4 to 0.694 % at 1")
        expect(ends["bald"]).to_have_text("shows at 138 % at 1")
        expect(ends["beard"]).to_have_text("")
        expect(ends["afro"]).to_be_visible()
        expect(ends["beard"]).not_to_be_visible()
        canvas.set("GBX_W2WFitDirections", "method", "ridge")
        canvas.page.locator("body").press("r")
        expect(ends["afro"]).to_have_text("")
    finally:
        canvas.page.unroute(_QUESTION)
        canvas.page.locator("body").press("r")


def test_a_node_in_no_graph_is_left_alone(canvas, sliders):
    """The front end makes such a node for each copy and never reports its removal."""
    assert canvas.page.evaluate(_TOUCHED, _NODE) == [False, True]


def test_the_wheel_scrolls_the_list_and_beside_it_zooms(canvas, sliders):
    listed = sliders.locator(".glassbox-rows")
    scale = canvas.page.evaluate("() => app.canvas.ds.scale")
    sliders.get_by_text("beard", exact=True).hover()
    canvas.page.mouse.wheel(0, 60)
    canvas.pause()
    assert listed.evaluate("list => list.scrollTop") > 0
    assert canvas.page.evaluate("() => app.canvas.ds.scale") == scale
    sliders.get_by_role("status").hover()
    canvas.page.mouse.wheel(0, 60)
    canvas.pause()
    assert canvas.page.evaluate("() => app.canvas.ds.scale") == pytest.approx(scale / 1.1, rel=0.02)


def test_the_middle_button_moves_the_canvas(canvas, sliders):
    box = sliders.get_by_role("status").bounding_box()
    before = canvas.page.evaluate(_OFFSET)
    canvas.page.mouse.move(box["x"] + 20, box["y"] + 5)
    canvas.page.mouse.down(button="middle")
    canvas.page.mouse.move(box["x"] + 60, box["y"] + 35, steps=4)
    canvas.page.mouse.up(button="middle")
    assert canvas.page.evaluate(_OFFSET) == pytest.approx([before[0] + 40, before[1] + 30])
    assert canvas.errors == []


def test_sliders_use_the_language_of_the_canvas(canvas, object_info):
    try:
        canvas.open({"Comfy.Locale": "zh"})
        canvas.load(make("edits", _describe, object_info))
        canvas.look_at(_NODE)
        panel = canvas.page.locator(".glassbox-sliders")
        expect(panel.get_by_role("button", name="随机")).to_be_visible()
        expect(panel.get_by_role("status")).to_contain_text(f"{_LABELS} 个中使用 2 个")
    finally:
        canvas.open({})


def test_ranges_are_the_members_after_a_run(canvas, sliders):
    canvas.set("GBX_W2WSample", "seed", next(_SEEDS))  # a cached node sends nothing
    canvas.run()
    slider = _row(sliders, "beard").locator("input[type=range]")
    expect(slider).not_to_have_attribute("min", "-1")
    assert float(slider.get_attribute("min")) <= 0 and float(
        slider.get_attribute("max")
    ) == pytest.approx(1)
    zeros = sliders.locator(".glassbox-slider").evaluate_all(_ZEROS)
    assert len(zeros) == _LABELS and max(zeros) - min(zeros) < 1, (
        "zero is not at the same place on every slider"
    )
    canvas.set(_NODE, "units", "raw")
    expect(slider).not_to_have_attribute("max", "1")
    assert canvas.errors == []


def test_in_a_subgraph_they_write_what_its_node_holds(canvas, sliders):
    """The text belongs to the subgraph's node, the space comes from before it, and the ranges from
    the run.
    """
    place = canvas.into_subgraph(_NODE, promoted="edits")
    expect(_number(sliders, "beard")).to_have_value("0.5")
    _number(sliders, "beard").fill("0.75")
    _number(sliders, "beard").press("Enter")
    assert _queued(canvas) == "beard: 0.75, bald: -0.25"
    canvas.pause()  # front end 1.58 saves a subgraph's values a moment later
    assert canvas.saved()["nodes"][-1]["widgets_values"] == ["beard: 0.75, bald: -0.25"]
    canvas.run()
    expect(_row(sliders, "beard").locator("input[type=range]")).not_to_have_attribute("min", "-1")
    assert place in canvas.prompt()


def test_live_runs_what_has_changed(canvas, sliders):
    """At the end, since the panel knows the ranges of a space that has run."""
    sliders.get_by_label("Live").check()
    _row(sliders, "beard").locator("input[type=range]").press("End")
    canvas.page.wait_for_function(f"() => ({_SHOWN})().includes('beard +1')", timeout=120_000)
    assert canvas.errors == []


def test_directions_of_an_imported_release_show_after_a_run(canvas, request, object_info):
    """Not those of space_name, which W2W Load Space passes over where it imports."""
    server = request.getfixturevalue(request.node.callspec.params["canvas"][0])
    folder = server.base / "input" / "release of the sliders"
    projections = release.write(folder, members.LAYERS, count=20, components=8, known=6)[
        "proj_1000pc"
    ]
    release.write_labels(folder, projections, ["Chubby", "Young"])
    given = {
        "space_name": _SPACE,
        "release_folder": folder.name,
        "filename": "imported for the sliders",
    }

    def describe(w):
        w.note("Edits", "One.", "Two.", "Three.")
        w.group("Edits")
        imported, _ = w.add("GBX_W2WLoadSpace", **given, components=8)
        space, _ = w.add("GBX_W2WFitDirections", space=imported, components=6)
        point, _, _ = w.add("GBX_W2WSample", space=space)
        w.add("PreviewAny", source=w.add(_NODE, point=point, edits="")[1])

    canvas.load(make("import", describe, object_info))
    canvas.look_at(_NODE)
    panel = canvas.page.locator(".glassbox-sliders")
    expect(panel.get_by_role("status")).to_contain_text(
        "The directions show when the space is known"
    )
    expect(panel.locator(".glassbox-row")).to_have_count(0)
    canvas.run()
    expect(panel.locator(".glassbox-name")).to_contain_text(["Chubby", "Young"])
    _number(panel, "Young").fill("0.5")
    _number(panel, "Young").press("Tab")
    assert _queued(canvas) == "Young: 0.5"
    canvas.set("GBX_W2WLoadSpace", "release_folder", "")
    canvas.page.mouse.move(5, 5)
    panel.hover()
    expect(panel.locator(".glassbox-row")).to_have_count(_LABELS + 1)
    expect(panel.get_by_role("status")).to_have_text("The space has no direction 'Young'.")
    assert canvas.errors == []
