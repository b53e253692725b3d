"""What `run.py test` starts, and what it says of it."""

import sys
import types

import pytest

from tools.launcher import suite


@pytest.fixture
def started(monkeypatch, tmp_path):
    """What is started, by the name of the module, and the exit code that each module ends with."""
    calls, codes = {}, {"ruff": 0, "mypy": 0, "pytest": 0}

    def run_module(module, *arguments):
        calls.setdefault(module, []).append(arguments)
        return codes[module]

    monkeypatch.setattr(suite.comfyui, "newest_front_end", lambda: None)
    monkeypatch.setattr(suite.paths, "CACHE", tmp_path)
    monkeypatch.setattr(suite, "_run_module", run_module)
    monkeypatch.setenv("OMP_NUM_THREADS", "set here so that monkeypatch restores it")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv(suite.TURN, "as above")
    monkeypatch.delenv(suite.TURN)
    return calls, codes


def test_two_processes_share_the_cores(started, monkeypatch):
    monkeypatch.setattr(suite.os, "cpu_count", lambda: 8)
    assert suite.run([]) == 0
    assert started[0]["pytest"] == [
        ("-m", "not slow", "--numprocesses=2", "--dist=loadfile", "--durations=30")
    ]
    assert suite.os.environ["OMP_NUM_THREADS"] == "4"


def test_all_includes_slow_tests(started):
    assert suite.run(["--all"]) == 0
    assert started[0]["pytest"] == [("--numprocesses=2", "--dist=loadfile", "--durations=30")]


def test_a_commit_has_one_of_three_turns_of_endurance(started, monkeypatch):
    monkeypatch.setattr(
        suite.subprocess, "run", lambda *_, **__: types.SimpleNamespace(stdout="0000000b\n")
    )
    suite.run(["--all"])
    assert suite.os.environ[suite.TURN] == "2"  # 11 % 3


def test_all_of_endurance_is_run_by_its_name(started):
    suite.run(["--endurance"])
    assert started[0]["pytest"] == [("--numprocesses=2", "--dist=loadfile", "--durations=30")]
    assert suite.TURN not in suite.os.environ


def test_a_file_that_is_named_is_run_whole(started):
    suite.run(["--all", "tests/robustness"])
    assert suite.TURN not in suite.os.environ


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tests/unit", "-x"], ("-m", "not slow", "tests/unit", "-x")),
        (["tests/unit", "--all"], ("tests/unit",)),
        (["-m", "slow"], ("-m", "slow")),
    ],
)
def test_other_arguments_go_to_pytest(started, arguments, expected):
    assert suite.run(arguments) == 0
    assert started[0]["pytest"] == [expected]
    assert "OMP_NUM_THREADS" not in suite.os.environ


def test_style_and_types_are_checked(started, tmp_path):
    suite.run([])
    assert started[0]["ruff"] == [("check", "."), ("format", "--check", ".")]
    assert started[0]["mypy"] == [()]
    assert (tmp_path / "typed" / "glassbox" / "run.py").is_file()


@pytest.mark.parametrize("failing", ["ruff", "mypy", "pytest"])
def test_each_of_them_can_fail_it(started, failing):
    started[1][failing] = 1
    assert suite.run([]) == 1


def test_it_prints_what_it_runs_and_how_long_that_took_the_last_time(monkeypatch, tmp_path, capsys):
    times, codes = iter([100.0, 175.0, 200.0, 201.0, 300.0, 310.0]), iter([1, 2, 0])
    started = []

    def run(command, cwd):
        started.append(command)
        return types.SimpleNamespace(returncode=next(codes))

    monkeypatch.setattr(suite.paths, "DURATIONS", tmp_path / "durations.json")
    monkeypatch.setattr(suite.subprocess, "run", run)
    monkeypatch.setattr(suite.time, "monotonic", lambda: next(times))
    assert [suite._run_module("pytest", "tests/unit") for _ in range(3)] == [1, 2, 0]
    assert started[0] == [sys.executable, "-P", "-m", "pytest", "tests/unit"]
    # the second was stopped, and not kept
    after_a_run = "Running pytest tests/unit (took 1 min 15 s last time) ..."
    assert capsys.readouterr().out.splitlines() == [
        "Running pytest tests/unit ...",
        after_a_run,
        after_a_run,
    ]
