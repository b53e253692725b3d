"""The color pickers of Composition Noise: what they show is what the node saves."""

import pytest
import repository
from playwright.sync_api import expect

from tools.launcher import workflow

_NODE = "GBX_CompositionNoise"


@pytest.fixture
def picker(canvas):
    canvas.load(workflow.load(repository.named("demo_noise_composition_mask")))
    canvas.look_at(_NODE)
    shown = canvas.page.locator(".glassbox-color").first
    shown.wait_for()
    return shown


def _saved(canvas):
    entry = next(entry for entry in canvas.prompt().values() if entry["class_type"] == _NODE)
    return entry["inputs"]["foreground"], entry["inputs"]["background"]


def test_a_picked_color_is_saved_and_a_typed_one_shown(canvas, picker):
    before = _saved(canvas)
    picker.fill("#102030")
    assert _saved(canvas) == ("#102030", before[1])
    canvas.set(_NODE, "foreground", "A0B0C0")
    expect(picker).to_have_value("#a0b0c0")
    assert canvas.errors == []
