"""Files that people name in a text field, and when the queue reads them again."""

import pytest


@pytest.mark.parametrize("node", ["NeuronStatistics", "MemorizationScore", "CalibrateThreshold", "LoadNeuronStatistics",
                                  "LoadNeuronMask"])  # fmt: skip
def test_a_changed_file_is_read_again(comfy, monkeypatch, tmp_path, node):
    """Also one of a folder. Without it, the queue would go on showing what was read before."""
    import folder_paths

    monkeypatch.setattr(folder_paths, "get_input_directory", lambda: str(tmp_path))
    asked = comfy.classes[f"GBX_{node}"].fingerprint_inputs
    one, folder = tmp_path / "one.txt", tmp_path / "many"
    folder.mkdir()
    assert asked(file="one.txt") == asked(file="") == ""
    for given, written in (("one.txt", one), ("many", folder / "a.txt"), ("many", folder / "b.txt")):
        before = asked(file=given)
        written.write_text("a portrait")
        first = asked(file=given)
        written.write_text("a portrait, red hair")
        assert len({before, first, asked(file=given)}) == 3
        assert asked(file=given) == asked(file=given)
