"""The check of installed packages, in a process whose packages are in a temporary folder."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.fixture
def damaged(tmp_path, root):
    """A made-up installed package, and a function that lists the packages with lost files."""
    (tmp_path / "made_up").mkdir()
    (tmp_path / "made_up" / "__init__.py").write_text("value = 1\n")
    info = tmp_path / "made_up-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1.5\n")
    (info / "RECORD").write_text(
        "made_up/__init__.py,sha256=x,10\nmade_up/__pycache__/__init__.pyc,,\nmade_up-1.5.dist-info/RECORD,,\n"
    )
    probe = str(root / "tools" / "launcher" / "probe.py")
    code = f"import runpy; print(runpy.run_path({probe!r})['damaged_packages']())"

    def list_damaged() -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        ).stdout

    return list_damaged, tmp_path / "made_up" / "__init__.py"


def test_a_whole_package_is_fine(damaged):
    list_damaged, _ = damaged
    assert "made-up" not in list_damaged()


def test_a_missing_file_is_noticed(damaged):
    list_damaged, file = damaged
    file.unlink()
    assert "made-up" in list_damaged()


def test_a_cut_file_is_noticed(damaged):
    list_damaged, file = damaged
    file.write_text("val")
    assert "made-up" in list_damaged()


def test_a_package_without_a_record_is_half_installed(damaged):
    list_damaged, file = damaged
    (file.parents[1] / "made_up-1.5.dist-info" / "RECORD").unlink()
    assert "made-up" in list_damaged()
