"""The words of Token Heat Map over its image, on a real canvas, used as a person would."""

import canvas_page
import pytest
from playwright.sync_api import expect

from tools.workflows.canvas import make

pytestmark = canvas_page.EACH_RENDERER

_NODE, _PROMPT = "GBX_TokenHeatMap", "portrait, red hair, blue hoodie"
_HEAT = """canvas => {
    const bytes = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data
    return [canvas.width, canvas.height, Math.max(...bytes.filter((_, at) => at % 4 === 3))]
}"""


def _describe(w):
    w.note("Words", "One.", "Two.", "Three.")
    w.group("Words")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    image, *_ = w.add("GBX_DemoPicture", count=2)
    text = w.add("CLIPTextEncode", clip=clip, text=_PROMPT)
    given = {"preset": "cross_attention", "image": image, "vae": vae}
    tapped, _ = w.add("GBX_LayerActivationTap", model=model, positive=text, **given)
    shown, _, _ = w.add(_NODE, activations=tapped, image=image, clip=clip, prompt=_PROMPT)
    w.add("PreviewImage", images=shown)


@pytest.fixture
def panel(canvas, object_info):
    """The panel of a node that has run."""
    canvas.load(make("words", _describe, object_info))
    canvas.run()
    canvas.look_at(_NODE)
    shown = canvas.page.locator(".glassbox-word-maps")
    expect(shown.get_by_role("button")).to_have_count(5)
    return shown


def _ranked(panel) -> dict[str, float]:
    """Word -> percent, in the order in which they are listed; it must be that of the numbers."""
    rows = [row.inner_text().split() for row in panel.get_by_role("button").all()]
    found = {" ".join(words): float(value.rstrip("%")) for *words, value in rows}
    assert list(found.values()) == sorted(found.values(), reverse=True)
    return found


def test_a_place_ranks_the_words_and_a_word_shows_its_map(canvas, panel):
    whole = _ranked(panel)
    assert (
        set(whole) == {"portrait", "red", "hair", "blue", "hoodie"}
        and 0 < sum(whole.values()) < 100
    )
    image, heat = panel.locator(".glassbox-pair"), panel.locator("canvas")
    assert heat.evaluate(_HEAT)[2] == 0
    box = image.bounding_box()
    seen = set()
    for x, y in ((0.5, 0.1), (0.5, 0.9), (0.1, 0.5)):
        canvas.page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        expect(panel.get_by_role("status")).to_have_text("Attention to each word at this place")
        seen.add(tuple(_ranked(panel).items()))
    assert len(seen) == 3 and heat.evaluate(_HEAT)[2] > 150  # the strongest word's map
    canvas.page.mouse.move(5, 5)
    expect(panel.get_by_role("status")).to_have_text("Attention to each word over the whole image")
    assert _ranked(panel) == whole and heat.evaluate(_HEAT)[2] == 0
    panel.get_by_role("button", name="hoodie").hover()
    assert heat.evaluate(_HEAT)[2] > 150 and _ranked(panel) == whole
    assert canvas.errors == []


def test_what_is_clicked_stays(canvas, panel):
    image, heat = panel.locator(".glassbox-pair"), panel.locator("canvas")
    whole, box = _ranked(panel), image.bounding_box()
    canvas.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 5)
    expect(panel.get_by_role("status")).to_have_text("Attention to each word at this place")
    here = _ranked(panel)
    canvas.page.mouse.move(5, 5)
    expect(panel.get_by_role("status")).to_have_text("Attention to each word at this place")
    assert _ranked(panel) == here != whole
    word = panel.get_by_role("button", name="hair")
    word.click()
    expect(word).to_have_attribute("aria-pressed", "true")
    canvas.page.mouse.move(5, 5)
    assert heat.evaluate(_HEAT)[2] > 150
    image.focus()
    canvas.page.keyboard.press("Escape")
    assert _ranked(panel) == whole
    canvas.page.keyboard.press("ArrowDown")
    assert _ranked(panel) != whole
    assert canvas.saved()["nodes"] and _NODE in [node["type"] for node in canvas.saved()["nodes"]]


def test_each_image_of_a_batch_has_its_own_maps(canvas, panel):
    """A slider goes through them; the word and the place that were clicked stay."""
    image, slider = panel.get_by_role("img"), panel.get_by_role("slider", name="Image 1")
    panel.get_by_role("button", name="hoodie").click()
    box = panel.locator(".glassbox-pair").bounding_box()
    canvas.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 5)
    canvas.page.mouse.move(5, 5)
    before, first = image.get_attribute("src"), _ranked(panel)
    slider.press("ArrowRight")
    expect(panel.get_by_role("slider", name="Image 2")).to_have_value("1")
    expect(image).not_to_have_attribute("src", before)
    assert _ranked(panel) != first
    expect(panel.get_by_role("status")).to_have_text("Attention to each word at this place")
    assert panel.locator("canvas").evaluate(_HEAT)[2] > 150
    panel.get_by_role("slider").press("ArrowLeft")
    expect(image).to_have_attribute("src", before)
    assert _ranked(panel) == first
