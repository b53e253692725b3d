"""What `run.py serve` opens: the canvas with the pack's first workflow on it."""

import pytest
import repository

from tools.launcher import serve

_TYPES = """() => window.app?.graph?.nodes.some(node => node.type === "GBX_LoadDemoModel")"""


@pytest.mark.parametrize("name", ["server", "newest_server"])
def test_the_address_opens_the_first_workflow(browser, request, name):
    assert any(f"template={path.stem}&" in serve.FIRST for path in repository.DEMOS)
    page = browser.new_context().new_page()
    page.goto(f"{request.getfixturevalue(name).url}/{serve.FIRST}")
    page.wait_for_function(_TYPES, timeout=120_000)
