"""Reports in Preview Any, read as both front ends draw them in each of their renderers."""

import pytest

from tools.workflows.canvas import make

# What a person reads in the node: Markdown that is drawn, or a text field.
_DRAWN = """id => {
    const widgets = app.graph.getNodeById(id).widgets.map(widget => widget.element ?? widget.inputEl)
    const node = document.querySelector(`[data-node-id="${id}"]`)
    const shown = LiteGraph.vueNodesMode ? [node] : widgets.filter(Boolean)
    return shown.map(element => {
        const drawn = element.querySelector(".tiptap, .comfy-markdown-content")
        const field = element.matches("textarea") ? element : element.querySelector("textarea")
        return drawn ? drawn.innerText : field?.value ?? ""
    }).join("\\n")
}"""
_WRITTEN = "id => app.nodeOutputs[id].text.join('\\n')"


def _space(w):
    return w.add("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")


def _directions(w):
    return w.add("GBX_W2WFitDirections", space=_space(w)[0])


def _words(w):
    model, clip, _ = w.add("GBX_LoadDemoModel")
    return w.add("GBX_EditByWords", model=model, clip=clip, edits="bald -> red hair: 2", prompt="portrait, bald")


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("made", [_space, _directions, _words])
def test_a_report_is_drawn_line_by_line_as_it_is_written(canvas, object_info, made):
    """No line joins another, and none becomes a heading or loses its number."""

    def describe(w):
        w.note("Report", "One.", "Two.", "Three.")
        w.group("Report")
        w.add("PreviewAny", source=made(w)[1], node_size=(600, 500))

    saved = make("report", describe, object_info)
    canvas.load(saved)
    canvas.run()
    canvas.look_at("PreviewAny")
    (shown,) = [node["id"] for node in saved["nodes"] if node["type"] == "PreviewAny"]
    written = _lines(canvas.page.evaluate(_WRITTEN, shown))
    assert len(written) > 1 and _lines(canvas.page.evaluate(_DRAWN, shown)) == written
