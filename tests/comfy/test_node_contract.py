"""Names that saved workflows and API programs keep: inputs, outputs and option values of every node."""

import json
import re

import pytest
import repository

from tools import node_contract

_CONTRACT = json.loads(node_contract.PATH.read_text("utf-8"))
_RENAMES = json.loads((repository.ROOT / "tests" / "data" / "renames.json").read_text("utf-8"))
_SEARCHED = {".py", ".js", ".mjs", ".json", ".md"}


def test_the_committed_table_is_that_of_the_nodes(app, pack_info):
    schemas = [app.classes[node_id].GET_SCHEMA() for node_id in pack_info]
    assert json.loads(node_contract.table(schemas)) == _CONTRACT, "run `python run.py study report`"


#: Names in the documents that are no node's: keys of LATENT and of saved files, folders, layers, functions.
_OTHER_NAMES = {"batch_index", "comfy_entrypoint", "custom_nodes", "few_shot", "row_conditional", "row_image", "to_v"}


def test_documents_name_inputs_that_exist():
    known = _OTHER_NAMES | set(map(repository.name_of, repository.WORKFLOWS))
    for entry in _CONTRACT.values():
        known |= set(entry["inputs"]) | {output.split(":")[0] for output in entry["outputs"]}
        known |= {str(option) for kind in entry["inputs"].values() if isinstance(kind, list) for option in kind}
    pages = [repository.ROOT / "README.md", *(repository.ROOT / "docs").glob("*.md")]
    pages.remove(repository.ROOT / "docs" / "architecture.md")  # it names functions
    pages += (repository.ROOT / "web" / "docs").glob("*.md")
    named = {
        (path.name, name)
        for path in pages
        for name in re.findall(r"`([a-z][a-z0-9]*(?:_[a-z0-9]+)+)`", path.read_text("utf-8"))
    }
    assert len(named) > 200 and {entry for entry in named if entry[1] not in known} == set()


def test_names_and_values_are_identifiers():
    assert node_contract.bad_names(_CONTRACT) == []


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [({"Mode": "INT"}, []), ({"mode": ["a list"]}, []), ({}, ["MODEL: MODEL"]), ({"a b": "INT"}, [])],
)
def test_a_name_that_is_no_identifier_is_found(inputs, outputs):
    assert len(node_contract.bad_names({"GBX_Made": {"inputs": inputs, "outputs": outputs}})) == 1


def test_categories_are_the_families_and_what_all_use():
    families = {"Activations", "Conditioning", "Demo", "Images", "Neurons", "Noise", "Weights"}
    found = {node["category"] for node in _CONTRACT.values()}
    assert {category.split("/")[1] for category in found} == families
    menus = {"See", "Steer", "Measure", "Files", "Research"}
    assert {"/".join(category.split("/")[2:]) for category in found} == {"", *menus}
    assert {f"Glassbox/Activations/{menu}" for menu in menus} <= found and "Glassbox/Activations" not in found


def _old_values() -> set[str]:
    """Option values of before that are no identifiers, so that finding one means that it was left behind."""
    every = (old for node in _RENAMES["options"].values() for values in node.values() for old in values)
    return {old for old in every if re.search(r"[^\w.+-]", old)}


def test_no_old_option_value_is_left():
    old = _old_values()
    assert len(old) > 50
    pattern = re.compile(
        "[\"'`](" + "|".join(re.escape(value) for value in sorted(old, key=len, reverse=True)) + ")[\"'`]"
    )
    left = [
        f"{path.relative_to(repository.ROOT)}: {match[1]}"
        for path in repository.tracked_files()
        if path.suffix in _SEARCHED and path.name != "renames.json"
        for match in pattern.finditer(path.read_text("utf-8"))
    ]
    assert left == []


def test_renames_lead_to_names_that_exist():
    """None stands for an input that is gone."""
    for kind in ("inputs", "outputs"):
        for node_id, names in _RENAMES[kind].items():
            present = [name.partition(":")[0] for name in _CONTRACT[node_id][kind]]
            assert {new for new in names.values() if new} <= set(present), node_id
    for node_id, inputs in _RENAMES["options"].items():
        renamed = _RENAMES["inputs"].get(node_id, {})
        for name, values in inputs.items():
            options = _CONTRACT[node_id]["inputs"][renamed.get(name, name)]
            assert options == "FILE" or set(values.values()) <= set(options), (node_id, name)
