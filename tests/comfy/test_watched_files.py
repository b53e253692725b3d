"""Files behind inputs: a changed one is read again, a name by wire never trusted, a deleted result
made again.
"""

import json
import math
from pathlib import Path

import newer
import pytest
import repository
import resumable

#: Inputs that sound like files and name none that is read: they are written, or are no files.
NOT_READ = {
    "filename",
    "filename_prefix",
    "file_format",
    "scan_file",
    "checkpoint_name",
    "member_name",
    "name",
}
NOT_READ |= {"name_a", "name_b", "part_names"}
CONTRACT = json.loads((repository.ROOT / "tests" / "node_contract.json").read_text("utf-8"))


def named_files(app):
    """Inputs of the pack by node that name a file or folder, as their ids and options say."""
    for node in CONTRACT:
        for field in app.classes[node].GET_SCHEMA().inputs:
            words = set(field.id.split("_"))
            sounds = words & {"file", "folder", "name", "path"} and field.id not in NOT_READ
            lists = any(
                str(option).endswith((".safetensors", ".pt", "[None]"))
                for option in getattr(field, "options", None) or ()
            )
            if sounds or lists:
                yield node, field


def test_every_widget_that_names_a_file_is_watched(app):
    found = list(named_files(app))
    assert len(found) > 12
    assert [
        (node, field.id)
        for node, field in found
        if field.id not in getattr(app.classes[node], "READS", {})
    ] == []


def test_a_name_by_wire_runs_at_every_queue(app):
    for name, node in app.classes.items():
        for read in getattr(node, "READS", {}):
            lists = node.GET_SCHEMA().is_input_list
            assert math.isnan(node.fingerprint_inputs(**{read: [None] if lists else None})), (
                name,
                read,
            )


@pytest.mark.parametrize(
    ("node", "name", "place"),
    [
        ("GBX_LoadActivations", "file", "output"),
        ("GBX_LoadSteeringDirection", "file", "output"),
        ("GBX_LoadNeuronMask", "file", "input"),
        ("GBX_NeuronStatistics", "statistics_file", "input"),
        ("GBX_LoadSparseAutoencoder", "file", "input"),
        ("GBX_MemorizationScore", "prompts_file", "input"),
        ("GBX_MemorizationAudit", "sscd_file", "input"),
        ("GBX_TrainSparseAutoencoder", "image_folder", "input"),
        ("GBX_W2WFitDirections", "labels", "input"),
        ("GBX_TrainLoraImmiscible", "existing_lora", "loras"),
        ("GBX_W2WProjectLoRA", "lora_name", "loras"),
        ("GBX_W2WBuildSpace", "folder", "loras"),
    ],
)
def test_a_changed_file_is_read_again(app, tmp_path_factory, node, name, place):
    import folder_paths

    root = Path(folder_paths.folder_names_and_paths["loras"][0][0]) if place == "loras" else None
    root = root or Path(getattr(folder_paths, f"get_{place}_directory")())
    file = root / "watched" / f"{node}.safetensors"
    file = file.with_suffix(".csv") if name == "labels" else file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"one")
    given = "watched" if name in ("folder", "image_folder") else f"watched/{file.name}"
    value = [given] if app.classes[node].GET_SCHEMA().is_input_list else given
    before = app.classes[node].fingerprint_inputs(**{name: value})
    assert before == app.classes[node].fingerprint_inputs(**{name: value}) not in ("", "absent")
    file.write_bytes(b"two of them")
    assert app.classes[node].fingerprint_inputs(**{name: value}) != before
    file.unlink()
    assert app.classes[node].fingerprint_inputs(**{name: value}) != before


@pytest.fixture(scope="module", autouse=True)
def files(app, tmp_path_factory):
    resumable.make_files(app, tmp_path_factory.mktemp("watched"))


@pytest.mark.parametrize("node", ["GBX_W2WBuildSpace", "GBX_MemorizationScore"])
def test_a_deleted_result_is_made_again(app, monkeypatch, node):
    import folder_paths

    queue = resumable.Queue(app, node)
    queue.run("deleted", monkeypatch)
    queue.run("deleted", monkeypatch)
    assert queue.cached
    folder = (
        folder_paths.get_folder_paths("w2w")[0]
        if "Build" in node
        else folder_paths.get_output_directory()
    )
    file = Path(folder, "deleted.safetensors" if "Build" in node else "deleted.csv")
    file.unlink()
    queue.run("deleted", monkeypatch)
    assert not queue.cached and file.is_file()


class Wired:
    """An executor that runs a node at the end of a prompt, one of whose inputs comes by wire from a
    text.
    """

    def __init__(self, app, cache="CLASSIC"):
        app.classes["TestKept"] = resumable.Kept
        self._executor = newer.executor(cache)

    def run(self, node, given, name, value, output=0):
        """What the node gave, and whether ComfyUI took it from its cache."""
        prompt = {
            id_: {"class_type": kind, "inputs": inputs}
            for id_, (kind, inputs) in {
                "space": resumable.BEFORE["space"],
                "text": ("PrimitiveStringMultiline", {"value": value}),
                "7": (node, {**given, name: ["text", 0]}),
                "kept": ("TestKept", {"value": ["7", output]}),
            }.items()
        }
        resumable.Kept.values.clear()
        self._executor.execute(prompt, "prompt", {}, ["kept"])
        messages = dict(self._executor.status_messages)
        assert "execution_error" not in messages, messages["execution_error"]["exception_message"]
        return resumable.Kept.values[-1:], "7" in messages["execution_cached"]["nodes"]


def table(app, column):
    """Labels of the demo space's members, in one column."""
    (space,) = app.run("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")[:1]
    rows = [f"{name},{number % 2}" for number, name in enumerate(space.members)]
    return "\n".join([f"member,{column}", *rows])


_FIT = {"space": ["space", 0], "method": "mean_difference", "components": 5, "attributes": ""}


@pytest.mark.parametrize("cache", ["CLASSIC", "LRU"])
def test_a_table_by_wire_is_no_file(app, cache):
    """Labels of W2W Label Members come by wire: a text, which ComfyUI compares itself."""
    wired, text = Wired(app, cache), table(app, f"text_{cache}")
    assert wired.run("GBX_W2WFitDirections", _FIT, "labels", text)[1] is False
    assert wired.run("GBX_W2WFitDirections", _FIT, "labels", text)[1] is True


@pytest.mark.parametrize("cache", ["CLASSIC", "LRU"])
def test_a_file_named_by_wire_is_read_again(app, cache):
    import folder_paths

    wired, file = Wired(app, cache), Path(folder_paths.get_input_directory(), f"wired_{cache}.csv")
    for column in ("first", "second", "third"):
        file.write_text(table(app, column))
        (space,), cached = wired.run("GBX_W2WFitDirections", _FIT, "labels", file.name)
        assert not cached and list(space.directions) == [column]


def test_a_deleted_result_whose_name_came_by_wire_is_made_again(app):
    import folder_paths

    wired, file = Wired(app), Path(folder_paths.get_folder_paths("w2w")[0], "wired.safetensors")
    given = {
        name: value
        for name, value in resumable.NODES["GBX_W2WBuildSpace"][0].items()
        if name != "filename"
    }
    assert [wired.run("GBX_W2WBuildSpace", given, "filename", "wired")[1] for _ in range(2)] == [
        False,
        True,
    ]
    file.unlink()
    assert wired.run("GBX_W2WBuildSpace", given, "filename", "wired")[1] is False and file.is_file()
