"""Finding and running studies and benchmarks."""

from __future__ import annotations

import sys

import pytest

from tools.launcher import studies
from tools.launcher.errors import LaunchError


@pytest.fixture(autouse=True)
def _real_studies_come_back():
    """What a test loads as `studies` is gone after it, and what other tests have loaded is there
    again.
    """
    before = {
        name: module
        for name, module in sys.modules.items()
        if name.split(".")[0] in ("studies", "benchmarks")
    }
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in ("studies", "benchmarks")]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "helper.py").write_text("WORD = 'hello'\n")
    (tmp_path / "noise.py").write_text(
        "from .helper import WORD\ndef main(argv):\n    print(WORD, argv)\n"
    )
    (tmp_path / "world").mkdir()
    (tmp_path / "world" / "__main__.py").write_text("def main(argv):\n    return 0\n")
    return tmp_path


def test_studies_are_listed_by_name(folder):
    assert list(studies.available(folder)) == ["noise", "world"]


def test_a_study_gets_its_arguments(folder, capsys):
    assert studies.run("study", ["noise", "--quick"], folder) == 0
    assert capsys.readouterr().out == "hello ['--quick']\n"
    assert studies.run("study", ["world"], folder) == 0


def test_a_folder_of_the_same_name_elsewhere_is_not_run(folder, tmp_path):
    other = tmp_path / "other" / "world"
    other.mkdir(parents=True)
    (other / "__main__.py").write_text("def main(argv):\n    return 5\n")
    assert studies.run("study", ["world"], folder) == 0
    assert studies.run("study", ["world"], other.parent) == 5


def test_a_benchmark_returns_its_exit_code(folder):
    (folder / "speed.py").write_text("def main(argv):\n    return 3\n")
    assert studies.run("bench", ["speed"], folder) == 3


def test_without_a_name_they_are_listed(folder, capsys):
    assert studies.run("study", [], folder) == 2
    assert "there are noise, world" in capsys.readouterr().out


def test_empty_folder_is_one_sentence(tmp_path, capsys):
    assert studies.run("bench", [], tmp_path / "absent") == 2
    assert "there are no benchmarks yet" in capsys.readouterr().out


def test_an_unknown_name_is_one_sentence(folder):
    with pytest.raises(LaunchError, match="There is no study named nose: there are noise, world"):
        studies.run("study", ["nose"], folder)
