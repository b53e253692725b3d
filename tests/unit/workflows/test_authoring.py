"""Describing a workflow, its layout, and the canvas JSON made from it."""

import copy
import itertools
import json
from collections import Counter
from dataclasses import replace

import pytest
import repository
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.launcher import workflow
from tools.launcher.workflow import to_prompt
from tools.workflows import canvas, columns, described, layout, wires
from tools.workflows.authoring import LOADERS, AuthoringError, Workflow

INFO = {
    "Load": {
        "input": {"required": {"name": [["a", "b"], {"tooltip": "."}]}},
        "output": ["MODEL", "CLIP"],
    },
    "Text": {
        "input": {"required": {"text": ["STRING", {"multiline": True}], "clip": ["CLIP"]}},
        "output": ["COND"],
    },
    "Generate": {
        "input": {
            "required": {
                "model": ["MODEL"],
                "seed": ["INT", {"default": 0, "control_after_generate": True}],
            },
            "optional": {"cond": ["COND"], "cfg": ["FLOAT", {"default": 8.0}]},
        },
        "output": ["IMAGE"],
    },
    "SaveImage": {
        "input": {"required": {"images": ["IMAGE"], "prefix": ["STRING", {"default": "x"}]}},
        "output": [],
    },
    "Number": {"input": {"required": {"value": ["FLOAT", {"default": 1.5}]}}, "output": ["FLOAT"]},
}
for _name, _info in INFO.items():
    _info |= {"output_name": list(_info["output"]), "display_name": _name}


def example(w):
    w.note("Example", "One.", "Two.", "Three.")
    w.group("Model")
    model, clip = w.add("Load", name="b")
    w.group("Painting")
    cond = w.add("Text", clip=clip, text="a house", node_title="Caption")
    w.add(
        "SaveImage",
        images=w.add("Generate", model=model, cond=cond, seed=7, cfg=w.add("Number", value=2.5)),
    )


def test_the_prompt_is_what_was_described():
    prompt = to_prompt(canvas.make("example", example, INFO), INFO)
    assert {node: entry["class_type"] for node, entry in prompt.items()} == {
        "2": "Load",
        "3": "Text",
        "4": "Number",
        "5": "Generate",
        "6": "SaveImage",
    }
    assert prompt["2"]["inputs"] == {"name": "b"}
    assert prompt["3"] == {
        "inputs": {"text": "a house", "clip": ["2", 1]},
        "class_type": "Text",
        "_meta": {"title": "Caption"},
    }
    assert prompt["5"]["inputs"] == {
        "model": ["2", 0],
        "seed": 7,
        "cond": ["3", 0],
        "cfg": ["4", 0],
    }
    assert prompt["6"]["inputs"] == {"images": ["5", 0], "prefix": "x"}


def test_the_same_description_makes_the_same_text():
    first, second = (canvas.to_text(canvas.make("example", example, INFO)) for _ in range(2))
    assert first == second
    assert json.loads(first)["id"] != canvas.make("other", example, INFO)["id"]


def test_seeds_are_fixed():
    saved = canvas.make("example", example, INFO)
    assert next(node for node in saved["nodes"] if node["type"] == "Generate")[
        "widgets_values"
    ] == [7, "fixed", 8.0]


_OURS = {
    "GBX_Score": {
        "input": {
            "required": {"model": ["MODEL"], "width": ["INT", {"default": 64}]},
            "optional": {
                "mask": ["MASK"],
                "seed": ["INT", {"default": 0, "control_after_generate": True}],
                "cfg": ["FLOAT", {"default": 5.0}],
                "syntax": [["literal", "weights"], {}],
                "vae": ["VAE"],
            },
        },
        "output": ["IMAGE"],
        "output_name": ["IMAGE"],
        "display_name": "Score",
    }
}


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({}, [64, 0, "fixed"]),
        ({"cfg": 5.0, "syntax": "literal"}, [64, 0, "fixed"]),
        ({"cfg": 4.0}, [64, 0, "fixed", 4.0]),
        ({"syntax": "weights"}, [64, 0, "fixed", 5.0, "weights"]),
    ],
)
def test_optional_values_at_their_default_are_left_out_at_the_end(given, values):
    """Behind a seed they begin after its control, whose first value on the canvas is another than
    in our files.
    """
    info = {**INFO, **_OURS}

    def describe(w):
        w.group("Model")
        w.add("SaveImage", images=w.add("GBX_Score", model=w.add("Load")[0], **given))

    saved = canvas.make("score", describe, info)
    node = next(node for node in saved["nodes"] if node["type"] == "GBX_Score")
    assert node["widgets_values"] == values and [socket["name"] for socket in node["inputs"]] == [
        "model"
    ]
    entry = next(one for one in to_prompt(saved, info).values() if one["class_type"] == "GBX_Score")
    assert (
        entry["inputs"]
        == {"model": ["1", 0], "width": 64, "seed": 0, "cfg": 5.0, "syntax": "literal"} | given
    )


def test_a_new_optional_input_changes_no_file():
    info, newer = ({**INFO, **copy.deepcopy(_OURS)} for _ in range(2))
    newer["GBX_Score"]["input"]["optional"] |= {
        "anchor": ["STRING", {"default": ""}],
        "clip": ["CLIP"],
    }

    def describe(w):
        w.group("Model")
        w.add("SaveImage", images=w.add("GBX_Score", model=w.add("Load")[0], node_size=(300, 400)))

    assert canvas.make("score", describe, info) == canvas.make("score", describe, newer)


def test_links_and_slots_agree():
    saved = canvas.make("example", example, INFO)
    nodes = {node["id"]: node for node in saved["nodes"]}
    for link, origin, output, target, slot, kind in saved["links"]:
        assert link in nodes[origin]["outputs"][output]["links"]
        assert nodes[target]["inputs"][slot]["link"] == link
        assert nodes[origin]["outputs"][output]["type"] == kind


def folded(w, *seeds):
    """The example with Load and Number outside, and Generate in a subgraph, once for each seed."""
    w.group("Model")
    model, clip = w.add("Load", name="b")

    def inside(s, model, clip, seed, text):
        return s.add("Generate", model=model, cond=s.add("Text", clip=clip, text=text), seed=seed)

    for seed in seeds:
        image = w.subgraph("Generate it", inside, model=model, clip=clip, seed=seed, text="a house")
        w.add("SaveImage", images=image)


def test_a_subgraph_queues_the_nodes_that_it_holds():
    saved = canvas.make("folded", lambda w: folded(w, 7, 8), INFO)
    prompt = to_prompt(saved, INFO)
    names = [one["name"] for one in saved["definitions"]["subgraphs"]]
    assert names == ["Generate it", "Generate it 2"], (
        "in Nodes 2.0 one definition would have one preview for both"
    )
    assert {entry["class_type"] for entry in prompt.values()} == {
        "Load",
        "Text",
        "Generate",
        "SaveImage",
    }
    assert [
        entry["inputs"]["seed"] for entry in prompt.values() if entry["class_type"] == "Generate"
    ] == [7, 8]
    assert prompt["2:101"]["inputs"] == {"text": "a house", "clip": ["1", 1]}
    assert prompt["2:102"]["inputs"] == {
        "model": ["1", 0],
        "cond": ["2:101", 0],
        "seed": 7,
        "cfg": 8.0,
    }
    assert prompt["3"]["inputs"]["images"] == ["2:102", 0]
    inside = {
        node["type"]: node["widgets_values"]
        for node in saved["definitions"]["subgraphs"][0]["nodes"]
    }
    assert inside == {"Text": ["a house"], "Generate": [7, "fixed", 8.0]}


def test_nodes_whose_widgets_a_subgraph_shows_save_all_their_sockets():
    """Else front end 1.32 shows another widget in the place of each."""
    saved = canvas.make("folded", lambda w: folded(w, 7), INFO)
    inside = {
        node["type"]: node["inputs"] for node in saved["definitions"]["subgraphs"][0]["nodes"]
    }
    assert [socket["name"] for socket in inside["Generate"]] == ["model", "cond", "seed", "cfg"]
    assert [socket["link"] is None for socket in inside["Generate"]] == [False, False, False, True]


def test_every_node_has_an_id_of_its_own_in_subgraphs_too():
    saved = canvas.make("folded", lambda w: folded(w, 7, 8), INFO)
    graphs = [saved, *saved["definitions"]["subgraphs"]]
    ids = [node["id"] for graph in graphs for node in graph["nodes"]]
    assert len(set(ids)) == len(ids) and max(ids) == saved["last_node_id"]


@pytest.mark.parametrize(
    ("describe", "sentence"),
    [
        (lambda w: w.note("Short", "One.", "Two."), "three to six"),
        (lambda w: w.add("Load"), "begin a group"),
        (lambda w: (w.group("A"), w.add("Lode")), "does not know the node Lode"),
        (lambda w: (w.group("A"), w.add("Load", nam="a")), "has no input nam"),
        (lambda w: (w.group("A"), w.add("Generate")), "needs model"),
        (lambda w: (w.group("A"), w.add("Generate", model="a")), "takes an output"),
        (
            lambda w: (w.group("A"), w.add("Generate", model=w.add("Number"))),
            "takes MODEL at model, not FLOAT",
        ),
    ],
)
def test_a_wrong_description_is_reported(describe, sentence):
    with pytest.raises(AuthoringError, match=sentence):
        describe(Workflow("w", INFO))


@settings(max_examples=40)  # beside these every workflow of the pack is laid out
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Load", "Text", "Generate", "SaveImage", "Number"]),
            st.booleans(),
            st.integers(0, 9),
        ),
        min_size=1,
        max_size=14,
    )
)
def test_nothing_overlaps_and_groups_hold_their_nodes(steps):
    w = Workflow("any", INFO)
    w.note(
        "Any", *["A line that is as long as such lines are, and then a little longer still."] * 4
    )
    w.group("First")
    made = {"MODEL": [], "CLIP": [], "COND": [], "IMAGE": [], "FLOAT": []}
    for type_, new_group, pick in steps:
        if new_group:
            w.group("Next")
        needs = {
            name: spec[0]
            for name, spec in INFO[type_]["input"]["required"].items()
            if str(spec[0]) in made
        }
        if all(made[kind] for kind in needs.values() if kind != "FLOAT"):
            given_ = {
                name: made[kind][pick % len(made[kind])]
                for name, kind in needs.items()
                if made[kind]
            }
            outputs = w.add(type_, **given_)
            for output in outputs if isinstance(outputs, tuple) else (outputs,):
                made[output.type].append(output)
    placed = layout.arrange(w)
    boxes = [
        layout.Box(box.left, box.top - 30, box.width, box.height + 30)
        for box in placed.nodes.values()
    ]
    assert not [pair for pair in itertools.combinations(boxes, 2) if _overlap(*pair)]
    assert not [pair for pair in itertools.combinations(placed.groups, 2) if _overlap(*pair)]
    for node in w.nodes[1:]:
        assert _holds(placed.groups[node.group - 1], placed.nodes[node.id])


def _overlap(a, b):
    return (
        a.left < b.left + b.width
        and b.left < a.left + a.width
        and a.top < b.top + b.height
        and b.top < a.top + a.height
    )


def _holds(group, box):
    return (
        group.left <= box.left
        and group.top <= box.top - 30
        and group.left + group.width >= box.left + box.width
        and group.top + group.height >= box.top + box.height
    )


@pytest.mark.parametrize("path", repository.WORKFLOWS, ids=repository.name_of)
def test_a_workflow_opens_large_enough_to_read(path):
    """Text is drawn from 0.6 on in the classic renderer; fifteen nodes and a note are in sight at
    most.
    """
    saved = json.loads(path.read_text("utf-8"))
    assert _opening_zoom(saved) >= 0.65 and len(saved["nodes"]) <= 16


@pytest.mark.parametrize("path", repository.WORKFLOWS, ids=repository.name_of)
def test_wires_run_to_the_right_and_cross_few(path):
    """At most 40 % of the wires run back or straight down, with five crossings for each at most."""
    ways = _wires(json.loads(path.read_text("utf-8")))
    assert sum(way[-1][0] < way[0][0] for way in ways.values()) <= 0.4 * len(ways)
    lines = {(link[1:3], line) for link, way in ways.items() for line in itertools.pairwise(way)}
    crossings = [
        one != other and _cross(*a, *b) for (one, a), (other, b) in itertools.combinations(lines, 2)
    ]
    assert sum(crossings) <= 5 * len(ways)


@pytest.mark.parametrize("path", repository.WORKFLOWS, ids=repository.name_of)
def test_no_wire_runs_behind_a_node(path):
    """Other than those that it connects."""
    saved = json.loads(path.read_text("utf-8"))
    behind = [
        (link[0], node["id"])
        for link, way in _wires(saved).items()
        for node in saved["nodes"]
        if node["id"] not in (link[1], link[3])
        and any(_covers(node, *line) for line in itertools.pairwise(way))
    ]
    assert not behind


@pytest.mark.parametrize("path", repository.WORKFLOWS, ids=repository.name_of)
def test_no_curve_of_a_wire_runs_behind_a_node(path):
    """As the canvas draws wires, but for what a node's edge hides."""
    saved = json.loads(path.read_text("utf-8"))
    boxes = {node["id"]: layout.Box(*node["pos"], *node["size"]) for node in saved["nodes"]}
    ways = {link[1:5]: way[1:-1] for link, way in _wires(saved).items()}
    inside = {id_: _smaller(box, _EDGE) for id_, box in boxes.items()}
    behind = {
        (wire, id_)
        for wire, _, curve, _ in wires.curves(boxes, ways)
        for id_, box in inside.items()
        if id_ not in (wire[0], wire[2]) and wires.is_behind(box, curve)
    }
    assert not behind


@pytest.mark.parametrize("path", repository.WORKFLOWS, ids=repository.name_of)
def test_no_curve_of_a_wire_runs_over_the_title_of_a_group(path):
    """Where the canvas writes it: 4 units from the left, between 6 and 30 from the top, 12 a
    letter.
    """
    saved = json.loads(path.read_text("utf-8"))
    boxes = {node["id"]: layout.Box(*node["pos"], *node["size"]) for node in saved["nodes"]}
    ways = {link[1:5]: way[1:-1] for link, way in _wires(saved).items()}
    over = {
        (wire, group["title"])
        for wire, _, curve, _ in wires.curves(boxes, ways)
        for group, (left, top, _, _) in ((group, group["bounding"]) for group in saved["groups"])
        for x, y in curve
        if left + 4 < x < left + 4 + 12 * len(group["title"]) and top + 6 < y < top + 30
    }
    assert not over


@pytest.mark.parametrize("path", repository.TEMPLATES[:10], ids=repository.name_of)
def test_the_first_templates_show_one_large_image_behind_straight_wires(path):
    saved = json.loads(path.read_text("utf-8"))
    assert len(saved["nodes"]) <= 7 and "reroutes" not in saved["extra"]
    (image,) = [node for node in saved["nodes"] if node["type"] in ("SaveImage", "PreviewImage")]
    assert image["size"][0] - 20 >= 400 / _opening_zoom(saved)
    assert image["pos"][0] == max(node["pos"][0] for node in saved["nodes"])


def test_columns_stand_where_all_wires_are_straight():
    def describe(w):
        w.in_columns = True
        w.note("Columns", "One.", "Two.", "Three.")
        w.group("Model")
        model, clip = w.add("Load")
        w.group("Text")
        cond = w.add("Text", clip=clip)
        w.group("Image")
        w.add("SaveImage", images=w.add("Generate", model=model, cond=cond))

    w = Workflow("columns", INFO)
    describe(w)
    placed = columns.in_columns(w)
    assert "reroutes" not in canvas.make("columns", describe, INFO)["extra"]
    text = next(node.id for node in w.nodes if node.type == "Text")
    level = replace(
        placed.nodes[text], top=placed.nodes[next(n.id for n in w.nodes if n.type == "Load")].top
    )
    assert not wires.are_straight(placed.nodes | {text: level}, [(2, 0, 4, 0)])


_EDGE = 5  # canvas units, beside those of wires.is_behind


def _smaller(box, edge):
    return layout.Box(box.left + edge, box.top + edge, box.width - 2 * edge, box.height - 2 * edge)


def test_a_wire_that_would_swing_behind_a_node_is_held():
    boxes = {
        1: layout.Box(0, 600, 100, 60),
        2: layout.Box(136, 60, 100, 600),
        3: layout.Box(300, 60, 100, 60),
    }
    wire = (1, 0, 3, 0)
    ways = wires.bends(boxes, [wire])
    loose = {wire: [way for way in ways[wire] if way[1] < 60 or way[0] > 236]}
    assert len(loose[wire]) < len(ways[wire])
    swung, held = (
        any(wires.is_behind(boxes[2], curve) for _, _, curve, _ in wires.curves(boxes, given))
        for given in (loose, ways)
    )
    assert swung and not held


def _covers(node, start, end):
    """Whether a line runs through a node or its title: then it crosses a diagonal."""
    (left, top), (width, height) = node["pos"], node["size"]
    right, top, bottom = left + width, top - 30, top + height
    diagonals = ((left, top), (right, bottom)), ((left, bottom), (right, top))
    return any(_cross(start, end, *diagonal) for diagonal in diagonals)


def test_a_wire_bends_around_a_node_in_its_way():
    boxes = {
        1: layout.Box(0, 0, 100, 60),
        2: layout.Box(200, 0, 100, 60),
        3: layout.Box(400, 0, 100, 60),
    }
    beside, past, back = (1, 0, 2, 0), (1, 0, 3, 0), (3, 0, 1, 0)
    ways = wires.bends(boxes, [beside, past, back])
    assert ways[beside] == []
    assert [y < -30 or y > 60 for _, y in ways[past]] == [True, True]
    assert not set(ways[past]) & set(ways[back]) and ways[back]


def test_wires_of_one_output_share_their_bends():
    boxes = {1: layout.Box(0, 0, 100, 60), 2: layout.Box(200, 0, 100, 60)}
    boxes |= {3: layout.Box(400, 0, 100, 60), 4: layout.Box(600, 0, 100, 60)}
    saved = canvas.reroutes([[7, 1, 0, 3, 0, "MODEL"], [8, 1, 0, 4, 0, "MODEL"]], boxes, [])
    shared, *_, last = saved["reroutes"]
    assert shared["linkIds"] == [7, 8] and last["linkIds"] == [8]
    assert [one["id"] for one in saved["linkExtensions"]] == [7, 8]


@pytest.mark.parametrize(
    ("ends", "crossing"),
    [
        (((0, 0), (2, 2), (0, 2), (2, 0)), True),
        (((0, 0), (2, 2), (0, 1), (2, 3)), False),
        (((0, 0), (2, 2), (0, 0), (2, 0)), False),
        (((0, 0), (1, 1), (0, 4), (4, 0)), False),
    ],
)
def test_crossings_are_counted(ends, crossing):
    assert _cross(*ends) == crossing


def _wires(saved):
    """The links of a canvas, each with its ends and bends."""
    nodes = {node["id"]: node for node in saved["nodes"]}
    bends = {bend["id"]: bend for bend in saved["extra"].get("reroutes", [])}
    last = {one["id"]: one["parentId"] for one in saved["extra"].get("linkExtensions", [])}
    ways = {}
    for link in saved["links"]:
        id_, origin, output, target, slot, _ = link
        (left, top), (width, _) = nodes[origin]["pos"], nodes[origin]["size"]
        way = [(nodes[target]["pos"][0], nodes[target]["pos"][1] + 14 + 20 * slot)]
        bend = last.get(id_)
        while bend is not None:
            assert id_ in bends[bend]["linkIds"]
            way.append(tuple(bends[bend]["pos"]))
            bend = bends[bend].get("parentId")
        ways[tuple(link)] = [(left + width, top + 14 + 20 * output), *way[::-1]]
    return ways


def _cross(start, end, other_start, other_end):
    """Whether two lines cross, not counting a common end."""

    def side(point, line_start, line_end):
        (x, y), (a, b), (c, d) = point, line_start, line_end
        return (c - a) * (y - b) - (d - b) * (x - a)

    return (
        side(other_start, start, end) * side(other_end, start, end) < 0
        and side(start, other_start, other_end) * side(end, other_start, other_end) < 0
    )


def _opening_zoom(saved):
    boxes = [(*node["pos"], *node["size"]) for node in saved["nodes"]]
    boxes += [group["bounding"] for group in saved["groups"]]
    width, height = (
        max(box[side] + box[side + 2] for box in boxes) - min(box[side] for box in boxes)
        for side in (0, 1)
    )
    return min(layout.WINDOW[0] / width, layout.WINDOW[1] / height)


def _types(saved) -> set[str]:
    """Types of all nodes, those inside subgraphs too."""
    subgraphs = saved.get("definitions", {}).get("subgraphs", [])
    return {node["type"] for graph in (saved, *subgraphs) for node in graph["nodes"]}


def test_every_workflow_has_a_kind_by_which_it_is_chosen():
    """By what it needs, not by its name: a file that loses its kind is neither run nor
    documented.
    """
    kinds = Counter(workflow.kind_of(workflow.load(path)) for path in repository.WORKFLOWS)
    assert kinds.keys() <= {*workflow.Kind} and kinds.total() == len(repository.WORKFLOWS)
    assert kinds[workflow.Kind.DEMO] >= 50 and kinds[workflow.Kind.CHECKPOINT] >= 52
    loads = {
        path: bool(LOADERS & _types(workflow.load(path)))
        for path in repository.CHECKPOINT_WORKFLOWS + repository.DEMOS
    }
    assert {path for path, files in loads.items() if files} == set(repository.CHECKPOINT_WORKFLOWS)


@pytest.mark.parametrize(
    "extra",
    [
        None,
        {},
        {"glassbox": None},
        {"glassbox": {}},
        {"glassbox": {"kind": "x"}},
        {"glassbox": {"kind": []}},
    ],
)
def test_a_graph_of_somebody_else_has_no_kind(extra):
    assert workflow.kind_of({"nodes": [], "extra": extra}) is None


def test_a_description_of_a_claim_is_research():
    w = Workflow("claim", {})
    assert w.kind == workflow.Kind.DEMO
    w.named_kind = workflow.Kind.RESEARCH
    assert w.kind == workflow.Kind.RESEARCH


def test_descriptions_are_found_by_their_name():
    assert {"demo_world_text_to_image", "demo_world_image_to_image"} <= set(described())


@pytest.mark.parametrize("path", repository.WORKFLOWS, ids=repository.name_of)
def test_every_file_to_download_has_its_folder_and_address(path):
    nodes = json.loads(path.read_text("utf-8"))["nodes"]
    for node in nodes:
        values = node["widgets_values"] if node["type"].endswith(("Loader", "LoaderSimple")) else []
        named = {
            value for value in values if isinstance(value, str) and value.endswith(".safetensors")
        }
        models = node["properties"].get("models", [])
        assert {model["name"] for model in models} == named, node["type"]
        for model in models:
            assert model["url"].startswith("https://") and model["url"].endswith(model["name"])
            assert model["directory"] in {"checkpoints", "diffusion_models", "text_encoders", "vae"}


@pytest.mark.parametrize("path", repository.WORKFLOWS, ids=repository.name_of)
def test_every_node_names_the_pack_it_comes_from(path):
    saved = json.loads(path.read_text("utf-8"))
    subgraphs = saved.get("definitions", {"subgraphs": []})["subgraphs"]
    for node in itertools.chain(saved["nodes"], *(one["nodes"] for one in subgraphs)):
        if node["type"] in {one["id"] for one in subgraphs}:
            continue
        pack = {True: "glassbox", False: "comfy-core"}[node["type"].startswith("GBX_")]
        assert node["type"] == "MarkdownNote" or node["properties"]["cnr_id"] == pack
