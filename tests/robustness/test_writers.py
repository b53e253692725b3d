"""Every file that the pack writes: on a full disk, in a folder that is read-only, and by two
processes at once.
"""

import contextlib
import os
import signal
import time

import file_kinds
import pytest
import torch
from file_kinds import WRITTEN, FileKinds, suffix_of
from glassbox.nodes.common.atomic_write import BusyError, WriteError
from glassbox.nodes.weights import member_sources, space_builder, space_file

_PAIRS = 6


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    return FileKinds(file_kinds.build_space(tmp_path_factory.mktemp("space")))


def _names(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


@contextlib.contextmanager
def small_disk(size):
    """No file of this process may have more bytes, as on a disk that is nearly full. Briefly:
    pytest writes too.
    """
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("size", [0, 100, 150])
@pytest.mark.parametrize("kind", WRITTEN)
def test_full_disk_keeps_the_old_file_and_is_one_sentence(kinds, tmp_path, kind, size):
    path = tmp_path / f"file{suffix_of(kind)}"
    getattr(kinds, f"write_{kind}")(path)
    before = path.read_bytes()
    with pytest.raises(WriteError, match="file") as caught, small_disk(size):
        getattr(kinds, f"write_{kind}")(path)
    assert "Errno" not in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == before and _names(tmp_path) == [path.name]


@pytest.mark.parametrize("size", [0, 2000, 6000])
def test_full_disk_while_building_a_space_is_one_sentence_and_the_next_build_is_whole(
    tmp_path, size
):
    file_kinds.build_space(tmp_path / "whole")
    (tmp_path / "full").mkdir()
    (tmp_path / "whole" / "loras").rename(tmp_path / "full" / "loras")
    target, settings = tmp_path / "full" / "space.safetensors", space_builder.BuildSettings(rank=2)
    sources = member_sources.file_sources(tmp_path / "full" / "loras")
    with pytest.raises(WriteError) as caught, small_disk(size):
        space_builder.build(sources, settings, target)
    assert "Errno" not in str(caught.value) and not target.exists()
    space_builder.build(sources, settings, target)
    assert _names(target.parent) == ["loras", target.name]
    assert (
        space_file.read(target).members
        == space_file.read(tmp_path / "whole" / "space.safetensors").members
    )


@pytest.mark.parametrize("kind", WRITTEN)
def test_folder_that_is_a_file_is_one_sentence(kinds, tmp_path, kind):
    (tmp_path / "folder").write_text("")
    with pytest.raises(WriteError) as caught:
        getattr(kinds, f"write_{kind}")(tmp_path / "folder" / f"file{suffix_of(kind)}")
    assert "Errno" not in str(caught.value)


def _write_late(kinds, kind, path, start):
    """Write a file in a process of its own as soon as it is `start`; returns its id."""
    child = os.fork()
    if child:
        return child
    try:
        torch.set_num_threads(1)
        time.sleep(max(0.0, start - time.time()))
        for _ in range(5):
            getattr(kinds, f"write_{kind}")(path)
    except BusyError:
        os._exit(3)
    except BaseException:
        os._exit(1)
    os._exit(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("kind", WRITTEN)
def test_two_processes_that_save_one_file_leave_a_whole_one(kinds, tmp_path, kind):
    """At the same time, again and again: each ends well or is refused, and the file is always
    readable.
    """
    path = tmp_path / f"file{suffix_of(kind)}"
    for _ in range(_PAIRS):
        children = [_write_late(kinds, kind, path, time.time() + 0.02) for _ in range(2)]
        ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert sorted(ends) in ([0, 0], [0, 3])
        getattr(kinds, f"read_{kind}")(path)
    assert _names(tmp_path) == [path.name]
