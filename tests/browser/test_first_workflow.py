"""What `run.py serve` opens: the canvas with the pack's first workflow on it."""

import urllib.parse

import pytest
import repository
from playwright.sync_api import expect

from tools.launcher import serve

_TYPES = """() => window.app?.graph?.nodes.some(node => node.type === "GBX_W2WEdit")"""


@pytest.mark.parametrize("name", ["server", "newest_server"])
def test_the_address_opens_the_first_workflow(browser, request, name):
    title = repository.TEMPLATES[0].stem
    assert f"?glassbox={urllib.parse.quote(title)}" == serve.FIRST
    page = browser.new_context().new_page()
    page.goto(f"{request.getfixturevalue(name).url}/{serve.FIRST}")
    page.wait_for_function(_TYPES, timeout=120_000)
    expect(page.get_by_text(title).first).to_be_visible()
