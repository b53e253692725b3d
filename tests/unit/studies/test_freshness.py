"""What makes a result older than its study, and what does not."""

import json

import pytest

from studies.common import freshness, results

STUDY = '''
"""About."""
from ..common import host
from . import faces as drawn
from .limits import TOP
from .unused import nothing

def measure(quick):
    """All of it."""
    method = host.pack("nodes.noise.nearest")
    return helper(method) + drawn.face(TOP)

def helper(method):
    return 2 * SCALE  # why

SCALE = 3

def beside():
    return 1
'''
FACES = "def face(top):\n    return top + 1\n\ndef other():\n    return 2\n"
FILES = {
    "studies/a/one.py": STUDY,
    "studies/a/faces.py": FACES,
    "studies/a/limits.py": "TOP: int = 4\n",
}


def hashed(**changed) -> str:
    """Hash of measure(), with texts replaced in a file: ``one=("before", "after")``."""
    files = dict(FILES)
    for name, (before, after) in changed.items():
        path = f"studies/a/{name}.py"
        assert before in files[path]
        files[path] = files[path].replace(before, after)
    return freshness.code_hash("studies/a/one.py", "measure", files.get)


@pytest.mark.parametrize(
    "changed",
    [
        {"one": ("SCALE = 3", "SCALE = 4")},
        {"one": ("2 * SCALE", "2 + SCALE")},
        {"limits": ("4", "5")},
        {"faces": ("top + 1", "top - 1")},
        {"one": ("return helper(method) + ", "return ")},
    ],
    ids=str,
)
def test_code_that_is_reached_changes_the_hash(changed):
    assert hashed(**changed) != hashed()


@pytest.mark.parametrize(
    "changed",
    [
        {"one": ("# why", "# another reason")},
        {"one": ('"""All of it."""', '"""Everything."""')},
        {"one": ("from .unused import nothing\n", "")},
        {"one": ("nodes.noise.nearest", "nodes.common.nearest")},
        {"one": ("return 1", "return 5")},
        {"faces": ("return 2", "return 3")},
        {"one": ("helper(method) + drawn", "helper(\n        method\n    ) + drawn")},
    ],
    ids=str,
)
def test_what_changes_no_number_keeps_the_hash(changed):
    assert hashed(**changed) == hashed()


def committed() -> list:
    return sorted(results.RESULTS.glob("*.json"))


@pytest.mark.parametrize("path", committed(), ids=lambda path: path.stem)
def test_a_committed_result_is_of_the_assets_that_ship(path):
    result = json.loads(path.read_text("utf-8"))
    for name, digest in result["assets"].items():
        folder = results.host.ROOT / ("" if name == "kernels" else "assets")
        former = path.stem in freshness.OF_FORMER_ASSETS and name in freshness.FORMER_ASSETS
        wanted = freshness.FORMER_ASSETS[name] if former else results.assets_hash(folder / name)
        assert digest == wanted, f"{name} is newer: run `{result['command']}` again"
    assert result["assets"] or result["sources"]["files"]


def test_results_of_former_assets_are_listed_as_stale():
    listed = freshness.OF_FORMER_ASSETS
    assert listed <= {path.stem for path in committed()}
    assert listed <= set(freshness.stale(results.RESULTS))


@pytest.mark.parametrize("path", committed(), ids=lambda path: path.stem)
def test_a_committed_result_names_its_studys_code(path):
    result = json.loads(path.read_text("utf-8"))
    where = freshness.entry(result["command"])
    assert (result["code"] is None) == (where is None)
    others = ("python run.py fuzz", "python run.py models")
    assert where is not None or result["command"].startswith(others)
    if where is not None:
        text = (results.host.ROOT / where[0]).read_text("utf-8")
        assert f"def {where[1]}(" in text


def test_results_of_the_shipped_space_keep_its_hash():
    """The studies that read the space by its name; the collected one is no asset."""
    space = "avatars-v2-w2w.safetensors"
    of_space = {
        path.stem for path in committed() if space in json.loads(path.read_text("utf-8"))["assets"]
    }
    assert {
        "weights_learned",
        "weights_matched",
        "weights_invert",
        "activations_steering_w2w",
    } <= of_space
    assert "noise_digits" not in of_space


def test_a_quick_part_that_gives_the_same_numbers_keeps_its_result(tmp_path, monkeypatch):
    monkeypatch.setattr(freshness, "code_of", lambda command: "new")

    def write(name: str, value: float, code: str = "old") -> None:
        made = {
            "command": "python run.py study a one --quick",
            "code": code,
            "numbers": {"x": {"value": value}},
        }
        (tmp_path / f"{name}.json").write_text(json.dumps(made))

    write("a_one", 5.0)
    write("a_one_quick", 1.0)
    assert freshness.stale(tmp_path) == ["a_one", "a_one_quick"]
    ran = []
    differing = freshness.same(
        tmp_path, "a_one", lambda words: (ran.append(words), write("a_one_quick", 1.5, "new"))
    )
    assert differing == ["x"] and ran == [["study", "a", "one", "--quick"]]
    assert freshness.stale(tmp_path) == ["a_one"], "the quick part is new, the whole is not"
    assert (
        freshness.same(tmp_path, "a_one", lambda words: write("a_one_quick", 1.5 + 1e-9, "new"))
        == []
    )
    assert freshness.stale(tmp_path) == []
    assert json.loads((tmp_path / "a_one.json").read_text())["numbers"] == {"x": {"value": 5.0}}


@pytest.mark.parametrize(
    ("now", "interval", "same"),
    [
        (0.5009, {}, True),
        (0.5011, {}, False),
        (0.51, {"low": 0.39, "high": 0.61}, True),
        (0.515, {"low": 0.39, "high": 0.61}, False),
        (float("nan"), {}, False),
    ],
)
def test_what_another_processor_rounds_is_the_same_number(now, interval, same):
    assert freshness._same_number({"value": 0.5, **interval}, now) is same
