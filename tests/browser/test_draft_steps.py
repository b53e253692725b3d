"""What a live slider queues while the mouse is down: the same prompt in fewer sampling steps."""

import pytest

from tools.launcher.comfyui import PACK_NAME


@pytest.fixture(scope="module")
def draft(browser, server):
    """The inputs that the script makes of a node's."""
    page = browser.new_page()
    page.goto(f"{server.url}/system_stats")
    address = f"/extensions/{PACK_NAME}/canvas/draft_steps.mjs"
    body = f"async nodes => (await import('{address}')).withFewerSteps(nodes)"

    def made(class_type: str, **inputs):
        nodes = {"3": {"class_type": class_type, "inputs": inputs, "_meta": {"title": "a"}}}
        result = page.evaluate(body, nodes)
        assert result["3"]["class_type"] == class_type
        assert result["3"]["_meta"] == {"title": "a"}
        return result["3"]["inputs"]

    return made


@pytest.mark.parametrize(("steps", "fewer"), [(24, 6), (50, 13), (9, 4), (4, 4), (2, 2)])
@pytest.mark.parametrize("class_type", ["KSampler", "BasicScheduler", "Flux2Scheduler"])
def test_samplers_take_a_quarter_of_their_steps(draft, class_type, steps, fewer):
    assert draft(class_type, steps=steps, seed=7) == {"steps": fewer, "seed": 7}


def test_parts_of_a_run_keep_their_place(draft):
    given = {"steps": 20, "start_at_step": 8, "end_at_step": 12}
    assert draft("KSamplerAdvanced", **given) == {"steps": 5, "start_at_step": 2, "end_at_step": 3}
    whole = {"steps": 20, "start_at_step": 0, "end_at_step": 10000}
    assert draft("KSamplerAdvanced", **whole) == whole | {"steps": 5}


@pytest.mark.parametrize("class_type", ["GBX_W2WInvert", "GBX_SizeSheet", "TrainLoraNode"])
def test_other_nodes_keep_their_steps(draft, class_type):
    assert draft(class_type, steps=100) == {"steps": 100}


def test_a_wire_stays_one(draft):
    assert draft("KSampler", steps=["9", 0]) == {"steps": ["9", 0]}
