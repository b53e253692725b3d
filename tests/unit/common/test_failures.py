"""What counts as memory that has run out, and what readers of damaged files do with it."""

from __future__ import annotations

import pytest
import torch
from glassbox.nodes.activations import autoencoder_file
from glassbox.nodes.common import failures, lora_reader, pil_images
from glassbox.nodes.neurons import sscd, statistics_file
from glassbox.nodes.weights import official_release


class AcceleratorError(RuntimeError):
    """As torch.AcceleratorError, which only a device raises."""

    def __init__(self, error_code: int):
        super().__init__("CUDA error")
        self.error_code = error_code


OUT_OF_MEMORY = {
    "host": MemoryError(),
    "device": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
    "code": AcceleratorError(2),
    "MPS": RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"),
    "allocator": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:116] DefaultCPUAllocator: can't allocate memory: you tried "
        "to allocate 8 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "Windows": RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8"),
}
OTHERS = {
    "shape": RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    "device": AcceleratorError(700),
    "value": ValueError('the prompt "a child out of memory" has no words'),
    "key": KeyError("memory"),
}


@pytest.mark.parametrize("name", OUT_OF_MEMORY)
def test_memory_that_has_run_out_is_recognized(name):
    assert failures.is_out_of_memory(OUT_OF_MEMORY[name])


@pytest.mark.parametrize("name", OTHERS)
def test_other_errors_are_no_lack_of_memory(name):
    assert not failures.is_out_of_memory(OTHERS[name])


def test_a_real_allocation_beyond_the_memory_counts():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert failures.is_out_of_memory(caught.value)


def test_the_line_of_a_skipped_prompt_has_its_traceback_in_the_log(caplog):
    try:
        raise KeyError("to_v")
    except KeyError as error:
        line = failures.skipped("a cat", error)
    assert line == "Failed and skipped: a cat (KeyError: 'to_v')"
    record = caplog.records[-1]
    assert record.getMessage() == line and record.levelname == "ERROR"
    assert "test_failures.py" in caplog.text and "Traceback" in caplog.text


READERS = {
    "SSCD": lambda path: sscd.load_sscd(path),
    "statistics": lambda path: statistics_file._official(path, []),
    "official release": lambda path: official_release._load(path),
    "autoencoder": lambda path: autoencoder_file._load(path),
    "LoRA": lambda path: lora_reader.read_parts(path),
}


@pytest.mark.parametrize("name", READERS)
def test_readers_call_no_file_damaged_where_memory_ran_out(name, tmp_path, monkeypatch):
    path = tmp_path / "file.pt"
    torch.save({"x": torch.ones(1)}, path)

    def load(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(torch.OutOfMemoryError):
        READERS[name](path)


def test_images_call_no_file_damaged_where_memory_ran_out(tmp_path, monkeypatch):
    def opened(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(pil_images.Image, "open", opened)
    with pytest.raises(MemoryError):
        pil_images.open_image(tmp_path / "a.png")
