"""What holds for every node of the pack, now and later. Nothing here names a node."""

import json
import urllib.request

import pack_rules
import repository

_PAGES = repository.ROOT / "web" / "docs"


def _told(problems: dict[str, list[str]]) -> str:
    return "\n".join(f"{node_id}: {problem}" for node_id, found in problems.items() for problem in found)


def test_the_pack_is_loaded(pack_info):
    assert pack_info, "ComfyUI has loaded no node of the pack"


def test_description_tooltips_and_names(pack_info):
    problems = {node_id: pack_rules.node_problems(node_id, info) for node_id, info in pack_info.items()}
    assert not _told(problems), _told(problems)


def test_ids_are_the_committed_ones(pack_info):
    assert pack_rules.id_problems(set(pack_info), repository.listed_ids()) == []


def test_help_pages(pack_info):
    problems = {}
    for node_id, info in pack_info.items():
        path = _PAGES / f"{node_id}.md"
        problems[node_id] = pack_rules.help_problems(info, path.read_text("utf-8") if path.is_file() else None)
    assert not _told(problems), _told(problems)


def test_no_help_page_without_a_node(pack_info):
    assert {path.stem for path in _PAGES.glob("*.md")} <= set(pack_info)


def test_help_pages_are_served(server, pack_info):
    for node_id in pack_info:
        address = f"{server.url}/extensions/{repository.LINKED_AS}/docs/{node_id}.md"
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert answer.status == 200


def test_every_node_is_in_a_workflow(pack_info):
    shown = {node["type"] for path in repository.WORKFLOWS for node in json.loads(path.read_text("utf-8"))["nodes"]}
    assert sorted(set(pack_info) - shown) == []


def test_linked_inputs_are_no_files(comfy, pack_info):
    """Before a run ComfyUI asks what a node read from files, with None for what comes by wire. An error there would run
    the node anew every time, with a warning in the log.
    """
    asked = 0
    for node_id in pack_info:
        node = comfy.classes[node_id]
        schema = node.GET_SCHEMA()
        own = next(parent for parent in node.__mro__ if "fingerprint_inputs" in vars(parent))
        if own.__module__.startswith("comfy"):
            continue
        nothing = [None] if schema.is_input_list else None
        assert isinstance(node.fingerprint_inputs(**{field.id: nothing for field in schema.inputs}), str), node_id
        asked += 1
    assert asked > 5
