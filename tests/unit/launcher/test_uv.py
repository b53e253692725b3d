"""uv: what it takes over from pip's configuration, and how its failures read."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools.launcher import paths, uv
from tools.launcher.errors import LaunchError


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An environment with pip, configured by nothing but the test, and a folder for the log."""
    for name in (
        "CERT",
        "FIND_LINKS",
        "EXTRA_INDEX_URL",
        "INDEX_URL",
        "CONSTRAINT",
        "DEFAULT_TIMEOUT",
    ):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setattr(paths, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(paths, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(paths, "venv_python", lambda: sys.executable)
    return tmp_path


def test_pips_configuration_is_passed_on(environment, monkeypatch):
    (environment / "pip.conf").write_text(
        "[global]\nindex-url = https://a/simple\nextra-index-url = https://b/simple\n  "
        "file:///c\ncert = /ca.pem\ntimeout = 20\n[install]\nconstraint = limits.txt\nfind-links "
        "= /wheels\n  /more\n[download]\nproxy = http://no\n"
    )
    monkeypatch.setenv("PIP_TIMEOUT", "90")
    assert uv.pip_configuration() == {
        "UV_DEFAULT_INDEX": "https://a/simple",
        "UV_INDEX": "https://b/simple file:///c",
        "SSL_CERT_FILE": "/ca.pem",
        "UV_HTTP_TIMEOUT": "90",
        "UV_CONSTRAINT": "limits.txt",
        "UV_FIND_LINKS": "/wheels,/more",
    }


@pytest.fixture
def started(monkeypatch):
    """Command and variables of each installation, none of which runs; pip's configuration is read
    as ever.
    """
    calls = []

    def run(command, **options):
        if "config" in command:
            return real(command, **options)
        calls.append((command, options.get("env")))
        return subprocess.CompletedProcess(command, 0)

    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_variables_of_uv_win_over_pips(environment, monkeypatch, started):
    (environment / "pip.conf").write_text("[global]\ntimeout = 20\nfind-links = /wheels\n")
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "7")
    uv.install("--requirements", "list.txt")
    command, variables = started[-1]
    assert command[2:6] == ["-m", "uv", "pip", "install"] and command[-2:] == [
        "--requirements",
        "list.txt",
    ]
    assert (variables["UV_HTTP_TIMEOUT"], variables["UV_FIND_LINKS"]) == ("7", "/wheels")


def test_constraints_are_left_out_where_everything_is_pinned_by_hash(environment, started):
    (environment / "pip.conf").write_text("[global]\nconstraint = limits.txt\n")
    uv.install("--requirements", "list.txt")
    uv.install("--no-deps", "--require-hashes", "--requirements", "pinned.txt")
    constrained, pinned = (variables for _, variables in started)
    assert constrained["UV_CONSTRAINT"] == "limits.txt" and "UV_CONSTRAINT" not in pinned


def test_failure_is_one_sentence_with_the_log(environment, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(_failing_uv(environment)))
    monkeypatch.setattr(paths, "venv_python", lambda: sys.executable)
    with pytest.raises(
        LaunchError,
        match=r"\(Failed to fetch x: Could not connect, are you offline\?\): see .*log,",
    ) as caught:
        uv._run("uv", ("pip", "install", "x"), {})
    assert "\n" not in str(caught.value)
    assert "error sending request" in (environment / "logs" / "install.log").read_text()


def _failing_uv(folder):
    """A program that prints what uv prints without a network."""
    program = folder / "python"
    program.write_text(
        f"#!{sys.executable}\nprint('''error: Failed to fetch x\n  Caused by: error sending "
        "request\n  Caused by: Could not connect, are you offline?''')\nraise SystemExit(2)\n"
    )
    program.chmod(0o755)
    return program
