"""The same tests on two ComfyUIs, one after the other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.launcher import cli, comfyui


@pytest.mark.parametrize(
    ("codes", "expected"), [((0, 0), 0), ((1, 0), 1), ((0, 1), 1), ((0, -9), -9)]
)
def test_both_hosts_are_tested_and_both_must_pass(monkeypatch, capsys, codes, expected):
    monkeypatch.delenv(cli._READY, raising=False)
    monkeypatch.setenv("COMFYUI_DIR", "/some/comfyui")
    monkeypatch.setattr(comfyui, "newest", lambda: Path("/newest"))
    calls = []

    def start(command, env):
        calls.append((command[2:], env.get("COMFYUI_DIR")))
        return subprocess.CompletedProcess(command, codes[len(calls) - 1])

    monkeypatch.setattr(subprocess, "run", start)
    assert cli.main(["test", "--both-hosts", "tests/unit"]) == expected
    assert calls == [(["test", "tests/unit"], None), (["test", "tests/unit"], "/newest")]
    closing = capsys.readouterr().out.splitlines()[-2:]
    assert [line.endswith("passed.") for line in closing] == [code == 0 for code in codes]
