"""Spaces built or saved by two at once, and damaged files: never a wrong space, always one
sentence.
"""

import hashlib
import json
import multiprocessing
import os
import random
import struct
import time

import members
import pytest
import torch
from glassbox.nodes.common import lora_reader
from glassbox.nodes.common.atomic_write import BusyError
from glassbox.nodes.weights import (
    labels,
    member_sources,
    official_release,
    space_builder,
    space_file,
)
from safetensors.torch import save_file

COUNT = 8


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return member_sources.file_sources(
        members.write_folder(tmp_path_factory.mktemp("loras"), COUNT, rank=2)
    )


def build(sources, target, track=iter):
    return space_builder.build(sources, space_builder.BuildSettings(rank=2), target, track)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_second_build_of_a_target_is_refused_while_the_first_runs(sources, tmp_path):
    """From the middle of one build, another with other members of the same target; the first is not
    disturbed.
    """
    build(sources[:6], tmp_path / "clean" / "s.safetensors")
    target, refused = tmp_path / "s.safetensors", []

    def track(items):
        for item in items:
            if not refused:
                with pytest.raises(BusyError, match=r"s\.safetensors is being written"):
                    build(sources[3:], target)
                refused.append(item)
            yield item

    # the lock is taken after the headers are read, so the first loop is left alone
    loops = iter([iter, *[track] * 9])
    build(sources[:6], target, lambda items: next(loops)(items))
    assert refused and digest(target) == digest(tmp_path / "clean" / "s.safetensors")


def _late_build(sources, target, delay):
    torch.set_num_threads(1)  # a forked process must not use its parent's thread pool
    time.sleep(delay)
    try:
        build(sources, target)
    except BusyError:
        os._exit(3)
    os._exit(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_two_processes_that_build_one_target_leave_a_space_of_one_of_them(sources, tmp_path):
    """Pairs of processes after random delays: the file is one of the two clean builds, byte for
    byte.
    """
    groups = (sources[:6], sources[3:])
    clean = set()
    generator, context = random.Random(0), multiprocessing.get_context("fork")
    for number, group in enumerate(
        groups
    ):  # in a process too, whose threads round sums as those below do
        target = tmp_path / str(number) / "s.safetensors"
        process = context.Process(target=_late_build, args=(group, target, 0.0))
        process.start()
        process.join(120)
        clean.add(digest(target))
    for pair in range(6):
        target = tmp_path / f"pair{pair}" / "s.safetensors"
        processes = [
            context.Process(target=_late_build, args=(group, target, generator.random() * 0.05))
            for group in groups
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
        assert sorted(process.exitcode for process in processes) in ([0, 0], [0, 3])
        assert digest(target) in clean
        assert not list(target.parent.glob("*.building")) and not list(target.parent.glob("*.part"))


def test_a_current_space_is_not_built_again(sources, tmp_path, monkeypatch):
    target = tmp_path / "s.safetensors"
    build(sources, target)
    before = target.stat().st_mtime_ns
    monkeypatch.setattr(space_builder, "_write", None)
    assert len(build(sources, target).members) == COUNT and target.stat().st_mtime_ns == before
    with pytest.raises(TypeError):
        build(sources[1:], target)


def test_the_folder_of_an_abandoned_build_is_removed_by_the_next_build(sources, tmp_path):
    target = tmp_path / "s.safetensors"
    (tmp_path / "s.0123456789ab.building").mkdir()
    (tmp_path / "other.0123456789ab.building").mkdir()
    build(sources, target)
    assert [path.name for path in tmp_path.glob("*.building")] == ["other.0123456789ab.building"]


@pytest.fixture(scope="module")
def saved(sources, tmp_path_factory):
    path = tmp_path_factory.mktemp("space") / "s.safetensors"
    space = build(sources, path)
    with_labels = {"beard": torch.arange(COUNT) % 2 * 1.0}
    from dataclasses import replace

    from glassbox.nodes.weights import directions

    space = replace(space, labels=with_labels)
    space = space.with_directions(directions.fit(space, with_labels, 3, "least_squares"))
    space_file.write(space, path.with_name("t.safetensors"), "int8")
    return path.with_name("t.safetensors")


def _damaged_tensors():
    cut = {
        "basis": [lambda t: t[:, :-1], lambda t: t[0], lambda t: t[:2]],
        "mean": [lambda t: t[:-1], lambda t: t * float("nan")],
        "deviation": [lambda t: t[:-1]],
        "coefficients": [
            lambda t: t[:-1],
            lambda t: t * float("inf"),
            lambda t: torch.cat([t, t], 1),
        ],
        "basis_scale": [lambda t: t[:, :0], lambda t: None],
        "labels": [lambda t: t[:-1]],
        "directions": [lambda t: t[:, :-1], lambda t: t[:0]],
        "singular_values": [lambda t: t[None], lambda t: None],
        "kept": [lambda t: t[:-1]],
        "squares": [lambda t: t[:-1]],
        "sign_reference": [lambda t: t[:-1]],
    }
    return [(name, change) for name, changes in cut.items() for change in changes]


@pytest.mark.parametrize(("name", "change"), _damaged_tensors())
def test_a_space_with_a_damaged_tensor_is_refused(saved, tmp_path, name, change):
    from safetensors import safe_open

    with safe_open(saved, "pt") as file:
        metadata, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    tensors[name] = change(tensors[name])
    save_file(
        {key: value.contiguous().clone() for key, value in tensors.items() if value is not None},
        tmp_path / "d.safetensors",
        metadata,
    )
    with pytest.raises(ValueError, match=r"d\.safetensors is damaged"):
        space_file.read(tmp_path / "d.safetensors")


def _header(path, change):
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    change(header["__metadata__"])
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda h: h.pop("layout"), "has no layout"),
        (lambda h: h.pop("members"), "has no members"),
        (lambda h: h.pop("space"), "has no space"),
        (lambda h: h.update(layout="{"), "cannot be read: its layout is no JSON"),
        (lambda h: h.update(members="1"), "has members = '1', which must be a list"),
        (lambda h: h.update(members='["a"]'), "is damaged"),
        (lambda h: h.update(space="[" * 100_000), "has space = .*, which must be JSON"),
        (lambda h: h.update(space="[]"), r"has space = '\[\]', which must be a JSON object"),
        (
            lambda h: h.update(space=json.dumps({**json.loads(h["space"]), "form": "other"})),
            r"has space\.form = 'other', which must be one of",
        ),
        (
            lambda h: h.update(
                space=json.dumps({**json.loads(h["space"]), "directions": {"beard": {}}})
            ),
            r"has no space\.directions\.beard\.max_projection",
        ),
        (
            lambda h: h.update(layout=json.dumps({**json.loads(h["layout"]), "layers": {"x": 3}})),
            r"has layers\.x = 3, which must be a list of 2",
        ),
    ],
)
def test_a_space_with_a_damaged_header_is_refused(saved, tmp_path, change, reason):
    (tmp_path / "d.safetensors").write_bytes(_header(saved, change))
    with pytest.raises(ValueError, match=rf"^d\.safetensors {reason}") as caught:
        space_file.read(tmp_path / "d.safetensors")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    assert isinstance(space_file.build_key(tmp_path / "d.safetensors"), str)


@pytest.mark.parametrize(
    ("part", "values", "reason"),
    [
        ("space", {"common_norm": float("nan")}, r"space\.common_norm = nan"),
        (
            "space",
            {"common_norm": 2.0, "norms": [1.0]},
            r"space\.norms = \[1\.0\], which must be a list of",
        ),
        (
            "space",
            {"common_norm": 2.0, "norms": None},
            r"space\.norms = None, which must be a list of",
        ),
        ("space", {"groups": [["a"], 3]}, r"space\.groups = "),
        ("space", {"stems": {"a": 1}}, r"space\.stems\.a = 1"),
        (
            "layout",
            {"layers": {"x": [[1, 2**40], [1, 1]]}},
            r"layers\.x = .*, which must be a whole number",
        ),
        ("layout", {"alpha": float("inf")}, "alpha = inf, which must be a finite number"),
    ],
)
def test_values_that_reports_compute_with_are_checked(saved, tmp_path, part, values, reason):
    def change(metadata):
        metadata[part] = json.dumps({**json.loads(metadata[part]), **values})

    (tmp_path / "d.safetensors").write_bytes(_header(saved, change))
    with pytest.raises(ValueError, match=rf"^d\.safetensors has {reason}"):
        space_file.read(tmp_path / "d.safetensors")


def test_a_space_with_a_member_that_joined_reads_back(saved, tmp_path):
    """Without a common norm the list of norms stays that of the build; such a space is as valid as
    any.
    """
    space = space_file.read(saved)
    joined = space.with_member("new", space.coefficients[0])
    assert len(joined.about["norms"]) == len(joined.members) - 1 and not joined.common_norm
    space_file.write(joined, tmp_path / "joined.safetensors")
    assert space_file.read(tmp_path / "joined.safetensors").members == joined.members


_DAMAGED = {
    "html": b"<!DOCTYPE html><html>404</html>",
    "text": b"version https://git-lfs.github.com/spec/v1\n",
    "empty": b"",
    "legacy": b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01K\x01s.",
    "unknown_class": b"\x80\x02cnowhere\nNothing\nq\x00)\x81q\x01.",
    "cut_zip": b"PK\x03\x04" + b"\0" * 40,
}


@pytest.mark.parametrize("suffix", [".pt", ".bin", ".safetensors"])
@pytest.mark.parametrize("content", _DAMAGED)
def test_a_damaged_lora_file_is_one_sentence_and_skipped_in_a_folder(
    sources, tmp_path, suffix, content
):
    folder = members.write_folder(tmp_path / "loras", 3, rank=2)
    bad = folder / f"bad{suffix}"
    bad.write_bytes(_DAMAGED[content])
    for read in (lora_reader.read, lora_reader.read_header):
        with pytest.raises(ValueError, match=rf"bad{suffix}") as caught:
            read(bad)
        assert "weights_only" not in str(caught.value) and "\n" not in str(caught.value)
    space = build(member_sources.file_sources(folder), tmp_path / "s.safetensors")
    assert len(space.members) == 3 and list(space.about["skipped"]) == ["bad"]


@pytest.mark.parametrize("name", ["V.pt", "mean.pt", "weight_dimensions.pt"])
@pytest.mark.parametrize("content", _DAMAGED)
def test_a_damaged_release_file_is_one_sentence(tmp_path, name, content):
    import release

    release.write(tmp_path / "files", members.LAYERS, 6, 4, 3)
    (tmp_path / "files" / name).write_bytes(_DAMAGED[content])
    with pytest.raises(ValueError, match=name.replace(".", r"\.")) as caught:
        official_release.convert(tmp_path / "files", tmp_path / "s.safetensors", 4, "float32")
    assert "weights_only" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("identity_df.csv", "file,Bald\n1,1,9\n2\n3,1\n4,1\n5,1\n6,0"),
        ("identity_df.csv", 'file,Bald\n"' + "x" * 200_000),
        ("adapter_config.json", "{"),
        ("adapter_config.json", "[]"),
        ("adapter_config.json", "[" * 100_000),
    ],
)
def test_damaged_tables_of_a_release_are_one_sentence_or_left_out(tmp_path, name, text):
    import release

    release.write(tmp_path / "files", members.LAYERS, 6, 4, 3)
    (tmp_path / "files" / name).write_text(text)
    try:
        space, _ = official_release.convert(
            tmp_path / "files", tmp_path / "s.safetensors", 4, "float32"
        )
    except ValueError as error:
        assert name in str(error)
    else:
        assert name == "identity_df.csv" and not space.labels


@pytest.mark.parametrize("text", ['member,a\n"' + "x" * 200_000, '{"a":' * 100_000])
def test_labels_that_no_parser_takes_are_one_sentence(sources, tmp_path, text):
    space = build(sources, tmp_path / "s.safetensors")
    with pytest.raises(ValueError, match="The labels are not"):
        labels.parse(text, space)
