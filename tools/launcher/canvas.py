"""ComfyUI's canvas in a Chromium without a window, in the classic renderer or in Nodes 2.0."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import LaunchError, missing_package

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_SETTINGS = {
    "Comfy.TutorialCompleted": True,
    "Comfy.Workflow.ShowMissingModelsWarning": False,
    "Comfy.ErrorSystem.ShowMissingModels": False,  # its name in front end 1.58
    # Front end 1.32 stretches a layout for Nodes 2.0, wrongly when it follows another one in the
    # same page.
    "Comfy.VueNodes.AutoScaleLayout": False,
    "Comfy.Locale": "en",
}
_OPEN_SECONDS, _RUN_SECONDS, _HEARD_SECONDS = 120, 600, 20

_READY = """() => window.app?.extensionManager && window.app.graph && window.LiteGraph
    && Object.keys(window.LiteGraph.registered_node_types).length > 100"""
_SETTLE = (
    "() => new Promise(done => requestAnimationFrame(() => setTimeout(() => "
    "requestAnimationFrame(done), 60)))"
)
_LOAD = "async workflow => { await app.loadGraphData(workflow) }"
_SET = """([type, name, value]) => {
    const node = app.graph.nodes.find(node => node.type === type)
    const widget = node.widgets.find(widget => widget.name === name)
    widget.value = value
    widget.callback?.(value, app.canvas, node)
}"""
_QUEUE = """async () => {
    const { api } = await import("/scripts/api.js")
    window.heardTheEnd = false
    for (const end of ["execution_success", "execution_error", "execution_interrupted"])
        api.addEventListener(end, () => { window.heardTheEnd = true }, { once: true })
    await app.queuePrompt(0)
}"""
_HEARD = "() => window.heardTheEnd"
_IDLE = """async () => {
    const queue = await (await fetch("/queue")).json()
    return queue.queue_running.length + queue.queue_pending.length === 0
}"""


@contextlib.contextmanager
def chromium() -> Iterator[object]:
    """A browser; raises LaunchError with what to install where it is missing."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise LaunchError(
            missing_package("The browser", "playwright", error, "pip install playwright")
        ) from error
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None or not Path(found).exists():
        raise LaunchError(
            "There is no Chromium: install it (apt-get install chromium), or name yours in "
            "CHROMIUM."
        )
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=_FLAGS)
        yield launched
        launched.close()


@dataclass
class Canvas:
    """A page with the canvas of the server at ``url``; ``vue``: whether Nodes 2.0 renders it."""

    page: object
    vue: bool
    url: str

    def open(self, settings: dict | None = None) -> None:
        """Load or reload the page; ``settings`` of the front end are stored on the server."""
        if settings is not None:
            _store(self.url, {**_SETTINGS, "Comfy.VueNodes.Enabled": self.vue, **settings})
        self.page.goto("about:blank")
        self.page.goto(self.url, timeout=_OPEN_SECONDS * 1000)
        self.page.wait_for_function(_READY, timeout=_OPEN_SECONDS * 1000)
        self.settle()

    def settle(self) -> None:
        """Wait until the page has rendered its changes."""
        self.page.evaluate(_SETTLE)

    def load(self, workflow: dict) -> None:
        """Open a saved workflow."""
        # Nodes 2.0 of front end 1.32 first draws nodes where those of the same id stood in the
        # workflow before.
        for _ in range(2 if self.vue else 1):
            self.page.evaluate(_LOAD, workflow)
            self.settle()

    def set(self, node_type: str, widget: str, value) -> None:
        """Give a widget of the first node of a type a value, as its own field does."""
        self.page.evaluate(_SET, [node_type, widget, value])
        self.settle()

    def run(self) -> None:
        """Queue the workflow and wait until it is done."""
        self.page.evaluate(_QUEUE)
        deadline = time.monotonic() + _RUN_SECONDS
        while not self.page.evaluate(
            _IDLE
        ):  # wait_for_function does not wait for what a function promises
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"A workflow on the canvas has not ended within {_RUN_SECONDS} s."
                )
            self.page.wait_for_timeout(100)
        # The server is done before the page has heard of all results. Of a workflow that it refuses
        # it hears nothing.
        with contextlib.suppress(_timeout()):
            self.page.wait_for_function(_HEARD, timeout=_HEARD_SECONDS * 1000)
        self.settle()


def _timeout() -> type[Exception]:
    from playwright.sync_api import TimeoutError

    return TimeoutError


def _store(url: str, settings: dict) -> None:
    body, kind = json.dumps(settings).encode(), {"Content-Type": "application/json"}
    urllib.request.urlopen(
        urllib.request.Request(f"{url}/settings", body, kind), timeout=30
    ).close()
