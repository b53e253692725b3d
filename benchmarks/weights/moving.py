"""A slider move: from coefficients to a MODEL with patches, against a stock LoRA load and the official rebuild.

How ComfyUI then adds the patches to the weights is the same for this pack and the stock loader, and not counted.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from studies.common import host, results
from studies.common.turns import times

from .network import sd15_layout, sd15_model

OURS, STOCK, OFFICIAL = "this pack", "stock LoRA load", "official rebuild"
#: One slider that moves beside others, and the same after loading the space, when nothing is kept.
BESIDE = {f"this pack, beside {others} others": others for others in (5, 19)}
FIRST = {f"{name}, first": others for name, others in {OURS: 0, **BESIDE}.items()}


def measure(moves: int = 50, components: int = 1000) -> dict[str, dict]:
    """Moves in a row along one direction, each contender at each in alternation."""
    ways = _contenders(components)
    position: dict[str, int] = dict.fromkeys(ways, 0)

    def moved(name: str) -> None:
        position[name] += 1
        ways[name](position[name] / moves)

    taken = times({name: partial(moved, name) for name in ways}, moves, alone=True)
    what, numbers = f"one move, {components} components, SD1.5 layout, processor time of one thread", {}
    for name, values in taken.items():
        numbers[f"slider, {name}"] = results.bootstrap(values, what, "ms", np.median)
    for ours in (OURS, *BESIDE, *FIRST):
        for name in (STOCK, OFFICIAL):
            ratio = taken[ours] / taken[name]
            numbers[f"slider, {ours} over {name}"] = results.bootstrap(ratio, "paired", "ratio", np.median)
    return numbers


def _contenders(components: int) -> dict:
    model, space = sd15_model(), made_up_space(components)
    import comfy.sd
    import comfy.utils
    from safetensors.torch import save_file

    export, patches = host.pack("nodes.weights.lora_writer"), host.pack("nodes.weights.lora_intervals_comfy")
    edit = host.pack("nodes.weights.edit_text").edit
    point = host.pack("nodes.weights.space").Point(space, space.coefficients[0])
    folder = tempfile.TemporaryDirectory()
    file = Path(folder.name) / "lora.safetensors"
    save_file(export.to_tensors(point.layers()), file)
    official, direction = space.basis.T.contiguous(), space.directions["beard"].vector

    def ours(strength: float, others: int = 0, first: bool = False):
        start = replace(point, space=replace(space)) if first else point
        moved = edit(start, ", ".join([f"beard: {strength}", *(f"d{number}: 0.3" for number in range(others))]))
        return patches.apply_lora(model, export.to_tensors(moved.layers()), 1.0, 0.0, 1.0)

    def stock(_: float, kept=folder):
        lora = comfy.utils.load_torch_file(str(file), safe_load=True)
        return comfy.sd.load_lora_for_models(model, None, lora, 1.0, 0)[0]

    def rebuilt(strength: float):
        flat = ((point.coefficients + strength * direction)[None] @ official.T) * space.deviation + space.mean
        return space.layout.unflatten(flat[0])

    ways = {OURS: ours, STOCK: stock, OFFICIAL: rebuilt}
    ways |= {name: partial(ours, others=others) for name, others in BESIDE.items()}
    return ways | {name: partial(ours, others=others, first=True) for name, others in FIRST.items()}


def made_up_space(components: int):
    """A space of the SD1.5 layout with random numbers and directions."""
    spaces, layout = host.pack("nodes.weights.space"), sd15_layout()
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(components, layout.size, generator=generator) / layout.size**0.5
    mean, deviation = torch.randn(layout.size, generator=generator), torch.rand(layout.size, generator=generator)
    rows = torch.randn(2, components, generator=generator)
    space = spaces.Space(layout, 0.01 * mean, 0.01 * deviation, basis, rows, ("a", "b"), torch.ones(2))
    names = ["beard", *(f"d{number}" for number in range(max(BESIDE.values())))]
    return space.with_directions(
        {name: spaces.Direction(torch.randn(components, generator=generator), 1.0) for name in names}
    )
