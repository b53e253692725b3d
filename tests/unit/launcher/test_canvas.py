"""What the browser needs, in one sentence where it is missing."""

import sys

import pytest

from tools.launcher import canvas
from tools.launcher.errors import LaunchError


def test_without_playwright_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    with pytest.raises(LaunchError, match=r"pip install playwright\.$"), canvas.chromium():
        pytest.fail("There is no browser.")


def test_without_chromium_one_sentence_says_what_to_install(monkeypatch, tmp_path):
    pytest.importorskip("playwright")
    monkeypatch.setattr(canvas.shutil, "which", lambda name: None)
    for named in (None, str(tmp_path / "absent")):
        monkeypatch.delenv("CHROMIUM", raising=False)
        if named:
            monkeypatch.setenv("CHROMIUM", named)
        with pytest.raises(LaunchError, match="install chromium"), canvas.chromium():
            pytest.fail("There is no browser.")
