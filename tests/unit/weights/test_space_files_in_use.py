"""Members replaced under their names, builds killed before they clean up, and space files that
change while in use.
"""

import os
import shutil

import members
import pytest
import torch
from glassbox.nodes.weights import member_sources, space_builder, space_file
from glassbox.nodes.weights.space import Point

COUNT = 6


def build(folder, target, form):
    rank = (
        0 if form == "weight_updates" else 2
    )  # whole updates, so that extending a space loses nothing
    settings = space_builder.BuildSettings(form=form, rank=rank, energy=1.0, components=8)
    return space_builder.build(member_sources.file_sources(folder), settings, target)


@pytest.mark.parametrize("form", ["weight_updates", "singular_values"])
@pytest.mark.parametrize("joins", [False, True])
def test_a_member_of_the_same_size_and_time_is_read_again(tmp_path, form, joins):
    folder, other = (members.write_folder(tmp_path / name, COUNT, rank=2) for name in "ab")
    target, replaced = tmp_path / "s.safetensors", folder / "member_02.safetensors"
    assert replaced.is_file()
    build(folder, target, form)
    before = replaced.stat()
    donor = members.write_folder(tmp_path / "c", 20, rank=2)
    shutil.copy(donor / "member_17.safetensors", replaced)
    os.utime(replaced, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (replaced.stat().st_size, replaced.stat().st_mtime_ns) == (
        before.st_size,
        before.st_mtime_ns,
    )
    if joins:
        shutil.copy(donor / "member_12.safetensors", folder)
    again = build(folder, target, form)
    shutil.copytree(folder, other, dirs_exist_ok=True)
    clean = build(other, tmp_path / "clean.safetensors", form)
    assert "member_02" not in again.about.get("reused", [])
    found, wanted = (space.singular_values * space.deviation.mean() for space in (again, clean))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    unchanged = build(folder, target, form)
    assert torch.equal(unchanged.basis, again.basis)


def test_a_copied_folder_needs_no_build(tmp_path):
    folder, target = members.write_folder(tmp_path / "a", COUNT, rank=2), tmp_path / "s.safetensors"
    build(folder, target, "singular_values")
    before = target.stat()
    for file in folder.iterdir():
        os.utime(file, ns=(1, 1))
    build(folder, target, "singular_values")
    assert target.stat() == before


def test_what_a_killed_build_left_goes_when_its_space_is_opened(tmp_path, monkeypatch):
    folder, target = members.write_folder(tmp_path / "a", COUNT, rank=2), tmp_path / "s.safetensors"
    with monkeypatch.context() as killed:
        killed.setattr(
            space_builder.shutil, "rmtree", lambda *_, **__: None
        )  # the cleaning never comes
        build(folder, target, "weight_updates")
    left = list(tmp_path.glob("*.building"))
    assert left
    other = tmp_path / "other.0123456789ab.building"
    other.mkdir()
    build(folder, target, "weight_updates")
    assert list(tmp_path.glob("*.building")) == [other]


@pytest.fixture
def saved(tmp_path):
    folder, target = members.write_folder(tmp_path / "a", COUNT, rank=2), tmp_path / "s.safetensors"
    build(folder, target, "singular_values")
    return target


def shorten(path):
    with path.open("r+b") as file:
        file.truncate(100)


def test_a_small_space_outlives_its_file(saved):
    space = space_file.read(saved)
    first = Point(space, space.coefficients[0], "a").flat.clone()
    shorten(saved)
    assert space.file is None
    assert torch.equal(space.rebuild(space.coefficients[0]), first)
    torch.testing.assert_close(space.project(first), space.coefficients[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("use", ["rebuild", "change", "project", "rows"])
@pytest.mark.parametrize("how", ["shortened", "overwritten"])
def test_a_mapped_space_whose_file_was_written_to_is_refused(saved, monkeypatch, use, how):
    monkeypatch.setattr(space_file, "_MAPPED_BYTES", 0)
    space = space_file.read(saved)
    flat = space.mean + 1
    calls = {
        "rebuild": lambda: space.rebuild(space.coefficients[1]),
        "change": lambda: space.kept_flat(space.coefficients[1], True),
        "project": lambda: space.project(flat),
        "rows": lambda: space.rows(0, 2),
    }
    calls[use]()
    space._kept.clear()
    if how == "shortened":
        shorten(saved)
    else:
        with saved.open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"abcd")
        os.utime(saved)
    with pytest.raises(
        ValueError, match=r"s\.safetensors was written to while it was in use: load it again"
    ):
        calls[use]()


def test_a_mapped_space_whose_file_was_replaced_stays_whole(saved, monkeypatch):
    monkeypatch.setattr(space_file, "_MAPPED_BYTES", 0)
    space = space_file.read(saved)
    before = space.rebuild(space.coefficients[1]).clone()
    space_file.write(space, saved, "int8")
    assert torch.equal(space.rebuild(space.coefficients[1]), before)
    saved.unlink()
    assert torch.equal(space.rebuild(space.coefficients[1]), before)
