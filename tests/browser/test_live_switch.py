"""The switch "Live" of a node without another panel."""

import re

import canvas_page
import repository

from tools.launcher import workflow

pytestmark = canvas_page.EACH_RENDERER

_NODE = "GBX_ActivationSteering"
_PROMPT = re.compile("/prompt$")


def test_a_changed_widget_is_queued_once_it_is_on(canvas):
    queued = []

    def answered(route):
        if route.request.method != "POST":
            route.continue_()
            return
        entries = route.request.post_data_json["prompt"].values()
        queued.append(next(entry["inputs"]["strength"] for entry in entries if entry["class_type"] == _NODE))
        route.fulfill(json={"prompt_id": f"live {len(queued)}", "number": 0, "node_errors": {}})

    canvas.load(workflow.load(next(path for path in repository.DEMOS if path.stem == "demo_activations_steering")))
    canvas.look_at(_NODE)
    switch = canvas.page.get_by_label("Live")
    canvas.page.route(_PROMPT, answered)
    try:
        canvas.set(_NODE, "strength", 0.2)
        canvas.page.wait_for_timeout(600)
        assert queued == []
        with canvas.page.expect_response(_PROMPT):
            switch.check()
        with canvas.page.expect_response(_PROMPT):
            canvas.set(_NODE, "strength", 0.4)
    finally:
        canvas.page.unroute(_PROMPT)
    assert queued == [0.2, 0.4]
    assert canvas.errors == []
