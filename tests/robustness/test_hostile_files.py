"""Every reader of the pack with files that are damaged, cut, or of another kind: read whole, or one
sentence.
"""

from __future__ import annotations

import json
import math
import pickle
import random
import struct
from pathlib import Path

import file_kinds
import pytest
import torch
from file_kinds import KINDS, FileKinds, suffix_of
from robustness import fuzz

_COPIES = 60  # damaged copies of each valid file, by seed


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    return FileKinds(file_kinds.build_space(tmp_path_factory.mktemp("space")))


def _try(readers: FileKinds, kind: str, path: Path, content: bytes) -> None:
    """Read a file of that content; anything but one readable sentence with the file's name
    fails.
    """
    path.write_bytes(content)
    try:
        getattr(readers, f"read_{kind}")(path)
    except Exception as error:
        message = str(error)
        readable = fuzz.is_readable(type(error).__name__, message)
        assert readable and path.name in message, (
            f"{content[:200]!r}: {type(error).__name__}: {message[:300]}"
        )


class _Executed:
    def __reduce__(self):
        return (pytest.exit, ("a pickle was executed",))


_OTHER_KINDS = {
    "empty": b"",
    "web page": b"<!DOCTYPE html><html><body>404: Not Found</body></html>",
    "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    "zeros": bytes(4096),
    "no text": bytes(range(128, 256)) * 40,
    "pickle": pickle.dumps(_Executed()),
    "old pickle": pickle.dumps({"a": 1}, 2),
    "cut archive": b"PK\x03\x04" + bytes(60),
    "long header": struct.pack("<Q", 2**62) + b"{}",
    "no header": struct.pack("<Q", 2) + b"{}",
    "list header": struct.pack("<Q", 8) + b"[1,2,3] ",
    "deep": b"[" * 100_000,
    "deep header": struct.pack("<Q", 100_000) + b"[" * 100_000,
    "long cell": b'Caption,member\n"' + b"x" * 200_000 + b'",1\n',
    "open quote": b'prompt,score,error\n"a man,0.5\n',
    "numbers": b"1\n2\n3\n",
    "json number": b"1",
    "json null": b"null",
    "json text": b'"text"',
}


@pytest.mark.parametrize("content", _OTHER_KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_file_of_another_kind_is_one_sentence(readers, tmp_path, kind, content):
    _try(readers, kind, tmp_path / f"hostile{suffix_of(kind)}", _OTHER_KINDS[content])


@pytest.mark.parametrize("kind", KINDS)
def test_cut_or_changed_bytes_are_one_sentence(readers, tmp_path, kind):
    """Valid files, cut at random places or with a few bytes changed."""
    path, rng = tmp_path / f"hostile{suffix_of(kind)}", random.Random(kind)
    getattr(readers, f"write_{kind}")(path)
    valid = path.read_bytes()
    _try(readers, kind, path, valid)
    for _ in range(_COPIES):
        copy = bytearray(valid[: rng.randrange(len(valid))] if rng.random() < 0.3 else valid)
        first = rng.choice((len(copy), 200, 2000))  # mostly where headers are
        for _ in range(rng.choice((0, 1, 1, 4)) if copy else 0):
            copy[rng.randrange(min(len(copy), first))] = rng.choice(
                (0, 32, 34, 45, 48, 57, 91, 123, 255)
            )
        _try(readers, kind, path, bytes(copy))


_VALUES = (None, -1, 0, 10**30, math.nan, math.inf, "x", "", [], {}, [[1]], {"a": None}, True, 0.5)


def _changed(value: object, rng: random.Random) -> object:
    """A copy of a JSON value with one place removed or set to something else."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value))
        rest = {name: item for name, item in value.items() if name != key}
        return rest if rng.random() < 0.25 else {**rest, key: _changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        changed = [] if rng.random() < 0.25 else [_changed(value[place], rng)]
        return [*value[:place], *changed, *value[place + 1 :]]
    if isinstance(value, str) and value[:1] in ("{", "["):
        return json.dumps(_changed(json.loads(value), rng))
    return rng.choice(_VALUES)


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if suffix_of(kind) in (".safetensors", ".json")]
)
def test_changed_headers_are_one_sentence(readers, tmp_path, kind):
    """Valid JSON, and safetensors that parse, with a key or an entry removed or of another type."""
    path, rng = tmp_path / f"hostile{suffix_of(kind)}", random.Random(kind)
    getattr(readers, f"write_{kind}")(path)
    valid = path.read_bytes()
    for _ in range(4 * _COPIES):
        if path.suffix == ".json":
            _try(readers, kind, path, json.dumps(_changed(json.loads(valid), rng)).encode())
            continue
        (size,) = struct.unpack("<Q", valid[:8])
        header = json.loads(valid[8 : 8 + size])
        about = {
            name: json.loads(text) if text[:1] in "{[" else text
            for name, text in header.get("__metadata__", {}).items()
        }
        changed = _changed(about, rng)
        if isinstance(changed, dict):
            texts = {
                key: value if isinstance(value, str) else json.dumps(value)
                for key, value in changed.items()
            }
            header["__metadata__"] = texts
        text = json.dumps(header).encode()
        _try(readers, kind, path, struct.pack("<Q", len(text)) + text + valid[8 + size :])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if suffix_of(kind) == ".safetensors"])
def test_changed_tensors_are_one_sentence(readers, tmp_path, kind):
    """A tensor missing, of another shape or type, or not finite."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    path = tmp_path / "hostile.safetensors"
    getattr(readers, f"write_{kind}")(path)
    with safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    changes = (
        lambda tensor: None,
        lambda tensor: tensor.reshape(-1)[:-1],
        lambda tensor: tensor[None],
        lambda tensor: tensor.reshape(-1)[:0],
        lambda tensor: tensor.to(torch.int64),
        lambda tensor: torch.full(tensor.shape, math.nan),
        lambda tensor: torch.full(tensor.shape, -math.inf),
    )
    for name, tensor in tensors.items():
        for change in changes:
            changed = {
                key: value.clone()
                for key, value in {**tensors, name: change(tensor)}.items()
                if value is not None
            }
            save_file({key: value.contiguous() for key, value in changed.items()}, path, metadata)
            _try(readers, kind, path, path.read_bytes())
