"""A stopped W2W Train Space: what may change before it goes on, and what may not; a full disk."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

CHOICES = {
    "folder": "stopped people",
    "prompt": "portrait",
    "rank": 1,
    "components": 2,
    "steps": 3,
    "learning_rate": 0.01,
    "members_per_step": 2,
    "images_per_member": 1,
    "batch_size": 2,
    "resolution": 64,
    "seed": 3,
    "layers": "attn2.to_k",
    "end_percent": 0.85,
    "caption_dropout": 0.0,
    "precision": "fp32",
    "gradient_checkpointing": False,
    "preview_interval": 0,
    "checkpoint_interval": 1,
}


@pytest.fixture(scope="module")
def demo(app):
    return app.run("GBX_LoadDemoModel", weights="avatars-v2")


@pytest.fixture
def people(app):
    """Two people of one image each, without captions, in the input folder."""
    import folder_paths

    from tools.launcher import paths

    source = paths.ROOT / "assets" / "avatars-v2-people"
    root = Path(folder_paths.get_input_directory()) / CHOICES["folder"]
    shutil.rmtree(root, ignore_errors=True)
    for person in ("person_00", "person_01"):
        (root / person).mkdir(parents=True)
        with Image.open(source / person / "0.webp") as image:
            image.convert("RGB").save(root / person / "0.png")
    yield root
    shutil.rmtree(root, ignore_errors=True)


def train(app, demo, name, **changes):
    model, clip, vae = demo
    given = {"model": model, "clip": clip, "vae": vae, **CHOICES, **changes}
    return app.run("GBX_W2WTrainSpace", checkpoint_name=name, **given)


def stop(app, demo, monkeypatch, name):
    """Train until the third step begins."""
    from comfy.model_management import InterruptProcessingException

    half = app.module("nodes.weights.monitored_run_comfy")
    calls: list[None] = []

    def check(self):
        calls.append(None)
        if len(calls) == 2:
            raise InterruptProcessingException

    with monkeypatch.context() as patched:
        patched.setattr(half.FinishNow, "check", check)
        with pytest.raises(InterruptProcessingException):
            train(app, demo, name)


def same(one, other):
    return all(
        torch.equal(getattr(one, name), getattr(other, name))
        for name in ("mean", "basis", "coefficients")
    )


def _replace_keeping_the_time(people):
    file = people / "person_00" / "0.png"
    before = file.stat()
    Image.new("RGB", (128, 128), "teal").save(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _make_transparent(people):
    file = people / "person_00" / "0.png"
    with Image.open(file) as image:
        clear = image.convert("RGBA")
    clear.putalpha(128)
    clear.save(file)


def _add_a_person(people):
    shutil.copytree(people / "person_01", people / "person_02")
    Image.new("RGB", (128, 128), "navy").save(people / "person_02" / "0.png")


CHANGES = {
    "an image added": lambda p: Image.new("RGB", (128, 128)).save(p / "person_01" / "1.png"),
    "an image replaced, its time kept": _replace_keeping_the_time,
    "an image renamed and another one first": lambda p: (
        (p / "person_00" / "0.png").rename(p / "person_00" / "9.png"),
        Image.new("RGB", (128, 128), "red").save(p / "person_00" / "1.png"),
    ),
    "a person renamed": lambda p: (p / "person_01").rename(p / "someone"),
    "a person added": _add_a_person,
    "a caption added": lambda p: (p / "person_00" / "0.txt").write_text("portrait, bald"),
    "transparency added": _make_transparent,
}


def test_what_the_training_reads_may_not_change(app, demo, people, monkeypatch, tmp_path):
    """Each of seven changes is refused by the name of what changed; without them it goes on to the
    numbers of a whole run.
    """
    whole = train(app, demo, "")[0]
    stop(app, demo, monkeypatch, "states/changed")
    shutil.copytree(people, tmp_path / "before")
    for name, change in CHANGES.items():
        change(people)
        with pytest.raises(
            ValueError, match=r"another [a-z_, ]*(images|members|components)"
        ) as error:
            train(app, demo, "states/changed")
        assert "\n" not in str(error.value), name
        shutil.rmtree(people)
        shutil.copytree(tmp_path / "before", people)
    with pytest.raises(ValueError, match="another seed"):  # another prompt with the same name
        train(app, demo, "states/changed", seed=4)
    (people / "person_00" / "Thumbs.db").write_bytes(b"\0" * 64)
    (people / "person_01" / "notes.md").write_text("not a caption")
    assert same(train(app, demo, "states/changed")[0], whole)
    assert same(train(app, demo, "states/changed")[0], whole)  # a second node with the same name


def test_a_full_disk_ends_in_a_sentence_and_the_run_goes_on(app, demo, people, monkeypatch):
    import folder_paths

    output = Path(folder_paths.get_output_directory())
    #: Tests that kill a process leave unfinished files in this folder, too.
    unfinished = set(output.rglob("*.part"))
    whole = train(app, demo, "")[0]
    fsync = os.fsync
    calls: list[None] = []

    def full(descriptor):
        calls.append(None)
        if len(calls) >= 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return fsync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(Exception, match=r"cannot be written to .*: free space") as error:
            train(app, demo, "states/full")
    assert "\n" not in str(error.value)
    assert set(output.rglob("*.part")) <= unfinished
    assert same(train(app, demo, "states/full")[0], whole)
