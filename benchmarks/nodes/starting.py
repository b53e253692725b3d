"""What the pack adds to the start of ComfyUI's server: with it and without, in turns."""

from __future__ import annotations

import json
import urllib.request

import numpy as np
import psutil

from studies.common import results
from tools.launcher import comfyui
from tools.launcher.server import Server

_WITH, _WITHOUT, _NO_PACK = "with the pack", "without it", "--disable-all-custom-nodes"
_ARGUMENTS = {
    _WITH: (_NO_PACK, "--whitelist-custom-nodes", comfyui.PACK_NAME),
    _WITHOUT: (_NO_PACK,),
}


def measure(turns: int) -> dict[str, dict]:
    """Seconds of the processor until a server has listed its nodes, which a canvas asks for, and
    its memory then.
    """
    host, base = comfyui.locate(), comfyui.prepare_base()
    seconds: dict[str, list[float]] = {name: [] for name in _ARGUMENTS}
    megabytes: dict[str, list[float]] = {name: [] for name in _ARGUMENTS}
    nodes: dict[str, int] = {}
    for turn in range(turns + 1):  # the first one compiles
        for name, arguments in list(_ARGUMENTS.items())[:: -1 if turn % 2 else 1]:
            with Server(host, base, arguments, cpu=True) as server:
                with urllib.request.urlopen(f"{server.url}/object_info") as answer:
                    nodes[name] = len(json.load(answer))
                process = psutil.Process(server.process_id)
                used = process.cpu_times()
                if turn:
                    seconds[name].append(used.user + used.system)
                    megabytes[name].append(process.memory_info().rss / 2**20)
    numbers = {}
    for name in _ARGUMENTS:
        what = f"server {name}, {nodes[name]} nodes, until its nodes are listed"
        numbers[f"start {name}"] = results.bootstrap(
            np.array(seconds[name]), what, "CPU s", np.median
        )
        numbers[f"start {name}: memory"] = results.bootstrap(
            np.array(megabytes[name]), what, "MiB", np.median
        )
    added = np.array(seconds[_WITH]) - np.array(seconds[_WITHOUT])
    what = (
        f"of a server until its nodes are listed, turn by turn; {nodes[_WITH] - nodes[_WITHOUT]} "
        "nodes"
    )
    numbers["start, added by the pack"] = results.bootstrap(added, what, "CPU s", np.median)
    return numbers
