"""Every file behind an input, rewritten in three ways: a node in ComfyUI's cache that read it is
made again.

The nodes are stand-ins with the schema, the ``READS`` and the cache's fingerprint of the real
ones, which read no file: what is tried is when ComfyUI runs them.
"""

import os
from pathlib import Path

import newer
import pytest

#: How a file is rewritten: its new content, and whether its times are set back.
WAYS = {
    "other size": (b"a longer content", False),
    "same size": (b"two", False),
    "same size and time": (b"two", True),
}
#: How the input comes: written into the node, from a node whose text is known, or from one that
#: makes it.
SOURCES = ("widget", "primitive", "made")
OUTPUT, INPUT, LORAS, SPACES = "output", "input", "loras", "w2w"
#: By node and input of READS: where the file lies, its name, and what the input says.
FILES = {
    ("GBX_LoadActivations", "file"): (OUTPUT, "a.safetensors", "a.safetensors"),
    ("GBX_LoadSteeringDirection", "file"): (OUTPUT, "d.safetensors", "d.safetensors"),
    ("GBX_LoadNeuronMask", "file"): (INPUT, "m.json", "m.json"),
    ("GBX_NeuronStatistics", "statistics_file"): (INPUT, "s.safetensors", "s.safetensors"),
    ("GBX_NeuronStatistics", "prompts_file"): (INPUT, "p.txt", "p.txt"),
    ("GBX_MemorizationScore", "prompts_file"): (INPUT, "p/p.txt", "p"),
    ("GBX_CalibrateThreshold", "prompts_file"): (INPUT, "p.csv", "p.csv"),
    ("GBX_NemoLocalize", "sscd_file"): (INPUT, "sscd.pt", "sscd.pt"),
    ("GBX_MemorizationAudit", "sscd_file"): (INPUT, "sscd.pt", "sscd.pt"),
    ("GBX_MemorizationReport", "sscd_file"): (INPUT, "sscd.pt", "sscd.pt"),
    ("GBX_LoadSparseAutoencoder", "file"): (INPUT, "e.safetensors", "e.safetensors"),
    ("GBX_TrainSparseAutoencoder", "image_folder"): (INPUT, "images/1.png", "images"),
    ("GBX_TrainLoraImmiscible", "existing_lora"): (LORAS, "l.safetensors", "l.safetensors"),
    ("GBX_W2WStyleMerge", "style_lora_name"): (LORAS, "l.safetensors", "l.safetensors"),
    ("GBX_W2WProjectLoRA", "lora_name"): (LORAS, "l.safetensors", "l.safetensors"),
    ("GBX_Sliders", "edits"): (LORAS, "l.safetensors", "l: 0.5"),
    ("GBX_Sliders", "files"): (OUTPUT, "f.safetensors", "f.safetensors"),
    ("GBX_W2WBuildSpace", "folder"): (LORAS, "people/l.safetensors", "people"),
    ("GBX_W2WLabelMembers", "folder"): (LORAS, "people/l.safetensors", "people"),
    ("GBX_W2WFitDirections", "labels"): (INPUT, "t.csv", "t.csv"),
    ("GBX_W2WTrainSpace", "folder"): (INPUT, "faces/ada/1.png", "faces"),
    ("GBX_W2WLoadSpace", "space_name"): (SPACES, "s.safetensors", "s.safetensors"),
    ("GBX_W2WLoadSpace", "release_folder"): (INPUT, "release/V.pt", "release"),
}
#: Files of texts, which may name embeddings: the input, and the file that holds such a text.
TEXT_FILES = {
    ("GBX_NeuronStatistics", "prompts_file"): ("p.txt", "p.txt"),
    ("GBX_MemorizationScore", "prompts_file"): ("p/p.txt", "p"),
    ("GBX_CalibrateThreshold", "prompts_file"): ("p.csv", "p.csv"),
    ("GBX_W2WTrainSpace", "folder"): ("faces/ada/1.txt", "faces"),
}
PROMPT = "portrait, (embedding:gbx/style:1.2), smiling"


def entries(app):
    """Every node and input that READS names."""
    return {(id_, name) for id_, node in app.classes.items() for name in getattr(node, "READS", {})}


def texts(app):
    """Every text input of a node with a CLIP, which may name embeddings."""
    found = set()
    for id_, node in app.classes.items():
        if id_.startswith("GBX_") and any(
            field.get_io_type() == "CLIP" for field in node.GET_SCHEMA().inputs
        ):
            found |= {
                (id_, field.id)
                for field in node.GET_SCHEMA().inputs
                if field.get_io_type() == "STRING"
            }
    return found


def test_the_table_has_every_input_that_reads_a_file(app):
    assert entries(app) == set(FILES)
    assert {key for key in texts(app) | set(FILES) if key[1] == "prompts_file"} <= set(TEXT_FILES)


@pytest.fixture(scope="module", autouse=True)
def folders(app, tmp_path_factory):
    import folder_paths

    root = tmp_path_factory.mktemp("files")
    kinds = (LORAS, SPACES, "embeddings")
    listed = {kind: folder_paths.get_folder_paths(kind) for kind in kinds}
    for kind in kinds:
        folder_paths.add_model_folder_path(kind, str(root / kind), is_default=True)
    kept = folder_paths.get_input_directory(), folder_paths.get_output_directory()
    folder_paths.set_input_directory(str(root / INPUT))
    folder_paths.set_output_directory(str(root / OUTPUT))
    yield root
    folder_paths.set_input_directory(kept[0])
    folder_paths.set_output_directory(kept[1])
    for kind, before in listed.items():
        folder_paths.folder_names_and_paths[kind][0][:] = before
        folder_paths.filename_list_cache.pop(kind, None)


class Queue:
    """An executor that runs a stand-in of a node, whose input comes from a source."""

    def __init__(self, app, node: str, name: str, cache: str = "CLASSIC"):
        from comfy_api.latest import io

        real = app.classes[node]
        self.runs, runs = 0, []

        class Stand(real):
            @classmethod
            def execute(cls, **given):
                runs.append(given)
                lists = [output.is_output_list for output in real.GET_SCHEMA().outputs]
                return io.NodeOutput(*([] if is_list else None for is_list in lists))

        class Made:
            RETURN_TYPES, FUNCTION, CATEGORY = ("STRING",), "make", "test"

            @classmethod
            def INPUT_TYPES(cls):  # noqa: N802
                return {"required": {"text": ("STRING", {}), "end": ("STRING", {})}}

            def make(self, text, end):
                return (text + end,)

        stand = app.module("nodes.host.watched_files").with_watched_files(Stand)
        app.classes |= {"TestStand": stand, "TestMade": Made}
        self._executor, self._name, self._runs = newer.executor(cache), name, runs

    def ran(self, value: str, source: str, first: int = 1, **others) -> bool:
        """Whether the node ran, in a prompt whose ids begin with a number."""
        from comfy_execution import caching

        caching.NODE_CLASS_CONTAINS_UNIQUE_ID.clear()
        ids = [str(first + number) for number in range(2)]
        before = {
            "widget": {},
            "primitive": {ids[0]: {"class_type": "PrimitiveString", "inputs": {"value": value}}},
            "made": {
                ids[0]: {"class_type": "TestMade", "inputs": {"text": value[:1], "end": value[1:]}}
            },
        }[source]
        given = value if source == "widget" else [ids[0], 0]
        prompt = before | {
            ids[1]: {"class_type": "TestStand", "inputs": {self._name: given, **others}}
        }
        count = len(self._runs)
        self._executor.execute(prompt, f"prompt {first}", {}, [ids[1]])
        messages = dict(self._executor.status_messages)
        assert "execution_error" not in messages, messages["execution_error"]["exception_message"]
        return len(self._runs) > count


def write(path: Path, content: bytes, keep_time: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    times = path.stat() if keep_time else None
    beside = path.with_name(f"{path.name}.new")
    beside.write_bytes(content)
    beside.replace(path)
    if times is not None:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def check(queue: Queue, file: Path, value: str, source: str, one: bytes = b"one") -> None:
    """Whatever way the file is rewritten, the node runs again under its id, and a copy of it under
    another."""
    for number, (content, keep_time) in enumerate(WAYS.values()):
        for place in (1, 1001 + 100 * number):
            write(file, one)
            queue.ran(value, source)
            queue.ran(value, source)
            assert not queue.ran(value, source), "an unchanged file is read at every queue"
            write(file, content if one == b"one" else one[: -len(content)] + content, keep_time)
            assert queue.ran(value, source, place), (list(WAYS)[number], place)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("cache", ["CLASSIC", "LRU"])
@pytest.mark.parametrize("key", FILES, ids="-".join)
def test_a_rewritten_file_is_read_again(app, folders, key, source, cache):
    kind, name, value = FILES[key]
    check(Queue(app, *key, cache), folders / kind / name, value, source)


@pytest.mark.parametrize("key", TEXT_FILES, ids="-".join)
def test_an_embedding_that_a_file_of_texts_names_is_read_again(app, folders, key):
    name, value = TEXT_FILES[key]
    write(folders / INPUT / "faces" / "ada" / "1.png", b"image")
    write(folders / INPUT / name, PROMPT.encode())
    check(Queue(app, *key), folders / "embeddings" / "deep" / "gbx" / "style.pt", value, "widget")


def test_an_embedding_that_a_text_names_is_read_again(app, folders):
    found = texts(app) - entries(app)
    assert len(found) > 30
    file = folders / "embeddings" / "gbx" / "style.safetensors"
    for key in sorted(found):
        for source in ("widget", "made"):
            check(Queue(app, *key), file, PROMPT, source)


def test_an_embedding_that_comes_later_is_read(app, folders):
    queue, text = Queue(app, "GBX_MemorizationScore", "prompts"), "portrait embedding:later"
    assert queue.ran(text, "widget") and not queue.ran(text, "widget")
    write(folders / "embeddings" / "later.bin", b"one")
    assert queue.ran(text, "widget")
    assert not queue.ran(text, "widget")
    write(folders / "embeddings" / "unrelated.bin", b"one")
    assert not queue.ran(text, "widget")


def test_a_text_without_embeddings_looks_at_no_file(app, folders, monkeypatch):
    monkeypatch.setattr(app.module("nodes.host.folders").os, "walk", pytest.fail)
    queue = Queue(app, "GBX_MemorizationScore", "prompts")
    assert queue.ran("portrait", "widget") and queue.ran("portrait", "made", 10)


def test_a_node_of_another_workflow_under_the_same_id_stays_in_the_cache(app, folders):
    """Its input comes by wire too, from elsewhere, and names no file."""
    write(folders / INPUT / "t.csv", b"one")
    queue = Queue(app, "GBX_W2WFitDirections", "labels", "LRU")
    for _ in range(2):
        queue.ran("t.csv", "made", 11)
    assert queue.ran("member,x\nada,1", "made", 11)
    for _ in range(3):
        assert not queue.ran("member,x\nada,1", "made", 11)


def test_a_copy_in_the_same_prompt_takes_what_the_cache_has(app, folders):
    write(folders / INPUT / "t.csv", b"one")
    queue = Queue(app, "GBX_W2WFitDirections", "labels", "LRU")
    for _ in range(2):
        queue.ran("t.csv", "made", 11)
    assert not queue.ran("t.csv", "made", 21)


def test_the_file_of_sliders_beside_a_space_is_read_again(app, folders):
    write(folders / SPACES / "s.safetensors", b"space")
    beside = folders / SPACES / "s.sliders.json"
    check(Queue(app, "GBX_W2WLoadSpace", "space_name"), beside, "s.safetensors", "widget")
    beside.unlink()
