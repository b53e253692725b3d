"""How `run.py test` starts the tests."""

import pytest

from launch import suite


@pytest.fixture
def started(monkeypatch):
    """What is started, by module; every module ends as the test has it end."""
    calls, codes = {}, {"ruff": 0, "pytest": 0}
    monkeypatch.setattr(suite.comfyui, "newest_front_end", lambda: None)
    monkeypatch.setattr(suite, "_python", lambda module, *rest: calls.update({module: rest}) or codes[module])
    monkeypatch.setenv("OMP_NUM_THREADS", "known to monkeypatch, which then takes out what the suite sets")
    monkeypatch.delenv("OMP_NUM_THREADS")
    return calls, codes


def test_all_tests_run_in_two_processes_that_share_the_cores(started, monkeypatch):
    monkeypatch.setattr(suite.os, "cpu_count", lambda: 8)
    assert suite.run([]) == 0
    assert "--numprocesses=2" in started[0]["pytest"]
    assert suite.os.environ["OMP_NUM_THREADS"] == "4"


def test_arguments_are_pytests(started):
    assert suite.run(["tests/unit", "-x"]) == 0
    assert started[0]["pytest"] == ("tests/unit", "-x")
    assert "OMP_NUM_THREADS" not in suite.os.environ


@pytest.mark.parametrize("failing", ["ruff", "pytest"])
def test_either_can_fail_it(started, failing):
    started[1][failing] = 1
    assert suite.run([]) == 1
