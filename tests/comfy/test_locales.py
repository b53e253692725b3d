"""Node texts in other languages than English: they name nothing that is gone, and ComfyUI hands
them out. `python run.py study report` lists those that are missing.

There is no English table: both front ends fall back to the nodes' own texts.
"""

import json
import re
import unicodedata
import urllib.request

import pytest
import repository

from tools import translations

_FOLDERS = sorted(path for path in (repository.ROOT / "locales").iterdir() if path.is_dir())
_TEXTS = ("name", "tooltip")


def _translated(folder) -> dict:
    return json.loads((folder / "nodeDefs.json").read_text("utf-8"))


def _settings() -> dict[str, dict]:
    """The settings that the pack's scripts declare, by the key under which the front end looks for
    their texts.
    """
    text = "\n".join(
        path.read_text("utf-8") for path in sorted((repository.ROOT / "web").glob("*.js"))
    )
    declared = re.findall(
        r'id: "([\w.]+)",\s+category: \[([^\]]+)\],\s+name: "(.+)",\s+tooltip: "(.+)",', text
    )
    assert len(declared) == len(re.findall(r"\bcategory: \[", text))
    return {
        key.replace(".", "_"): {
            "categories": re.findall(r'"(.+?)"', categories),
            "name": name,
            "tooltip": tooltip,
        }
        for key, categories, name, tooltip in declared
    }


def _inputs(info: dict) -> set[str]:
    return {name for kind in ("required", "optional") for name in info["input"].get(kind, {})}


@pytest.mark.parametrize("folder", _FOLDERS, ids=lambda folder: folder.name)
def test_every_translated_text_is_of_a_node(folder, pack_info):
    found = _translated(folder)
    assert found and set(found) <= set(pack_info)
    for node_id, node in found.items():
        info = pack_info[node_id]
        assert node["display_name"] and node["description"], node_id
        assert set(node["inputs"]) <= _inputs(info), node_id
        assert set(node["outputs"]) <= {str(place) for place in range(len(info["output"]))}, node_id
        for entry in (*node["inputs"].values(), *node["outputs"].values()):
            assert all(entry[text] for text in _TEXTS), f"{node_id}: {entry}"


@pytest.mark.parametrize("folder", _FOLDERS, ids=lambda folder: folder.name)
def test_every_translated_setting_is_declared(folder):
    declared = _settings()
    found = json.loads((folder / "settings.json").read_text("utf-8"))
    categories = json.loads((folder / "main.json").read_text("utf-8"))["settingsCategories"]
    assert set(found) <= set(declared) and found
    assert all(text[name] for text in found.values() for name in _TEXTS)
    assert set(categories) <= {
        name for setting in declared.values() for name in setting["categories"]
    }


@pytest.mark.parametrize("folder", _FOLDERS, ids=lambda folder: folder.name)
def test_papers_are_named_as_in_english(folder, pack_info):
    number = re.compile(r"\d{4}\.\d{5}")
    for node_id, node in _translated(folder).items():
        assert set(number.findall(node["description"])) == set(
            number.findall(pack_info[node_id]["description"])
        )


@pytest.mark.parametrize("folder", _FOLDERS, ids=lambda folder: folder.name)
def test_no_text_holds_what_the_front_end_would_read_as_its_own_syntax(folder):
    text = "\n".join(path.read_text("utf-8") for path in sorted(folder.glob("*.json")))
    values = re.findall(r'"[a-z_]+": "((?:[^"\\]|\\.)*)"', text)
    assert values and not [value for value in values if re.search(r"[@|{}]", value)]


def test_panels_say_the_same_in_chinese():
    """Translated sentences are sentences of the scripts, with the same values in them."""
    scripts = [path.read_text("utf-8") for path in (repository.ROOT / "web").rglob("*.*js")]
    chinese = _chinese("chinese")
    assert len(translations.panel_sentences() & set(chinese)) > 40
    assert [
        sentence for sentence in chinese if not any(f'"{sentence}"' in text for text in scripts)
    ] == []
    values = re.compile(r"\{\d\}")
    assert all(
        sorted(values.findall(one)) == sorted(values.findall(other))
        for one, other in chinese.items()
    )


def test_translated_options_are_options_of_the_nodes():
    contract = json.loads((repository.ROOT / "tests" / "node_contract.json").read_text("utf-8"))
    kinds = [kind for node in contract.values() for kind in node["inputs"].values()]
    translated = set(_chinese("chinese_options"))
    assert translated and translated <= {
        option for kind in kinds if isinstance(kind, list) for option in kind
    }


def test_workflows_are_in_chinese():
    """Translated are titles and lines of notes, and nothing else."""
    chinese = _chinese("chinese_workflows")
    shown = {
        text
        for path in repository.WORKFLOWS
        for text in translations.workflow_texts(json.loads(path.read_text("utf-8")))
    }
    assert chinese and set(chinese) - shown == set()
    number = re.compile(r"\d{4}\.\d{5}")
    assert all(number.findall(one) == number.findall(other) for one, other in chinese.items())


def _chinese(table: str) -> dict[str, str]:
    return json.loads((repository.ROOT / "web" / "text" / f"{table}.json").read_text("utf-8"))


@pytest.mark.parametrize("folder", _FOLDERS, ids=lambda path: path.name)
def test_titles_fit_their_nodes(folder):
    """The front end widens a node to its title when it loads a workflow, over the neighbor."""
    names = {id_: texts["display_name"] for id_, texts in _translated(folder).items()}
    titles = _chinese("chinese_workflows") if folder.name == "zh" else {}
    wide = {
        (title, node["size"][0])
        for path in repository.WORKFLOWS
        for node in _nodes(json.loads(path.read_text("utf-8")))
        if node["type"] != "MarkdownNote"
        and (
            title := titles.get(node.get("title"), node.get("title")) or names.get(node["type"], "")
        )
        and sum(14 if unicodedata.east_asian_width(one) in "WF" else 8.4 for one in title)
        > node["size"][0]
    }
    assert wide == set()


def _nodes(saved: dict) -> list[dict]:
    subgraphs = saved.get("definitions", {"subgraphs": []})["subgraphs"]
    return [node for graph in (saved, *subgraphs) for node in graph["nodes"]]


def test_comfyui_hands_them_out(server):
    with urllib.request.urlopen(f"{server.url}/i18n", timeout=30) as answer:
        translations = json.load(answer)
    for folder in _FOLDERS:
        assert (
            translations[folder.name]["nodeDefs"]["GBX_W2WEdit"]
            == _translated(folder)["GBX_W2WEdit"]
        )
        assert set(_settings()) <= set(translations[folder.name]["settings"])
