"""The converter from a saved canvas to a prompt, on small graphs whose prompt is known."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.launcher.workflow import WorkflowError, load, to_prompt

INFO = {
    "Loader": {
        "input": {"required": {"name": [["a", "b"]]}},
        "output": ["MODEL", "CLIP"],
        "display_name": "Load",
    },
    "Encode": {
        "input": {
            "required": {
                "text": ["STRING", {"multiline": True, "dynamicPrompts": True}],
                "clip": ["CLIP"],
            }
        },
        "output": ["CONDITIONING"],
        "display_name": "Encode",
    },
    "Sampler": {
        "input": {
            "required": {
                "model": ["MODEL"],
                "seed": ["INT", {"default": 0, "control_after_generate": True}],
                "steps": ["INT", {"default": 20}],
                "sampler": ["COMBO", {"options": ["euler", "ddim"]}],
                "positive": ["CONDITIONING"],
            },
            "optional": {
                "strength": ["FLOAT", {"default": 1.0}],
                "sigma": ["FLOAT", {"forceInput": True}],
            },
        },
        "output": ["LATENT"],
        "display_name": "Sample",
    },
    "Image": {
        "input": {
            "required": {"image": [["x.png"], {"image_upload": True}]},
            "optional": {"scale": ["FLOAT", {"default": 2.0}]},
        },
        "output": ["IMAGE"],
        "display_name": "Image",
    },
    "Swap": {
        "input": {
            "required": {
                "negative": ["CONDITIONING"],
                "latent": ["LATENT"],
                "positive": ["CONDITIONING"],
            }
        },
        "output": ["LATENT", "CONDITIONING", "CONDITIONING"],
        "display_name": "Swap",
    },
    "Everywhere": {
        "input": {"optional": {"anything": ["*"]}},
        "output": [],
        "output_node": False,
        "display_name": "E",
    },
    "Recorder": {
        "input": {"required": {"audio": ["AUDIO_RECORD", {}]}},
        "output": ["AUDIO"],
        "display_name": "Record",
    },
}

REGISTERED = {"Node name for S&R": "Unheard"}


def node(id_, type_, inputs=(), outputs=(), values=(), **more):
    """A saved node; `inputs` are (name, type, link[, widget]), `outputs` are types."""
    slots = []
    for name, kind, link, *widget in inputs:
        slots.append(
            {
                "name": name,
                "type": kind,
                "link": link,
                **({"widget": {"name": widget[0]}} if widget else {}),
            }
        )
    return {
        "id": id_,
        "type": type_,
        "inputs": slots,
        "outputs": [{"name": kind, "type": kind} for kind in outputs],
        "widgets_values": values if isinstance(values, dict) else list(values),
        **more,
    }


def saved(nodes, links=(), **more):
    return {"nodes": list(nodes), "links": [list(link) for link in links], "version": 0.4, **more}


def loader(**more):
    return node(1, "Loader", outputs=["MODEL", "CLIP"], values=["a"], **more)


def sampler(id_=2, model=1, values=(7, "fixed", 30, "ddim", 0.5), extra=(), **more):
    inputs = [("model", "MODEL", model), ("positive", "CONDITIONING", None), *extra]
    return node(id_, "Sampler", inputs, ["LATENT"], values, **more)


def inputs_of(workflow, id_):
    return to_prompt(workflow, INFO)[str(id_)]["inputs"]


MODEL_LINK = (1, 1, 0, 2, 0, "MODEL")
SAMPLED = {"seed": 7, "steps": 30, "sampler": "ddim", "strength": 0.5, "model": ["1", 0]}


def test_widgets_links_and_titles():
    prompt = to_prompt(saved([loader(title="My model"), sampler()], [MODEL_LINK]), INFO)
    assert prompt == {
        "1": {"inputs": {"name": "a"}, "class_type": "Loader", "_meta": {"title": "My model"}},
        "2": {"inputs": SAMPLED, "class_type": "Sampler", "_meta": {"title": "Sample"}},
    }


def test_links_as_objects():
    link = {
        "id": 1,
        "origin_id": 1,
        "origin_slot": 0,
        "target_id": 2,
        "target_slot": 0,
        "type": "MODEL",
    }
    workflow = {"nodes": [loader(), sampler()], "links": [link]}
    assert inputs_of(workflow, 2) == SAMPLED


def test_values_by_name():
    values = {
        "seed": 7,
        "control_after_generate": "fixed",
        "steps": 30,
        "sampler": "ddim",
        "strength": 0.5,
    }
    assert inputs_of(saved([loader(), sampler(values=values)], [MODEL_LINK]), 2) == SAMPLED


def test_values_newer_than_the_file_keep_their_default():
    expected = {**SAMPLED, "sampler": "euler", "strength": 1.0}
    assert (
        inputs_of(saved([loader(), sampler(values=(7, "fixed", 30))], [MODEL_LINK]), 2) == expected
    )


def test_the_upload_button_takes_a_place_but_is_not_queued():
    workflow = saved([node(1, "Image", outputs=["IMAGE"], values=["x.png", "image", 3.0])])
    assert inputs_of(workflow, 1) == {"image": "x.png", "scale": 3.0}


def test_a_list_value_is_wrapped():
    workflow = saved([node(1, "Image", outputs=["IMAGE"], values=[["x.png", 0], "image", 3.0])])
    assert inputs_of(workflow, 1)["image"] == {"__value__": ["x.png", 0]}


def test_a_linked_widget_keeps_its_place_in_the_values():
    number = node(3, "Swap", outputs=["LATENT", "INT"], values=[])
    workflow = saved(
        [loader(), number, sampler(extra=[("seed", "INT", 2, "seed")])],
        [MODEL_LINK, (2, 3, 1, 2, 2, "INT")],
    )
    assert inputs_of(workflow, 2) == {**SAMPLED, "seed": ["3", 1]}


def test_a_primitive_gives_its_value():
    primitive = node(9, "PrimitiveNode", outputs=["INT"], values=[99, "randomize"])
    workflow = saved(
        [loader(), primitive, sampler(extra=[("seed", "INT", 2, "seed")])],
        [MODEL_LINK, (2, 9, 0, 2, 2, "INT")],
    )
    assert inputs_of(workflow, 2) == {**SAMPLED, "seed": 99}
    assert "9" not in to_prompt(workflow, INFO)


def test_notes_are_left_out():
    notes = [node(5, "Note", values=["a"]), node(6, "MarkdownNote", values=["b"])]
    assert set(to_prompt(saved([loader(), *notes]), INFO)) == {"1"}


@pytest.mark.parametrize("length", [1, 2, 5])
def test_reroutes_are_followed(length):
    reroutes = [node(10 + i, "Reroute", [("", "*", 100 + i)], ["MODEL"]) for i in range(length)]
    links = [(100, 1, 0, 10, 0, "MODEL")]
    links += [(101 + i, 10 + i, 0, 11 + i, 0, "MODEL") for i in range(length)]
    workflow = saved([loader(), *reroutes, sampler(model=100 + length)], links)
    assert inputs_of(workflow, 2) == SAMPLED


def test_a_reroute_from_nothing_gives_no_input():
    workflow = saved(
        [node(10, "Reroute", [("", "*", None)], ["*"]), sampler()], [(1, 10, 0, 2, 0, "*")]
    )
    assert "model" not in inputs_of(workflow, 2)


def test_a_muted_node_and_links_from_it_are_left_out():
    prompt = to_prompt(saved([loader(mode=2), sampler()], [MODEL_LINK]), INFO)
    assert set(prompt) == {"2"}
    assert "model" not in prompt["2"]["inputs"]


def bypassed_swap(output, kind):
    """A bypassed node between three sources and a sampler that takes one of its outputs."""
    swap = node(
        4,
        "Swap",
        [
            ("negative", "CONDITIONING", 11),
            ("latent", "LATENT", 12),
            ("positive", "CONDITIONING", 13),
        ],
        ["LATENT", "CONDITIONING", "CONDITIONING"],
        mode=4,
    )
    sources = [
        node(20, "Encode", [("clip", "CLIP", None)], ["CONDITIONING"], ["n"]),
        sampler(21, None),
        node(22, "Encode", [("clip", "CLIP", None)], ["CONDITIONING"], ["p"]),
    ]
    taker = node(2, "Swap", [("positive", kind, 14)], ["LATENT"])
    links = [
        (11, 20, 0, 4, 0, kind),
        (12, 21, 0, 4, 1, "LATENT"),
        (13, 22, 0, 4, 2, kind),
        (14, 4, output, 2, 0, kind),
    ]
    return saved([*sources, swap, taker], links)


@pytest.mark.parametrize(
    ("output", "kind", "source"),
    [
        (2, "CONDITIONING", "22"),  # the input opposite has the type
        (1, "CONDITIONING", "20"),  # it has not: the first input of the type
        (0, "LATENT", "21"),
        (0, "*", "20"),  # any type: the input opposite
    ],
)
def test_a_bypassed_node_hands_on_an_input_of_the_type(output, kind, source):
    prompt = to_prompt(bypassed_swap(output, kind), INFO)
    assert "4" not in prompt
    assert prompt["2"]["inputs"]["positive"] == [source, 0]


def test_a_bypassed_node_without_such_an_input_gives_nothing():
    workflow = saved([loader(mode=4), sampler()], [MODEL_LINK])
    assert "model" not in inputs_of(workflow, 2)


@pytest.mark.parametrize(
    ("text", "queued"),
    [
        ("a // b\nc", "a \nc"),
        ("a /* b\nb */ c", "a  c"),
        (r"\{a\|b\}", "{a|b}"),
        ("(red:1.2), a|b", "(red:1.2), a|b"),
        (r"a\nb", r"a\nb"),
    ],
)
def test_comments_and_escapes_in_a_prompt_text(text, queued):
    assert (
        inputs_of(saved([node(1, "Encode", [("clip", "CLIP", None)], values=[text])]), 1)["text"]
        == queued
    )


GETTER = node(4, "Getter", [], ["MODEL"], ["the model"])
CIRCLE = node(1, "Reroute", [("", "*", 1)], ["*"])


@pytest.mark.parametrize(
    ("workflow", "sentence"),
    [
        (saved([node(1, "Unheard", properties=REGISTERED)]), "does not know the node Unheard"),
        (
            saved(
                [node(1, "Get", [], ["MODEL"], ["m"]), sampler(model=2)], [(2, 1, 0, 2, 0, "MODEL")]
            ),
            r"Export \(API\)",
        ),
        (
            saved(
                [
                    node(1, "Mix", [("a", "MODEL", None), ("b", "MODEL", None)], ["MODEL"]),
                    sampler(model=2),
                ],
                [(2, 1, 0, 2, 0, "MODEL")],
            ),
            r"Export \(API\)",
        ),
        (
            saved([node(1, "Everywhere", [("anything", "*", None)]), sampler(model=None)]),
            "sends values without wires",
        ),
        (saved([node(1, "Encode", values=["{red|blue}"])]), "has a random choice"),
        (saved([node(1, "Recorder")]), "needs a browser"),
        (saved([node(1, "workflow>group")]), "group node of an older canvas"),
        (saved([sampler(model=5)]), "leads nowhere"),
        (saved([sampler(model=5)], [(5, 77, 0, 2, 0, "MODEL")]), "leads nowhere"),
        (
            saved(
                [node(1, "Reroute", [("", "*", 1)], ["*"]), sampler(model=2)],
                [(1, 1, 0, 1, 0, "*"), (2, 1, 0, 2, 0, "*")],
            ),
            "in a circle",
        ),
    ],
)
def test_unsupported_workflow_is_one_sentence(workflow, sentence):
    with pytest.raises(WorkflowError, match=sentence) as caught:
        to_prompt(workflow, INFO)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "no JSON"),
        ("[]", "no saved canvas"),
        ('{"1": {"class_type": "A"}}', "no saved canvas"),
    ],
)
def test_file_that_is_no_workflow_is_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "w.json"
    path.write_text(content)
    with pytest.raises(WorkflowError, match=sentence):
        load(path)
    with pytest.raises(WorkflowError, match="cannot be read"):
        load(tmp_path / "absent.json")


def test_a_saved_canvas_is_read(tmp_path):
    path = tmp_path / "w.json"
    path.write_text(json.dumps(saved([loader(title="Modèle")])), "utf-8")
    assert load(path)["nodes"][0]["title"] == "Modèle"


KINDS = st.sampled_from(["INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", "MODEL"])
VALUES = st.one_of(st.integers(-5, 5), st.text(alphabet="ab ,", max_size=4), st.booleans())


@given(st.lists(st.tuples(KINDS, VALUES, st.booleans(), st.booleans()), max_size=8))
def test_any_node_gets_back_the_values_that_it_was_saved_with(described):
    """Whatever the mix of sockets, widgets, controls and optional inputs, each value returns to its
    own input.
    """
    sections = {"required": {}, "optional": {}}
    for number, (kind, _, controlled, optional) in enumerate(described):
        options = {"options": ["a"]} if kind == "COMBO" else {}
        if controlled and kind in ("INT", "COMBO"):
            options["control_after_generate"] = True
        sections["optional" if optional else "required"][f"i{number}"] = [kind, options]
    values, expected = [], {}
    for section in sections.values():
        for name, (kind, options) in section.items():
            if kind == "MODEL":
                continue
            expected[name] = described[int(name[1:])][1]
            controls = (
                {"INT": ["fixed"], "COMBO": ["fixed", ""]}[kind]
                if "control_after_generate" in options
                else []
            )
            values += [expected[name], *controls]
    info = {"Any": {"input": sections, "output": [], "display_name": "Any"}}
    assert to_prompt(saved([node(1, "Any", values=values)]), info)["1"]["inputs"] == expected


@given(st.permutations(range(1, 6)), st.sets(st.integers(1, 5)))
def test_a_prompt_never_names_a_node_that_it_lacks(order, muted):
    """A chain of samplers in any order of saving, some muted: every link leads to a node of the
    prompt.
    """
    chain = [
        node(i, "Swap", [("latent", "LATENT", i)], ["LATENT"], mode=2 if i in muted else 0)
        for i in (0, *order)
    ]
    chain[0]["inputs"] = []
    prompt = to_prompt(saved(chain, [(i, i - 1, 0, i, 0, "LATENT") for i in range(1, 6)]), INFO)
    assert set(prompt) == {str(i) for i in range(6) if i not in muted}
    for id_, entry in prompt.items():
        source = int(id_) - 1
        assert entry["inputs"] == (
            {} if source < 0 or source in muted else {"latent": [str(source), 0]}
        )


def loaded_model(*between, sampler_link=2, links=(), **more):
    """Inputs of a sampler behind nodes of other packs that live on the canvas only."""
    nodes = [node(1, "Loader", [], ["MODEL", "CLIP"], ["a"]), *between, sampler(model=sampler_link)]
    return inputs_of({**saved(nodes, list(links)), **more}, 2)


SETTER = node(3, "Setter", [("MODEL", "MODEL", 1)], ["*"], ["the model"])
OTHERS = [
    node(5, "Setter", [("CLIP", "CLIP", 9)], ["*"], ["the clip"]),
    node(6, "Label", [], [], ["words"]),
]


def test_values_that_are_set_and_got_by_name_are_wired():
    links = [(1, 1, 0, 3, 0, "MODEL"), (2, 4, 0, 2, 0, "MODEL"), (9, 1, 1, 5, 0, "CLIP")]
    assert loaded_model(SETTER, GETTER, *OTHERS, links=links)["model"] == ["1", 0]


def test_another_pack_s_reroute_is_passed_through():
    reroute = node(3, "Reroute (some pack)", [("", "*", 1)], ["*"], properties={"resizable": False})
    assert loaded_model(reroute, links=[(1, 1, 0, 3, 0, "MODEL"), (2, 3, 0, 2, 0, "MODEL")])[
        "model"
    ] == ["1", 0]


def test_canvas_only_nodes_without_wires_are_dropped():
    prompt = to_prompt(saved([node(1, "Loader", [], ["MODEL", "CLIP"], ["a"]), *OTHERS[1:]]), INFO)
    assert list(prompt) == ["1"]


def test_broadcast_wires_that_their_pack_has_noted_are_wires():
    everywhere = node(3, "Everywhere", [("anything", "*", 1)], [])
    noted = {
        "downstream": 2,
        "downstream_slot": 0,
        "upstream": "1",
        "upstream_slot": 0,
        "controller": 3,
    }
    given = {
        "sampler_link": None,
        "links": [(1, 1, 0, 3, 0, "MODEL")],
        "extra": {"ue_links": [noted]},
    }
    assert loaded_model(everywhere, **given)["model"] == ["1", 0]
