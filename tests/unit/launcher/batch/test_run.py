"""Whole jobs through the command, with an engine that stands in for ComfyUI."""

import errno
import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest
import stand_in_engine
from stand_in_engine import results

from tools.launcher.batch import command, engine
from tools.launcher.batch.lists import digest
from tools.launcher.batch.store import Store
from tools.launcher.batch.worker import Place, Settings, other_files
from tools.launcher.errors import LaunchError

ENGINE = ["--engine", stand_in_engine.__file__, "--cpu"]


@pytest.fixture
def run(tmp_path):
    """Runs a job over these lines, and returns its exit code."""
    workflow = tmp_path / "w.json"
    workflow.write_text(json.dumps(stand_in_engine.PROMPT))

    def batch(lines, *arguments):
        (tmp_path / "list.txt").write_text("\n".join(lines))
        given = [
            str(workflow),
            "--over",
            str(tmp_path / "list.txt"),
            "--map",
            "1.text",
            "--out",
            str(tmp_path / "out"),
        ]
        return command.run([*given, *ENGINE, *arguments])

    return batch


def test_every_entry_has_its_result(run, tmp_path, capsys):
    assert run(["a", "b", "c"]) == 0
    texts = {text for name, text in results(tmp_path / "out").items() if name.endswith("text.txt")}
    assert texts == {b"a", b"b", b"c"}
    assert (tmp_path / "out" / "index.csv").read_text().count("\n") == 4
    assert "3 pieces run" in capsys.readouterr().out


def test_a_second_run_finds_the_results_and_runs_what_is_new(run, tmp_path, capsys):
    run(["a", "b"])
    before = {
        path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "pieces").rglob("text.txt")
    }
    assert run(["a", "b", "c"]) == 0
    shown = capsys.readouterr().out
    assert "1 pieces run in " in shown and ", 2 found, 0 failed." in shown
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_piece_that_always_fails_is_tried_three_times_then_named_and_left_out(
    run, tmp_path, capsys, monkeypatch
):
    tries = []
    worker = command.Worker.run
    monkeypatch.setattr(
        command.Worker,
        "run",
        lambda self, key, values: (tries.append(values), worker(self, key, values)),
    )
    assert run(["a", "fail here", "b"]) == 1
    assert [one["prompt"] for one in tries] == ["a", *["fail here"] * 3, "b"]
    assert "Piece 1 (fail here) failed: It fails: fail here" in capsys.readouterr().out
    assert "fail here" in (tmp_path / "out" / "failures.csv").read_text()
    assert len([name for name in results(tmp_path / "out") if name.endswith("text.txt")]) == 2


def test_a_full_disk_is_a_try_and_a_sentence(run, tmp_path, capsys, monkeypatch):
    """Of a node's file and of the result's own; the failures' file may find no room either, and the
    job goes on.
    """
    assert run(["a", "full", "b"]) == 1
    shown = capsys.readouterr().out
    assert (
        "2 pieces run" in shown
        and "Piece 1 (full) failed" in shown
        and "No space left on device" in shown
    )
    tries = []

    def finish(self, key, record):
        tries.append(key)
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.work))
        original(self, key, record)

    original = Store.finish
    monkeypatch.setattr(Store, "finish", finish)
    assert run(["c"]) == 0 and len(tries) == 3 and "1 pieces run" in capsys.readouterr().out
    (tmp_path / "out" / "failures.csv").mkdir()
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    assert run(["a", "full"]) == 1
    assert "It is not in" in capsys.readouterr().out


def test_a_folder_of_results_that_cannot_be_read_is_a_sentence(run, tmp_path, monkeypatch):
    def denied(self, key):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path / "out"))

    monkeypatch.setattr(Store, "read", denied)
    with pytest.raises(LaunchError, match=r"out: Permission denied\. What is done is kept"):
        run(["a"])


def test_where_every_piece_failed_nothing_is_joined(run, tmp_path):
    with pytest.raises(LaunchError, match="Every piece failed"):
        run(["fail 1", "fail 2"], "--join", "images")
    assert (
        not (tmp_path / "out" / "index.csv").exists()
        and (tmp_path / "out" / "failures.csv").exists()
    )


def test_another_checkpoint_makes_other_results(run, tmp_path, monkeypatch):
    run(["a"])
    first = set(results(tmp_path / "out"))
    monkeypatch.setenv("STAND_IN_DIGEST", "another")
    run(["a"])
    assert len(results(tmp_path / "out")) == 2 * len(first)


def test_a_workflow_brings_its_own_map(run, tmp_path):
    saved = {**stand_in_engine.PROMPT, "extra": {"glassbox_batch": {"map": ["1.text"], "chunk": 2}}}
    (tmp_path / "w.json").write_text(json.dumps(saved))
    (tmp_path / "list.txt").write_text("a\nb\nc")
    given = [
        str(tmp_path / "w.json"),
        "--over",
        str(tmp_path / "list.txt"),
        "--out",
        str(tmp_path / "out"),
    ]
    assert command.run([*given, *ENGINE]) == 0
    texts = {text for name, text in results(tmp_path / "out").items() if name.endswith("text.txt")}
    assert texts == {b"a\nb", b"c"}


@pytest.mark.parametrize("text", ["{", "[]", None])
def test_files_that_are_not_workflows_are_refused(run, tmp_path, text):
    (tmp_path / "w.json").unlink()
    if text is not None:
        (tmp_path / "w.json").write_text(text)
    with pytest.raises(LaunchError, match=r"w\.json"):
        run(["a"])


def test_a_worker_that_does_not_see_the_results_says_so(tmp_path):
    with pytest.raises(
        LaunchError, match=r"does not see .*none: give as --out a folder that all machines share"
    ):
        command.Worker(Settings(tmp_path / "none", engine=Path(stand_in_engine.__file__)))


@pytest.mark.parametrize("cpu", [True, False])
def test_on_the_cpu_attention_is_pytorch_s(tmp_path, cpu):
    place = Place(comfyui=tmp_path, base=tmp_path, cpu=cpu, arguments=("--more",))
    arguments = engine._arguments(place)
    assert ("--cpu" in arguments) == ("--use-pytorch-cross-attention" in arguments) == cpu
    assert arguments[-1] == "--more"
    named = engine._arguments(replace(place, arguments=("--use-split-cross-attention",)))
    assert "--use-pytorch-cross-attention" not in named


def test_a_checkpoint_is_read_once_on_a_machine_unless_it_changes(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(engine, "digest", lambda path: read.append(path) or digest(path))
    checkpoint, notes = tmp_path / "base.safetensors", tmp_path / "notes" / "digests.json"
    checkpoint.write_bytes(b"1")
    first = engine._Digests(notes).of(checkpoint)
    assert engine._Digests(notes).of(checkpoint) == first == digest(checkpoint) and len(read) == 1
    checkpoint.write_bytes(b"another")
    assert engine._Digests(notes).of(checkpoint) == digest(checkpoint) != first


def test_warnings_come_on_lines_of_their_own(run, monkeypatch, capsys):
    worker = command.Worker.run

    def warning(self, key, values):
        worker(self, key, values)
        logging.getLogger("somewhere").warning("The model does not know: %s", values["prompt"])
        logging.root.handle(
            logging.LogRecord("root", logging.ERROR, "execution.py", 1, "Traceback", (), None)
        )

    monkeypatch.setattr(command.Worker, "run", warning)
    before = logging.root.handlers
    assert run(["a"]) == 0 and logging.root.handlers is before
    shown = capsys.readouterr().out
    assert "\nThe model does not know: a\n" in shown and "Traceback" not in shown


def test_files_that_differ_between_workers_are_named():
    first, second = {"a": "1" * 64, "b": "2" * 64}, {"a": "1" * 64, "b": "3" * 64}
    assert other_files("here", first, "there", first) is None
    sentence = other_files("here", second, "there", first)
    assert "b is not the same everywhere" in sentence
    assert "there has 222222222222" in sentence and "here has 333333333333" in sentence
    assert "here has none" in other_files("here", {"a": "1" * 64}, "there", first)
