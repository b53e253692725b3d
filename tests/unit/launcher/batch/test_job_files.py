"""Which values of a list are looked up as files: nothing that cannot name one."""

import sys
from pathlib import Path

import pytest

from tools.launcher.batch.job import Job, Target, pieces
from tools.launcher.batch.lists import Entries

_FOLDERS = 26  # as many as ComfyUI has for models


@pytest.fixture
def roots(tmp_path):
    """Model folders with a file each."""
    folders = [tmp_path / f"models_{number}" for number in range(_FOLDERS)]
    for folder in folders:
        folder.mkdir()
        (folder / "weights.bin").write_bytes(folder.name.encode())
    return folders


@pytest.fixture
def lookups(monkeypatch):
    """The paths whose existence is looked up."""
    paths = []
    stat = Path.stat

    def counted(path, **options):
        paths.append(path)
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", counted)
    if sys.version_info >= (3, 12):  # which no longer goes through stat
        exists = Path.exists
        monkeypatch.setattr(
            Path, "exists", lambda path, **options: paths.append(path) or exists(path, **options)
        )
    return paths


def _keys(kind: str, values: list[str], roots: list[Path], filled: bool = True) -> list[str]:
    entries = Entries(("column",), len(values), lambda: ((value,) for value in values))
    targets = {"column": (Target("1", "input", kind),)} if filled else {}
    job = Job({"1": {"class_type": "Node", "inputs": {"input": ""}}}, targets, roots=tuple(roots))
    return [piece.key for piece in pieces(job, entries, 1)]


@pytest.mark.parametrize("kind", ["STRING", "COMBO"])
def test_prompts_are_not_looked_up_in_any_folder(roots, lookups, kind):
    prompts = [f"portrait of person {number}, smiling" for number in range(100)]
    assert len(set(_keys(kind, prompts, roots))) == 100
    assert lookups == []


@pytest.mark.parametrize("kind", ["INT", "FLOAT", "BOOLEAN"])
def test_numbers_are_not_looked_up_even_where_a_file_has_their_name(roots, lookups, kind):
    (roots[0] / "7").write_bytes(b"1")
    before = _keys(kind, ["7"], roots)
    (roots[0] / "7").write_bytes(b"2")
    assert _keys(kind, ["7"], roots) == before
    assert [path for path in lookups if path.name == "7"] == []


def test_a_column_that_fills_no_input_is_not_looked_up(roots, lookups):
    _keys("COMBO", ["weights.bin"], roots, filled=False)
    assert lookups == []


@pytest.mark.parametrize("kind", ["STRING", "COMBO"])
@pytest.mark.parametrize("name", ["weights.bin", "./weights.bin", "deep/er/weights.bin", "deep"])
def test_a_file_below_any_folder_is_in_the_key(roots, kind, name):
    below = roots[3] / "deep" / "er"
    below.mkdir(parents=True)
    (below / "weights.bin").write_bytes(b"1")
    before = _keys(kind, [name], roots)
    (below / "weights.bin").write_bytes(b"2")
    (roots[3] / "weights.bin").write_bytes(b"other")
    assert _keys(kind, [name], roots) != before


def test_a_value_beside_a_folder_is_in_the_key(roots):
    before = _keys("STRING", ["../models_5/weights.bin"], roots[:1])
    (roots[5] / "weights.bin").write_bytes(b"other")
    assert _keys("STRING", ["../models_5/weights.bin"], roots[:1]) != before


def test_a_folder_that_is_missing_holds_nothing(roots):
    assert _keys("STRING", ["weights.bin"], [roots[0], roots[0] / "missing"]) == _keys(
        "STRING", ["weights.bin"], roots[:1]
    )
