"""`run.py check --checkpoint FILE`: a short run of every family on a checkpoint of the user's own.

A family is one function that turns the checkpoint's name into an API prompt; adding it to FAMILIES is all it takes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from . import paths, serve
from .api import Client
from .console import table
from .errors import LaunchError
from .server import Server

_PATHS_FILE = "check_paths.yaml"
_KINDS = {".safetensors", ".sft", ".ckpt", ".pt", ".pth", ".bin"}


def host(checkpoint: str) -> dict:
    """Stock nodes alone: load, encode a text, sample two steps at 256 pixels, decode."""

    def node(class_type: str, **inputs) -> dict:
        return {"class_type": class_type, "inputs": inputs}

    sampling = {"seed": 1, "steps": 2, "cfg": 5.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name=checkpoint),
        "2": node("CLIPTextEncode", clip=["1", 1], text="a portrait"),
        "3": node("CLIPTextEncode", clip=["1", 1], text=""),
        "4": node("EmptyLatentImage", width=256, height=256, batch_size=1),
        "5": node("KSampler", model=["1", 0], positive=["2", 0], negative=["3", 0], latent_image=["4", 0], **sampling),
        "6": node("VAEDecode", samples=["5", 0], vae=["1", 2]),
        "7": node("PreviewImage", images=["6", 0]),
    }


FAMILIES: dict[str, Callable[[str], dict]] = {"host": host}


def run(comfyui: Path, checkpoint: Path, port: int | None) -> int:
    """Run every family on the checkpoint, print what works, and return 1 if something does not."""
    checkpoint = checked(checkpoint)
    extra_paths = _write_paths(checkpoint.parent)
    print("Starting ComfyUI (about 20 s) ...", flush=True)
    arguments = (*serve.CANVAS_ARGUMENTS, "--extra-model-paths-config", str(extra_paths))
    with Server(comfyui, paths.HOST, arguments, port) as server:
        client = Client(server.url)
        rows = [_try(client, name, build(checkpoint.name)) for name, build in FAMILIES.items()]
    print("\n" + table(("family", "seconds", "result"), rows))
    return int(any(result != "works" for _, _, result in rows))


def checked(checkpoint: Path) -> Path:
    """The whole path of a checkpoint; raises LaunchError when there is no such file or ComfyUI cannot load its kind."""
    checkpoint = checkpoint.expanduser().absolute()
    if not checkpoint.is_file():
        raise LaunchError(f"There is no checkpoint file {checkpoint}: give the path of a .safetensors file.")
    if checkpoint.suffix.lower() not in _KINDS:
        raise LaunchError(f"{checkpoint.name} is no checkpoint that ComfyUI loads: give a .safetensors file.")
    return checkpoint


def _write_paths(folder: Path) -> Path:
    """A file that tells ComfyUI to look for checkpoints in the folder first (JSON, which YAML contains)."""
    target = paths.HOST / _PATHS_FILE
    entry = {"base_path": str(folder), "checkpoints": ".", "is_default": True}
    paths.write_atomically(target, json.dumps({"glassbox_check": entry}))
    return target


def _try(client: Client, name: str, prompt: dict) -> tuple[str, str, str]:
    """Run one family's prompt; a row of name, seconds and result."""
    print(f"  {name} ...", flush=True)
    start = time.monotonic()
    try:
        client.wait(client.queue(prompt))
        result = "works"
    except LaunchError as error:
        result = f"FAILED: {error}"
    return name, f"{time.monotonic() - start:.1f}", result
