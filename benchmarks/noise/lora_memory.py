"""The most memory that a step of Train LoRA takes on today's transformers, counted.

Networks of the real width with few blocks and random weights in bf16, at 1,024 pixels, one image,
rank 16 on the default layers, with gradient checkpointing, through the node. A network of one more
block tells what a block adds, and so what all of its blocks take. Memory is the most bytes that
tensors made by operations hold at once, weights of the network not among them.
"""

from __future__ import annotations

import dataclasses
import gc
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.activations.memory import LiveBytes
from benchmarks.activations.transformers import WIDE, CheaplyMade
from studies.models import networks
from tools.launcher import comfyui, in_process


class _Depth(NamedTuple):
    """The option of a network's blocks, the published number, and the numbers that are measured."""

    option: str
    published: int
    measured: tuple[int, int]


_DEPTHS = {
    "ZImage": _Depth("n_layers", 30, (1, 2)),
    "QwenImage": _Depth("num_layers", 60, (1, 2)),
}
_SIZES = {"ZImage": (128, 128), "QwenImage": (1, 128, 128)}
_GIB = 2**30


def measure() -> dict[str, dict]:
    """Peaks of a step by network."""
    with tempfile.TemporaryDirectory() as folder:
        app = in_process.start(comfyui.locate(), Path(folder))
        values: dict[str, dict] = {}
        for name, depth in _DEPTHS.items():
            values |= _of_network(app, Path(folder), name, depth)
    return values


def _of_network(app: in_process.Comfy, folder: Path, name: str, depth: _Depth) -> dict[str, dict]:
    fewer, more = (_peak(app, folder, name, {depth.option: blocks}) for blocks in depth.measured)
    a_block = more - fewer
    whole = fewer + (depth.published - depth.measured[0]) * a_block
    title = networks.configurations()[name].title
    about = {
        "n": 1,
        "unit": "GiB",
        "what": "1,024 pixels, one image, bf16, rank 16, gradient checkpointing; counted, without "
        "the network's weights",
    }
    return {
        f"{title}, a step of Train LoRA: a block adds": {"value": a_block / _GIB, **about},
        f"{title}, a step of Train LoRA: all {depth.published} blocks": {
            "value": whole / _GIB,
            **about,
        },
    }


def _peak(app: in_process.Comfy, folder: Path, name: str, changes: dict[str, Any]) -> int:
    reduced = networks.configurations()[name]
    configuration = dataclasses.replace(
        reduced, size=_SIZES[name], network={**reduced.network, **WIDE[name], **changes}
    )
    subject = CheaplyMade(app, folder, configuration)
    network = subject.model.model.diffusion_model
    network.to(torch.bfloat16)
    network.dtype = torch.bfloat16
    gc.collect()
    with LiveBytes() as memory:
        subject.run(
            "TrainLoraImmiscible",
            model=subject.model,
            latents=subject.latent,
            positive=subject.positive,
            steps=1,
            rank=16,
            precision="bf16",
            gradient_checkpointing=True,
        )
    return memory.peak
