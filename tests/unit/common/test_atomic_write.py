"""Files are written whole or not at all, and one process at a time holds a file's lock."""

import contextlib
import multiprocessing
import os
import signal
import time

import pytest
import torch
from glassbox.nodes.common.atomic_write import BusyError, WriteError, atomic_write, file_lock
from glassbox.nodes.common.safetensors_files import tensor_file
from safetensors.torch import save_file


def test_replaces_the_file_when_the_block_ends_well(tmp_path):
    path = tmp_path / "sub" / "a.txt"
    for text in ("one", "two"):
        with atomic_write(path) as temporary:
            temporary.write_text(text)
        assert path.read_text() == text
    assert [file.name for file in path.parent.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    "failure", [ValueError("no"), KeyboardInterrupt(), OSError(28, "No space left on device")]
)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, failure):
    path = tmp_path / "a.txt"
    path.write_text("old")
    expected = WriteError if isinstance(failure, OSError) else type(failure)
    with pytest.raises(expected), atomic_write(path) as temporary:
        temporary.write_text("half")
        raise failure
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_the_check_reads_the_finished_file_and_refuses_it(tmp_path):
    path, seen = tmp_path / "a.txt", []

    def check(file):
        seen.append(file.read_text())
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"), atomic_write(path, check) as temporary:
        temporary.write_text("new")
    assert seen == ["new"] and not list(tmp_path.iterdir())


def test_two_writers_do_not_share_a_temporary_name(tmp_path):
    path = tmp_path / "a.txt"
    with atomic_write(path) as first:
        first.write_text("first")
        with atomic_write(path) as second:
            second.write_text("second")
        assert first != second and path.read_text() == "second"
    assert path.read_text() == "first"


def test_only_an_abandoned_temporary_file_is_removed(tmp_path):
    path = tmp_path / "a.txt"
    old, young, other = (
        tmp_path / name for name in ("a.txt.01234567.part", "a.txt.89abcdef.part", "b.txt.part")
    )
    for file in (old, young, other):
        file.write_text("x")
    os.utime(old, (time.time() - 200_000,) * 2)
    with atomic_write(path) as temporary:
        temporary.write_text("new")
    assert not old.exists() and young.exists() and other.exists()


def test_a_place_that_cannot_be_written_is_named_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("a file, not a folder")
    path = tmp_path / "file" / "a.txt"
    with pytest.raises(WriteError) as caught, atomic_write(path) as temporary:
        temporary.write_text("new")
    assert "a.txt" in str(caught.value) and "Errno" not in str(caught.value)


@contextlib.contextmanager
def small_disk():
    """No file of this process may grow beyond 1000 bytes, as on a full disk. Briefly: pytest writes
    too.
    """
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def _save(path):
    with atomic_write(path) as temporary:
        save_file({"x": torch.zeros(10_000)}, temporary)


def _fill(path):
    with tensor_file(path, {"x": (torch.float32, (10_000,))}, {}) as file:
        file.put("x", torch.zeros(10_000))


@pytest.mark.parametrize("write", [_save, _fill])
def test_a_full_disk_is_a_sentence_and_leaves_nothing(tmp_path, write):
    with pytest.raises(WriteError) as caught, small_disk():
        write(tmp_path / "a.safetensors")
    assert "a.safetensors" in str(caught.value) and "rror" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def _hold(path, held):
    with file_lock(path):
        held.set()
        time.sleep(60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_lock_excludes_others_and_dies_with_its_process(tmp_path):
    path, context = tmp_path / "a.safetensors", multiprocessing.get_context("fork")
    held = context.Event()
    process = context.Process(target=_hold, args=(path, held))
    process.start()
    try:
        assert held.wait(60)
        with pytest.raises(BusyError, match=r"a\.safetensors"), file_lock(path):
            pass
    finally:
        process.kill()
        process.join()
    with file_lock(path, seconds=10):
        pass


def test_a_lock_is_held_once_within_a_process_too(tmp_path):
    path = tmp_path / "a.safetensors"
    with file_lock(path), pytest.raises(BusyError), file_lock(path):
        pass
    with file_lock(path):
        pass
