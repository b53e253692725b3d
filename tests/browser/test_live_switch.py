"""The switch "Live" of a node without another panel."""

import canvas_page
import repository

from tools.launcher import workflow

pytestmark = canvas_page.EACH_RENDERER

_NODE = "GBX_ActivationSteering"


def test_a_changed_widget_is_queued_once_it_is_on(canvas):
    canvas.load(workflow.load(repository.named("demo_activations_steering")))
    canvas.look_at(_NODE)
    with canvas.queued(_NODE, "strength") as queued:
        canvas.set(_NODE, "strength", 0.2)
        canvas.page.wait_for_timeout(600)
        assert queued == []
        with canvas.page.expect_response(canvas_page.PROMPT):
            canvas.page.get_by_label("Live").check()
        with canvas.page.expect_response(canvas_page.PROMPT):
            canvas.set(_NODE, "strength", 0.4)
    assert queued == [0.2, 0.4]
    assert canvas.errors == []
