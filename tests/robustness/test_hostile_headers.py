"""Every reader of headers with hostile values in valid files: a result or one sentence, in bounded
work.
"""

from __future__ import annotations

import ast
import json
import math
import random
import struct

import file_kinds
import pytest
import repository
import torch
from file_kinds import FileKinds, suffix_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from robustness import hostile_headers
from robustness.hostile_headers import ENDS, KINDS, READERS, VALUES
from safetensors import safe_open
from safetensors.torch import save_file

_NODES = repository.ROOT / "nodes"
#: What reads a header, JSON or a pickle of a file.
_READING = {
    "open_tensors",
    "open_file",
    "safe_open",
    "load_file",
    "read_section",
    "read_json",
    "from_json",
    "parsed",
}
_OF_MODULES = {("json", "loads"), ("json", "load"), ("torch", "load")}


def _reads(source: str) -> bool:
    """Whether a module calls a reader of headers, JSON or pickles."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        function = call.func
        if isinstance(function, ast.Name) and function.id in _READING:
            return True
        if isinstance(function, ast.Attribute):
            owner = function.value.id if isinstance(function.value, ast.Name) else ""
            if (owner, function.attr) in _OF_MODULES or function.attr in (
                "safe_open",
                "load_file",
                "metadata",
                "parsed",
            ):
                return True
    return False


def test_every_reader_of_headers_is_tried():
    reading = {
        path.relative_to(_NODES).as_posix()
        for path in _NODES.rglob("*.py")
        if _reads(path.read_text(encoding="utf-8"))
    }
    assert reading == set(READERS) - {"host/routes.py", "weights/member_folders.py"}
    named = {kind for kinds in READERS.values() if isinstance(kinds, tuple) for kind in kinds}
    assert named <= set(file_kinds.KINDS)


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    return FileKinds(file_kinds.build_space(tmp_path_factory.mktemp("space")))


@pytest.fixture(scope="module")
def valid(readers, tmp_path_factory):
    """The content of a valid file of each kind."""
    contents = {}
    for kind in KINDS:
        path = tmp_path_factory.mktemp(kind) / f"valid{suffix_of(kind)}"
        getattr(readers, f"write_{kind}")(path)
        contents[kind] = path.read_bytes()
    return contents


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_values_end_in_a_result_or_a_sentence(readers, valid, tmp_path_factory, kind):
    path = tmp_path_factory.mktemp(kind) / f"hostile{suffix_of(kind)}"

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def check(rng: random.Random) -> None:
        content = hostile_headers.hostile(valid[kind], path.suffix, rng)
        end, message = hostile_headers.try_file(readers, kind, path, content)
        assert end in ENDS[:2], f"{kind}: {message[:400]}"

    assert hostile_headers.try_file(readers, kind, path, valid[kind]) == ("result", "")
    check()


def _places(value, path=()):
    """The path of every key of an object, of the texts of JSON in it, and of the first items of its
    lists.
    """
    if isinstance(value, str) and value[:1] in ("{", "["):
        value = json.loads(value)
    keys = [*value] if isinstance(value, dict) else [*range(min(len(value), 2))]
    for key in keys:
        yield (*path, key)
        if isinstance(value[key], dict | list) or str(value[key])[:1] in ("{", "["):
            yield from _places(value[key], (*path, key))


def _replaced(value, path, new):
    """A copy of a value with another one at a place."""
    if not path:
        return new
    if isinstance(value, str):
        return json.dumps(_replaced(json.loads(value), path, new))
    copied = value.copy()
    copied[path[0]] = _replaced(value[path[0]], path[1:], new)
    return copied


#: What JSON may hold in the place of what a reader expects.
_OTHERS = (None, True, False, 0, -1, -0.0, 1.5, 2**64, "", "1", [], [[]], [None], {}, {"": None})


def _is_json(kind):
    return suffix_of(kind) in (".json", ".safetensors")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if _is_json(kind)])
def test_every_place_of_a_header_may_hold_null_or_another_type(readers, valid, tmp_path, kind):
    """Not drawn: each place in turn. A field that may be absent may be null."""
    path = tmp_path / f"hostile{suffix_of(kind)}"
    content, numbers = valid[kind], b""
    if path.suffix == ".safetensors":
        (size,) = struct.unpack("<Q", content[:8])
        numbers = content[8 + size :]
        content = content[8 : 8 + size]
    header = json.loads(content)
    text = header if path.suffix == ".json" else header.get("__metadata__", {})
    defects = []
    for place in _places(text):
        for other in _OTHERS:
            changed = _replaced(text, place, other)
            if path.suffix == ".safetensors":
                texts = {
                    key: value if isinstance(value, str) else json.dumps(value)
                    for key, value in changed.items()
                }
                whole = json.dumps({**header, "__metadata__": texts}).encode()
                made = struct.pack("<Q", len(whole)) + whole + numbers
            else:
                made = json.dumps(changed).encode()
            end, message = hostile_headers.try_file(readers, kind, path, made)
            if end not in ENDS[:2]:
                defects.append((place, other, message[:200]))
    assert defects == []


#: By kind of file, what its reader takes that is not in the valid one.
_OPTIONAL = {
    "space": (
        *("skipped", "stems", "stamps", "lost", "twins", "groups", "reused", "norms", "bases"),
        *("storage_error", "common_norm", "total_squares", "learned", "standardized", "base"),
    ),
    "activations": ("map_sizes", "text_marks"),
    "mask": ("z", "selected_by", "score_after_selection", "wasserstein"),
}


@pytest.mark.parametrize(
    ("kind", "key"), [(kind, key) for kind, keys in _OPTIONAL.items() for key in keys]
)
def test_a_field_that_may_be_absent_may_be_null(readers, valid, tmp_path, kind, key):
    """And every other type is a sentence, or read; never an error of what uses the field."""
    path = tmp_path / f"hostile{suffix_of(kind)}"
    content, numbers = valid[kind], b""
    if path.suffix == ".safetensors":
        (size,) = struct.unpack("<Q", content[:8])
        numbers = content[8 + size :]
        content = content[8 : 8 + size]
    header = json.loads(content)
    for other in _OTHERS:
        if kind == "mask":
            changed = json.loads(content)
            changed["searches"][0][key] = other
            made = json.dumps(changed).encode()
        else:
            metadata = header["__metadata__"]
            values = json.loads(metadata[kind])
            (values["settings"] if kind == "activations" else values)[key] = other
            whole = json.dumps(
                {**header, "__metadata__": {**metadata, kind: json.dumps(values)}}
            ).encode()
            made = struct.pack("<Q", len(whole)) + whole + numbers
        end, message = hostile_headers.try_file(readers, kind, path, made)
        assert end in ENDS[:2], (other, message)
        assert other is not None or end == "result", message


#: A place of a valid checkpoint of each training, and numbers that no training leaves there.
_WRONG = {
    "space_training": {"adam.0.step": -1.0, "adam.1.exp_avg_sq": -1.0, "adam.2.exp_avg": math.nan},
    "mask_learning": {"step": -1.0, "exp_avg_sq": -1.0, "factors": 7.0, "losses": math.inf},
    "inversion": {"step": -1.0, "exp_avg_sq": -1.0, "coefficients": math.nan},
    "training": {"optimizer.0.step": -1.0, "optimizer.0.exp_avg_sq": -1.0},
    "autoencoder_training": {
        **{"steps": -1.0, "chunks": 0.0, "scale": 0.0, "idle": -2.0, "counts": -1.0},
        **{"encoder.exp_avg_sq": -1.0, "decoder": math.nan, "curve": math.inf},
    },
}


@pytest.mark.parametrize(
    ("kind", "key"), [(kind, key) for kind, keys in _WRONG.items() for key in keys]
)
def test_wrong_numbers_in_a_checkpoint_of_valid_form(readers, tmp_path, kind, key):
    """Not the training's own sentence on a loss: the file is named as damaged, before a step."""
    path = tmp_path / "wrong.safetensors"
    getattr(readers, f"write_{kind}")(path)
    with safe_open(path, "pt") as file:
        header = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    wrong = _WRONG[kind][key]
    whole = not tensors[key].is_floating_point() and math.isfinite(wrong)
    dtype = tensors[key].dtype if whole else torch.float32
    changes = {
        "number": torch.full(tensors[key].shape, wrong, dtype=dtype),
        "shape": torch.zeros(2, 3, 5),
        "type": torch.zeros(tensors[key].shape, dtype=torch.complex64),
    }
    for name, change in changes.items():
        save_file({**tensors, key: change}, path, header)
        with pytest.raises(ValueError, match=r"wrong\.safetensors") as caught:
            getattr(readers, f"read_{kind}")(path)
        assert "\n" not in str(caught.value)
        assert name != "number" or "is damaged: delete it" in str(caught.value), caught.value


def test_the_generator_puts_every_value_into_headers():
    shown = set()
    for number in range(3000):
        rng = random.Random(number)
        shown.add(repr(hostile_headers.changed({"a": 1}, rng))[5:100])
    assert {repr({"a": value})[5:100] for value in VALUES} <= shown


def test_the_fuzz_counts_defects(monkeypatch):
    """A reader that raises a bare error is counted as such, and named by its case."""

    def broken(_self, _path):
        raise KeyError("a")

    monkeypatch.setattr(FileKinds, "read_mask", broken)
    counts, defects = hostile_headers.run(len(KINDS), 3)
    assert counts["bare"] == 1 and sum(counts.values()) == len(KINDS)
    assert defects[0].startswith(f"{KINDS.index('mask')} mask: KeyError")
