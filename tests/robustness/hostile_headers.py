"""`run.py fuzz --headers N`: valid files of every kind whose headers hold hostile values, read by
the pack.

Case n is a kind of file, a number of changed places and their values; it depends on the seed and on
n alone. The file stays a valid safetensors or JSON file. Each must end in a result or in one
readable sentence that names the file, in bounded work. Readers run in this process, where no node
adds anything to what they read.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import random
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from tools.launcher import paths

#: Modules of nodes/ that read headers or JSON, and the kinds of files that try them; a text says
#: why there is none.
READERS: dict[str, tuple[str, ...] | str] = {
    "activations/activations_file.py": ("activations",),
    "activations/autoencoder_file.py": ("autoencoder", "autoencoder_json"),
    "activations/meta_networks_comfy.py": "shapes alone: tests/comfy/test_network_outline.py",
    "activations/point_list.py": "a text of the canvas, not a file",
    "activations/steering.py": ("direction",),
    "common/headers.py": "the schema itself",
    "common/lora_reader.py": ("lora", "lora_config", "lora_pt"),
    "common/peft_files.py": ("lora_config", "peft_json"),
    "common/resume.py": (
        *("training", "inversion", "space_training", "journal_jsonl"),
        *("mask_learning", "autoencoder_training"),
    ),
    "common/safetensors_files.py": "opens files for the readers",
    "demo/assets.py": "files of the pack itself",
    "demo/autoencoder.py": "files of the pack itself",
    "demo/judge.py": "files of the pack itself",
    "host/routes.py": "requests of the canvas",
    "neurons/mask_file.py": ("mask", "mask_csv"),
    "neurons/scan_file.py": ("scan_csv", "scan_json"),
    "neurons/sscd.py": "has no header: tensors are loaded by name into a fixed network",
    "neurons/statistics_file.py": ("statistics", "statistics_pt"),
    "weights/flat_layout.py": ("space",),
    "weights/labels.py": ("labels_csv", "labels_json"),
    "weights/member_folders.py": ("person_png",),
    "weights/member_labels.py": ("lora_config",),
    "weights/official_release.py": ("release_json",),
    "weights/slider_phrases.py": "labels of any form: tests/unit/weights/test_slider_phrases.py",
    "weights/space_file.py": ("space",),
}
#: Kinds whose content is JSON or has a JSON header, and images.
KINDS = tuple(
    sorted(
        {kind for kinds in READERS.values() if isinstance(kinds, tuple) for kind in kinds}
        - {"lora_pt", "statistics_pt", "mask_csv", "scan_csv", "labels_csv"}
    )
)
#: Seconds of processor time that a file of some kilobytes may take.
MOST_SECONDS = 20.0
ENDS = ("result", "sentence", "bare", "slow")
_DEEP: list = []
for _ in range(400):
    _DEEP = [_DEEP]
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        0.5,
        -0.5,
        1e-320,
        1e18,
        1e300,
        2**31,
        2**63,
        2**64,
        10**400,
        -(10**400),
    ),
    *(math.nan, math.inf, -math.inf),
    *(
        "",
        "x",
        "nan",
        "inf",
        "1",
        "yes",
        "[]",
        "{}",
        "\ud800",
        "\x00",
        "a\nb",
        "x" * 200_000,
        "9" * 5000,
    ),
    *(
        "(",
        "[",
        r"(\w+\.?)+!",
        r"(.*a){30}$",
        "(a|a)*" * 20 + "!",
        r"\w*" * 80 + "!",
        ".*" * 110 + "z",
        "^",
        "$",
        "|",
    ),
    *(
        [],
        [[]],
        [1, "a"],
        [math.nan],
        [1e300, 1e300],
        list(range(3000)),
        {},
        {"a": None},
        {"": {}},
        _DEEP,
    ),
)
_SHAPES = ([0], [2**62, 0], [2**40, 0, 3], [0, 2**31], [0] * 70, [1], [3, 5])
_DTYPES = {"F32": 4, "C64": 8, "U64": 8, "U16": 2, "BOOL": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I64": 8}


def changed(value: Any, rng: random.Random) -> Any:
    """A copy of a JSON value with one place removed, added, or set to a hostile value."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        draw = rng.random()
        if draw < 0.1:
            return {name: item for name, item in value.items() if name != key}
        if draw < 0.25:  # a hostile key, with a value that fits
            name = rng.choice([item for item in VALUES if isinstance(item, str)])
            return {**value, name: value[key]}
        return {**value, key: changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        items = [] if rng.random() < 0.2 else [changed(value[place], rng)]
        return [*value[:place], *items, *value[place + 1 :]]
    if isinstance(value, str) and value[:1] in ("{", "[") and rng.random() < 0.9:
        with contextlib.suppress(ValueError):
            return json.dumps(changed(json.loads(value), rng))
    return rng.choice(VALUES)


def hostile(content: bytes, suffix: str, rng: random.Random) -> bytes:
    """A valid file's content with one to three places of its header changed."""
    count = rng.choice((1, 1, 1, 2, 3))
    if suffix == ".jsonl":
        lines = content.decode().splitlines()
        for _ in range(count):
            place = rng.randrange(len(lines))
            lines[place] = json.dumps(changed(json.loads(lines[place]), rng))
        return "".join(f"{line}\n" for line in lines).encode()
    if suffix == ".png":
        for _ in range(count):
            content = _changed_image(content, rng)
        return content
    if suffix == ".json":
        value = json.loads(content)
        for _ in range(count):
            value = changed(value, rng)
        return json.dumps(value).encode()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    numbers = content[8 + size :]
    for _ in range(count):
        header, numbers = _changed_header(header, numbers, rng)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + numbers


def _changed_header(header: dict, numbers: bytes, rng: random.Random) -> tuple[dict, bytes]:
    """A header with a changed entry of its metadata, or a tensor of another dtype, shape or
    value.
    """
    metadata = header.get("__metadata__", {})
    names = sorted(name for name in header if name != "__metadata__")
    draw = rng.random()
    if metadata and draw < 0.75:
        values = changed(metadata, rng)
        values = values if isinstance(values, dict) else {}
        texts = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in values.items()
        }
        return {**header, "__metadata__": texts}, numbers
    name = rng.choice(names)
    entry = header[name]
    first, last = entry["data_offsets"]
    if draw < 0.9:  # numbers of the right form
        wrong = rng.choice((b"\xff", b"\x7f", b"\x00", bytes([rng.randrange(256)])))
        return header, numbers[:first] + wrong * (last - first) + numbers[last:]
    dtype = rng.choice(sorted(_DTYPES))
    shape = rng.choice(_SHAPES)
    if 0 in shape:  # a tensor without numbers takes no place, so a stranger may give it any shape
        key = rng.choice(
            (
                f"{name}x",
                "lora_unet_x.lora_up.weight",
                "x." * 400 + "lora_A",
                "unet:" + "9" * 900 + ":up",
            )
        )
        return {**header, key: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}}, numbers
    width = _DTYPES[dtype]
    if (last - first) % width:
        return header, numbers
    return {**header, name: {**entry, "dtype": dtype, "shape": [(last - first) // width]}}, numbers


#: The first bytes of a PNG, and what its chunks may be called.
_PNG = b"\x89PNG\r\n\x1a\n"
_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"iCCP", b"eXIf", b"tEXt", b"zTXt", b"iTXt", b"gAMA", b"pHYs")
_CHUNKS += (b"sRGB", b"acTL", b"fcTL", b"fdAT", b"IDAT", b"IEND", b"bKGD", b"abcd")
_SIDES = (0, 1, 5, 65_535, 9_000, 20_000, 2**31 - 1, 2**31, 2**32 - 1)


def _changed_image(content: bytes, rng: random.Random) -> bytes:
    """A PNG with a chunk removed, doubled, added or changed; lengths and checksums stay right."""
    chunks: list[tuple[bytes, bytes]] = []
    place = len(_PNG)
    while place < len(content):
        (size,) = struct.unpack(">I", content[place : place + 4])
        chunks.append((content[place + 4 : place + 8], content[place + 8 : place + 8 + size]))
        place += size + 12
    number = rng.randrange(len(chunks))
    name, data = chunks[number]
    draw = rng.random()
    if draw < 0.1:
        chunks[number : number + 1] = rng.choice(([], [(name, data)] * 2))
    elif draw < 0.4:
        text = rng.choice([value for value in VALUES if isinstance(value, str)]).encode(
            "utf-8", "replace"
        )
        added = rng.choice((text, rng.randbytes(rng.randrange(60)), data))
        chunks.insert(rng.randrange(len(chunks) + 1), (rng.choice(_CHUNKS), added))
    elif draw < 0.7:
        sides = struct.pack(">II", rng.choice(_SIDES), rng.choice(_SIDES))
        kind = bytes(rng.choice((0, 1, 2, 3, 4, 6, 8, 16, 255)) for _ in range(5))
        chunks[0] = (b"IHDR", sides + rng.choice((chunks[0][1][8:], kind)))
    elif data:
        spot = rng.randrange(len(data))
        chunks[number] = (name, data[:spot] + rng.randbytes(1) + data[spot + 1 :])
    return _PNG + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def case(number: int, seed: int) -> tuple[str, random.Random]:
    """The kind of file of a case, and what draws its changes."""
    rng = random.Random(f"{seed} {number}")
    return KINDS[number % len(KINDS)], rng


def try_file(readers: Any, kind: str, path: Path, content: bytes) -> tuple[str, str]:
    """Read a file of that content: one of ENDS, and the message."""
    from . import fuzz

    path.write_bytes(content)
    began = time.process_time()
    faulthandler.dump_traceback_later(
        20 * MOST_SECONDS, exit=True
    )  # a compiled loop cannot be interrupted
    try:
        getattr(readers, f"read_{kind}")(path)
        end = ("result", "")
    except Exception as error:
        message = str(error)
        readable = fuzz.is_readable(type(error).__name__, message) and path.name in message
        end = ("sentence" if readable else "bare", f"{type(error).__name__}: {message}")
    finally:
        faulthandler.cancel_dump_traceback_later()
    seconds = time.process_time() - began
    return ("slow", f"{seconds:.0f} s") if seconds > MOST_SECONDS else end


def run(count: int, seed: int) -> tuple[Counter, list[str]]:
    """Try so many cases; returns the number of each end, and the defects."""
    helpers = str(paths.ROOT / "tests" / "helpers")
    if helpers not in sys.path:
        sys.path.insert(0, helpers)
    import repository

    repository.load_pack()
    from file_kinds import FileKinds, build_space, suffix_of

    counts: Counter = Counter()
    defects: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        readers = FileKinds(build_space(base))
        valid = {}
        for kind in KINDS:
            path = base / f"valid{suffix_of(kind)}"
            getattr(readers, f"write_{kind}")(path)
            valid[kind] = path.read_bytes()
        for number in range(count):
            kind, rng = case(number, seed)
            path = base / f"hostile{suffix_of(kind)}"
            end, message = try_file(readers, kind, path, hostile(valid[kind], path.suffix, rng))
            counts[end] += 1
            if end in ENDS[2:]:
                defects.append(f"{number} {kind}: {message[:300]}")
    return counts, defects
