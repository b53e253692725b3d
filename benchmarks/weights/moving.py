"""A slider move as the nodes make it: W2W Edit and W2W Apply at their defaults, against a stock
LoRA load.

On SD1.5 with a space of 1,000 components, and on SDXL with a learned space and with one that was
collected from twenty LoRAs. How ComfyUI then adds patches to the weights is counted on neither
side; collected spaces make their factors there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from studies.common import host, results
from studies.common.turns import times

from .network import sd15_layout, sd15_model
from .updates import layer_shapes

OURS, STOCK, OFFICIAL = "this pack", "stock LoRA load", "official rebuild"
#: One slider that moves beside others, and the same after loading the space, when nothing is kept.
BESIDE = {f"this pack, beside {others} others": others for others in (5, 19)}
FIRST = {f"{name}, first": others for name, others in {OURS: 0, **BESIDE}.items()}
COLLECTED_MEMBERS, COLLECTED_RANK, LEARNED_COMPONENTS, LEARNED_RANK = 20, 128, 64, 4
_LARGE_MOVES = 8
_DEFAULTS = {"preserved_directions": "", "units": "max_projection", "debiasing": "joint"}
_WHOLE_RUN = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0}


def measure(quick: bool = False) -> dict[str, dict]:
    """Moves in a row along one direction, each contender at each in alternation; ``quick``: few of
    them, in a small space, at SD1.5's shape alone.
    """
    moves = 6 if quick else 50
    components = 100 if quick else 1000
    what = f"one move, {components} components, SD1.5 layout, processor time of one thread"
    numbers = _measured("slider", _contenders(components), moves, what, (OURS, *BESIDE, *FIRST))
    if quick:
        return numbers
    for name, space in (("learned", learned_space), ("collected", collected_space)):
        what = f"one move, a {name} space at SDXL's shape, processor time of one thread"
        ways = _large_contenders(space())
        numbers |= _measured(f"SDXL {name}, slider", ways, _LARGE_MOVES, what, (OURS,))
    return numbers


def _measured(
    where: str,
    ways: dict[str, Callable[[float], object]],
    moves: int,
    what: str,
    ours: tuple[str, ...],
) -> dict[str, dict]:
    position: dict[str, int] = dict.fromkeys(ways, 0)

    def moved(name: str) -> None:
        position[name] += 1
        ways[name](position[name] / moves)

    taken = times({name: partial(moved, name) for name in ways}, moves, alone=True)
    numbers = {}
    for name, values in taken.items():
        numbers[f"{where}, {name}"] = results.bootstrap(values, what, "ms", np.median)
    for mine in ours:
        for name in (STOCK, OFFICIAL):
            if name in taken:
                ratio = taken[mine] / taken[name]
                numbers[f"{where}, {mine} over {name}"] = results.bootstrap(
                    ratio, "paired", "ratio", np.median
                )
    return numbers


def node_move(model, point, text: str):
    """The MODEL that W2W Edit and W2W Apply make of a point."""
    edit = host.pack("nodes.weights.nodes_points").W2WEdit.execute
    apply = host.pack("nodes.weights.nodes_lora").W2WApply.execute
    edited = edit(point=point, edits=text, **_DEFAULTS).result[0]
    return apply(model=model, point=edited, **_WHOLE_RUN).result[0]


def stock_load(model, file: Path):
    """The MODEL that Load LoRA makes of a file."""
    import comfy.sd
    import comfy.utils

    lora = comfy.utils.load_torch_file(str(file), safe_load=True)
    return comfy.sd.load_lora_for_models(model, None, lora, 1.0, 0)[0]


def _contenders(components: int) -> dict:
    model, space = sd15_model(), made_up_space(components)
    from safetensors.torch import save_file

    export = host.pack("nodes.weights.lora_writer")
    point = host.pack("nodes.weights.space").Point(space, space.coefficients[0])
    folder = tempfile.TemporaryDirectory()
    file = Path(folder.name) / "lora.safetensors"
    save_file(export.to_tensors(point.layers()), file)
    official, direction = space.basis.T.contiguous(), space.directions["beard"].vector

    def ours(strength: float, others: int = 0, first: bool = False):
        start = replace(point, space=replace(space)) if first else point
        text = ", ".join([f"beard: {strength}", *(f"d{number}: 0.3" for number in range(others))])
        return node_move(model, start, text)

    def stock(_: float, kept=folder):
        return stock_load(model, file)

    def rebuilt(strength: float):
        flat = (
            (point.coefficients + strength * direction)[None] @ official.T
        ) * space.deviation + space.mean
        return space.layout.unflatten(flat[0])

    ways = {OURS: ours, STOCK: stock, OFFICIAL: rebuilt}
    ways |= {name: partial(ours, others=others) for name, others in BESIDE.items()}
    return ways | {name: partial(ours, others=others, first=True) for name, others in FIRST.items()}


def _large_contenders(space) -> dict:
    """On SDXL's layers without memory; stock loads a file of rank 16 on the same layers."""
    from safetensors.torch import save_file

    from studies.weights.sdxl_journey import network

    model, export = network(), host.pack("nodes.weights.lora_writer")
    factors = host.pack("nodes.common.lora_reader").Factors
    folder = tempfile.TemporaryDirectory()
    file = Path(folder.name) / "lora.safetensors"
    layers = {
        layer: factors(torch.ones(16, inputs).half(), torch.ones(outputs, 16).half())
        for layer, (outputs, inputs) in space.layout.matrix_sizes.items()
    }
    save_file(export.to_tensors(layers), file)
    point = host.pack("nodes.weights.space").Point(space, space.coefficients[0])

    def ours(strength: float):
        return node_move(model, point, f"beard: {strength}")

    def stock(_: float, kept=folder):
        return stock_load(model, file)

    return {OURS: ours, STOCK: stock}


def learned_space():
    """Of SDXL's attention, as W2W Train Space makes it: only up factors differ between points."""
    layouts = host.pack("nodes.weights.flat_layout")
    attention = {name: sides for name, sides in layer_shapes().items() if ".attn" in name}
    shapes = {
        name: ((LEARNED_RANK, inputs), (outputs, LEARNED_RANK))
        for name, (inputs, outputs) in attention.items()
    }
    return _random_space(
        layouts.Layout.of(shapes, LEARNED_RANK, float(LEARNED_RANK)),
        LEARNED_COMPONENTS,
        torch.float32,
    )


def collected_space():
    """Of twenty LoRAs on all of SDXL's attention blocks, in common bases of rank 128, as W2W Build
    Space makes it.
    """
    layouts, rank = host.pack("nodes.weights.flat_layout"), COLLECTED_RANK
    shapes = {
        name: ((rank, inputs), (outputs, rank))
        for name, (inputs, outputs) in sorted(layer_shapes().items())
    }
    left = torch.ones(sum(up[0] * rank for _, up in shapes.values()), dtype=torch.float16)
    right = torch.ones(sum(down[1] * rank for down, _ in shapes.values()), dtype=torch.float16)
    return _random_space(
        layouts.CommonBasis.of_bases(shapes, left, right), COLLECTED_MEMBERS - 1, torch.float16
    )


def _random_space(layout, components: int, dtype: torch.dtype):
    spaces, generator = host.pack("nodes.weights.space"), torch.Generator().manual_seed(0)
    row = (torch.randn(layout.size, generator=generator) / layout.size**0.5).to(dtype)
    rows = torch.randn(components, components, generator=generator)
    space = spaces.Space(
        layout=layout,
        mean=row.float(),
        deviation=torch.ones(layout.size),
        basis=row.repeat(components, 1),
        coefficients=rows,
        members=tuple(map(str, range(components))),
        singular_values=torch.ones(2),
    )
    return space.with_directions({"beard": spaces.Direction(rows[0].clone(), 2.0)})


def made_up_space(components: int):
    """A space of the SD1.5 layout with random numbers and directions."""
    spaces, layout = host.pack("nodes.weights.space"), sd15_layout()
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(components, layout.size, generator=generator) / layout.size**0.5
    mean, deviation = (
        torch.randn(layout.size, generator=generator),
        torch.rand(layout.size, generator=generator),
    )
    rows = torch.randn(2, components, generator=generator)
    space = spaces.Space(
        layout, 0.01 * mean, 0.01 * deviation, basis, rows, ("a", "b"), torch.ones(2)
    )
    names = ["beard", *(f"d{number}" for number in range(max(BESIDE.values())))]
    return space.with_directions(
        {
            name: spaces.Direction(torch.randn(components, generator=generator), 1.0)
            for name in names
        }
    )
