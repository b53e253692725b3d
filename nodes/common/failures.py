"""Failures that work over many inputs may skip, and those that it may not."""

from __future__ import annotations

import logging

import torch

#: What PyTorch's allocators say where they raise a plain RuntimeError: of the processor, of a
#: mapped file, and of Apple's and other backends.
_NO_MEMORY = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "Cannot allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
#: cudaErrorMemoryAllocation, the code of a torch.AcceleratorError.
_CUDA_NO_MEMORY = 2


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory has run out, on the device or the host.

    The next input would fail too, and ComfyUI frees models where it sees the error.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if getattr(error, "error_code", None) == _CUDA_NO_MEMORY:
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)


def skipped(prompt: str, error: Exception) -> str:
    """A report's line on a prompt that failed; its traceback goes to the log."""
    line = f"Failed and skipped: {prompt} ({type(error).__name__}: {error})"
    logging.error(line, exc_info=error)
    return line
