"""Files from which an interrupted run resumes, and the check that they belong to it.

A run resumes only with the same inputs. A file's identity holds each input's value, or a digest of
its content; where one differs the run is refused by a sentence that names it. There are two kinds:
a state, one file of tensors that is replaced as a whole, and a journal, a text file to which lines
are only ever appended.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .atomic_write import atomic_write, named_write_errors, read_text
from .headers import HeaderError, read_section, shorten
from .safetensors_files import open_file, read_tensors

#: Elements of a tensor that go into a digest: all of a smaller tensor, a sample of a larger one.
WHOLE = 2**20
#: The inputs of a run by name, each as plain data that JSON holds.
Identity = Mapping[str, object]


#: Metadata of a field of settings that changes nothing that is computed, as how often it is shown.
FREE = {"free": True}


def named_input(name: str) -> dict[str, str]:
    """Metadata of a field of settings whose input on the node has another name."""
    return {"input": name}


def settings_identity(settings: Any) -> dict[str, object]:
    """What the work of a dataclass of settings depends on: its fields by the names of the node's
    inputs, since a refusal names them.

    Left out are fields that are FREE, and those that its attribute ``free``, if it has one, names:
    they change nothing beside the values of others.
    """
    free = set(getattr(settings, "free", ()))
    return {
        field.metadata.get("input", field.name): getattr(settings, field.name)
        for field in dataclasses.fields(settings)
        if not field.metadata.get("free") and field.name not in free
    }


class FinishedEarly(Exception):  # noqa: N818, no error
    """Finish now was pressed: the run ends, and its result so far is its result."""


def digest(
    value: Any, known: Callable[[object], object | None] = lambda value: None, whole: int = WHOLE
) -> str:
    """64 hexadecimal digits that change with the content of a value, the same in every process.

    Takes plain data, tensors, dataclasses, functions with what they enclose, and objects with their
    attributes. ``known`` may replace a value by another. Of a tensor with more than ``whole``
    elements one in each of ``whole`` equal intervals is read, so a change of a few elements may be
    missed.
    """
    state = hashlib.sha256()
    _update(state, value, known=known, whole=whole, path=set())
    return state.hexdigest()


def _update(
    state: Any, value: Any, known: Callable[[object], object | None], whole: int, path: set[int]
) -> None:
    """Feed a value to a hash; ``path``: the ids of the values that contain it.

    Not a closure: its reference cycle would keep the values alive.
    """
    replaced = known(value)
    if replaced is not None:
        value = replaced
    if isinstance(value, str | int | float | bytes | Path | None):
        content = str(value).encode("utf-8", "surrogatepass")
        state.update(f"{type(value).__name__}:{len(content)}:".encode() + content)
    elif isinstance(value, torch.Tensor):
        state.update(f"{tuple(value.shape)}{value.dtype}".encode())
        state.update(_numbers(value, whole))
    elif id(value) in path:
        state.update(b"circle")
    else:
        path.add(id(value))
        # Lengths and the kind: else ["a", "b"] could be a text that has both, or {"a": "b"}.
        parts = list(_parts(value))
        state.update(
            f"{'mapping' if isinstance(value, Mapping) else 'list'}:{len(parts)}(".encode()
        )
        for part in parts:
            _update(state, part, known=known, whole=whole, path=path)
        state.update(b")")
        path.remove(id(value))


def _parts(value: Any) -> Iterable:
    """The values that a value is composed of, in a fixed order."""
    if isinstance(value, Mapping):
        return [item for name in sorted(value, key=str) for item in (str(name), value[name])]
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, set | frozenset):
        return sorted(map(digest, value))
    if isinstance(value, type):
        return [value.__module__, value.__qualname__]
    if isinstance(value, Enum):
        return [type(value), value.name]
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.shape, value.tobytes()]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if inspect.ismethod(value):
        return [value.__func__.__qualname__, value.__self__]
    if inspect.isfunction(value):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        return [
            value.__module__,
            value.__qualname__,
            cells,
            value.__defaults__,
            value.__kwdefaults__,
        ]
    if isinstance(value, torch.nn.Module):
        plain = {
            name: item for name, item in vars(value).items() if isinstance(item, str | int | float)
        }
        return [
            type(value),
            dict(value.named_parameters()),
            dict(value.named_buffers()),
            plain | {"training": False},
        ]
    if dataclasses.is_dataclass(value):
        return [
            type(value),
            *(getattr(value, field.name) for field in dataclasses.fields(value) if field.compare),
        ]
    if hasattr(value, "__dict__"):
        return [type(value), vars(value)]
    shown = repr(value)
    return [type(value), "" if " at 0x" in shown else shown]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _numbers(tensor: torch.Tensor, whole: int) -> bytes:
    """The bytes of a tensor's elements, or of a sample of ``whole`` of them."""
    tensor = tensor.detach()
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and hasattr(tensor, "dequantize"):
        tensor = tensor.dequantize()
    flat = tensor.reshape(-1)
    if tensor.is_meta or not len(flat):
        return b""
    if len(flat) > whole:
        flat = flat.view(torch.uint8).view(len(flat), -1)[_sample(len(flat), whole).to(flat.device)]
    return flat.contiguous().view(torch.uint8).cpu().numpy().tobytes()


@functools.lru_cache(256)
def _sample(count: int, size: int) -> torch.Tensor:
    """Stratified random indices int64 (size,) below ``count``, so periodic data cannot alias."""
    edges = torch.arange(size + 1) * count // size
    drawn = torch.rand(size, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    return edges[:-1] + (drawn * (edges[1:] - edges[:-1])).long()


def file_digest(path: Path) -> str:
    """As ``digest``, of the bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_identity(name: str, saved: object, current: Identity) -> None:
    """Raise ValueError where the identity saved in the file ``name`` is not the current run's; the
    sentence names the inputs that differ.
    """
    current = json.loads(json.dumps(dict(current)))
    saved = saved if isinstance(saved, dict) else {}
    inputs = {*saved, *current}
    different = sorted(each for each in inputs if saved.get(each) != current.get(each))
    if different:
        listed = ", ".join(map(shorten, different[:10]))  # a stranger's file may hold any name
        raise ValueError(
            f"{name} was made with another {listed}: restore what it was made with to go on, or "
            "choose another name."
        )


def save_state(
    path: Path,
    kind: str,
    version: int,
    identity: Identity,
    tensors: Mapping[str, torch.Tensor],
    about: object = None,
) -> None:
    """Replace the file of a run's state; ``about`` is plain data. Raises WriteError where it cannot
    be written.
    """
    from safetensors.torch import save_file

    header = {"format": f"glassbox {kind}", "format_version": str(version)}
    header |= {"identity": json.dumps(dict(identity), sort_keys=True), "about": json.dumps(about)}
    copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with atomic_write(path) as temporary:
        save_file(copies, temporary, header)


def load_state(
    path: Path, kind: str, version: int, identity: Identity
) -> tuple[dict[str, torch.Tensor], Any] | None:
    """The tensors and the plain data of ``save_state``; None where there is no file.

    Raises ValueError for a file that cannot be read, of another kind, version or identity.
    """
    if not path.is_file():
        return None
    with open_file(path, "delete it, or choose another name") as file:
        header = file.metadata() or {}
        tensors = read_tensors(file, path.name)
    check_format(
        path.name,
        kind,
        version=version,
        its_format=header.get("format"),
        its_version=header.get("format_version"),
    )
    try:
        saved = json.loads(header["identity"])
        about = json.loads(header["about"])
    except (KeyError, ValueError, RecursionError):
        raise damaged(path.name) from None
    check_identity(path.name, saved, identity)
    return tensors, about


def check_format(
    name: str, kind: str, version: int, its_format: object, its_version: object
) -> None:
    """Raise ValueError for a file of another kind, or of another version of it."""
    if its_format != f"glassbox {kind}":
        raise ValueError(f"{name} is no {kind} of this version of Glassbox: choose another name.")
    if its_version != str(version):
        raise ValueError(
            f"{name} has format version {shorten(its_version)}, and this version of Glassbox reads "
            f"{version}: delete it, or choose another name."
        )


def check_length(name: str, done: int, steps: int) -> None:
    """Raise ValueError where a file holds more steps than the run shall have."""
    if done > steps:
        raise ValueError(
            f"{name} holds {done} steps and {steps} are wanted: raise steps, or choose another "
            "name."
        )


def damaged(name: str) -> ValueError:
    """The error of a file whose content cannot be read."""
    return ValueError(f"{name} is damaged: delete it, or choose another name.")


def check_tensors(
    name: str, tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, Sequence[int]]
) -> None:
    """Raise ValueError where one of some tensors is missing, of another shape, or not finite."""
    for key, shape in shapes.items():
        tensor = tensors.get(key)
        if tensor is None or tensor.shape != torch.Size(shape) or not bool(tensor.isfinite().all()):
            raise damaged(name)


def check_adam(
    states: Mapping[int, Mapping[str, torch.Tensor]], parameters: Sequence[torch.Tensor]
) -> None:
    """Raise ValueError where moments of Adam by a parameter's number do not fit, are not finite, or
    no training leaves them: a negative second moment or number of steps.
    """
    for number, state in states.items():
        if set(state) != {"step", "exp_avg", "exp_avg_sq"} or not 0 <= number < len(parameters):
            raise ValueError("the moments are not Adam's")
        shapes = dict.fromkeys(("exp_avg", "exp_avg_sq"), parameters[number].shape)
        for name, shape in {**shapes, "step": torch.Size()}.items():
            value = state[name]
            if value.shape != shape or not value.is_floating_point():
                raise ValueError("a moment has another shape or type")
            if not bool(value.isfinite().all()):
                raise ValueError("a moment is not finite")
        if not bool((state["exp_avg_sq"] >= 0).all()) or not float(state["step"]) >= 0:
            raise ValueError("a second moment or a number of steps is negative")


def append_line(path: Path, line: str) -> None:
    """Append whole lines of text to a file, and have them on the disk; raises WriteError where that
    fails.
    """
    with named_write_errors(path), path.open("a", encoding="utf-8", newline="") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def whole_lines(path: Path) -> str:
    """The text of a file but for a last line that was cut off; raises ValueError where it is no
    text.
    """
    text = read_text(path)
    return text[: text.rfind("\n") + 1]


class Journal:
    """A text file with a line of JSON for each finished item, after one with kind, version and
    identity.

    ``entries``: those of the file up to the first line that is cut or damaged; the rest is removed
    from the file. Raises ValueError for a journal of another kind, version or identity.
    """

    def __init__(self, path: Path, kind: str, version: int, identity: Identity):
        self._path = path
        self.entries = list[dict]()
        head = {
            "format": f"glassbox {kind}",
            "format_version": str(version),
            "identity": dict(identity),
        }
        if path.is_file() and (text := whole_lines(path)):
            lines = []
            for line in text.splitlines():
                try:
                    lines.append(dict(read_section(line, path.name, "a line")))
                except HeaderError:
                    break
            first = lines[0] if lines else {}
            check_format(
                path.name,
                kind,
                version=version,
                its_format=first.get("format"),
                its_version=first.get("format_version"),
            )
            check_identity(path.name, first.get("identity"), identity)
            self.entries = lines[1:]
        with atomic_write(path) as temporary:
            text = "".join(json.dumps(line) + "\n" for line in (head, *self.entries))
            temporary.write_text(text, "utf-8", newline="")

    def add(self, entry: dict) -> None:
        """Append an entry and flush it to the disk."""
        append_line(self._path, json.dumps(entry) + "\n")
        self.entries.append(entry)
