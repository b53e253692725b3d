"""Cells of networks in processes of their own: `python -P worker.py COMFYUI_FOLDER ...`.

ComfyUI starts once. Where the system can, each network then runs in a fork of this process, so that
one that is killed takes no other with it; else each runs here. Every cell is a line of JSON in the
file of its network as soon as it is done.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import runpy
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKS, REFUSED, FAILED, LEFT_OUT = "works", "refused", "failed", "left out"


def main(argv: list[str]) -> int:
    """Run the cells that the arguments name."""
    parser = argparse.ArgumentParser()
    parser.add_argument("comfyui", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder of the networks' files")
    parser.add_argument("--networks", required=True)
    parser.add_argument("--nodes", default="", help="names of cells, one a line; empty: all")
    options = parser.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _import_repository()
    base = Path(tempfile.mkdtemp(prefix="glassbox_models_"))
    try:
        app = _start(options.comfyui, base)
        for name in options.networks.split(","):
            _in_a_fork(app, base, name, options)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return 0


def _import_repository() -> None:
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
    load_package = runpy.run_path(str(ROOT / "run.py"))["load_package"]
    load_package("tools")
    load_package("studies")


def _start(comfyui: Path, base: Path):
    """ComfyUI in this process with the pack, without its own extra nodes, which take seconds."""
    import logging

    import torch

    torch.set_num_threads(1)
    from tools.launcher import boot, in_process, paths

    boot.prepare(comfyui, cpu=True)
    import comfy.utils
    import folder_paths

    import nodes

    logging.disable(logging.WARNING)
    comfy.utils.PROGRESS_BAR_ENABLED = False
    for name in ("output", "input", "temp", "user"):
        (base / name).mkdir(exist_ok=True)
        getattr(folder_paths, f"set_{name}_directory")(str(base / name))
    for kind in ("loras", "w2w"):
        folder = base / "models" / kind
        folder.mkdir(parents=True)
        folder_paths.add_model_folder_path(kind, str(folder), is_default=True)
    if not asyncio.run(nodes.load_custom_node(str(paths.ROOT), module_parent="custom_nodes")):
        raise RuntimeError("ComfyUI could not load the pack: see its output above.")
    return in_process.Comfy(nodes, str(paths.ROOT).replace(".", "_x_"))


def _in_a_fork(app: object, base: Path, name: str, options: argparse.Namespace) -> None:
    if not hasattr(os, "fork"):
        _network(app, base, name, options)
        return
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _network(app, base, name, options)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status:
        print(f"{name}: its process ended with status {status}.", flush=True)


def _network(app: object, base: Path, name: str, options: argparse.Namespace) -> None:
    import torch

    from studies.models import matrix, networks
    from studies.models.subject import Subject

    configuration = networks.configurations()[name]
    if not networks.is_loaded_by_host(configuration):
        _append(options.out, name, {"absent": True})
        return
    cells = matrix.cells(options.nodes.split("\n") if options.nodes else None)
    done = matrix.read_lines(options.out, name)
    with torch.inference_mode():
        subject = Subject(app, base, configuration)
        for node, cell in cells.items():
            if node in done:
                continue
            started = time.process_time()
            result, sentence = outcome(subject, cell)
            seconds = round(time.process_time() - started, 1)
            _append(
                options.out,
                name,
                {"node": node, "outcome": result, "sentence": sentence, "seconds": seconds},
            )
            print(f"{result:9}{node} on {name}: {sentence[:160]} ({seconds} s)", flush=True)
    _append(options.out, name, {"finished": sorted(cells)})


def outcome(subject: object, cell: object) -> tuple[str, str]:
    """What comes of a cell, and a sentence: verified, an error, or why it was not."""
    from studies.models.subject import LeftOutError, NotVerifiedError

    try:
        sentence = cell(subject)
        result = WORKS
    except LeftOutError as error:
        return LEFT_OUT, str(error)
    except NotVerifiedError as error:
        return FAILED, str(error)
    except Exception as error:
        result, sentence = _of_error(error)
    hooks = subject.hook_count()
    if hooks:
        return FAILED, f"{hooks} hooks are left on the network. {sentence}"
    return result, sentence


def _of_error(error: Exception) -> tuple[str, str]:
    """A sentence of the pack's own, or a raw error with its place."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    file = Path(place.filename).resolve()
    text = " ".join(str(error).split())
    own = file.is_relative_to(ROOT / "nodes") or file.is_relative_to(ROOT / "kernels")
    checked = file.is_relative_to(ROOT / "studies" / "models" / "cells_conditioning.py")
    if isinstance(error, ValueError) and (own or checked) and text.endswith("."):
        return REFUSED, text
    parts = file.parts[-2:]
    return FAILED, f"{type(error).__name__}: {text[:200]} ({'/'.join(parts)}:{place.lineno})"


def _append(folder: Path, name: str, line: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
