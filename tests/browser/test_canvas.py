"""Every workflow of the pack on a real canvas: two front ends, each with its two renderers."""

import newer
import pytest
import repository
import tricky_canvas

from launch import widgets, workflow

_LOADED = [pytest.param(path, id=path.stem) for path in repository.WORKFLOWS]

# Nodes whose widgets a script of the front end makes, out of the reach of object_info.
_SCRIPTED = {"LoadImageOutput", "WebcamCapture", "RecordAudio", "Load3D", "Load3DAnimation", "Preview3D", "SaveGLB"}


@pytest.fixture(scope="class", params=_LOADED)
def loaded(request, canvas) -> dict:
    """A workflow as saved, now open in the canvas."""
    saved = workflow.load(request.param)
    canvas.load(saved)
    return saved


class TestWorkflow:
    """Each workflow is opened once for all of these."""

    def test_loads(self, canvas, loaded):
        assert canvas.missing() == []
        assert canvas.overlaps() == []
        assert canvas.errors == []

    def test_saving_again_changes_no_value(self, canvas, loaded):
        again = canvas.saved()
        assert _values(again) == _values(loaded)
        assert _links(again) == _links(loaded)

    def test_prompt_is_the_front_ends(self, canvas, loaded, object_info):
        assert _queued(workflow.to_prompt(loaded, object_info), object_info) == _queued(canvas.prompt(), object_info)


def test_prompt_of_a_tricky_canvas_is_the_front_ends(canvas, object_info):
    saved = tricky_canvas.make(object_info)
    canvas.load(saved)
    prompt = workflow.to_prompt(saved, object_info)
    assert _queued(prompt, object_info) == _queued(canvas.prompt(), object_info)
    sampler = next(entry["inputs"] for entry in prompt.values() if entry["class_type"] == "KSampler")
    assert sampler["seed"] == 99
    assert {"model", "positive", "negative", "latent_image"} <= set(sampler)


def test_the_renderer_is_the_one_asked_for(canvas):
    canvas.load(workflow.load(repository.WORKFLOWS[0]))
    assert (canvas.drawn() > 0) == canvas.vue


def test_widgets_of_every_node_of_comfyui(canvas, object_info):
    """The order in which the front end saves values is the one that the converter expects, for every node class."""
    types = [name for name in object_info if name not in _SCRIPTED]
    if newer.than_tested():  # what matters there is that our workflows run; other nodes have widgets that come and go
        types = sorted({node["type"] for path in repository.WORKFLOWS for node in workflow.load(path)["nodes"]}
                       & set(types))  # fmt: skip
    expected = {
        name: [[widget.name, widget.in_prompt] for widget in widgets.widgets(object_info[name])] for name in types
    }
    found = canvas.fresh_widgets(types)
    assert {name: found[name] for name in types if found[name] != expected[name]} == {}


def _queued(prompt: dict, object_info: dict) -> dict:
    """What of a prompt reaches the nodes: their class and the inputs that it has.

    Not the titles, which a front end may translate, nor the widgets in which it shows a result (Preview Any).
    """
    return {
        node: (entry["class_type"], {name: entry["inputs"].get(name) for name in _described(object_info, entry)})
        for node, entry in prompt.items()
    }


def _described(object_info: dict, entry: dict) -> list[str]:
    return [input_.name for input_ in widgets.inputs(object_info[entry["class_type"]])]


def _values(saved: dict) -> dict:
    """What each node saves; of nodes of a newer ComfyUI it may be more than our file has."""
    every = not newer.than_tested()
    return {node["id"]: node.get("widgets_values") or [] for node in saved["nodes"]
            if every or node["type"].startswith("GBX_")}  # fmt: skip


def _links(saved: dict) -> set:
    """Links by their ends, the target by the name of its input: the canvas numbers sockets of unlinked widgets, too."""
    inputs = {node["id"]: node["inputs"] for node in saved["nodes"] if node.get("inputs")}
    return {(link, *source, target, inputs[target][slot]["name"]) for link, *source, target, slot, _ in saved["links"]}
