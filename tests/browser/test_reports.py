"""Reports in Preview Any, read as both front ends draw them in each of their renderers."""

import pytest

from tools.workflows.canvas import make

# What a person reads in Preview Any: drawn Markdown or a text field. The classic renderer's widgets
# do not name their node: those of all nodes are read.
_DRAWN = """id => {
    const inside = LiteGraph.vueNodesMode ? `[data-node-id="${id}"]` : ".dom-widget"
    return [...document.querySelectorAll(inside)].flatMap(element => {
        const drawn = [...element.querySelectorAll(".tiptap, .comfy-markdown-content")]
            .map(shown => shown.innerText)
        const fields = [...element.querySelectorAll("textarea")].map(field => field.value)
        return drawn.length ? drawn : fields
    })
}"""
_WRITTEN = "id => app.nodeOutputs[id].text.join('\\n')"


def _space(w):
    return w.add("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")


def _directions(w):
    return w.add("GBX_W2WFitDirections", space=_space(w)[0])


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("made", [_space, _directions])
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
    assert len(written) > 1 and written in [
        _lines(text) for text in canvas.page.evaluate(_DRAWN, shown)
    ]
