"""The command line: exit codes, sentences, and what stays off sys.path."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools.launcher import cli, environment, paths


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    """As if started by the system's Python, before any set-up."""
    monkeypatch.delenv(cli._READY, raising=False)


def _one_sentence(capsys) -> str:
    printed = capsys.readouterr().err.strip()
    assert printed and "\n" not in printed and "Traceback" not in printed
    return printed


def test_unwritable_disk_is_one_sentence(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("where a folder is needed")
    monkeypatch.setattr(paths, "CACHE", tmp_path / "file" / ".cache")
    assert cli.main(["demo"]) == 1
    assert "a file is in the way of a folder" in _one_sentence(capsys)


def test_read_only_disk_is_one_sentence(tmp_path, monkeypatch, capsys):
    def refuse(developer):
        raise OSError(30, "Read-only file system", str(tmp_path))

    monkeypatch.setattr(environment, "ensure", refuse)
    assert cli.main(["demo"]) == 1
    assert _one_sentence(capsys).startswith(f"Cannot write {tmp_path}: the disk is read-only")


def test_no_comfyui_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COMFYUI_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(environment, "make_venv", lambda: None)
    assert cli.main(["serve"]) == 1
    assert "is no ComfyUI" in _one_sentence(capsys)


def test_ctrl_c_is_no_traceback(monkeypatch, capsys):
    def interrupt(developer):
        raise KeyboardInterrupt

    monkeypatch.setattr(environment, "ensure", interrupt)
    assert cli.main(["demo"]) == 130
    assert _one_sentence(capsys) == "Stopped."


@pytest.mark.parametrize(
    "argv", [["demo", "--onyl", "x"], ["generate"], [], ["check"], ["demo", "--port", "x"]]
)
def test_mistyped_command_line_prints_the_usage(argv, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2
    assert "usage: run.py" in capsys.readouterr().err


def test_further_arguments_of_test_keep_their_order():
    assert cli._parse(["test", "tests/unit", "-k", "x and y", "-x"]).rest == [
        "tests/unit",
        "-k",
        "x and y",
        "-x",
    ]
    assert cli._parse(["study", "noise", "--quick"]).rest == ["noise", "--quick"]


@pytest.mark.parametrize("flags", [[], ["-P"]])
def test_the_repository_stays_off_the_path(root, flags):
    code = (
        "import sys, runpy; sys.argv = ['run.py', '--help']; sys.path.insert(0, '.')\n"
        "try: runpy.run_path('run.py', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "from importlib.util import find_spec\n"
        "print(find_spec('kernels'), find_spec('nodes'), 'tools.launcher.cli' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, *flags, "-c", code], cwd=root, capture_output=True, text=True
    )
    assert ran.stdout.splitlines()[-1] == "None None True", ran.stderr


def test_run_py_imports_nothing_but_the_standard_library(root):
    ran = subprocess.run(
        [sys.executable, "-I", "-S", str(root / "run.py"), "--help"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert "demo" in ran.stdout


@pytest.mark.parametrize("command", ["study", "bench", "test"])
def test_help_needs_no_set_up(command, monkeypatch, capsys):
    monkeypatch.setattr(
        environment, "ensure", lambda developer: pytest.fail("installed for a help text")
    )
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0 and "study NAME" in capsys.readouterr().out


def test_help_of_a_study_is_its_own(monkeypatch, tmp_path):
    started = []
    monkeypatch.setenv(cli._READY, str(tmp_path))
    monkeypatch.setattr(paths, "inside_venv", lambda: True)
    monkeypatch.setattr(
        "tools.launcher.studies.run", lambda command, rest: started.append((command, rest)) or 0
    )
    assert cli.main(["study", "noise", "--help"]) == 0
    assert started == [("study", ["noise", "--help"])]
