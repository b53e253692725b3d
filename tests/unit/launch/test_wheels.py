"""Wheels are unpacked whole or not at all."""

from __future__ import annotations

import hashlib
import shutil
import zipfile

import pytest

from launch import paths, pip, wheels
from launch.errors import LaunchError


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel on a package index of its own: pip's download copies it from a folder."""
    archive = tmp_path / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(archive, "w") as contents:
        contents.writestr("thing/inner/main.py", "print('hello')")
        contents.writestr("thing/inner/deep/data.txt", "data")
        contents.writestr("thing/other.py", "unwanted")

    def download(*arguments):
        shutil.copy(archive, arguments[arguments.index("--dest") + 1])

    monkeypatch.setattr(pip, "run", download)
    return wheels.Wheel("thing==1.0", "thing/inner", hashlib.sha256(archive.read_bytes()).hexdigest())


def _all_files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_inner_folder_is_unpacked_and_nothing_else(wheel, tmp_path):
    wheels.unpack(wheel, tmp_path / "cache" / "thing")
    assert _all_files(tmp_path / "cache") == ["thing/deep/data.txt", "thing/main.py"]


def test_what_was_there_before_is_replaced(wheel, tmp_path):
    target = tmp_path / "cache" / "thing"
    target.mkdir(parents=True)
    (target / "damaged.py").write_text("")
    wheels.unpack(wheel, target)
    assert _all_files(target) == ["deep/data.txt", "main.py"]


def test_a_corrupt_download_leaves_nothing(wheel, tmp_path):
    corrupt = wheels.Wheel(wheel.requirement, wheel.inside, "0" * 64)
    with pytest.raises(LaunchError, match=r"download of thing==1\.0 is corrupt"):
        wheels.unpack(corrupt, tmp_path / "cache" / "thing")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_failed_download_leaves_nothing(wheel, tmp_path, monkeypatch):
    def fail(*arguments):
        raise LaunchError("pip download failed (no network)")

    monkeypatch.setattr(pip, "run", fail)
    with pytest.raises(LaunchError, match="no network"):
        wheels.unpack(wheel, tmp_path / "cache" / "thing")
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_interrupted_unpacking_leaves_nothing(wheel, tmp_path, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copyfileobj", interrupt)
    with pytest.raises(KeyboardInterrupt):
        wheels.unpack(wheel, tmp_path / "cache" / "thing")
    assert list((tmp_path / "cache").iterdir()) == []


def test_leftovers_of_a_killed_run_are_removed(tmp_path):
    (tmp_path / "download-x.partial" / "unpacked").mkdir(parents=True)
    (tmp_path / "probe.json.partial").write_text("")
    (tmp_path / "thing").mkdir()
    paths.remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]
