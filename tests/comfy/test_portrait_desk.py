"""The portrait desks: each part can be switched off on the canvas, and what is left is complete and
runs.
"""

import itertools

import pytest

from tools.launcher import workflow
from tools.launcher.api import output_files
from tools.workflows.titles import path_of

_DESKS = ("demo_noise_portrait_desk", "sdxl_noise_portrait_desk")
#: Titles of the parts, and the node that each is about.
_PARTS = {
    "Higher Resolution": "GBX_PositionalResample",
    "Composition Noise": "GBX_CompositionNoise",
    "Scout": "GBX_SeedScout",
    "Word map": "GBX_TokenHeatMap",
}
_BYPASSED = 4  # a mode of the canvas


def _without(name, off):
    """The saved canvas with parts bypassed: nodes by their titles, or their types."""
    saved, kinds = workflow.load(path_of(name)), [_PARTS[part] for part in off]
    found = [node for node in saved["nodes"] if node.get("title") in off or node["type"] in kinds]
    assert len(found) == len(off)
    for node in found:
        node["mode"] = _BYPASSED
    return saved


@pytest.mark.parametrize("name", _DESKS)
def test_nothing_lacks_an_input_whatever_is_off(name, object_info):
    for off in itertools.chain.from_iterable(
        itertools.combinations(_PARTS, number) for number in range(5)
    ):
        prompt = workflow.to_prompt(_without(name, off), object_info)
        for node in prompt.values():
            required = object_info[node["class_type"]]["input"].get("required", {})
            assert set(required) <= set(node["inputs"]), (off, node["class_type"])
        kinds = {node["class_type"] for node in prompt.values()}
        assert set(_PARTS.values()) - kinds == {_PARTS[part] for part in off}


def test_at_most_fifteen_nodes_are_in_sight():
    assert all(len(workflow.load(path_of(name))["nodes"]) <= 15 for name in _DESKS)


def test_the_demo_runs_with_everything_off(client, object_info):
    saved = _without(_DESKS[0], _PARTS)
    entry = client.wait(client.queue(workflow.to_prompt(saved, object_info), saved))
    assert output_files(entry)
