"""Subgraphs of a saved canvas, flattened: the prompt is that of the same nodes without the
subgraph.
"""

import json
from pathlib import Path

import pytest

from tools.launcher.subgraphs import flattened
from tools.launcher.workflow import WorkflowError, to_prompt

_INFO = {
    "Load": {"input": {"required": {"name": [["a", "b"]]}}, "output": ["MODEL", "CLIP"]},
    "Encode": {
        "input": {"required": {"text": ["STRING", {"dynamicPrompts": True}], "clip": ["CLIP"]}},
        "output": ["C"],
    },
    "Sample": {
        "input": {
            "required": {
                "model": ["MODEL"],
                "positive": ["C"],
                "seed": ["INT", {}],
                "steps": ["INT", {}],
            }
        },
        "output": ["LATENT"],
    },
    "Save": {"input": {"required": {"latent": ["LATENT"]}}, "output": []},
}


def _slot(name, kind, link):
    widget = {"widget": {"name": name}} if kind in ("STRING", "INT") else {}
    return {"name": name, "type": kind, "link": link, **widget}


def _node(id_, type_, inputs=(), values=(), **more):
    slots = [_slot(name, kind, link) for name, kind, link in inputs]
    return {
        "id": id_,
        "type": type_,
        "inputs": slots,
        "widgets_values": list(values),
        "mode": 0,
        "outputs": [{"type": kind} for kind in _INFO.get(type_, {"output": ["LATENT"]})["output"]],
        **more,
    }


def _link(id_, origin, slot, target, target_slot, kind="*"):
    return {
        "id": id_,
        "origin_id": origin,
        "origin_slot": slot,
        "target_id": target,
        "target_slot": target_slot,
        "type": kind,
    }


def _sampling(**more):
    """A subgraph with inputs model, clip, text, seed (the last two are widgets inside) and one
    output.
    """
    return {
        "id": "sub",
        "name": "Sampling",
        "inputs": [{"name": name} for name in ("model", "clip", "text", "seed")],
        "outputs": [{"name": "latent"}],
        "nodes": [
            _node(3, "Encode", [("clip", "CLIP", 2), ("text", "STRING", 3)], ["inner text"]),
            _node(
                4,
                "Sample",
                [("model", "MODEL", 1), ("positive", "C", 5), ("seed", "INT", 4)],
                [1, "fixed", 20],
            ),
        ],
        "links": [
            _link(1, -10, 0, 4, 0),
            _link(2, -10, 1, 3, 0),
            _link(3, -10, 2, 3, 1),
            _link(4, -10, 3, 4, 2),
            _link(5, 3, 0, 4, 1),
            _link(6, 4, 0, -20, 0),
        ],
        **more,
    }


def _outer(instance, *definitions, extra=(), links=()):
    nodes = [
        _node(1, "Load", values=["a"]),
        instance,
        _node(9, "Save", [("latent", "LATENT", 30)]),
        *extra,
    ]
    links = [
        [10, 1, 0, 7, 0, "MODEL"],
        [11, 1, 1, 7, 1, "CLIP"],
        [30, 7, 0, 9, 0, "LATENT"],
        *links,
    ]
    return {
        "nodes": nodes,
        "links": links,
        "definitions": {"subgraphs": list(definitions or [_sampling()])},
    }


def _instance(values=(), more_inputs=(), **more):
    return _node(
        7, "sub", [("model", "MODEL", 10), ("clip", "CLIP", 11), *more_inputs], values, **more
    )


def _inputs(workflow):
    return {id_: entry["inputs"] for id_, entry in to_prompt(workflow, _INFO).items()}


def test_links_run_through_the_borders():
    prompt = _inputs(_outer(_instance()))
    assert prompt["7:4"]["model"] == ["1", 0] and prompt["7:3"]["clip"] == ["1", 1]
    assert prompt["7:4"]["positive"] == ["7:3", 0]
    assert prompt["9"]["latent"] == ["7:4", 0]
    assert set(prompt) == {"1", "7:3", "7:4", "9"}


def test_values_of_the_subgraph_node_win_over_those_inside():
    prompt = _inputs(_outer(_instance(["shown", 5])))
    assert prompt["7:3"]["text"] == "shown" and prompt["7:4"]["seed"] == 5
    assert prompt["7:4"]["steps"] == 20


def test_without_values_of_its_own_those_inside_count():
    prompt = _inputs(_outer(_instance()))
    assert prompt["7:3"]["text"] == "inner text" and prompt["7:4"]["seed"] == 1


def test_proxy_widgets_name_what_each_value_is_for():
    shown = {"proxyWidgets": [["4", "steps"], ["-1", "text"]]}
    prompt = _inputs(_outer(_instance([33, "of the input"], properties=shown)))
    assert (
        prompt["7:4"]["steps"] == 33
        and prompt["7:3"]["text"] == "of the input"
        and prompt["7:4"]["seed"] == 1
    )


def test_proxy_widgets_without_values_leave_those_inside():
    prompt = _inputs(_outer(_instance([], properties={"proxyWidgets": [["4", "steps"]]})))
    assert prompt["7:4"]["steps"] == 20


def test_a_link_into_the_subgraph_wins_over_a_shown_value():
    primitive = _node(8, "PrimitiveNode", values=["from outside"], outputs=[{"type": "STRING"}])
    instance = _instance(["shown", 5], [("text", "STRING", 40)])
    prompt = _inputs(_outer(instance, extra=[primitive], links=[[40, 8, 0, 7, 2, "STRING"]]))
    assert prompt["7:3"]["text"] == "from outside" and prompt["7:4"]["seed"] == 5


def test_nested_subgraphs_and_two_uses_of_one():
    around = {
        "id": "around",
        "name": "Around",
        "inputs": [{"name": name} for name in ("model", "clip", "words")],
        "outputs": [{"name": "latent"}],
        "nodes": [
            _node(
                2,
                "sub",
                [("model", "MODEL", 1), ("clip", "CLIP", 2), ("text", "STRING", 3)],
                ["middle", 8],
            )
        ],
        "links": [
            _link(1, -10, 0, 2, 0),
            _link(2, -10, 1, 2, 1),
            _link(3, -10, 2, 2, 2),
            _link(4, 2, 0, -20, 0),
        ],
    }
    first = _node(7, "around", [("model", "MODEL", 10), ("clip", "CLIP", 11)], ["outer"])
    second = _node(6, "around", [("model", "MODEL", 12), ("clip", "CLIP", 13)])
    more = [[12, 1, 0, 6, 0, "MODEL"], [13, 1, 1, 6, 1, "CLIP"]]
    prompt = _inputs(_outer(first, _sampling(), around, extra=[second], links=more))
    assert prompt["7:2:3"]["text"] == "outer" and prompt["6:2:3"]["text"] == "middle"
    assert prompt["7:2:4"]["seed"] == prompt["6:2:4"]["seed"] == 8
    assert prompt["6:2:4"]["model"] == ["1", 0] and prompt["9"]["latent"] == ["7:2:4", 0]


@pytest.mark.parametrize("mode", [2, 4])
def test_a_muted_or_bypassed_subgraph_is_left_out(mode):
    prompt = _inputs(_outer(_instance(mode=mode, outputs=[{"type": "LATENT"}])))
    assert set(prompt) == {"1", "9"} and "latent" not in prompt["9"]


def test_a_subgraph_that_holds_itself_is_refused():
    inside = _sampling(nodes=[_node(2, "sub")], links=[])
    with pytest.raises(WorkflowError, match="holds itself"):
        to_prompt(_outer(_instance(), inside), _INFO)


def test_the_templates_of_the_ecosystem_are_flattened_whole():
    """Every subgraph of ComfyUI's own templates: no use of one is left, every link leads to a node,
    ids are unique.
    """
    templates = pytest.importorskip("comfyui_workflow_templates_media_image")
    tried = 0
    for path in (Path(templates.__file__).parent / "templates").glob("*.json"):
        workflow = json.loads(path.read_text("utf-8"))
        if not isinstance(workflow, dict) or not (workflow.get("definitions") or {}).get(
            "subgraphs"
        ):
            continue
        flat = flattened(workflow)
        ids = {node["id"] for node in flat["nodes"]}
        uses = {one["id"] for one in workflow["definitions"]["subgraphs"]}
        assert len(ids) == len(flat["nodes"])
        assert not [
            node
            for node in flat["nodes"]
            if node["type"] in uses and node.get("mode") not in (2, 4)
        ]
        assert all(link[1] in ids and link[3] in ids for link in flat["links"]), path.name
        tried += 1
    assert tried > 5
