"""Widgets that are newer than the oldest host: dynamic combos, colors, boxes, and kinds that nobody
knows.
"""

import pytest

from tools.launcher.batch.job import resolved
from tools.launcher.batch.lists import Entries
from tools.launcher.widgets import all_inputs, widgets
from tools.launcher.workflow import WorkflowError, to_prompt


def combo(*options, **more):
    """A dynamic combo; ``options`` are (key, required inputs[, optional inputs])."""
    listed = [
        {"key": key, "inputs": dict(zip(("required", "optional"), sections, strict=False))}
        for key, *sections in options
    ]
    return ["COMFY_DYNAMICCOMBO_V3", {"options": listed, **more}]


RESIZE = {
    "input": {
        "required": {
            "image": ["IMAGE", {}],
            "resize_type": combo(
                (
                    "by size",
                    {"width": ["INT", {"default": 512}], "height": ["INT", {"default": 256}]},
                ),
                ("by factor", {"factor": ["FLOAT", {"default": 1.5}]}),
                ("like another", {"reference": ["IMAGE", {}]}),
            ),
            "method": ["COMBO", {"options": ["area", "lanczos"], "default": "area"}],
        }
    },
    "output": ["IMAGE"],
    "display_name": "Resize",
}
ENCODINGS = combo(("auto", {}), ("again", {"crf": ["FLOAT", {"default": 23.0}]}))
INFO = {
    "Resize": RESIZE,
    "Save": {
        "input": {
            "required": {
                "prefix": ["STRING", {}],
                "format": combo(
                    ("auto", {"codec": combo(("auto", {}), ("h264", {}, {"encoding": ENCODINGS}))}),
                    ("mp4", {"seed": ["INT", {}], "quality": ["INT", {"default": 5}]}),
                ),
                "fps": ["FLOAT", {"default": 24.0}],
            }
        },
        "output": [],
    },
    "Render": {
        "input": {
            "required": {
                "background": ["COLOR", {"default": "#000000", "socketless": True}],
                "region": ["BOUNDING_BOX", {"default": {"x": 0}, "socketless": True}],
                "boxes": [
                    "BOUNDING_BOX",
                    {"default": {"x": 0}, "socketless": True, "forceInput": True},
                ],
                "palette": ["COLORS", {"default": [], "socketless": False}],
                "curve": ["FLOAT,INT", {"widgetType": "FLOAT"}],
                "compare": ["VIEW", {"socketless": True}],
                "count": ["INT", {"default": 3}],
            }
        },
        "output": ["IMAGE"],
    },
    "Dial": {
        "input": {"required": {"dial": ["DIAL", {}], "count": ["INT", {"default": 3}]}},
        "output": ["IMAGE"],
    },
    "Number": {"input": {"required": {"value": ["INT", {}]}}, "output": ["INT"]},
}


def node(type_, values, inputs=(), id_=1, **more):
    slots = [
        {"name": name, "type": kind, "link": link, **widget} for name, kind, link, widget in inputs
    ]
    outputs = [{"name": kind, "type": kind} for kind in INFO.get(type_, {}).get("output", ["INT"])]
    return {
        "id": id_,
        "type": type_,
        "inputs": slots,
        "outputs": outputs,
        "widgets_values": values,
        **more,
    }


def converted(*nodes, links=(), **more):
    return to_prompt({"nodes": list(nodes), "links": [list(link) for link in links], **more}, INFO)[
        "1"
    ]["inputs"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            ["by size", 64, 32, "lanczos"],
            {
                "resize_type": "by size",
                "resize_type.width": 64,
                "resize_type.height": 32,
                "method": "lanczos",
            },
        ),
        (
            ["by factor", 2.5, "lanczos"],
            {"resize_type": "by factor", "resize_type.factor": 2.5, "method": "lanczos"},
        ),
        (["like another", "lanczos"], {"resize_type": "like another", "method": "lanczos"}),
        (
            {"resize_type": "by factor", "method": "lanczos", "resize_type.width": 9},
            {"resize_type": "by factor", "resize_type.factor": 1.5, "method": "lanczos"},
        ),
        (
            [],
            {
                "resize_type": "by size",
                "resize_type.width": 512,
                "resize_type.height": 256,
                "method": "area",
            },
        ),
    ],
)
def test_the_chosen_option_says_which_values_follow(values, expected):
    assert converted(node("Resize", values)) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["p", "auto", "auto", 30.0], {"format": "auto", "format.codec": "auto"}),
        (
            ["p", "auto", "h264", "again", 18.0, 30.0],
            {
                "format": "auto",
                "format.codec": "h264",
                "format.codec.encoding": "again",
                "format.codec.encoding.crf": 18.0,
            },
        ),
        # The front end offers to change a seed after each run by its whole name alone.
        (["p", "mp4", 77, 9, 30.0], {"format": "mp4", "format.seed": 77, "format.quality": 9}),
    ],
)
def test_options_within_options(values, expected):
    assert converted(node("Save", values)) == {"prefix": "p", "fps": 30.0, **expected}


def test_newer_kinds_of_widgets_take_their_values():
    """A box is followed by four numbers of the front end's own; a forced socket takes no value."""
    palette = ["#ff0000", "#00ff00"]
    box = {"x": 3, "y": 4, "width": 50, "height": 60}
    filled = converted(node("Render", ["#123456", box, 3, 4, 50, 60, palette, 0.5, None, 8]))
    assert filled == {
        "background": "#123456",
        "region": box,
        "palette": {"__value__": palette},
        "curve": 0.5,
        "compare": None,
        "count": 8,
    }


def test_a_link_into_an_input_of_an_option():
    width = ("resize_type.width", "INT", 5, {"widget": {"name": "resize_type.width"}})
    filled = converted(
        node("Resize", ["by size", 64, 32, "area"], [width]),
        node("Number", [7], id_=2),
        links=[(5, 2, 0, 1, 0, "INT")],
    )
    assert filled["resize_type.width"] == ["2", 0] and filled["resize_type.height"] == 32


def test_a_primitive_that_chooses_another_option_shows_its_inputs():
    chosen = ("resize_type", "COMBO", 5, {"widget": {"name": "resize_type"}})
    primitive = {
        "id": 2,
        "type": "PrimitiveNode",
        "outputs": [{"type": "COMBO"}],
        "widgets_values": ["by factor"],
    }
    filled = converted(
        node("Resize", ["by size", 64, 32, "lanczos"], [chosen]),
        primitive,
        links=[(5, 2, 0, 1, 0, "COMBO")],
    )
    assert filled == {"resize_type": "by factor", "resize_type.factor": 1.5, "method": "lanczos"}


def test_a_value_that_a_subgraph_shows_chooses_the_option():
    definition = {
        "id": "sub",
        "name": "Sub",
        "nodes": [node("Resize", ["by size", 64, 32, "lanczos"])],
        "links": [],
        "inputs": [],
        "outputs": [],
    }
    host = {
        "id": 9,
        "type": "sub",
        "inputs": [],
        "outputs": [],
        "widgets_values": ["by factor", 3.0],
        "properties": {"proxyWidgets": [["1", "resize_type"], ["1", "resize_type.factor"]]},
    }
    saved = {"nodes": [host], "links": [], "definitions": {"subgraphs": [definition]}}
    filled = to_prompt(saved, INFO)["9:1"]["inputs"]
    assert filled == {"resize_type": "by factor", "resize_type.factor": 3.0, "method": "lanczos"}


def test_an_option_that_the_server_lacks_is_one_sentence():
    with pytest.raises(
        WorkflowError, match=r"by area is no resize_type of Resize \(node 1\).*by size, by factor"
    ):
        converted(node("Resize", ["by area", 64, "lanczos"]))


def test_values_of_an_unknown_kind_of_widget_are_one_sentence():
    with pytest.raises(
        WorkflowError, match=r"input dial of Dial \(node 1\) is of a kind \(DIAL\).*Export \(API\)"
    ):
        converted(node("Dial", [0.25, 8]))


def test_an_unknown_kind_with_a_slot_is_a_socket():
    assert converted(node("Dial", [8], [("dial", "DIAL", None, {})])) == {"count": 8}
    assert converted(node("Dial", [8, "more"], [("dial", "DIAL", None, {})])) == {"count": 8}


def test_widgets_without_values_stand_at_their_defaults():
    assert [widget.name for widget in widgets(RESIZE)] == [
        "resize_type",
        "resize_type.width",
        "resize_type.height",
        "method",
    ]


def test_a_list_fills_an_input_of_an_option():
    prompt = {"6": {"class_type": "Resize", "inputs": {}, "_meta": {"title": "My.node"}}}
    kinds = {"Resize": {input_.name: input_.value_kind for input_ in all_inputs(RESIZE)}}
    entries = Entries(("a", "b"), 1, lambda: iter([("2.5", "by factor")]))
    targets = resolved(
        prompt, ["a=6.resize_type.factor", "b=My.node.resize_type"], entries, 1, kinds
    )
    assert [(target.node, target.input, target.kind) for (target,) in targets.values()] == [
        ("6", "resize_type.factor", "FLOAT"),
        ("6", "resize_type", "COMBO"),
    ]
