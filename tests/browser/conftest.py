"""The canvases on which everything is tried: two front ends, each with its two renderers."""

import canvas_page
import pytest
from playwright.sync_api import expect

expect.set_options(timeout=20_000)  # ms; a slow machine that does two things at once is no failure


@pytest.fixture(scope="module", params=canvas_page.KINDS.values(), ids=canvas_page.KINDS.keys())
def canvas(request, browser):
    """A canvas of each kind; the workflows are loaded into it one after the other."""
    name, vue = request.param
    return canvas_page.open_canvas(browser, request.getfixturevalue(name).url, vue)
