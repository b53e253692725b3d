"""Options of combos in Chinese, which the front end does not translate."""

import canvas_page
import repository

from tools.launcher import workflow

pytestmark = canvas_page.EACH_RENDERER

_SHOWN = "app.graph.nodes.find(node => node.type === 'GBX_SeedScout').widgets.find(one => one.name === 'ranking')"


def test_a_combo_shows_the_chinese_option_and_its_value(canvas):
    path = next(path for path in repository.WORKFLOWS if path.stem == "sdxl_noise_seed_scout")
    try:
        canvas.open({"Comfy.Locale": "zh"})
        canvas.load(workflow.load(path))
        canvas.look_at("GBX_SeedScout")
        shown = "词语覆盖 (word_coverage)"
        if canvas.vue:
            canvas.page.get_by_text(shown).first.wait_for()
        else:
            assert canvas.page.evaluate(f"{_SHOWN}._displayValue") == shown
        assert canvas.value("GBX_SeedScout", "ranking") == "word_coverage"
    finally:
        canvas.open({})
