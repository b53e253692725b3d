"""Jobs: which inputs a list fills, and the keys of their pieces."""

import dataclasses

import pytest

from tools.launcher.batch.job import Job, count, pieces, placed, resolved
from tools.launcher.batch.lists import Entries, opened
from tools.launcher.errors import LaunchError

KINDS = {
    "Encode": {"text": "STRING", "clip": "CLIP"},
    "Sample": {"seed": "INT", "cfg": "FLOAT", "name": "COMBO", "exact": "BOOLEAN"},
}


def _prompt():
    return {
        "1": {
            "class_type": "Encode",
            "inputs": {"text": "x", "clip": ["9", 0]},
            "_meta": {"title": "Positive"},
        },
        "2": {
            "class_type": "Encode",
            "inputs": {"text": "y", "clip": ["9", 0]},
            "_meta": {"title": "Negative"},
        },
        "3": {
            "class_type": "Sample",
            "inputs": {"seed": 1, "cfg": 2.0, "name": "euler", "exact": False},
        },
    }


def _list(*rows, columns=("prompt",), **more):
    return Entries(
        columns,
        len(rows),
        lambda: iter([row if isinstance(row, tuple) else (row,) for row in rows]),
        **more,
    )


def _job(mapping, entries, chunk=1, **more):
    prompt = _prompt()
    return Job(prompt, resolved(prompt, mapping, entries, chunk, KINDS), **more)


def test_nodes_are_named_by_id_title_or_class():
    entries = _list(("a", "7", "true"), columns=("prompt", "seed", "exact"))
    job = _job(
        ["prompt=Positive.text", "prompt=2.text", "seed=Sample.seed", "exact=3.exact"], entries
    )
    filled = job.filled({"prompt": "a", "seed": "7", "exact": "true"})
    assert filled["1"]["inputs"]["text"] == filled["2"]["inputs"]["text"] == "a"
    assert filled["3"]["inputs"]["seed"] == 7 and filled["3"]["inputs"]["exact"] is True
    assert job.prompt == _prompt()


@pytest.mark.parametrize(
    ("mapping", "chunk", "sentence"),
    [
        ([], 1, "1.text .Encode.; 2.text"),
        (["Encode.text"], 1, "2 nodes are called"),
        (["7.text"], 1, "no node '7'"),
        (["1.words"], 1, "no input 'words'"),
        (["1.clip"], 1, "CLIP from a wire"),
        (["other=1.text"], 1, "no column 'other'"),
        (["1"], 1, "names no input"),
        (["3.seed"], 2, "need a text input"),
    ],
)
def test_mappings_that_do_not_fit_are_refused(mapping, chunk, sentence):
    with pytest.raises(LaunchError, match=sentence):
        _job(mapping, _list("a"), chunk)


def test_a_wrong_value_is_refused_when_it_is_filled_in():
    with pytest.raises(ValueError, match="seed takes INT, not 'x'"):
        _job(["3.seed"], _list("x")).filled({"prompt": "x"})


def test_a_chunk_is_one_piece_of_several_lines():
    entries = _list("a", "b", "c")
    found = list(pieces(_job(["1.text"], entries, 2), entries, 2))
    assert [piece.values["prompt"] for piece in found] == ["a\nb", "c"] and count(entries, 2) == 2


def test_columns_that_fill_nothing_are_labels_and_change_no_key():
    rows = [("a", "young"), ("a", "old")]
    entries = _list(*rows, columns=("prompt", "age"))
    first, second = pieces(_job(["prompt=1.text"], entries), entries, 1)
    assert first.key == second.key and (first.labels, second.labels) == (
        {"age": "young"},
        {"age": "old"},
    )


def test_the_key_changes_with_all_that_a_result_depends_on_and_with_nothing_else():
    entries = _list("a", "b")

    def keys(job):
        return [piece.key for piece in pieces(job, entries, 1)]

    job = _job(["1.text"], entries, files={"base": "1"})
    first = keys(job)
    assert len(set(first)) == 2 and first == keys(job)
    assert not set(first) & set(keys(dataclasses.replace(job, files={"base": "2"})))
    assert not set(first) & set(keys(_job(["2.text"], entries, files={"base": "1"})))
    other = _prompt()
    other["3"]["inputs"]["cfg"] = 3.0
    assert not set(first) & set(keys(dataclasses.replace(job, prompt=other)))
    same = _prompt()  # what the list fills, and titles, do not matter
    same["1"]["inputs"]["text"], same["1"]["_meta"]["title"] = "saved with another text", "Other"
    assert first == keys(dataclasses.replace(job, prompt=same))


def test_files_are_named_from_the_input_folder_and_keyed_by_their_bytes(tmp_path):
    (tmp_path / "faces").mkdir()
    (tmp_path / "faces" / "a.png").write_bytes(b"1")
    entries = placed(opened(str(tmp_path / "faces")), [tmp_path / "models", tmp_path])
    job = _job(["1.text"], entries)
    (piece,) = pieces(job, entries, 1)
    assert piece.values == {"file": "faces/a.png"}
    (tmp_path / "faces" / "a.png").write_bytes(b"2")
    (other,) = pieces(job, entries, 1)
    assert other.key != piece.key
    with pytest.raises(LaunchError, match="--input-directory"):
        placed(opened(str(tmp_path / "faces")), [tmp_path / "elsewhere"])


def test_files_that_a_table_names_are_keyed_by_their_bytes(tmp_path):
    (tmp_path / "a.json").write_text("1")
    entries = placed(_list(("a.json", "x"), columns=("file", "label")), [tmp_path])
    job = _job(["file=1.text"], entries)
    (piece,) = pieces(job, entries, 1)
    (tmp_path / "a.json").write_text("2")
    (other,) = pieces(job, entries, 1)
    assert piece.values == other.values == {"file": "a.json"} and piece.key != other.key


def test_model_files_of_a_column_and_what_they_are_run_with_are_in_the_key(tmp_path):
    """A LoRA that a column names lies in a model folder, which is none of the list's."""
    (tmp_path / "input").mkdir()
    lora = tmp_path / "loras" / "a.safetensors"
    lora.parent.mkdir()
    lora.write_bytes(b"1")
    entries = placed(_list("a.safetensors"), [tmp_path / "input", tmp_path / "loras"])
    job = _job(
        ["1.text"],
        entries,
        roots=(tmp_path / "input", tmp_path / "loras"),
        made_with={"torch": "2.0"},
    )

    def key(job=job):
        return next(pieces(job, entries, 1)).key

    first = key()
    assert key() == first
    lora.write_bytes(b"22")
    changed = key()
    lora.write_bytes(b"1")
    keys = {first, changed, key(dataclasses.replace(job, made_with={"torch": "3.0"}))}
    assert len(keys) == 3 and key() == first
