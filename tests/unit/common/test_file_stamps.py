"""Stamps and sampled digests of files that are rewritten under their name."""

import os

import pytest
from glassbox.nodes.common.atomic_write import file_stamp, sampled_digest

_MIB = 2**20


def replace(path, content: bytes) -> None:
    """Another file under the name, with the times of the one before."""
    times = path.stat()
    beside = path.with_suffix(".new")
    beside.write_bytes(content)
    os.utime(beside, ns=(times.st_atime_ns, times.st_mtime_ns))
    beside.replace(path)


def overwrite(path, content: bytes) -> None:
    """Other bytes in the same file, with its times set back."""
    times = path.stat()
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("rewrite", [replace, overwrite])
def test_the_same_size_and_time_are_no_sign_of_the_same_content(tmp_path, rewrite):
    path = tmp_path / "a"
    path.write_bytes(b"one")
    stamp, digest, before = file_stamp(path), sampled_digest(path), path.stat()
    rewrite(path, b"two")
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert file_stamp(path) != stamp and sampled_digest(path) != digest


@pytest.mark.parametrize("rewrite", [replace, overwrite])
def test_a_clock_that_was_set_back_hides_no_change(tmp_path, rewrite):
    """The new file is older than the one that was read."""
    path = tmp_path / "a"
    path.write_bytes(b"one")
    stamp, time = file_stamp(path), path.stat().st_mtime_ns
    rewrite(path, b"two")
    os.utime(path, ns=(time - 10**12, time - 10**12))
    assert path.stat().st_mtime_ns < time and file_stamp(path) != stamp


def test_a_digest_is_of_the_bytes_alone(tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(b"one")
    os.utime(tmp_path / "b", ns=(1, 1))
    assert sampled_digest(tmp_path / "a") == sampled_digest(tmp_path / "b")
    assert file_stamp(tmp_path / "a") != file_stamp(tmp_path / "b")
    assert file_stamp(tmp_path / "c") == "absent"


@pytest.mark.parametrize("size", [0, 1, _MIB - 1, _MIB, _MIB + 1, 2 * _MIB + 5, 7 * _MIB])
def test_every_size_has_a_digest_that_sees_its_ends(tmp_path, size):
    path, digests = tmp_path / "a", set()
    for place in (None, 0, size // 3, size - 1):
        content = bytearray(size)
        if place is not None and size:
            content[place : place + size // 40 + 1] = b"x" * min(size // 40 + 1, size - place)
        path.write_bytes(content)
        digests.add(sampled_digest(path))
    assert len(digests) == (1 if size == 0 else 2 if size == 1 else 4)


def test_a_large_file_is_not_read_whole(tmp_path, monkeypatch):
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(2**34)  # sparse: reading all of it would take long
    assert len(sampled_digest(path)) == 64
