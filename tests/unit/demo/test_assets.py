"""A world that is another world with small changes: read from its base, and added to the denoiser's
weights.
"""

import json

import pytest
import torch
from glassbox.nodes.demo import assets
from safetensors.torch import save_file


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A world "copy" of the world "first"."""
    monkeypatch.setattr(assets, "ASSETS", tmp_path)
    (tmp_path / "first").mkdir()
    (tmp_path / "copy").mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "first" / "text.safetensors")
    (tmp_path / "first" / "captions.json").write_text(json.dumps(["portrait"]))
    save_file(
        {"x.indices": torch.tensor([1])},
        tmp_path / "copy" / "changes.safetensors",
        metadata={"base": "first"},
    )
    return tmp_path / "copy"


def test_missing_files_of_a_copy_come_from_its_base(copy):
    assert (assets.base("copy"), assets.base("first")) == ("first", "")
    assert torch.equal(assets.read("copy", "text")["a"], torch.ones(2))
    assert assets.captions("copy") == ["portrait"]
    save_file({"a": torch.zeros(2)}, copy / "text.safetensors")
    assert torch.equal(assets.read("copy", "text")["a"], torch.zeros(2)), "its own file goes first"


def test_a_file_that_is_missing_in_both_is_named(copy):
    with pytest.raises(
        ValueError, match=r"judge\.safetensors of first is missing: restore assets/first"
    ):
        assets.read("copy", "judge")


def test_rows_are_added():
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    weights = {
        "conv.weight": draw(6, 4, 3, 3).half(),
        "to_v.weight": draw(5, 4).half(),
        "other.weight": draw(3),
    }
    kernels, rows = draw(1, 4, 3, 3), draw(2, 4)
    added = {"conv.rows": kernels, "conv.indices": torch.tensor([2])}
    added |= {"to_v.rows": rows, "to_v.indices": torch.tensor([3, 0])}
    before = {name: value.clone() for name, value in weights.items()}
    assets.apply_changes(weights, added)
    whole, changed = before["conv.weight"].float(), before["to_v.weight"].float()
    whole[2] += kernels[0]
    changed[3] += rows[0]
    changed[0] += rows[1]
    assert torch.equal(weights["conv.weight"], whole) and torch.equal(
        weights["to_v.weight"], changed
    )
    assert torch.equal(weights["other.weight"], before["other.weight"])


def test_the_shipped_worlds_can_be_loaded():
    """The people's folders of images are beside them, and no world."""
    assert assets.worlds() == ["avatars-v2", "avatars-v2-planted"]
    for world in assets.worlds():
        assert assets.read(world, "text") and assets.captions(world)


def test_a_world_is_a_folder_of_files_alone(tmp_path, monkeypatch):
    """People's folders of images beside a table are none."""
    for name, inside in {"b": ["x/"], "c": ["x/", "table.csv"], "a": ["x", "y"]}.items():
        for entry in inside:
            path = tmp_path / name / entry
            path.parent.mkdir(exist_ok=True)
            path.mkdir() if entry.endswith("/") else path.touch()
    (tmp_path / "file").touch()
    monkeypatch.setattr(assets, "ASSETS", tmp_path)
    assert assets.worlds() == ["a"]
