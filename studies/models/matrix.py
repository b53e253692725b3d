"""`python run.py models`: every node on every network of a ComfyUI, and the page that shows it.

The networks are ComfyUI's own classes in small (networks.json). A cell works only where it is
verified: at its neutral setting a node leaves the run bit-equal, and otherwise changes what it is
for, by a formula or by the run with the changed input.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..common import host, results
from . import (
    cells_activations,
    cells_conditioning,
    cells_neurons,
    cells_noise,
    cells_weights,
    networks,
    page,
)

FAMILIES = {
    "Weights": cells_weights.CELLS,
    "Activations": cells_activations.CELLS,
    "Conditioning": cells_conditioning.CELLS,
    "Noise": cells_noise.CELLS,
    "Neurons": cells_neurons.CELLS,
}
#: Nodes that read a MODEL, CLIP, LATENT or CONDITIONING and have no cell, with the reason.
WITHOUT_CELL = {
    "DiscoverSliders": "reads images; a CLIP only names what it finds",
    "ImageToNoise": "evaluates as KSampler does: tests/comfy/noise/test_image_to_noise.py",
    "LoadNeuronMask": "checks a file's layers by the MODEL's",
    "MemorizationReport": "measures images, or samples as KSampler does and draws a table",
    "NeuronMaskEdit": "draws random neurons of the MODEL's layers",
    "ReadActivations": "is run in the cells of ActivationRecorder",
    "SeedVariety": "changes prompts alone: tests/comfy/conditioning/test_seed_variety.py",
    "Sliders": "loads LoRAs as W2WApply does: tests/comfy/weights/test_sliders.py",
    "W2WLabelMembers": "reads images by a CLIP with vision",
    "W2WStyleMerge": "adds a file to a point, as W2WToLoRA writes one",
}
#: Folders of the machine in messages of ComfyUI.
_FOLDERS = re.compile(r"(?:[A-Za-z]:)?(?<![\w.])[\\/](?:[\w.+-]+[\\/])+")
_VALUES = {"works": 1, "refused": 0, "failed": -1}
_NEWEST = (
    "The ComfyUI of .cache has the networks of its own version. A newer one: clone "
    "https://github.com/comfyanonymous/ComfyUI, install its requirements.txt in an environment "
    "with PyTorch, and run `COMFYUI_DIR=<its folder> python run.py models`, or with that "
    "environment's Python `python -P studies/models/run.py <its folder>`."
)


def run(comfyui: Path, argv: Sequence[str]) -> int:
    """Run the matrix on the ComfyUI of a folder; results are written as they come."""
    parser = argparse.ArgumentParser(
        prog="run.py models",
        description="Try every node on every network that this ComfyUI has, in small.",
        epilog=_NEWEST,
    )
    parser.add_argument("--only", metavar="NODE", help="one node, such as EditByWords")
    parser.add_argument("--network", metavar="NAME", help="one network, such as ZImage")
    options = parser.parse_args(argv)
    chosen = chosen_cells(options.only)
    known = networks.configurations()
    if options.network and options.network not in known:
        print(f"There is no network {options.network}: there are {', '.join(known)}.")
        return 2
    if not chosen:
        print(f"No cell tries {options.only}: there are {', '.join(cells(None))}.")
        return 2
    names = [options.network] if options.network else list(known)
    version = version_of(comfyui)
    folder = host.ROOT / ".cache" / "models" / f"{version}_{_fingerprint()}"
    waiting = [name for name in names if not is_finished(folder, name, chosen)]
    if waiting:
        worker = Path(__file__).with_name("worker.py")
        command = [sys.executable, "-P", str(worker), str(comfyui), "--out", str(folder)]
        command += ["--networks", ",".join(waiting), "--nodes", "\n".join(chosen)]
        subprocess.run(command, check=True)
    numbers, left_out = gathered(folder, names, chosen)
    path = write(version, numbers, left_out)
    page.write_page()
    if all(is_finished(folder, name, chosen) for name in names):
        shutil.rmtree(folder, ignore_errors=True)  # the next run tries all again
    print(f"{path}\n{summary(numbers)}")
    return 0


def cells(names: Iterable[str] | None) -> dict[str, Callable[[Any], str]]:
    """Cells by name, all or those named."""
    every = {name: cell for family in FAMILIES.values() for name, cell in family.items()}
    return every if names is None else {name: every[name] for name in names}


def chosen_cells(node: str | None) -> list[str]:
    """The names of all cells, or of those that try a node, by its id with or without GBX_."""
    if node is None:
        return list(cells(None))
    word = node.removeprefix("GBX_")
    return [name for name in cells(None) if word == name or word in re.split(r", | \(", name)]


def version_of(comfyui: Path) -> str:
    """The version that a ComfyUI's folder names."""
    text = (comfyui / "comfyui_version.py").read_text("utf-8")
    found = re.search(r'__version__ = "([^"]+)"', text)
    return found[1] if found else "unknown"


@functools.cache
def _fingerprint() -> str:
    """The state of the code that a cell depends on: results of other code are not gone on with."""
    digest = hashlib.sha256()
    for folder in ("nodes", "kernels", "studies/models"):
        for path in sorted((host.ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    digest.update(Path(__file__).with_name("networks.json").read_bytes())
    return digest.hexdigest()[:12]


def read_lines(folder: Path, name: str) -> dict[str, dict]:
    """The lines of a network's file by cell; "" for what is known of the network as a whole."""
    path = folder / f"{name}.jsonl"
    lines: dict[str, dict] = {}
    if path.is_file():
        for text in path.read_text("utf-8").splitlines():
            line = json.loads(text)
            lines[line.get("node", "")] = {**lines.get(line.get("node", ""), {}), **line}
    return lines


def is_finished(folder: Path, name: str, chosen: Iterable[str]) -> bool:
    """Whether all chosen cells of a network are in its file, or the host lacks it."""
    lines = read_lines(folder, name)
    return lines.get("", {}).get("absent", False) or set(chosen) <= set(lines)


def gathered(
    folder: Path, names: Iterable[str], chosen: Iterable[str]
) -> tuple[dict[str, dict], dict[str, str]]:
    """Numbers by cell, and the reasons of cells that this host cannot try."""
    numbers: dict[str, dict] = {}
    left_out: dict[str, str] = {}
    for name in names:
        lines = read_lines(folder, name)
        for node in chosen:
            line = lines.get(node)
            if line is None:
                continue
            cell = f"{node} on {name}"
            sentence = _FOLDERS.sub("", line["sentence"])
            if line["outcome"] in _VALUES:
                value = _VALUES[line["outcome"]]
                numbers[cell] = results.number(value, 1, "", sentence)
            else:
                left_out[cell] = sentence
    return numbers, left_out


def write(version: str, numbers: dict[str, dict], left_out: dict[str, str]) -> Path:
    """Write the results of a version; cells of an earlier run that were not tried now stay."""
    name = f"models_{version.replace('.', '_')}"
    path = results.RESULTS / f"{name}.json"
    before: dict = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    kept = {**before.get("numbers", {})}
    for cell in left_out:
        kept.pop(cell, None)
    reasons = {**before.get("sources", {}).get("left_out", {}), **left_out}
    for cell in numbers:
        reasons.pop(cell, None)
    merged = _in_order({**kept, **numbers})
    sources = {"files": {"nodes": results.assets_hash(host.ROOT / "nodes")}, "left_out": reasons}
    return results.write(name, "python run.py models", 0, [], merged, sources)


def _in_order(numbers: dict[str, dict]) -> dict[str, dict]:
    order = [f"{node} on {name}" for name in networks.configurations() for node in cells(None)]
    return {cell: numbers[cell] for cell in order if cell in numbers}


def summary(numbers: dict[str, dict]) -> str:
    """How many cells work, are refused by a sentence, and fail."""
    counts = dict.fromkeys(_VALUES.values(), 0)
    for number in numbers.values():
        counts[number["value"]] += 1
    return f"{counts[1]} cells work, {counts[0]} are refused in a sentence, {counts[-1]} fail."
