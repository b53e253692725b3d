"""Names that saved workflows and API programs keep: inputs, outputs and option values of every
node.
"""

import json
import re

import pytest
import repository

from tools import node_contract

_CONTRACT = json.loads(node_contract.PATH.read_text("utf-8"))


def schemas_of(app):
    return [node.GET_SCHEMA() for name, node in app.classes.items() if name.startswith("GBX_")]


def test_the_committed_table_is_that_of_the_nodes(app):
    schemas = schemas_of(app)
    assert len(schemas) > 70
    assert json.loads(node_contract.table(schemas)) == _CONTRACT, "run `python run.py study report`"


def test_defaults_ranges_and_steps_are_those_of_the_nodes(app):
    """A range that shrinks refuses values that were saved."""
    schemas = schemas_of(app)
    committed = json.loads(node_contract.WIDGETS.read_text("utf-8"))
    assert json.loads(node_contract.widgets(schemas)) == committed, (
        "run `python run.py study report`"
    )
    assert committed["GBX_W2WEdit"]["edits"]["multiline"] is True
    numbers = [of for node in committed.values() for of in node.values() if "min" in of]
    assert len(numbers) > 250 and all({"default", "max"} <= set(of) for of in numbers)


#: Names in the documents that are no node's: keys of LATENT and of saved files, folders, layers,
#: functions.
_OTHER_NAMES = {
    "batch_index",
    "comfy_entrypoint",
    "custom_nodes",
    "few_shot",
    "row_conditional",
    "row_image",
    "to_v",
}


def test_documents_name_inputs_that_exist():
    known = _OTHER_NAMES | set(map(repository.name_of, repository.WORKFLOWS))
    for entry in _CONTRACT.values():
        known |= set(entry["inputs"]) | {output.split(":")[0] for output in entry["outputs"]}
        known |= {
            str(option)
            for kind in entry["inputs"].values()
            if isinstance(kind, list)
            for option in kind
        }
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
    [
        ({"Mode": "INT"}, []),
        ({"mode": ["a list"]}, []),
        ({}, ["MODEL: MODEL"]),
        ({"a b": "INT"}, []),
    ],
)
def test_a_name_that_is_no_identifier_is_found(inputs, outputs):
    assert len(node_contract.bad_names({"GBX_Made": {"inputs": inputs, "outputs": outputs}})) == 1


def test_categories_are_the_families_and_what_all_use():
    families = {"Activations", "Conditioning", "Demo", "Images", "Neurons", "Noise", "Weights"}
    found = {node["category"] for node in _CONTRACT.values()}
    assert {category.split("/")[1] for category in found} == families
    menus = {"See", "Steer", "Measure", "Files", "Research"}
    assert {"/".join(category.split("/")[2:]) for category in found} == {"", *menus}
    assert {
        f"Glassbox/Activations/{menu}" for menu in menus
    } <= found and "Glassbox/Activations" not in found
