"""Nodes that another has taken over: hidden from the menu, and workflows that hold them load and run as before."""

import asyncio
import json

import pytest
import repository

from tools.launcher import workflow

_FOLDER = repository.ROOT / "tests" / "data" / "deprecated"
#: Each with the workflow file in which it was last shipped.
_FILES = {"GBX_W2WImportRelease": "import_release", "GBX_LoadNeuronStatistics": "load_neuron_statistics"}


def test_those_of_before_are_marked_and_no_workflow_uses_them(pack_info):
    assert {node_id for node_id, info in pack_info.items() if info["deprecated"]} == set(_FILES)
    texts = [path.read_text("utf-8") for path in repository.WORKFLOWS]
    assert not [node_id for node_id in _FILES if any(f'"{node_id}"' in text for text in texts)]


@pytest.mark.parametrize(("node_id", "name"), _FILES.items())
def test_a_workflow_of_before_is_valid(app, object_info, monkeypatch, node_id, name):
    import execution
    import folder_paths

    saved = json.loads((_FOLDER / f"{name}.json").read_text("utf-8"))
    prompt = workflow.to_prompt(saved, object_info)
    assert node_id in {node["class_type"] for node in prompt.values()}
    for node in prompt.values():  # of a checkpoint that is not there
        node["inputs"].pop("ckpt_name", None) and node["inputs"].update(ckpt_name="any.safetensors")
    monkeypatch.setattr(folder_paths, "get_filename_list", lambda folder: ["any.safetensors"])
    valid, error, _, node_errors = asyncio.run(execution.validate_prompt(name, prompt, None))
    assert valid, (error, node_errors)
