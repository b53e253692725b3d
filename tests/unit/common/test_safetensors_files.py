"""A .safetensors file that another process replaces is read as one of its versions, whole."""

import multiprocessing

import pytest
import safetensors
import torch
from glassbox.nodes.common.atomic_write import atomic_write
from glassbox.nodes.common.safetensors_files import open_tensors
from safetensors import SafetensorError
from safetensors.torch import save_file

_WRITES = 2000


def _write(path, number, size):
    with atomic_write(path) as temporary:
        save_file({"a": torch.full((size,), float(number))}, temporary, {"number": str(number)})


def _replace(path, sizes):
    for number in range(_WRITES):
        _write(path, number, sizes[number % len(sizes)])


@pytest.mark.parametrize("sizes", [(1000, 1000), (1000, 3000)], ids=["same size", "other size"])
def test_header_and_tensors_are_of_one_version(tmp_path, sizes):
    path = tmp_path / "a.safetensors"
    _write(path, -1, sizes[0])
    writer = multiprocessing.get_context("fork").Process(target=_replace, args=(path, sizes))
    writer.start()
    versions = set()
    while writer.is_alive():
        with open_tensors(path) as file:
            number = float(file.metadata()["number"])
            assert bool((file.get_tensor("a") == number).all())
        versions.add(number)
    writer.join()
    assert writer.exitcode == 0 and len(versions) > 1


@pytest.mark.parametrize("sizes", [(1000, 1000), (1000, 3000)], ids=["same size", "other size"])
def test_file_replaced_between_the_two_openings_is_opened_again(tmp_path, monkeypatch, sizes):
    path, stock = tmp_path / "a.safetensors", safetensors.safe_open
    _write(path, 0, sizes[0])
    opened = []

    def replaced_after(*arguments, **options):
        file = stock(*arguments, **options)
        opened.append(file)
        if len(opened) == 1:
            _write(path, 1, sizes[1])
        return file

    monkeypatch.setattr(safetensors, "safe_open", replaced_after)
    with open_tensors(path) as file:
        assert (
            file.metadata()["number"] == "1" and file.get_tensor("a").tolist() == [1.0] * sizes[1]
        )
    assert len(opened) == 2


def test_other_errors_pass_at_once(tmp_path):
    with pytest.raises(FileNotFoundError), open_tensors(tmp_path / "none.safetensors"):
        pass
    (tmp_path / "text.safetensors").write_text("no tensors")
    with pytest.raises(SafetensorError), open_tensors(tmp_path / "text.safetensors"):
        pass


def test_file_that_is_replaced_without_end_is_named(tmp_path, monkeypatch):
    path, stock = tmp_path / "a.safetensors", safetensors.safe_open
    _write(path, 0, 1)

    def replaced_after(*arguments, **options):
        file = stock(*arguments, **options)
        _write(path, 1, 1)
        return file

    monkeypatch.setattr(safetensors, "safe_open", replaced_after)
    with pytest.raises(OSError, match=r"a\.safetensors was replaced"), open_tensors(path):
        pass
