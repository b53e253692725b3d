"""The matrix of nodes and networks: its cells, its files, its page."""

import json

import pytest
import repository

from studies.common import results
from studies.models import matrix, networks, page

_READ = {"MODEL", "CLIP", "LATENT", "CONDITIONING"}


def named_nodes() -> set[str]:
    return {node for cell in matrix.cells(None) for node in cell.partition(" (")[0].split(", ")}


def test_every_node_of_networks_has_a_cell_or_a_reason():
    contract = json.loads((repository.ROOT / "tests" / "node_contract.json").read_text("utf-8"))
    reading = {
        node.removeprefix("GBX_")
        for node, about in contract.items()
        if any(kind in _READ for kind in about["inputs"].values() if isinstance(kind, str))
    }
    assert reading == named_nodes() | set(matrix.WITHOUT_CELL)
    assert not named_nodes() & set(matrix.WITHOUT_CELL)


def test_networks_stand_in_the_order_of_their_use():
    configurations = list(networks.configurations().values())
    uses = [configuration.uses for configuration in configurations]
    assert uses == sorted(uses, reverse=True) and uses[0] > 0
    assert len({configuration.title for configuration in configurations}) == len(configurations)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("W2WApply", ["W2WApply"]),
        ("GBX_SeedScout", ["SeedScout (layout_likeness)", "SeedScout (word_coverage)"]),
        ("SparseFeatureSteering", ["TrainSparseAutoencoder, SparseFeatureSteering"]),
        ("Nonsense", []),
    ],
)
def test_a_node_names_its_cells(node, expected):
    assert matrix.chosen_cells(node) == expected


def test_an_unknown_name_is_answered_with_those_that_exist(tmp_path, capsys):
    assert matrix.run(tmp_path, ["--only", "Nonsense"]) == 2
    assert "W2WApply" in capsys.readouterr().out
    assert matrix.run(tmp_path, ["--network", "Nonsense"]) == 2
    assert "ZImage" in capsys.readouterr().out


def lines_of(folder, name, *lines):
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"{name}.jsonl").write_text(text, "utf-8")


def cell(node, outcome, sentence):
    return {"node": node, "outcome": outcome, "sentence": sentence}


def test_a_run_that_was_cut_off_goes_on_with_the_cells_that_are_missing(tmp_path):
    lines_of(tmp_path, "Flux", cell("W2WApply", "works", "equal"))
    assert not matrix.is_finished(tmp_path, "Flux", ["W2WApply", "W2WInvert"])
    assert matrix.is_finished(tmp_path, "Flux", ["W2WApply"])
    lines_of(tmp_path, "Krea2", {"absent": True})
    assert matrix.is_finished(tmp_path, "Krea2", ["W2WApply"])
    assert not matrix.is_finished(tmp_path, "ZImage", ["W2WApply"])


def test_outcomes_are_numbers_with_their_sentences(tmp_path):
    lines_of(
        tmp_path,
        "Flux",
        cell("W2WApply", "works", "equal"),
        cell("W2WInvert", "refused", "No."),
        cell("W2WToLoRA", "failed", "KeyError"),
        cell("W2WGuider", "left out", "No tokenizer /opt/comfy/tokenizer.json."),
    )
    names = ["W2WApply", "W2WInvert", "W2WToLoRA", "W2WGuider"]
    numbers, left_out = matrix.gathered(tmp_path, ["Flux", "ZImage"], names)
    assert {name: number["value"] for name, number in numbers.items()} == {
        "W2WApply on Flux": 1, "W2WInvert on Flux": 0, "W2WToLoRA on Flux": -1,
    }  # fmt: skip
    assert numbers["W2WInvert on Flux"]["what"] == "No."
    assert left_out == {"W2WGuider on Flux": "No tokenizer tokenizer.json."}
    counts = "1 cells work, 1 are refused in a sentence, 1 fail."
    assert matrix.summary(numbers) == counts


def test_a_part_of_the_matrix_keeps_the_other_cells(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    number = results.number(1, 1, "", "equal")
    matrix.write("9.9.9", {"W2WApply on Flux": number, "W2WGuider on Flux": number}, {})
    failed = results.number(-1, 1, "", "KeyError")
    path = matrix.write("9.9.9", {"W2WApply on ZImage": failed}, {"W2WGuider on Flux": "gone"})
    result = json.loads(path.read_text("utf-8"))
    assert path.name == "models_9_9_9.json" and result["command"] == "python run.py models"
    # In the order of the networks' use; what can no longer be tried has no number.
    assert list(result["numbers"]) == ["W2WApply on ZImage", "W2WApply on Flux"]
    assert result["sources"]["left_out"] == {"W2WGuider on Flux": "gone"}


def test_the_page_has_a_mark_a_cell_and_equal_sentences_once(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    refused = results.number(0, 1, "", "Use an image model | now.")
    numbers = {
        "W2WApply on ZImage": results.number(1, 1, "", "equal"),
        "W2WApply on Flux": refused,
        "W2WInvert on ZImage": refused,
        "W2WInvert on Flux": results.number(-1, 1, "", "KeyError"),
    }
    matrix.write("9.9.9", numbers, {})
    text = page.page_text()
    assert "| 1 | Z-Image (`ZImage`) | 16,175 |" in text and "| 2 | Flux.1 dev (`Flux`)" in text
    assert "| W2WApply | ● | ○ |" in text and "| W2WInvert | ○ | ✗ |" in text
    assert text.count("Use an image model") == 1
    assert "- ○ Use an image model \\| now. (W2WApply 2; W2WInvert 1)" in text
    assert "1 cells work, 2 are refused in a sentence, 1 fail." in text


def test_the_committed_page_is_that_of_the_committed_results():
    assert page.PATH.read_text("utf-8") == page.page_text()
