"""A Triton kernel proves itself where it first runs: right against eager on a slice, and faster on the whole input.

The winner is kept by operation and class of shapes (types, and sizes to a factor of two), and remembered on disk for
this GPU, its driver, PyTorch, Triton and the kernels' own source: ``memory_file`` says where. Deleting it is safe.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import logging
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from . import dispatch
from .table import TABLE, tensors_of

_BUDGET = 3.0  # milliseconds of timing a backend, after one call that warms up
_MOST_TIMINGS = 20
_STRAY_INDICES = 0.01  # of indices may differ: near ties that rounding decides
_lock = threading.RLock()
_verdicts: dict[str, dict[str, dict]] = {}


def winner(operation: str, arguments: Mapping) -> str:
    """The backend that won for such arguments on this device; finds it out at the first call."""
    machine = machine_name(_device(arguments))
    name = shape_class(operation, arguments)
    with _lock:
        known = _verdicts.setdefault(machine, {})
        if not known:
            known.update(_remembered(_read(), machine))
        if name not in known:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                return dispatch.EAGER
            verdict = prove(operation, arguments)
            if verdict is None:
                return dispatch.EAGER
            known[name] = verdict
            _write(machine, known)
        return known[name]["backend"]


def refute(operation: str, arguments: Mapping, error: Exception) -> None:
    """Keep eager for such arguments: the kernel had won for this class of shapes, and then failed on one of it."""
    with _lock:
        machine = machine_name(_device(arguments))
        known = _verdicts.setdefault(machine, {})
        known[shape_class(operation, arguments)] = _set_aside(operation, _failure(error))
        _write(machine, known)


def prove(operation: str, arguments: Mapping) -> dict | None:
    """Try both backends: {"backend", "why", "eager_ms", "triton_ms"}; None: out of memory, nothing proved."""
    eager, triton = (_function(backend, operation) for backend in (dispatch.EAGER, dispatch.TRITON))
    try:
        if error := _error(operation, arguments, eager, triton):
            return _set_aside(operation, error)
        times = {"eager_ms": milliseconds(eager, arguments)}
        try:
            times["triton_ms"] = milliseconds(triton, arguments)
        except Exception as error:  # the whole input can be too much where a slice was not
            if no_memory(error):
                return None
            return _set_aside(operation, _failure(error))
    except torch.OutOfMemoryError:
        return None
    if times["triton_ms"] >= times["eager_ms"]:
        told = f"{times['triton_ms']:.3f} ms against {times['eager_ms']:.3f} ms in eager PyTorch"
        return _set_aside(operation, f"it is not faster here, {told}") | times
    return {"backend": dispatch.TRITON, "why": "right and faster", **times}


def shape_class(operation: str, arguments: Mapping) -> str:
    """The operation with the types of its arguments and their sizes to a factor of two."""
    return " ".join([operation, *(f"{name}={_kind(value)}" for name, value in arguments.items())])


def memory_file() -> Path:
    """Where verdicts are remembered: kernels.json in the user's cache folder."""
    if sys.platform == "win32":
        folder = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Caches"
    else:
        folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "glassbox" / "kernels.json"


@functools.cache
def machine_name(device: torch.device) -> str:
    """What a verdict holds for: GPU, driver, PyTorch, Triton, and the source of the kernels."""
    parts = [f"torch {torch.__version__}", f"triton {_triton_version()}", f"kernels {_source()}"]
    if device.type == "cuda":
        driver = getattr(torch._C, "_cuda_getDriverVersion", lambda: "unknown")()
        parts = [torch.cuda.get_device_name(device), f"driver {driver}", *parts]
    return ", ".join(parts)


def no_memory(error: Exception) -> bool:
    """Whether the device was full, which says nothing of a kernel. Triton's driver tells it as a RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)


def milliseconds(function: Callable, arguments: Mapping) -> float:
    """Median time of a call after one that warms up, within a budget of a few milliseconds."""
    device = _device(arguments)
    function(**arguments)
    times: list[float] = []
    while not times or (sum(times) < _BUDGET and len(times) < _MOST_TIMINGS):
        times.append(_one(function, arguments, device))
    return statistics.median(times)


def disagreement(found, wanted, tolerance: float, scale: float = 0.0, slack: float = 0.0) -> str | None:
    """How one backend's result differs from the other's, or None.

    The tolerance is a share of the largest number wanted, or of ``scale`` where that is larger, besides one rounding to
    the type of the result, and besides ``slack``, a difference that was asked for.
    """
    if isinstance(wanted, tuple):
        pairs = zip(found, wanted, strict=True)
        return next(filter(None, (disagreement(*pair, tolerance, scale, slack) for pair in pairs)), None)
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{found.dtype} {tuple(found.shape)} instead of {wanted.dtype} {tuple(wanted.shape)}"
    if not wanted.is_floating_point():
        share = float((found != wanted).double().mean())
        return f"{share:.1%} of the indices differ" if share > _STRAY_INDICES and wanted.numel() > 1 else None
    tolerance += torch.finfo(wanted.dtype).eps
    there = wanted.isfinite()
    if not torch.equal(there, found.isfinite()):
        return "other numbers are finite"
    if not there.any():
        return None
    found, wanted = found[there].double(), wanted[there].double()
    error = (float((found - wanted).abs().max()) - slack) / max(float(wanted.abs().max()), scale, 1e-30)
    return f"it errs by {error:.1e} of the largest number" if error > tolerance else None


def _error(operation: str, arguments: Mapping, eager: Callable, triton: Callable) -> str | None:
    """What is wrong with the kernel on a slice, or None."""
    kernel = TABLE[operation]
    sliced = dict(arguments)
    for name, (dimension, length) in kernel.cut.items():
        value = sliced[name]
        if isinstance(value, torch.Tensor):
            sliced[name] = value.narrow(dimension, 0, min(length, value.shape[dimension]))
        elif value is not None:
            sliced[name] = value[:length]
    try:
        found = triton(**sliced)
        if (device := _device(sliced)).type == "cuda":
            torch.cuda.synchronize(device)  # what fails while it runs is its failure, to be remembered as that
    except Exception as error:  # whatever a compiler, a driver or a launch may raise
        if no_memory(error):
            raise torch.OutOfMemoryError(str(error)) from error
        return _failure(error)
    with _full_precision():
        wanted = eager(**sliced)
    found, wanted = compared(operation, found), compared(operation, wanted)
    return disagreement(found, wanted, kernel.tolerance, scale(operation, sliced), sliced.get(kernel.slack, 0.0))


def compared(operation: str, result):
    """The part of a result that another backend must give, too."""
    if not TABLE[operation].ties:
        return result
    return tuple(part for part in result if part.is_floating_point())


@contextlib.contextmanager
def _full_precision():
    """Products of float32 in float32, also where the process allows TF32: eager is the reference here."""
    try:
        before, choose, full = torch.get_float32_matmul_precision(), torch.set_float32_matmul_precision, "highest"
    except RuntimeError:  # somebody chose by the name that PyTorch has since 2.9, and the two do not mix
        matmul = torch.backends.cuda.matmul
        before, choose, full = matmul.fp32_precision, functools.partial(setattr, matmul, "fp32_precision"), "ieee"
    choose(full)
    try:
        yield
    finally:
        choose(before)


def scale(operation: str, arguments: Mapping) -> float:
    """The size of the numbers that rounding acts on, where the result does not show it; else 0."""
    factors = TABLE[operation].factors
    lengths = [float(arguments[name].float().norm(dim=1).nan_to_num(0, 0, 0).max()) for name in factors]
    return math.prod(lengths) if lengths else 0.0


def _failure(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"it does not run here: {type(error).__name__}: {first[:200]}"


def _set_aside(operation: str, why: str) -> dict:
    dispatch.once(f"The Triton kernel of {operation} is set aside: {why}.")
    return {"backend": dispatch.EAGER, "why": why}


def _function(backend: str, operation: str) -> Callable:
    """As ``dispatch.function``; what an import raises, the call raises."""
    try:
        return dispatch.function(backend, operation)
    except Exception as error:  # a Triton that does not fit this PyTorch or Python
        failure = error

        def fails(**_):
            raise failure

        return fails


def _one(function: Callable, arguments: Mapping, device: torch.device) -> float:
    if device.type != "cuda":
        started = time.perf_counter()
        function(**arguments)
        return 1000 * (time.perf_counter() - started)
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function(**arguments)
        end.record()
        end.synchronize()
    return start.elapsed_time(end)


def _device(arguments: Mapping) -> torch.device:
    return next(value for value in arguments.values() if isinstance(value, torch.Tensor)).device


def _kind(value) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{[size.bit_length() for size in value.shape]}"
    if isinstance(value, int) or value is None:
        return str(value)
    if isinstance(value, float):
        return "float" if value else "0.0"  # a gap of 0 is another task than any other
    if tensors := tensors_of(value):
        size, types = sum(tensor.numel() for tensor in tensors), sorted({str(tensor.dtype) for tensor in tensors})
        return f"{len(tensors).bit_length()} bits of tensors, {size.bit_length()} of {' '.join(types)}"
    return f"{len(value).bit_length()} bits long" if hasattr(value, "__len__") else type(value).__name__


def _triton_version() -> str:
    """By the module: the package that brings it is called triton, triton-windows, pytorch-triton or otherwise."""
    try:
        return importlib.import_module("triton").__version__
    except Exception:  # a Triton that does not fit this PyTorch or Python, with which no kernel will run
        return "unknown"


@functools.cache
def _source() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _read() -> dict:
    try:
        content = json.loads(memory_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):  # the last where nobody has a home
        return {}
    return content if isinstance(content, dict) else {}


def _remembered(content: dict, machine: str) -> dict[str, dict]:
    """A machine's verdicts in what was read, less what is none."""
    verdicts = content.get(machine)
    backends = (dispatch.EAGER, dispatch.TRITON)
    pairs = verdicts.items() if isinstance(verdicts, dict) else ()
    return {name: one for name, one in pairs if isinstance(one, dict) and one.get("backend") in backends}


def _write(machine: str, known: dict) -> None:
    """Add what is known to the file, which other processes write too; a folder that cannot be written is no matter."""
    content = _read()
    content[machine] = _remembered(content, machine) | known
    try:
        path = memory_file()
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        temporary.replace(path)
    except (OSError, RuntimeError) as error:
        dispatch.once(f"Which kernels won cannot be remembered: {error}.", logging.DEBUG)
