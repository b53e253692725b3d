"""A space on weight updates of unrelated SDXL LoRAs of rank 32: a part of the layers in their real sizes.

Two of the network's 70 transformer blocks of 1280 channels, 20 of the 722 layers that kohya's trainer adapts. Singular
values of an update fall as 1 / k; LoRAs have nothing in common, which is the hardest case for a common basis.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import torch

from studies.common import host, results

MEMBERS, RANK, LIMIT = 50, 32, 128
_WIDTH, _CONTEXT = 1280, 2048


def layer_shapes() -> dict[str, tuple[int, int]]:
    """Inputs and outputs of the layers."""
    shapes = {}
    for block in range(2):
        stem = f"mid_block.attentions.0.transformer_blocks.{block}"
        for name in ("attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0", "attn2.to_q", "attn2.to_out.0"):
            shapes[f"{stem}.{name}"] = _WIDTH, _WIDTH
        for name in ("attn2.to_k", "attn2.to_v"):
            shapes[f"{stem}.{name}"] = _CONTEXT, _WIDTH
        shapes[f"{stem}.ff.net.0.proj"] = _WIDTH, 8 * _WIDTH
        shapes[f"{stem}.ff.net.2"] = 4 * _WIDTH, _WIDTH
    return shapes


def write_member(folder: Path, number: int) -> None:
    """One LoRA in half precision."""
    from safetensors.torch import save_file

    generator, tensors = torch.Generator().manual_seed(number), {}
    for layer, (inputs, outputs) in layer_shapes().items():
        stem = f"lora_unet_{layer.replace('.', '_')}"
        down = torch.randn(RANK, inputs, generator=generator) / torch.arange(1, RANK + 1)[:, None]
        tensors[f"{stem}.lora_down.weight"] = down.half()
        tensors[f"{stem}.lora_up.weight"] = (torch.randn(outputs, RANK, generator=generator) / inputs**0.5).half()
        tensors[f"{stem}.alpha"] = torch.tensor(float(RANK))
    save_file(tensors, folder / f"member_{number:02}.safetensors")


def measure() -> dict[str, dict]:
    """CPU seconds a member of the first build and of one that joins, peak memory, file size, and a slider's move."""
    builder, sources = host.pack("nodes.weights.space_builder"), host.pack("nodes.weights.member_sources")
    numbers: dict[str, dict] = {}

    def note(name: str, value: float, unit: str, what: str) -> None:
        numbers[name] = results.number(value, 1, unit, what)
        print(name, value, unit, flush=True)

    with tempfile.TemporaryDirectory() as place:
        folder, target = Path(place) / "loras", Path(place) / "space.safetensors"
        folder.mkdir()
        for number in range(MEMBERS):
            write_member(folder, number)
        settings = builder.BuildSettings(form="weight_updates", rank=LIMIT, energy=0.99, storage="float16")

        def build():
            started = time.process_time()
            return builder.build(sources.file_sources(folder), settings, target), time.process_time() - started

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        space, seconds = build()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        what = f"{MEMBERS} LoRAs of rank {RANK}, {len(space.layout.slots)} of SDXL's 722 layers, common rank {LIMIT}"
        note("build, CPU seconds a member", seconds / MEMBERS, "CPU s", what)
        note("build, peak memory", peak / 1024, "MB", f"{what}, above the imports")
        note("space, file size", target.stat().st_size / 1e6, "MB", f"{what}, float16")
        note("kept by the common basis, mean", float(space.kept.mean()), "fraction", "squared change of a member")
        note("kept by the common basis, least", float(space.kept.min()), "fraction", "squared change of a member")
        moves = []
        for number in range(7):
            started = time.process_time()
            step = torch.zeros(space.components)
            step[number] = 1.0
            point = host.pack("nodes.weights.space").Point(space, step)
            sum(one.up.numel() for one in point.layers().values())
            moves.append(time.process_time() - started)
        note("slider, one move", 1000 * sorted(moves)[3], "ms", "median of 7: all layers' factors of a new point")
        write_member(folder, MEMBERS)
        joined, seconds = build()
        note("one member joins", seconds, "CPU s", f"the same space then has {len(joined.members)} members")
        note("a current space", build()[1], "CPU s", "nothing has changed: headers are read and the file is opened")
    return numbers
