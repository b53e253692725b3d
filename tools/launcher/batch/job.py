"""A job: a workflow, and which of its inputs each column of the list fills."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import LaunchError
from .lists import Entries, digest

_FORMAT = "glassbox batch 2"
_TRUE, _FALSE = {"true", "yes", "1"}, {"false", "no", "0"}


def _boolean(value: str) -> bool:
    if value.lower() not in _TRUE | _FALSE:
        raise ValueError
    return value.lower() in _TRUE


_WIDGETS = {"INT": int, "FLOAT": float, "STRING": str, "COMBO": str, "BOOLEAN": _boolean}
_NAMING = {"STRING", "COMBO"}  # the types of inputs that can name a file


@dataclass(frozen=True)
class Target:
    """An input of a node that a column fills, and its type (INT, FLOAT, STRING, COMBO or
    BOOLEAN).
    """

    node: str
    input: str
    kind: str


@dataclass(frozen=True)
class Piece:
    """One run of the workflow: its number in the list, the key of its result, and the values by
    column.

    ``labels`` are the values of columns that fill no input.
    """

    number: int
    key: str
    values: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How it is named to people: its number and the beginning of its values."""
        values = ", ".join(value.replace("\n", " / ") for value in self.values.values())
        return f"{self.number} ({values if len(values) <= 60 else values[:57] + '...'})"


@dataclass(frozen=True)
class Job:
    """A prompt in API form, the targets of each column, and the digests of all files that its fixed
    inputs name.

    ``roots``: the folders that values may name files of. ``made_with``: ComfyUI's arguments, and
    versions.
    """

    prompt: dict
    targets: dict[str, tuple[Target, ...]]
    files: dict[str, str] = field(default_factory=dict)
    roots: tuple[Path, ...] = ()
    made_with: dict = field(default_factory=dict)

    def filled(self, values: dict[str, str]) -> dict:
        """The prompt with a piece's values in it."""
        prompt = {
            id_: {**node, "inputs": dict(node["inputs"])} for id_, node in self.prompt.items()
        }
        for column, targets in self.targets.items():
            for target in targets:
                prompt[target.node]["inputs"][target.input] = _converted(values[column], target)
        return prompt

    def fixed(self) -> dict:
        """The prompt without the inputs that the list fills."""
        filled = {(one.node, one.input) for of in self.targets.values() for one in of}
        return {
            id_: {
                "class_type": node["class_type"],
                "inputs": {
                    name: value
                    for name, value in node["inputs"].items()
                    if (id_, name) not in filled
                },
            }
            for id_, node in self.prompt.items()
        }

    def digest(self) -> str:
        """Changes with all that the results of every piece depend on: the prompt, its targets,
        files and versions.
        """
        targets = {
            column: [[one.node, one.input] for one in of] for column, of in self.targets.items()
        }
        return _digest([_FORMAT, self.fixed(), targets, self.files, self.made_with])


def pieces(job: Job, entries: Entries, chunk: int) -> Iterator[Piece]:
    """The pieces of a list: ``chunk`` entries each, their values one a line where there are more
    than one.

    A piece's key changes with its values, with the bytes of files that they name, and with the
    job's digest.
    """
    digest_of_job, rows = job.digest(), entries.read()
    folders = _Folders([*([entries.files] if entries.files else ()), *job.roots])
    naming = [_names_files(job.targets.get(column, ())) for column in entries.columns]
    for number in itertools.count():
        taken = list(itertools.islice(rows, chunk))
        if not taken:
            return
        columns = dict(zip(entries.columns, map("\n".join, zip(*taken, strict=True)), strict=True))
        values = {name: value for name, value in columns.items() if name in job.targets}
        labels = {name: value for name, value in columns.items() if name not in job.targets}
        named = itertools.chain.from_iterable(itertools.compress(row, naming) for row in taken)
        bytes_of = [_bytes_of(path) for value in named for path in folders.find(value)]
        yield Piece(number, _digest([digest_of_job, values, bytes_of]), values, labels)


def _names_files(targets: tuple[Target, ...]) -> bool:
    return any(target.kind in _NAMING for target in targets)


class _Folders:
    """Finds what values name in some folders, each of which is listed once.

    Most values are prompts. Looking for each of them in every folder would take minutes on a
    network's file system.
    """

    def __init__(self, folders: list[Path]):
        self._entries = {folder: _listed(folder) for folder in dict.fromkeys(folders)}

    def find(self, value: str) -> list[Path]:
        """The files and folders of that name, in the order of the folders."""
        if not _may_be_a_file(value):
            return []
        first = _comparable(Path(value).parts[0]) if Path(value).parts else ""
        near = [
            folder for folder, entries in self._entries.items() if first in entries or first == ".."
        ]
        return [folder / value for folder in near if (folder / value).exists()]


def _listed(folder: Path) -> set[str]:
    try:
        return {_comparable(name) for name in os.listdir(folder)}
    except OSError:
        return set()


def _comparable(name: str) -> str:
    """A name as file systems compare it that ignore case and the form of accents."""
    return unicodedata.normalize("NFC", name).casefold()


def _bytes_of(path: Path) -> str:
    about = path.stat()
    stamp = (about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino)
    return digest(path) if path.is_dir() else _file_bytes(path, stamp)


@functools.lru_cache(10_000)
def _file_bytes(path: Path, _stamp: tuple[int, ...]) -> str:
    """Read once, however many pieces name the file."""
    return digest(path)


def count(entries: Entries, chunk: int) -> int:
    """How many pieces there are."""
    return -(-entries.count // chunk)


def resolved(
    prompt: dict, mapping: list[str], entries: Entries, chunk: int, kinds: dict
) -> dict[str, tuple]:
    """The targets by column of a mapping such as ["Caption=6.text", "seed=KSampler.seed"].

    A node is named by its id, or by its title or class where only one has that. Without a column's
    name there must be one column. ``kinds``: type by input name by class. Raises LaunchError for
    what does not fit.
    """
    targets: dict[str, tuple] = {}
    for entry in mapping:
        column, equals, place = entry.rpartition("=")
        if not equals:
            if len(entries.columns) > 1:
                raise LaunchError(
                    f"Name the column that {place} takes, such as {entries.columns[0]}={place}."
                )
            column = entries.columns[0]
        if column not in entries.columns:
            raise LaunchError(
                f"The list has no column {column!r}: it has {', '.join(entries.columns)}."
            )
        if "." not in place:
            raise LaunchError(f"{place!r} names no input: write NODE.input, such as 6.text.")
        name, input_ = _split(place, prompt)
        node = _node(prompt, name)
        kind = _kind(prompt[node], input_, kinds)
        if chunk > 1 and kind != "STRING":
            raise LaunchError(
                f"{place} takes one value: pieces of {chunk} entries need a text input."
            )
        targets[column] = (*targets.get(column, ()), Target(node, input_, kind))
    if not targets:
        listed = "; ".join(_texts(prompt, kinds)) or "none"
        raise LaunchError(
            f"Name with --map NODE.input which input the list fills; text inputs: {listed}."
        )
    return targets


def placed(entries: Entries, roots: list[Path]) -> Entries:
    """A list with values as ComfyUI's nodes take them: files by their path from the input or a
    model folder on.

    Raises LaunchError when the files lie in none of the folders ``roots``, the input folder first.
    """
    if entries.files is None:
        return replace(entries, files=roots[0])
    place = entries.files.resolve()
    root = next((root.resolve() for root in roots if place.is_relative_to(root.resolve())), None)
    if root is None:
        raise LaunchError(
            f"{entries.files} is neither in ComfyUI's input folder {roots[0]} nor in a model "
            "folder: put it there, or give it or a folder above it as --input-directory."
        )
    inside = place.relative_to(root)
    return replace(
        entries,
        read=lambda: (((inside / name).as_posix(),) for (name,) in entries.read()),
        files=root,
    )


def _may_be_a_file(value: str) -> bool:
    return 0 < len(value) < 256 and "\n" not in value and not Path(value).is_absolute()


def _split(place: str, prompt: dict) -> tuple[str, str]:
    """A node's name and its input: names of inputs behind dynamic combos have dots, such as
    6.format.quality.
    """
    known = {*prompt, *(node["class_type"] for node in prompt.values())}
    known |= {(node.get("_meta") or {}).get("title") for node in prompt.values()}
    words = place.split(".")
    for length in range(len(words) - 1, 0, -1):
        name = ".".join(words[:length])
        if name in known:
            return name, ".".join(words[length:])
    return ".".join(words[:-1]), words[-1]


def _node(prompt: dict, name: str) -> str:
    if name in prompt:
        return name
    titled = [id_ for id_, node in prompt.items() if (node.get("_meta") or {}).get("title") == name]
    found = titled or [id_ for id_, node in prompt.items() if node["class_type"] == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise LaunchError(
            f"{len(found)} nodes are called {name!r}: name one by its id ({', '.join(found)})."
        )
    known = ", ".join(f"{id_} {node['class_type']}" for id_, node in prompt.items())
    raise LaunchError(f"The workflow has no node {name!r}: it has {known}.")


def _kind(node: dict, input_: str, kinds: dict) -> str:
    known = kinds[node["class_type"]]
    if input_ not in known:
        raise LaunchError(
            f"{node['class_type']} has no input {input_!r}: it has {', '.join(known)}."
        )
    if known[input_] not in _WIDGETS:
        raise LaunchError(
            f"{input_} of {node['class_type']} takes {known[input_]} from a wire, not a value of a "
            "list."
        )
    return known[input_]


def _texts(prompt: dict, kinds: dict) -> Iterator[str]:
    for id_, node in prompt.items():
        yield from (
            f"{id_}.{name} ({node['class_type']})"
            for name, kind in kinds[node["class_type"]].items()
            if kind == "STRING" and not isinstance(node["inputs"].get(name), list)
        )


def _converted(value: str, target: Target) -> object:
    try:
        return _WIDGETS[target.kind](value)
    except ValueError:
        raise ValueError(f"{target.input} takes {target.kind}, not {value!r}.") from None


def _digest(content: object) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
