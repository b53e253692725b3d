"""A kernel's first call with a class of inputs is compared with eager; what is right runs, what is
wrong is remembered.

Remembered on disk are wrong results alone, for this GPU, driver, PyTorch, Triton and source of the
kernels. Whatever fails otherwise (a compiler that is missing, a full disk) is left out until the
next start. Nothing is timed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from .table import TABLE

_STRAY_INDICES = 0.01  # of indices may differ: near ties that rounding decides
log = logging.getLogger("glassbox.kernels")
_logged: set[str] = set()
_lock = threading.RLock()
#: Of each class of inputs in this process: whether the kernel runs.
_runs: dict[tuple, bool] = {}
#: Of each machine: kernels that were wrong there, and how.
_wrong: dict[str, dict[str, str]] = {}


def run(
    backend: str,
    operation: str,
    kernel: Callable,
    eager: Callable,
    arguments: Mapping,
    device: torch.device,
) -> Any:
    """The result of a kernel that agrees with eager for such arguments, else None; the first time
    eager's own.
    """
    key = (backend, operation, str(device), *(_class(value) for value in arguments.values()))
    with _lock:
        if key not in _runs:
            if _known_wrong(f"{backend} {operation}", device):
                _runs[key] = False
                return None
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return None
            return _compare(
                key,
                backend,
                operation=operation,
                kernel=kernel,
                eager=eager,
                arguments=arguments,
                device=device,
            )
    if not _runs[key]:
        return None
    try:
        return kernel(**arguments)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler, a driver or a launch may raise
        _leave_out(key, backend, operation, error)
        return None


def once(line: str, level: int = logging.INFO) -> None:
    """Log a line the first time."""
    if line not in _logged:
        _logged.add(line)
        log.log(level, line)


def _compare(
    key: tuple,
    backend: str,
    operation: str,
    kernel: Callable,
    eager: Callable,
    arguments: Mapping,
    device: torch.device,
) -> Any:
    with full_precision():
        wanted = eager(**arguments)
    try:
        found = kernel(**arguments)
        error = disagreement(operation, found, wanted, arguments)
    except Exception as failure:
        _leave_out(key, backend, operation, failure)
        return wanted
    _runs[key] = error is None
    if error:
        name = f"{backend} {operation}"
        once(
            f"The {backend} kernel of {operation} is wrong on this GPU and will not run: {error}. "
            "Please report it.",
            logging.WARNING,
        )
        _wrong[machine_name(device)][name] = error
        _write(machine_name(device), {name: error})
    return wanted


def _leave_out(key: tuple, backend: str, operation: str, error: Exception) -> None:
    _runs[key] = False
    first = (str(error).strip().splitlines() or [""])[0][:200]
    once(
        f"The {backend} kernel of {operation} is left out until the next start: "
        f"{type(error).__name__}: {first}",
        logging.WARNING,
    )


def _known_wrong(name: str, device: torch.device) -> bool:
    machine = machine_name(device)
    if machine not in _wrong:
        _wrong[machine] = _remembered(_read(), machine)
        for known, error in _wrong[machine].items():
            once(
                f"The kernel {known} does not run: it was wrong on this GPU before ({error}). To "
                f"try it again, delete {memory_file()}.",
                logging.WARNING,
            )
    return name in _wrong[machine]


def disagreement(operation: str, found: Any, wanted: Any, arguments: Mapping) -> str | None:
    """How a kernel's result differs from eager's beyond the tolerance of the operation, or None.

    Of a result (numbers, index) only rows with the same index are compared, and almost all must
    have it.
    """
    entry = TABLE[operation]
    scale = entry.scale(arguments) if entry.scale else 0.0
    if isinstance(wanted, tuple):
        found, index = found
        wanted, expected = wanted
        if index.shape != expected.shape or index.dtype != expected.dtype:
            return (
                f"{index.dtype} {tuple(index.shape)} instead of {expected.dtype} "
                f"{tuple(expected.shape)}"
            )
        same = index == expected
        stray = int((~same).sum())
        if stray > max(1, _STRAY_INDICES * len(expected)) or not same.any():
            return f"{stray} of {len(expected)} indices differ"
        found = found[same]
        wanted = wanted[same]
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{found.dtype} {tuple(found.shape)} instead of {wanted.dtype} {tuple(wanted.shape)}"
    finite = wanted.isfinite()
    if not torch.equal(finite, found.isfinite()):
        return "other numbers are finite"
    if not finite.any():
        return None
    rounding = torch.finfo(wanted.dtype).eps
    found = found[finite].double()
    wanted = wanted[finite].double()
    size = max(float(wanted.abs().max()), 1e-30)
    error = float((found - wanted).abs().max())
    wrong = error > entry.tolerance * (scale or size) + rounding * size
    return f"it errs by {error / size:.1e} of the largest number" if wrong else None


def memory_file() -> Path:
    """Where wrong results are remembered: kernels.json in the user's cache folder."""
    if sys.platform == "win32":
        folder = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Caches"
    else:
        folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "glassbox" / "kernels.json"


@functools.cache
def machine_name(device: torch.device) -> str:
    """What a comparison holds for: GPU, driver, PyTorch, Triton, and the source of the kernels."""
    parts = [f"torch {torch.__version__}", f"triton {_triton_version()}", f"kernels {_source()}"]
    if device.type == "cuda":
        driver = getattr(torch._C, "_cuda_getDriverVersion", lambda: "unknown")()
        parts = [torch.cuda.get_device_name(device), f"driver {driver}", *parts]
    return ", ".join(parts)


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Products in float32 without TF32 for the reference, whatever the process has chosen."""
    try:
        before = torch.get_float32_matmul_precision()
        choose = torch.set_float32_matmul_precision
        full = "highest"
    except (
        RuntimeError
    ):  # somebody chose by the name that PyTorch has since 2.9, and the two do not mix
        matmul = torch.backends.cuda.matmul
        before = matmul.fp32_precision
        choose = functools.partial(setattr, matmul, "fp32_precision")
        full = "ieee"
    choose(full)
    try:
        yield
    finally:
        choose(before)


def _class(value: Any) -> tuple:
    """What distinguishes arguments for which a kernel is compiled or launched in another way.

    Of a tensor its type, its sizes to a factor of two, and what is a multiple of 16, as Triton
    specializes.
    """
    if isinstance(value, torch.Tensor):
        aligned = tuple(
            number % 16 == 0 for number in (value.data_ptr(), *value.shape, *value.stride())
        )
        return value.dtype, tuple(size.bit_length() for size in value.shape), aligned
    return type(value), value.bit_length() if isinstance(value, int) else None


def _triton_version() -> str:
    """By the module: the package that brings it is called triton, triton-windows, pytorch-triton or
    otherwise.
    """
    try:
        return importlib.import_module("triton").__version__
    except Exception:  # none, or one that does not fit this PyTorch or Python
        return "none"


@functools.cache
def _source() -> str:
    digest = hashlib.sha256()
    for path in sorted(
        path for path in Path(__file__).parent.rglob("*") if path.suffix in (".py", ".cu", ".cuh")
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _read() -> dict:
    try:
        content = json.loads(memory_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):  # the last where there is no home folder
        return {}
    return content if isinstance(content, dict) else {}


def _remembered(content: dict, machine: str) -> dict[str, str]:
    """The kernels that were wrong on a machine, of what was read; anything malformed is dropped."""
    known = content.get(machine)
    pairs = known.items() if isinstance(known, dict) else ()
    return {name: error for name, error in pairs if isinstance(error, str)}


def _write(machine: str, wrong: dict[str, str]) -> None:
    """Add to the file, which other processes write too; a folder that cannot be written does not
    matter.
    """
    content = _read()
    content[machine] = _remembered(content, machine) | wrong
    try:
        path = memory_file()
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        temporary.replace(path)
    except (OSError, RuntimeError) as error:
        once(f"Which kernels are wrong cannot be remembered: {error}.", logging.DEBUG)
