"""Every file of the pack opens with all of it in sight, on a screen of 1920 x 1080."""

import json

import pytest
import repository

_BLUEPRINTS = sorted((repository.ROOT / "subgraphs").glob("*.json"))
_TITLE = 30  # canvas units above a node
#: What ComfyUI's bars leave of a browser's page of 1920 x 940, from its left top corner: left, top,
#: right, bottom.
_FREE = (70, 120, 1900, 920)


def _corners(saved: dict) -> list[tuple[float, float]]:
    """The left top and the right bottom corners of nodes and groups, in canvas units."""
    boxes = [
        (*(node["pos"][0], node["pos"][1] - _TITLE), node["size"][0], node["size"][1] + _TITLE)
        for node in saved["nodes"]
    ]
    boxes += [group["bounding"] for group in saved["groups"]]
    return [
        corner
        for left, top, width, height in boxes
        for corner in ((left, top), (left + width, top + height))
    ]


@pytest.mark.parametrize("path", repository.WORKFLOWS + _BLUEPRINTS, ids=lambda path: path.stem)
def test_a_file_opens_with_all_of_it_in_sight_and_as_large_as_that_allows(path):
    saved = json.loads(path.read_text("utf-8"))
    scale, offset = saved["extra"]["ds"]["scale"], saved["extra"]["ds"]["offset"]
    pixels = [((x + offset[0]) * scale, (y + offset[1]) * scale) for x, y in _corners(saved)]
    left, right = (extreme(x for x, _ in pixels) for extreme in (min, max))
    top, bottom = (extreme(y for _, y in pixels) for extreme in (min, max))
    assert _FREE[0] <= left and right <= _FREE[2] and _FREE[1] <= top and bottom <= _FREE[3]
    assert scale == 1 or right - left > 1780 or bottom - top > 760
    assert saved["extra"]["glassbox"]["view"] == saved["extra"]["ds"]


def test_an_inversion_shows_previews_on_the_node_that_holds_it():
    """Which it makes with a VAE alone; its curve is seen where the subgraph is opened."""
    saved = json.loads(repository.named("demo_weights_edit_photo").read_text("utf-8"))
    (inversion,) = [
        node
        for graph in saved["definitions"]["subgraphs"]
        for node in graph["nodes"]
        if node["type"] == "GBX_W2WInvert"
    ]
    assert next(one for one in inversion["inputs"] if one["name"] == "vae")["link"] is not None


def test_what_takes_long_says_so_before_it_runs():
    own = {path: json.loads(path.read_text("utf-8")) for path in repository.DEMOS}
    long = {
        path.stem: next(node for node in saved["nodes"] if node["type"] == "MarkdownNote")
        for path, saved in own.items()
        if saved["extra"]["glassbox"].get("seconds", 0) >= 30
    }
    assert len(long) == 5
    assert [name for name, note in long.items() if "minute" not in note["widgets_values"][0]] == []
