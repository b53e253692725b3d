"""A slider of the portrait desk: from queuing the prompt to the saved image, in a real server
through its API.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np

from studies.common import results
from tools.launcher import comfyui, workflow
from tools.launcher.api import Client
from tools.launcher.server import Server
from tools.workflows.titles import path_of

NAME, OFF = "demo_noise_portrait_desk", ("Higher Resolution", "Scout", "Word map")
_BYPASSED = 4  # a mode of the canvas


def measure(moves: int = 12) -> dict[str, dict]:
    """Moves of one slider in a row, after a first run; the parts of ``OFF`` are bypassed."""
    saved = workflow.load(path_of(NAME))
    for node in saved["nodes"]:
        if node.get("title") in OFF:
            node["mode"] = _BYPASSED
    with Server(comfyui.locate(), comfyui.prepare_base()) as server:
        client = Client(server.url)
        prompt = workflow.to_prompt(saved, client.object_info())
        rows = np.array(list(_moves(client, prompt, server.process_id, moves)))
    return summary(rows)


def summary(rows: np.ndarray) -> dict[str, dict]:
    """Medians of (moves, 3) values: seconds, processor seconds, and the load of the machine."""
    what = "one move of a slider of W2W Edit, 128 pixels, 12 steps"
    return {
        "desk: a move": results.bootstrap(
            rows[:, 0], f"{what}: from queuing to the saved image", "s", np.median
        ),
        "desk: a move, processor": results.bootstrap(
            rows[:, 1], f"{what}: time on one core", "s", np.median
        ),
        "desk: load": results.number(
            float(np.median(rows[:, 2])), len(rows), "processes", "at work on the machine"
        ),
    }


def _moves(
    client: Client, prompt: dict, process_id: int, moves: int
) -> Iterator[tuple[float, float, float]]:
    """Seconds, processor seconds, and the machine's load of each move."""
    slider = next(node for node in prompt.values() if node["class_type"] == "GBX_W2WEdit")
    for number in range(moves + 1):
        slider["inputs"]["edits"] = f"beard: {1 - 0.05 * number:g}"
        start, used = time.perf_counter(), _processor(process_id)
        client.wait(client.queue(prompt))
        if number:  # the first run loads
            yield time.perf_counter() - start, _processor(process_id) - used, os.getloadavg()[0]


def _processor(process_id: int) -> float:
    """Processor seconds of a process until now (Linux)."""
    with open(f"/proc/{process_id}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
