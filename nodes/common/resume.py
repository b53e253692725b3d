"""What a run leaves for the one that goes on with it, and how it is known that both are the same work.

Kept work is taken up for the same inputs alone, all of them. Its identity names each of them with its value, or with a
digest of its content; where one differs the run is refused by a sentence that names it. Kept are a state, one file of
tensors that is replaced as a whole, or a journal, a text file to which lines are only ever appended.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .atomic_write import atomic_write, named_write_errors, read_text
from .safetensors_files import open_tensors

#: Numbers of a tensor up to which all of them go into a digest; of larger ones so many, spread over the whole.
WHOLE = 2**20
#: What work depends on: named parts, each plain data as JSON holds it.
Identity = Mapping[str, object]


class FinishedEarly(Exception):  # noqa: N818, no error
    """The person has pressed Finish now: work ends with what there is, which counts as its result."""


def digest(value, known: Callable[[object], object | None] = lambda value: None, whole: int = WHOLE) -> str:
    """64 hexadecimal digits that change with the content of a value, the same in every process.

    Takes plain data, tensors, dataclasses, functions with what they enclose, and objects with their attributes.
    ``known`` may put something else in the place of a value. Of a tensor with more than ``whole`` numbers so many are
    read, one of each of as many equal stretches: a change of a few numbers may stay unseen, one of a stretch of two in
    a row does not.
    """
    state = hashlib.sha256()
    _update(state, value, known, whole, set())
    return state.hexdigest()


def _update(state, value, known: Callable[[object], object | None], whole: int, path: set[int]) -> None:
    """Feed a value to a hash; ``path``: what it is part of. No closure, which would hold the values in a circle."""
    replaced = known(value)
    if replaced is not None:
        value = replaced
    if isinstance(value, str | int | float | bytes | Path | None):
        state.update(f"{type(value).__name__}:{value!s};".encode("utf-8", "surrogatepass"))
    elif isinstance(value, torch.Tensor):
        state.update(f"{tuple(value.shape)}{value.dtype}".encode())
        state.update(_numbers(value, whole))
    elif id(value) in path:
        state.update(b"circle")
    else:
        path.add(id(value))
        state.update(b"(")
        for part in _parts(value):
            _update(state, part, known, whole, path)
        state.update(b")")
        path.remove(id(value))


def _parts(value) -> Iterable:
    """What a value consists of."""
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
        return [value.__module__, value.__qualname__, cells, value.__defaults__, value.__kwdefaults__]
    if isinstance(value, torch.nn.Module):
        plain = {name: item for name, item in vars(value).items() if isinstance(item, str | int | float)}
        return [type(value), dict(value.named_parameters()), dict(value.named_buffers()), plain | {"training": False}]
    if dataclasses.is_dataclass(value):
        return [type(value), *(getattr(value, field.name) for field in dataclasses.fields(value) if field.compare)]
    shown = repr(value)
    return [type(value), vars(value) if hasattr(value, "__dict__") else "" if " at 0x" in shown else shown]


def _is_filled(cell) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _numbers(tensor: torch.Tensor, whole: int) -> bytes:
    tensor = tensor.detach()
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and hasattr(tensor, "dequantize"):
        tensor = tensor.dequantize()
    flat = tensor.reshape(-1)
    if tensor.is_meta or not len(flat):
        return b""
    if len(flat) > whole:
        flat = flat.view(torch.uint8).view(len(flat), -1)[_places(len(flat), whole).to(flat.device)]
    return flat.contiguous().view(torch.uint8).cpu().numpy().tobytes()


@functools.lru_cache(256)
def _places(count: int, wanted: int) -> torch.Tensor:
    """One place of each of so many equal stretches, at random, so that no period of the numbers is met."""
    edges = torch.arange(wanted + 1) * count // wanted
    drawn = torch.rand(wanted, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    return edges[:-1] + (drawn * (edges[1:] - edges[:-1])).long()


def file_digest(path: Path) -> str:
    """As ``digest``, of the bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_identity(name: str, kept: object, wanted: Identity) -> None:
    """Raise ValueError where work that ``name`` keeps is not the wanted one; the sentence names what differs."""
    wanted = json.loads(json.dumps(dict(wanted)))
    kept = kept if isinstance(kept, dict) else {}
    other = sorted(part for part in {*kept, *wanted} if kept.get(part) != wanted.get(part))
    if other:
        raise ValueError(
            f"{name} was made with another {', '.join(other)}: restore what it was made with to go on, or choose "
            "another name."
        )


def save_state(
    path: Path, kind: str, version: int, identity: Identity, tensors: Mapping[str, torch.Tensor], about: object = None
) -> None:
    """Replace the state of a run as a whole; ``about`` is plain data. Raises WriteError where it cannot be written."""
    from safetensors.torch import save_file

    header = {"format": f"glassbox {kind}", "format_version": str(version)}
    header |= {"identity": json.dumps(dict(identity), sort_keys=True), "about": json.dumps(about)}
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with atomic_write(path) as temporary:
        save_file(whole, temporary, header)


def load_state(path: Path, kind: str, version: int, identity: Identity) -> tuple[dict[str, torch.Tensor], Any] | None:
    """The tensors and the plain data of ``save_state``; None where there is no file.

    Raises ValueError for a file that cannot be read, of another kind, version or identity.
    """
    from safetensors import SafetensorError

    if not path.is_file():
        return None
    try:
        with open_tensors(path) as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path.name} cannot be read ({error}): delete it, or choose another name.") from None
    check_format(path.name, kind, version, header.get("format"), header.get("format_version"))
    try:
        kept, about = json.loads(header["identity"]), json.loads(header["about"])
    except (KeyError, ValueError, RecursionError):
        raise damaged(path.name) from None
    check_identity(path.name, kept, identity)
    return tensors, about


def check_format(name: str, kind: str, version: int, its_format: object, its_version: object) -> None:
    """Raise ValueError for a file of another kind, or of another version of it."""
    if its_format != f"glassbox {kind}":
        raise ValueError(f"{name} is no {kind} of this version of Glassbox: choose another name.")
    if its_version != str(version):
        raise ValueError(
            f"{name} has format version {its_version}, and this version of Glassbox reads {version}: delete it, or "
            "choose another name."
        )


def check_length(name: str, done: int, wanted: int) -> None:
    """Raise ValueError where kept work is longer than the wanted."""
    if done > wanted:
        raise ValueError(f"{name} holds {done} steps and {wanted} are wanted: raise steps, or choose another name.")


def damaged(name: str) -> ValueError:
    """The error of a file whose content makes no sense."""
    return ValueError(f"{name} is damaged: delete it, or choose another name.")


def append_line(path: Path, line: str) -> None:
    """Append whole lines of text to a file, and have them on the disk; raises WriteError where that fails."""
    with named_write_errors(path), path.open("a", encoding="utf-8", newline="") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def whole_lines(path: Path) -> str:
    """The text of a file but for a last line that was cut off; raises ValueError where it is no text."""
    text = read_text(path)
    return text[: text.rfind("\n") + 1]


class Journal:
    """Entries of finished pieces of work, a line of JSON each, after one that holds kind, version and identity.

    ``entries`` are those of the file, to which it is repaired: what follows the first line that is cut or damaged is
    dropped. Raises ValueError for a journal of another kind, version or identity.
    """

    def __init__(self, path: Path, kind: str, version: int, identity: Identity):
        self._path, self.entries = path, list[dict]()
        head = {"format": f"glassbox {kind}", "format_version": str(version), "identity": dict(identity)}
        if path.is_file() and (text := whole_lines(path)):
            lines = []
            for line in text.splitlines():
                try:
                    lines.append(json.loads(line))
                except ValueError:
                    break
            first = lines[0] if lines and isinstance(lines[0], dict) else {}
            check_format(path.name, kind, version, first.get("format"), first.get("format_version"))
            check_identity(path.name, first.get("identity"), identity)
            self.entries = lines[1:]
        with atomic_write(path) as temporary:
            text = "".join(json.dumps(line) + "\n" for line in (head, *self.entries))
            temporary.write_text(text, "utf-8", newline="")

    def add(self, entry: dict) -> None:
        """Append an entry, which from then on counts."""
        append_line(self._path, json.dumps(entry) + "\n")
        self.entries.append(entry)
