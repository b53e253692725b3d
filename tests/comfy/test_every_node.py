"""What holds for every node of the pack, now and later. Nothing here names a node."""

import re
import urllib.request

import numpy as np
import pack_rules
import pytest
import repository
import torch

_PAGES = repository.ROOT / "web" / "docs"


def _lines(problems: dict[str, list[str]]) -> str:
    return "\n".join(
        f"{node_id}: {problem}" for node_id, found in problems.items() for problem in found
    )


def test_the_pack_is_loaded(pack_info):
    assert pack_info, "ComfyUI has loaded no node of the pack"


def test_description_tooltips_and_names(pack_info):
    problems = {
        node_id: pack_rules.node_problems(node_id, info) for node_id, info in pack_info.items()
    }
    assert not _lines(problems), _lines(problems)


def test_help_pages_name_inputs_and_outputs(pack_info):
    problems = {}
    for node_id, info in pack_info.items():
        path = _PAGES / f"{node_id}.md"
        problems[node_id] = pack_rules.help_problems(
            info, path.read_text("utf-8") if path.is_file() else None
        )
    assert not _lines(problems), _lines(problems)


def test_no_help_page_without_a_node(pack_info):
    assert {path.stem for path in _PAGES.glob("*.md")} <= set(pack_info)


def test_help_pages_are_served(server, pack_info):
    for node_id in pack_info:
        address = f"{server.url}/extensions/{repository.LINKED_AS}/docs/{node_id}.md"
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert answer.status == 200


def test_a_report_reaches_programs_as_it_is_written(app):
    """Without the two spaces that end a line in Markdown: Preview Any gets them on the canvas."""
    _, report = app.run("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")
    lines = report.splitlines()
    assert len(lines) > 1 and [line for line in lines if line != line.rstrip()] == []


def test_every_help_page_links_to_workflows_with_its_node(pack_info):
    linked = {
        node_id: re.findall(r"\]\(\.\./\.\./(?:workflows|subgraphs)/", _page_text(node_id))
        for node_id in pack_info
    }
    assert [node_id for node_id, links in linked.items() if not links] == []


def _page_text(node_id: str) -> str:
    return (_PAGES / f"{node_id}.md").read_text("utf-8")


def test_linked_inputs_are_no_files(app, pack_info):
    """ComfyUI requests a fingerprint of the files that a node reads, with None for linked inputs.

    An error there would execute the node again at every run, with a warning in the log.
    """
    checked = 0
    for node_id in pack_info:
        node = app.classes[node_id]
        schema = node.GET_SCHEMA()
        own = next(parent for parent in node.__mro__ if "fingerprint_inputs" in vars(parent))
        if own.__module__.startswith("comfy"):
            continue
        nothing = [None] if schema.is_input_list else None
        found = node.fingerprint_inputs(**{field.id: nothing for field in schema.inputs})
        assert isinstance(found, str) or found != found, (
            node_id
        )  # NaN where the name of a file comes by wire
        checked += 1
    assert checked > 5


def _wrong_values(io, field) -> list:
    """Values outside of the schema of an input."""
    if isinstance(field, io.Combo.Input):
        return ["Bogus", "", 1.5, ["Bogus"]]
    if isinstance(field, io.Int.Input | io.Float.Input):
        beyond = [
            limit + sign for limit, sign in ((field.min, -1), (field.max, 1)) if limit is not None
        ]
        return [float("nan"), float("inf"), "3", True, *beyond]
    if isinstance(field, io.Boolean.Input):
        return ["yes", 1]
    if isinstance(field, io.String.Input):
        return [3, "x" * 1_000_001]
    is_table = field.get_io_type() in ("LORA_MODEL", "LOSS_MAP")
    return [1, "model", [1] if is_table else {"__value__": 1}]


def test_inputs_outside_of_their_schema_are_named_before_execute(app, pack_info):
    from comfy_api.latest import io

    input_error = app.module("nodes.host.input_checks").InputError
    tried = 0
    for node_id in pack_info:
        node = app.classes[node_id]
        schema = node.GET_SCHEMA()
        for field in schema.inputs:
            for value in _wrong_values(io, field):
                with pytest.raises(input_error, match=f"{field.id} ") as caught:
                    app.run(node_id, **{field.id: [value] if schema.is_input_list else value})
                assert "\n" not in str(caught.value)
                tried += 1
    assert tried > 500


def test_defaults_are_within_their_schema(app, pack_info):
    check = app.module("nodes.host.input_checks").check_inputs
    for node_id in pack_info:
        schema = app.classes[node_id].GET_SCHEMA()
        given = {
            field.id: field.default
            for field in schema.inputs
            if getattr(field, "default", None) is not None
        }
        check(
            schema,
            {name: [value] for name, value in given.items()} if schema.is_input_list else given,
        )


def test_an_empty_list_is_named(app, pack_info):
    input_error = app.module("nodes.host.input_checks").InputError
    schemas = [
        schema
        for node_id in pack_info
        if (schema := app.classes[node_id].GET_SCHEMA()).is_input_list
    ]
    assert schemas
    for schema in schemas:
        name = schema.inputs[0].id
        with pytest.raises(input_error, match=f"{name} is an empty list"):
            app.run(schema.node_id, **{name: []})


@pytest.mark.parametrize("make", [torch.empty, np.empty], ids=["torch", "numpy"])
def test_memory_that_is_not_there_gives_a_sentence(app, make):
    from comfy_api.latest import io

    class Large(io.ComfyNode):
        @classmethod
        def define_schema(cls):
            return io.Schema("Large", "Large Node", inputs=[], outputs=[])

        @classmethod
        def execute(cls):
            return make(1 << 46)  # more than a process can address

    node = app.module("nodes.host.input_checks").with_checked_inputs(Large)
    with pytest.raises(
        MemoryError, match=r"^Large Node needs .* which the computer does not have: give it fewer"
    ):
        node.execute()


def test_other_errors_of_a_node_stay_as_they_are(app):
    from comfy_api.latest import io

    class Full(io.ComfyNode):
        @classmethod
        def define_schema(cls):
            return io.Schema("Full", inputs=[], outputs=[])

        @classmethod
        def execute(cls):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 bytes.")

    with pytest.raises(torch.OutOfMemoryError):
        app.module("nodes.host.input_checks").with_checked_inputs(Full).execute()
