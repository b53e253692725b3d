"""What holds for every test inside a ComfyUI: a figure that a node hands out shows something."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def figures_are_drawn():
    """Fail where a figure without any data becomes an image."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    draw = FigureCanvasAgg.draw

    def checked(canvas):
        assert any(axes.has_data() or axes.texts for axes in canvas.figure.axes), "an empty figure"
        return draw(canvas)

    FigureCanvasAgg.draw = checked
    yield
    FigureCanvasAgg.draw = draw
