"""CUDA C++ compiled by NVRTC, the compiler library that comes with PyTorch: no toolkit, no C++
compiler, no headers.

``torch.cuda._compile_kernel`` would do the same, but asks for CUDA_HOME (PyTorch 2.13), which only
a toolkit sets.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent


def source(name: str) -> str:
    """The text of a kernel with what all share before it."""
    return "\n".join(
        (_FOLDER / file).read_text(encoding="utf-8") for file in ("number.cuh", f"{name}.cu")
    )


def compiled(
    library: ctypes.CDLL, name: str, capability: str, constants: Mapping[str, int]
) -> bytes:
    """The cubin of ``<name>.cu`` for a compute capability such as "86"; raises RuntimeError with
    the compiler's log.
    """
    options = [
        f"--gpu-architecture=sm_{capability}",
        "--std=c++17",
        *(f"-D{k}={v}" for k, v in constants.items()),
    ]
    program = ctypes.c_void_p()
    _check(
        library,
        library.nvrtcCreateProgram(
            ctypes.byref(program), source(name).encode(), f"{name}.cu".encode(), 0, None, None
        ),
    )
    try:
        arguments = (ctypes.c_char_p * len(options))(*map(str.encode, options))
        if library.nvrtcCompileProgram(program, len(options), arguments):
            raise RuntimeError(
                _text(library, program, "ProgramLog").decode(errors="replace").strip()
            )
        return _text(library, program, "CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _check(library: ctypes.CDLL, result: int) -> None:
    if result:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(f"NVRTC: {library.nvrtcGetErrorString(result).decode()}")
