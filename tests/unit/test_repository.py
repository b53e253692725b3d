"""What holds for the files of the repository."""

import importlib
import json
import re

import pytest
import repository

_MOST_BYTES = 2_000_000
_MOST_LINES = 650
_TEXT = {".py", ".md", ".json", ".toml", ".txt", ".js", ".mjs", ".yaml", ".yml", ".cfg", ".csv", ""}
# Absolute paths that exist on one machine only, on Unix and on Windows.
_MACHINE_PATH = re.compile(
    r"(?<![\w.~:/\\-])/(?:home|Users|root|work|tmp|mnt|opt/wheels)/[\w.-]+|\b[A-Z]:\\\\?Users\\"
)
# Words of no paper and no tool of this field, in texts and in identifiers alike.
_OLD_WORDS = re.compile(
    r"pictur|(?:memor|random|local|raster|optim|normal|quant|visual|initial|summar|recogn)is(?:e|ing|ation)|neighbour|"
    r"(?<![a-z])(?:paints?|painted|told|asked|said|noises|anew|colours?|centred?|oracles?)(?![a-z])",
    re.IGNORECASE,
)
_NODE_ID = re.compile(r"GBX_\w+|\b(?:Activation|Demo)Picture\b")
#: Where large files may lie: what the pack ships, and the weights that the next world is trained on
#: from.
_LARGE = (repository.ROOT / "assets", repository.ROOT / "studies" / "world" / "checkpoint")


@pytest.fixture(scope="module")
def files():
    found = repository.tracked_files()
    assert found
    return found


def _texts(files):
    for path in files:
        if path.suffix in _TEXT:
            yield path, path.read_text("utf-8")


def test_no_file_is_too_large(files):
    large = [
        path
        for path in files
        if path.stat().st_size > _MOST_BYTES and not set(_LARGE) & set(path.parents)
    ]
    assert large == []


def test_no_python_file_is_too_long(files):
    long = {
        path.name: len(text.splitlines()) for path, text in _texts(files) if path.suffix == ".py"
    }
    assert {name: lines for name, lines in long.items() if lines > _MOST_LINES} == {}


def test_names_of_modules_are_lower_case_identifiers(files):
    """Below the repository's own folder, which may have any name."""
    parts = {
        part
        for path in files
        if path.suffix == ".py"
        for part in path.relative_to(repository.ROOT).parts
    }
    assert [part for part in parts if not re.fullmatch(r"[a-z_][a-z0-9_]*(\.py)?", part)] == []


def test_no_text_names_a_path_of_a_machine(files):
    found = [
        (path.name, match.group())
        for path, text in _texts(files)
        for match in _MACHINE_PATH.finditer(text)
    ]
    assert [entry for entry in found if entry[0] != "test_repository.py"] == []


@pytest.mark.parametrize(
    "text",
    ["see /home/ada/pack", '"/tmp/x.png"', "/Users/ada/x", r"C:\Users\ada", r"C:\\Users\\ada"],
)
def test_a_path_of_a_machine_would_be_found(text):
    assert _MACHINE_PATH.search(text)


@pytest.mark.parametrize("text", ["https://x.org/home/ada", "~/work/x", "models/tmp/x", "a/work/b"])
def test_an_address_is_no_path_of_a_machine(text):
    assert not _MACHINE_PATH.search(text)


def test_texts_and_identifiers_use_the_words_of_the_field(files):
    found = []
    for path, text in _texts(files):
        name = path.relative_to(repository.ROOT).as_posix()
        if (
            path.suffix in {".py", ".js", ".mjs", ".css", ".md", ".csv"}
            and name != "tests/unit/test_repository.py"
        ):
            found += [
                (name, match.group()) for match in _OLD_WORDS.finditer(_NODE_ID.sub("", text))
            ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    ["named_pictures", "class Pictures:", "def told(", "_TOLD", "Asked for", "test_it_is_said"],
)
def test_an_old_word_would_be_found(text):
    assert _OLD_WORDS.search(text)


@pytest.mark.parametrize(
    "text", ["oil painting", "masked", "GBX_ActivationPicture", "untoldable", "essaid"]
)
def test_a_word_of_the_field_is_not_an_old_one(text):
    assert not _OLD_WORDS.search(_NODE_ID.sub("", text))


def test_no_v1_mapping_switches_the_entrypoint_off():
    pack = repository.load_pack()
    assert not hasattr(pack, "NODE_CLASS_MAPPINGS")
    assert (repository.ROOT / pack.WEB_DIRECTORY / "docs").is_dir()


@pytest.mark.parametrize("path", repository.WORKFLOWS, ids=repository.name_of)
def test_a_workflow_is_portable(path):
    """No absolute path, no backslash, and seeds that stay: the same image comes out everywhere and
    every time.
    """
    saved = json.loads(path.read_text("utf-8"))
    for node in saved["nodes"]:
        for value in node.get("widgets_values") or []:
            if isinstance(value, str) and node["type"] != "MarkdownNote":
                assert "\\" not in value and not value.startswith(("/", "~")), (node["type"], value)
            assert value not in ("randomize", "increment", "decrement"), node["type"]


@pytest.mark.parametrize("path", repository.WORKFLOWS, ids=repository.name_of)
def test_a_workflow_has_a_note_and_titled_groups(path):
    saved = json.loads(path.read_text("utf-8"))
    assert [node["type"] for node in saved["nodes"]].count("MarkdownNote") == 1
    assert saved["groups"]
    assert all(group["title"] for group in saved["groups"])


def test_the_repository_is_not_on_the_path():
    """With it there, ComfyUI would import the pack's `nodes` for its own."""
    import sys

    assert str(repository.ROOT) not in sys.path
    assert "" not in sys.path
    with pytest.raises(ImportError):
        importlib.import_module("kernels")
