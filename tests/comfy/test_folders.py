"""Files that people name in a text field: where they may lie, and when the queue reads them
again.
"""

from pathlib import Path

import newer
import pytest


@pytest.fixture
def folders(app, monkeypatch, tmp_path):
    """The pack's module, with an output and an input folder of the test's own."""
    import folder_paths

    for name in ("output", "input"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(
            folder_paths, f"get_{name}_directory", lambda name=name: str(tmp_path / name)
        )
    return app.module("nodes.host.folders")


@pytest.mark.parametrize(
    "name", ["../secret.txt", "a/../../secret.txt", "/etc/hostname", "one\0.txt", ""]
)
def test_names_stay_inside_their_folder(folders, tmp_path, name):
    (tmp_path / "secret.txt").write_text("secret")
    for read in (
        folders.input_file,
        folders.existing_file,
        lambda given: folders.resolve_input_file(given, "list"),
    ):
        with pytest.raises(ValueError):
            read(name)
    if name:
        with pytest.raises(ValueError):
            folders.named_file(name, ".txt")
        if name != "one\0.txt":
            with pytest.raises(ValueError, match="is not a prefix"):
                folders.next_file(name, ".txt")


@pytest.mark.parametrize("name", ["a woman\nan old man", "x" * 20_000, "* " * 500, "\u4eba" * 200])
def test_absurd_names_are_one_short_sentence(folders, name):
    """None of them can be a file: the operating system refuses names of more than 255 bytes, also
    with exists().
    """
    reads = (
        folders.input_file,
        folders.existing_file,
        lambda given: folders.resolve_input_file(given, "list"),
    )
    for read in (*reads, folders.lora_folder, folders.new_space, folders.space_path):
        with pytest.raises(ValueError) as caught:
            read(name)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "name", ["..", ".", "", "  ", "/", "a//b", "../b", "a/../b", "/a", "a\\b", "C:b", "-", "a\nb"]
)
def test_a_new_space_has_a_name_inside_its_folder(folders, name):
    with pytest.raises(ValueError, match="is not a name for a file: use ") as caught:
        folders.new_space(name)
    assert "\n" not in str(caught.value)


def test_a_new_space_may_lie_in_folders(folders):
    import folder_paths

    root = Path(folder_paths.get_folder_paths("w2w")[0])
    for name in ("a/b", " a/b.safetensors "):
        assert folders.new_space(name) == root / "a" / "b.safetensors"


@pytest.mark.parametrize(
    "name", ["con", "NUL", "a/Aux", "com1/b", "LPT9.old", "con .x", "a./b", "a /b", "com\u00b9"]
)
def test_names_that_windows_keeps_for_itself_are_one_sentence(folders, name):
    """Whatever is saved may be copied there: all files that the pack names refuse them."""
    calls = [lambda given: folders.named_file(given, ".csv")]
    if name.isascii():
        calls.append(folders.new_space)
    if "/" in name and "Aux" not in name:  # else its number makes it another name
        calls.append(lambda given: folders.next_file(given, ".json"))
    for call in calls:
        with pytest.raises(ValueError, match="Windows cannot have a file or folder") as caught:
            call(name)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["console", "nully", "a.b", "com10", "auxiliary/con-1", "v1."])
def test_names_beside_those_of_windows_are_taken(folders, name):
    assert folders.new_space(name).name == f"{name.rpartition('/')[2]}.safetensors"
    assert folders.named_file(name, ".csv").name == f"{name.rpartition('/')[2]}.csv"


def test_a_linked_folder_is_saved_to_and_read_from_alike(folders, tmp_path):
    """People put output on another disk by a link; saving, naming and loading follow it, where
    ComfyUI does.
    """
    (tmp_path / "disk").mkdir()
    (tmp_path / "output" / "linked").symlink_to(tmp_path / "disk", target_is_directory=True)
    try:
        path = folders.next_file("linked/mask", ".json")
    except ValueError as refused:
        assert newer.than_tested() and str(refused).startswith(
            "'linked/mask' leads through a link out of "
        )
        return
    path.write_text("{}")
    assert (tmp_path / "disk" / path.name).is_file()
    assert folders.relative(path) == f"linked/{path.name}"
    assert folders.existing_file(folders.relative(path)) == path
    assert folders.resolve_input_file(folders.relative(path), "mask") == path
