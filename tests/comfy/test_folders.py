"""Files that people name in a text field: where they may lie, and when the queue reads them again."""

import newer
import pytest


@pytest.fixture
def folders(app, monkeypatch, tmp_path):
    """The pack's module, with an output and an input folder of the test's own."""
    import folder_paths

    for name in ("output", "input"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(folder_paths, f"get_{name}_directory", lambda name=name: str(tmp_path / name))
    return app.module("nodes.host.folders")


@pytest.mark.parametrize("name", ["../secret.txt", "a/../../secret.txt", "/etc/hostname", "one\0.txt", ""])
def test_names_stay_inside_their_folder(folders, tmp_path, name):
    (tmp_path / "secret.txt").write_text("secret")
    for read in (folders.input_file, folders.existing_file, lambda given: folders.resolve_input_file(given, "list")):
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
    """None of them can be a file: the operating system refuses names of more than 255 bytes, also with exists()."""
    reads = (folders.input_file, folders.existing_file, lambda given: folders.resolve_input_file(given, "list"))
    for read in (*reads, folders.lora_folder, folders.new_space, folders.space_path):
        with pytest.raises(ValueError) as caught:
            read(name)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


def test_a_linked_folder_is_saved_to_and_read_from_alike(folders, tmp_path):
    """People put output on another disk by a link; saving, naming and loading follow it, where ComfyUI does."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "output" / "linked").symlink_to(tmp_path / "disk", target_is_directory=True)
    try:
        path = folders.next_file("linked/mask", ".json")
    except ValueError as refused:
        assert newer.than_tested() and str(refused).startswith("'linked/mask' leads through a link out of ")
        return
    path.write_text("{}")
    assert (tmp_path / "disk" / path.name).is_file()
    assert folders.relative(path) == f"linked/{path.name}"
    assert folders.existing_file(folders.relative(path)) == path
    assert folders.resolve_input_file(folders.relative(path), "mask") == path
