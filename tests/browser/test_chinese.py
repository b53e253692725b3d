"""Options of combos, titles and notes in Chinese, which the front end does not translate."""

import canvas_page
import pytest
import repository

from tools.launcher import workflow

pytestmark = canvas_page.EACH_RENDERER

_TITLES = "[app.graph.groups.map(group => group.title), app.graph.nodes.map(node => node.title)]"
_IN_IMAGES = "async () => JSON.parse(JSON.stringify((await app.graphToPrompt()).workflow))"
_SHOWN = (
    "app.graph.nodes.find(node => node.type === 'GBX_SeedScout').widgets.find(one => one.name === "
    "'ranking')"
)


@pytest.fixture(scope="module")
def chinese(canvas):
    """A canvas of each kind in Chinese, loaded once for all tests of this file."""
    canvas.open({"Comfy.Locale": "zh"})
    yield canvas
    canvas.open({})


def test_a_combo_shows_the_chinese_option_and_its_value(chinese):
    chinese.load(workflow.load(repository.named("sdxl_noise_seed_scout")))
    chinese.look_at("GBX_SeedScout")
    shown = "布局相似 (layout_likeness)"
    if chinese.vue:
        chinese.page.get_by_text(shown).first.wait_for()
    else:
        assert chinese.page.evaluate(f"{_SHOWN}._displayValue") == shown
    assert chinese.value("GBX_SeedScout", "ranking") == "layout_likeness"


def test_titles_and_notes_of_a_workflow_are_chinese(chinese):
    saved = workflow.load(repository.named("demo_weights_edit"))
    chinese.load(saved)
    for _ in range(2):  # what is saved opens in Chinese again
        groups, nodes = chinese.page.evaluate(_TITLES)
        assert groups == ["一个人", "拖动滑块", "之前和之后"]
        assert {"用滑块编辑人脸", "人物和提示词"} <= set(nodes)
        chinese.page.get_by_text("图像几秒内就会跟上").first.wait_for()
        again = chinese.saved()
        assert _texts(again) == _texts(saved)
        assert _texts(chinese.page.evaluate(_IN_IMAGES)) == _texts(saved)
        chinese.load(again)
    assert chinese.errors == []


def _texts(saved: dict) -> list:
    graphs = [saved, *saved["definitions"]["subgraphs"]]
    groups = [group["title"] for graph in graphs for group in graph["groups"]]
    nodes = [node for graph in graphs for node in graph["nodes"]]
    titles = {
        node["id"]: node["title"]
        for node in nodes
        if node.get("title") and node["type"] != "GBX_W2WEdit"
    }
    return [
        groups,
        titles,
        [node["widgets_values"] for node in nodes if node["type"] == "MarkdownNote"],
    ]


def test_other_workflows_keep_their_titles(chinese):
    """Theirs may be words of our tables, such as Prompt, and would be saved as what they were
    turned into.
    """
    saved = workflow.load(repository.named("demo_weights_edit"))
    del saved["extra"]["glassbox"]
    chinese.load(saved)
    shown = chinese.saved()
    assert [group["title"] for group in shown["groups"]] == [
        group["title"] for group in saved["groups"]
    ]
    notes = [
        [node for node in one["nodes"] if node["type"] == "MarkdownNote"] for one in (shown, saved)
    ]
    assert [node["widgets_values"] for node in notes[0]] == [
        node["widgets_values"] for node in notes[1]
    ]
