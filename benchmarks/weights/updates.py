"""A space on weight updates of fifty unrelated SDXL LoRAs of rank 32, built whole: all 722 layers
of kohya's trainer.

Singular values of an update fall as 1 / k; LoRAs have nothing in common, which is the hardest case
for a common basis. Takes 13 GB of disk while it runs, in the folder of temporary files, and a few
minutes.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import torch

from studies.common import host, results

MEMBERS, RANK, LIMIT = 50, 32, 128
_CONTEXT = 2048
#: Transformers of SDXL's network: name, width, blocks.
_TRANSFORMERS = (
    *((f"down_blocks.1.attentions.{number}", 640, 2) for number in range(2)),
    *((f"down_blocks.2.attentions.{number}", 1280, 10) for number in range(2)),
    ("mid_block.attentions.0", 1280, 10),
    *((f"up_blocks.0.attentions.{number}", 1280, 10) for number in range(3)),
    *((f"up_blocks.1.attentions.{number}", 640, 2) for number in range(3)),
)


def layer_shapes() -> dict[str, tuple[int, int]]:
    """Inputs and outputs of the layers."""
    shapes = {}
    for name, width, blocks in _TRANSFORMERS:
        shapes |= {f"{name}.proj_in": (width, width), f"{name}.proj_out": (width, width)}
        for block in range(blocks):
            stem = f"{name}.transformer_blocks.{block}"
            for part in (
                "attn1.to_q",
                "attn1.to_k",
                "attn1.to_v",
                "attn1.to_out.0",
                "attn2.to_q",
                "attn2.to_out.0",
            ):
                shapes[f"{stem}.{part}"] = width, width
            for part in ("attn2.to_k", "attn2.to_v"):
                shapes[f"{stem}.{part}"] = _CONTEXT, width
            shapes[f"{stem}.ff.net.0.proj"] = width, 8 * width
            shapes[f"{stem}.ff.net.2"] = 4 * width, width
    return shapes


def write_member(folder: Path, number: int) -> None:
    """One LoRA in half precision."""
    from safetensors.torch import save_file

    generator, tensors = torch.Generator().manual_seed(number), {}
    for layer, (inputs, outputs) in layer_shapes().items():
        stem = f"lora_unet_{layer.replace('.', '_')}"
        down = torch.randn(RANK, inputs, generator=generator) / torch.arange(1, RANK + 1)[:, None]
        tensors[f"{stem}.lora_down.weight"] = down.half()
        tensors[f"{stem}.lora_up.weight"] = (
            torch.randn(outputs, RANK, generator=generator) / inputs**0.5
        ).half()
        tensors[f"{stem}.alpha"] = torch.tensor(float(RANK))
    save_file(tensors, folder / f"member_{number:02}.safetensors")


def measure() -> dict[str, dict]:
    """CPU seconds a member of the first build and of one that joins, peak memory, file size, and a
    slider's move.
    """
    builder, sources = (
        host.pack("nodes.weights.space_builder"),
        host.pack("nodes.weights.member_sources"),
    )
    spaces, edit = host.pack("nodes.weights.space"), host.pack("nodes.weights.edit_text").edit
    numbers: dict[str, dict] = {}

    def note(name: str, value: float, unit: str, what: str) -> None:
        numbers[name] = results.number(value, 1, unit, what)
        print(name, value, unit, flush=True)

    with tempfile.TemporaryDirectory() as place:
        folder, target = Path(place) / "loras", Path(place) / "space.safetensors"
        folder.mkdir()
        for number in range(MEMBERS):
            write_member(folder, number)
        settings = builder.BuildSettings(
            form="weight_updates", rank=LIMIT, energy=0.99, storage="float16"
        )

        def build():
            started, wall = time.process_time(), time.perf_counter()
            space = builder.build(sources.file_sources(folder), settings, target)
            return space, time.process_time() - started, time.perf_counter() - wall

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        space, seconds, wall = build()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        what = (
            f"{MEMBERS} LoRAs of rank {RANK}, {len(space.layout.slots)} layers of SDXL, common "
            f"rank {LIMIT}"
        )
        note("build, CPU seconds a member", seconds / MEMBERS, "CPU s", what)
        note("build, seconds in all", wall, "s", f"{what}; on a machine with other work")
        note("build, peak memory", peak / 1024, "MB", f"{what}, above the imports")
        size = sum(path.stat().st_size for path in folder.iterdir())
        note("members, file sizes", size / 1e6, "MB", f"{what}, float16")
        note("space, file size", target.stat().st_size / 1e6, "MB", f"{what}, float16")
        note(
            "kept by the common basis, mean",
            float(space.kept.mean()),
            "fraction",
            "squared change of a member",
        )
        note(
            "kept by the common basis, least",
            float(space.kept.min()),
            "fraction",
            "squared change of a member",
        )
        note(
            "floor, reading",
            _reading(folder) / MEMBERS,
            "CPU s",
            "a member: every factor read and made float32",
        )
        note("floor, products", _products() / MEMBERS, "CPU s", _products.__doc__)
        point, moves = spaces.Point(space, space.coefficients[0]), []
        for number in range(8):
            started = time.process_time()
            for factors in edit(point, f"PC 1: {number + 1}").layers().values():
                factors.up.numel()
            moves.append(time.process_time() - started)
        what = "all layers' float32 factors of a point moved along a component"
        note("slider, first move", 1000 * moves[0], "ms", f"{what}; reads the basis")
        note("slider, one more move", 1000 * sorted(moves[1:])[3], "ms", f"{what}; median of 7")
        write_member(folder, MEMBERS)
        joined, seconds, _ = build()
        note(
            "one member joins",
            seconds,
            "CPU s",
            f"the same space then has {len(joined.members)} members",
        )
        note(
            "a current space",
            build()[1],
            "CPU s",
            "nothing has changed: headers are read and the file is opened",
        )
    return numbers


def _reading(folder: Path) -> float:
    """CPU seconds of reading every factor of every file once, as float32."""
    from safetensors import safe_open

    started = time.process_time()
    for path in sorted(folder.iterdir()):
        with safe_open(path, framework="pt", device="cpu") as file:
            for key in file.keys():  # noqa: SIM118
                file.get_tensor(key).float()
    return time.process_time() - started


def _products() -> float:
    """a member: for each side of each layer three products of all factors with 144 columns, and one
    for the cores.
    """
    shapes, seconds = layer_shapes().values(), 0.0
    counts = {shape: list(shapes).count(shape) for shape in shapes}
    for shape, count in counts.items():
        started = time.process_time()
        for side in shape:
            stack, thin = torch.ones(side, MEMBERS * RANK), torch.ones(MEMBERS * RANK, LIMIT + 16)
            for _ in range(2):
                thin = stack.T @ (stack @ thin)
        seconds += count * (time.process_time() - started)
    return seconds
