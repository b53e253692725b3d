"""What a running node tells the canvas that has queued it, for its panel there."""

from __future__ import annotations

import time
from collections.abc import Callable

from comfy_execution.progress import get_progress_state
from comfy_execution.utils import get_executing_context

from .routes import running_server

_CURVE = "glassbox.curve"
_PAUSE = 0.25  # seconds between two messages


class LiveCurve:
    """Sends the curve of the running node to the canvas that has queued it; where there is none, nothing is made."""

    def __init__(self):
        self._next = 0.0

    def show(self, curve: Callable[[], dict]) -> None:
        """Send what ``curve`` makes, a few times a second at most."""
        server, running = running_server(), get_executing_context()
        if time.monotonic() < self._next or running is None or getattr(server, "client_id", None) is None:
            return
        node = get_progress_state().dynprompt.get_display_node_id(running.node_id)
        server.send_sync(_CURVE, {"node": node, "prompt_id": running.prompt_id, "curve": curve()}, server.client_id)
        self._next = time.monotonic() + _PAUSE
