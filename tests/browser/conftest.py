"""The canvases on which everything is tried: two front ends, each with its two renderers."""

import canvas_page
import pytest
from playwright.sync_api import expect

expect.set_options(timeout=20_000)  # ms; a slow machine that does two things at once is no failure


@pytest.fixture(
    scope="module",
    params=[("server", False), ("server", True), ("newest_server", False), ("newest_server", True)],
    ids=["pinned-classic", "pinned-nodes2", "newest-classic", "newest-nodes2"],
)
def canvas(request, browser):
    """A canvas of each kind; the workflows are loaded into it one after the other."""
    name, vue = request.param
    return canvas_page.open_canvas(browser, request.getfixturevalue(name).url, vue)
