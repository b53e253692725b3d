"""The workflows that are apps in the app mode of the newest front end, used as a person would."""

import canvas_page
import pytest
import repository
from playwright.sync_api import expect

from tools.launcher import workflow

_APPS = [path for path in repository.WORKFLOWS if "linearData" in workflow.load(path)["extra"]]
_SWITCH = "async () => { await app.extensionManager.command.execute('Comfy.ToggleLinear') }"


_NEWEST = pytest.mark.parametrize(
    "canvas", [canvas_page.KINDS["newest-nodes2"]], indirect=True, scope="module"
)


@pytest.fixture
def switched(canvas):
    """Opens a workflow in app mode; leaves it at the end."""

    def open_app(path):
        canvas.load(workflow.load(path))
        canvas.page.evaluate(_SWITCH)
        return canvas.page

    tour = canvas.page.get_by_role("dialog", name="Welcome to Apps")
    canvas.page.add_locator_handler(tour, lambda: tour.get_by_role("button", name="Skip").click())
    yield open_app
    canvas.page.remove_locator_handler(tour)
    canvas.page.evaluate(_SWITCH)


@_NEWEST
@pytest.mark.parametrize("path", _APPS, ids=repository.name_of)
def test_an_app_shows_its_inputs_and_no_others(switched, path):
    app = workflow.load(path)["extra"]["linearData"]
    page = switched(path)
    shown = page.get_by_test_id("app-mode-widget-item")
    expect(shown).to_have_count(len(app["inputs"]))
    keys = [element.get_attribute("data-widget-key") for element in shown.all()]
    assert [key.split(":")[1:] for key in keys] == [
        [str(node), widget] for node, widget in app["inputs"]
    ]


def test_there_are_three_apps():
    assert set(map(repository.name_of, _APPS)) == {
        "demo_activations_token_heat_map",
        "demo_neurons_find_and_mask",
        "demo_weights_edit",
    }


@_NEWEST
def test_a_slider_of_the_app_changes_the_edit(canvas, switched):
    page = switched(repository.named("demo_weights_edit"))
    slider = page.get_by_test_id("app-mode-widget-item").get_by_role("slider", name="beard")
    expect(slider).to_be_visible()
    slider.focus()
    slider.press("Home")
    edits = next(
        entry for entry in canvas.prompt().values() if entry["class_type"] == "GBX_W2WEdit"
    )["inputs"]["edits"]
    assert edits.startswith("beard: ") and edits != "beard: 1"
