"""`run.py serve`: the canvas with the pack, until Ctrl-C."""

from __future__ import annotations

import contextlib
import webbrowser
from pathlib import Path
from urllib.parse import quote

from . import paths
from .errors import LaunchError
from .server import Server

# Previews while sampling, and none of the nodes that call paid services.
CANVAS_ARGUMENTS = ("--preview-method", "auto", "--disable-api-nodes")
# The pack opens the template that the address names.
FIRST = f"?glassbox={quote('01 Edit a face with sliders (demo, no checkpoint)')}"


def run(comfyui: Path, port: int | None, browser: bool) -> int:
    """Start ComfyUI and open it in a browser with the first workflow; returns when it is
    stopped.
    """
    print("Starting ComfyUI (about 20 s) ...", flush=True)
    with Server(comfyui, paths.HOST, CANVAS_ARGUMENTS, port) as server:
        if browser:
            webbrowser.open(f"{server.url}/{FIRST}")
        stay_open(server)
    return 0


def stay_open(server: Server) -> None:
    """Print the canvas's address and wait for Ctrl-C; raises LaunchError when ComfyUI ends
    before.
    """
    print(f"The canvas is open at {server.url} - press Ctrl-C to stop it.", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.wait()
        raise LaunchError(f"ComfyUI ended by itself: see {server.log}.")
    print("\nStopping ComfyUI ...", flush=True)
