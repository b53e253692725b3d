"""A browser that crashed is launched again: the tests after it go on."""

import canvas_page


def test_a_crashed_browser_is_launched_again(browser):
    browser.crash()
    assert not browser.running
    assert browser.new_page().evaluate("6 * 7") == 42


def test_a_canvas_whose_browser_crashes_is_opened_again(browser, server, monkeypatch):
    opened = canvas_page.Canvas.open
    tries = []

    def crash_first(self, settings=None):
        tries.append(settings)
        if len(tries) == 1:
            browser.crash()
        opened(self, settings)

    monkeypatch.setattr(canvas_page.Canvas, "open", crash_first)
    canvas = canvas_page.open_canvas(browser, server.url, vue=False)
    assert len(tries) == 2
    assert browser.running
    assert canvas.page.evaluate("Boolean(app.graph)")
