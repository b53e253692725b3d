"""Workflows of the pack on a real canvas: two front ends, each with its two renderers."""

import itertools
import re

import canvas_page
import newer
import pytest
import repository
import tricky_canvas

from tools.launcher import widgets, workflow
from tools.workflows import layout, wires

_SHOWN = 5  # pairs of the templates 01 to 10
_NODE = re.compile('"type": ?"(GBX_[^"]+)"')
_EVERY = 5  # so many of the other pairs are slow for one that is not


def _pairs(paths, shown=0):
    """Two workflows for each test, of which a canvas opens one; all but the first `shown` and a few
    others are slow.
    """
    pairs = itertools.zip_longest(paths[::2], paths[1::2], fillvalue=paths[0])
    return [
        pytest.param(
            two,
            id="-".join(map(repository.name_of, two)),
            marks=pytest.mark.slow if number >= shown and number % _EVERY else (),
        )
        for number, two in enumerate(pairs)
    ]


_OPEN_THE_SECOND = [canvas_page.KINDS["pinned-nodes2"], canvas_page.KINDS["newest-classic"]]

# Nodes whose widgets a script of the front end makes, out of the reach of object_info.
_SCRIPTED = {
    "LoadImageOutput",
    "WebcamCapture",
    "RecordAudio",
    "Load3D",
    "Load3DAnimation",
    "Preview3D",
    "SaveGLB",
}


@pytest.mark.parametrize("two", _pairs(repository.TEMPLATES, _SHOWN))
def test_a_template_opens_and_comes_back_unchanged(canvas, two, request, object_info):
    """Each is opened once in each front end, and once in each renderer."""
    _opens(canvas, two[request.node.callspec.params["canvas"] in _OPEN_THE_SECOND], object_info)
    assert canvas.outgrown() == []


def _with_further_nodes():
    """Of the other workflows, which are variants of the templates, as few as show every node of the
    pack that no template has.
    """
    types = {path: set(_NODE.findall(path.read_text("utf-8"))) for path in repository.WORKFLOWS}
    shown = set().union(*map(types.get, repository.TEMPLATES))
    chosen = []
    while further := [path for path in repository.WORKFLOWS if types[path] - shown]:
        chosen.append(max(further, key=lambda path: len(types[path] - shown)))
        shown |= types[chosen[-1]]
    return chosen


@canvas_page.EACH_RENDERER
@pytest.mark.parametrize("path", _with_further_nodes(), ids=repository.name_of)
@pytest.mark.slow
def test_a_further_workflow_opens_and_comes_back_unchanged(canvas, path, object_info):
    _opens(canvas, path, object_info)


def _opens(canvas, path, object_info):
    """Nothing is missing or covered, saving writes the same values, and Run queues the converter's
    prompt.

    Nor is anything covered by the texts and previews of a run.
    """
    saved = workflow.load(path)
    canvas.load(saved)
    assert canvas.missing() == []
    assert canvas.overlaps() == []
    assert canvas.errors == []
    again = canvas.saved()
    assert _values(again) == _values(saved, object_info)
    assert _links(again) == _links(saved)
    assert _queued(workflow.to_prompt(saved, object_info), object_info) == _queued(
        canvas.prompt(), object_info
    )
    canvas.show_results()
    assert canvas.overlaps() == []


@pytest.mark.parametrize(
    "canvas",
    [canvas_page.KINDS["pinned-classic"], canvas_page.KINDS["newest-classic"]],
    indirect=True,
    scope="module",
)
def test_wires_are_drawn_as_the_layout_expects(canvas):
    """So that it knows where a curve would swing behind a node."""
    saved = workflow.load(repository.named("sdxl_noise_composition"))
    canvas.load(saved)
    boxes = {node["id"]: layout.Box(*node["pos"], *node["size"]) for node in saved["nodes"]}
    places = {
        bend["id"]: (tuple(bend["pos"]), bend.get("parentId"))
        for bend in saved["extra"]["reroutes"]
    }
    last = {one["id"]: one["parentId"] for one in saved["extra"]["linkExtensions"]}
    ways, drawn = {}, {}
    for link in saved["links"]:
        way, bend = [], last.get(link[0])
        while bend is not None:
            way.insert(0, bend)
            bend = places[bend][1]
        wire = tuple(link[1:5])
        ways[wire] = [places[bend][0] for bend in way]
        drawn[wire] = [*(("reroute", bend) for bend in way), ("link", link[0])]
    expected = [
        (*drawn[wire][number], curve.tolist())
        for wire, number, curve, _ in wires.curves(boxes, ways)
    ]
    assert len(expected) > 40
    assert canvas.off_the_wires(expected) == []


@pytest.mark.parametrize(
    "name",
    [  # the templates are opened in the other two of the four kinds above
        pytest.param("demo_activations_token_heat_map", marks=pytest.mark.slow),
        pytest.param("demo_noise_composition", marks=pytest.mark.slow),
        "demo_neurons_share_mask",
    ],
)
def test_no_node_outgrows_its_group(canvas, name):
    canvas.load(workflow.load(repository.named(name)))
    canvas.show_results()
    assert canvas.outgrown() == []


def test_a_workflow_is_drawn_run_and_put_into_a_subgraph(canvas, object_info):
    """A journey on one load: renderer, size of notes, room for results, and the prompt of a
    subgraph.
    """
    canvas.load(workflow.load(repository.named("demo_world_text_to_image")))
    assert (canvas.drawn() > 0) == canvas.vue, "the requested renderer draws"
    note = canvas.page.locator('.glassbox-note .tiptap p, [node-type="MarkdownNote"] p').first
    assert note.evaluate("line => getComputedStyle(line).fontSize") == "14px", (
        "as large as the layout expects"
    )
    canvas.set("KSampler", "steps", 2)
    canvas.run()
    canvas.pause()
    assert canvas.overlaps() == [], "nodes that show images and texts have room for them"
    place = canvas.into_subgraph("KSampler", promoted="steps")
    saved = canvas.saved()
    prompt = workflow.to_prompt(saved, object_info)
    assert prompt[place]["class_type"] == "KSampler"
    assert _queued(prompt, object_info) == _queued(canvas.prompt(), object_info)


def test_prompt_of_a_tricky_canvas_is_the_front_ends(canvas, object_info):
    saved = tricky_canvas.make(object_info)
    canvas.load(saved)
    prompt = workflow.to_prompt(saved, object_info)
    assert _queued(prompt, object_info) == _queued(canvas.prompt(), object_info)
    sampler = next(
        entry["inputs"] for entry in prompt.values() if entry["class_type"] == "KSampler"
    )
    assert sampler["seed"] == 99
    assert {"model", "positive", "negative", "latent_image"} <= set(sampler)


def test_widgets_of_every_node_of_comfyui(canvas, object_info):
    """The order in which the front end saves values is the one that the converter expects, for
    every node class.
    """
    types = [name for name in object_info if name not in _SCRIPTED]
    if (
        newer.than_tested()
    ):  # what matters there is that our workflows run; other nodes have widgets that come and go
        types = sorted(
            {node["type"] for path in repository.WORKFLOWS for node in workflow.load(path)["nodes"]}
            & set(types)
        )
    expected = {
        name: [[widget.name, widget.in_prompt] for widget in widgets.widgets(object_info[name])]
        for name in types
    }
    found = canvas.fresh_widgets(types)
    assert {name: found[name] for name in types if found[name] != expected[name]} == {}


@pytest.mark.parametrize(
    "canvas", [canvas_page.KINDS["newest-nodes2"]], indirect=True, scope="module"
)
def test_a_new_node_has_a_sensible_size(canvas, object_info):
    """There is no room for advanced widgets, which are hidden: a new node is neither a strip nor a
    poster.
    """
    found = canvas.fresh_sizes([name for name in object_info if name.startswith("GBX_")])
    assert len(found) > 80
    assert {
        name: size
        for name, size in found.items()
        if not (200 < size[0] < 450 and 100 < size[1] < 1000)
    } == {}


def _queued(prompt: dict, object_info: dict) -> dict:
    """What of a prompt reaches the nodes: their class and the inputs that it has.

    Not the titles, which a front end may translate, nor the widgets in which it shows a result
    (Preview Any).
    """
    return {
        node: (
            entry["class_type"],
            {name: entry["inputs"].get(name) for name in _described(object_info, entry)},
        )
        for node, entry in prompt.items()
    }


def _described(object_info: dict, entry: dict) -> list[str]:
    return [input_.name for input_ in widgets.inputs(object_info[entry["class_type"]])]


def _values(saved: dict, object_info: dict | None = None) -> dict:
    """What each node saves; of nodes of a newer ComfyUI it may be more than our file has.

    object_info: fills in the defaults that the file leaves out at the end.
    """
    every = not newer.than_tested()
    found = {
        node["id"]: (node["type"], node.get("widgets_values") or [])
        for node in saved["nodes"]
        if every or node["type"].startswith("GBX_")
    }
    ours = {type_ for type_, _ in found.values() if type_.startswith("GBX_")} if object_info else ()
    defaults = {
        type_: [widget.default for widget in widgets.widgets(object_info[type_])] for type_ in ours
    }
    return {
        id_: values + defaults.get(type_, [])[len(values) :]
        for id_, (type_, values) in found.items()
    }


def _links(saved: dict) -> set:
    """Links by their ends, the target by the name of its input: the canvas numbers sockets of
    unlinked widgets, too.
    """
    inputs = {node["id"]: node["inputs"] for node in saved["nodes"] if node.get("inputs")}
    return {
        (link, *source, target, inputs[target][slot]["name"])
        for link, *source, target, slot, _ in saved["links"]
    }
