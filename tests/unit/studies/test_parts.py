"""The command line of a study in parts."""

from __future__ import annotations

import sys
import types

import pytest

from studies.common import parts, results


@pytest.fixture
def written(monkeypatch):
    """What would be written, by name."""
    seen = {}

    def write(name, command, seed, assets, numbers):
        seen[name] = {"command": command, "seed": seed, "numbers": numbers}
        return name

    monkeypatch.setattr(results, "write", write)
    module = types.ModuleType("studies.made_up.heights")
    module.measure = lambda quick: {"height": 1 if quick else 100}
    monkeypatch.setitem(sys.modules, "studies.made_up", types.ModuleType("studies.made_up"))
    monkeypatch.setitem(sys.modules, "studies.made_up.heights", module)
    return seen


def run(*argv: str) -> int:
    return parts.run(
        "studies.made_up",
        "Heights.",
        {"tall": "heights:measure", "small": "heights:measure"},
        7,
        argv,
    )


def test_every_part_has_a_file_and_the_command_that_makes_it(written):
    assert run() == 0
    assert list(written) == ["made_up_tall", "made_up_small"]
    assert written["made_up_small"] == {
        "command": "python run.py study made_up small",
        "seed": 7,
        "numbers": {"height": 100},
    }


def test_a_quick_run_never_replaces_the_record(written):
    assert run("tall", "--quick") == 0
    assert list(written) == ["made_up_tall_quick"]
    assert written["made_up_tall_quick"]["command"].endswith("tall --quick")


def test_a_part_that_is_not_there_is_named(written, capsys):
    with pytest.raises(SystemExit):
        run("wide")
    assert "no part wide: choose from tall, small" in capsys.readouterr().err
    assert not written


def test_a_benchmark_names_itself_so(written):
    assert (
        parts.run(
            "studies.made_up", "Heights.", {"tall": "heights:measure"}, 7, ["--quick"], "bench"
        )
        == 0
    )
    assert (
        written["bench_made_up_tall_quick"]["command"] == "python run.py bench made_up tall --quick"
    )
