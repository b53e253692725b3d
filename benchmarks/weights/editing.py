"""Many edits of one point at SDXL's real shape, and the ranges of sliders at the official release's
size.
"""

from __future__ import annotations

import numpy as np
import torch

from studies.common import host, results
from studies.common.turns import times

from .updates import layer_shapes

MEMBERS, RANK, COUNTS = 24, 4, (1, 8, 20, 100)
OFFICIAL_MEMBERS, OFFICIAL_COMPONENTS, OFFICIAL_DIRECTIONS = 65_000, 1000, 40


def measure(turns: int = 5) -> dict[str, dict]:
    """Processor time from a point to the weights after so many edits, over that of one, and of the
    ranges.
    """
    space = _sdxl_space()
    spaces, edit = host.pack("nodes.weights.space"), host.pack("nodes.weights.edit_text").edit
    point = spaces.Point(space, space.coefficients[0])
    texts = {
        count: ", ".join(f"d{number}: {0.01 * (number + 1):g}" for number in range(count))
        for count in COUNTS
    }

    def weights(text: str) -> None:
        space._steps.clear()  # as after loading the space
        edit(point, text).layers()

    taken = times(
        {count: lambda text=text: weights(text) for count, text in texts.items()}, turns, alone=True
    )
    what = (
        f"from a point to its weights, {space.layout.size:,} numbers, {MEMBERS} components, one "
        "thread's time"
    )
    numbers = {}
    for count, values in taken.items():
        numbers[f"SDXL, {count} edits"] = results.bootstrap(values, what, "ms", np.median)
        numbers[f"SDXL, {count} edits over 1"] = results.bootstrap(
            values / taken[1], "paired", "ratio", np.median
        )
        moved = edit(point, texts[count])
        kept = moved.coefficients.nbytes + sum(step.nbytes for step, _ in moved.steps or ())
        numbers[f"SDXL, {count} edits: kept by the point"] = results.number(
            kept, 1, "bytes", "tensors of the point"
        )
    return numbers | _ranges(turns)


def _ranges(turns: int) -> dict[str, dict]:
    """One product for all directions, against one for each, which is what the node did at every
    execution.
    """
    spaces, directions = host.pack("nodes.weights.space"), host.pack("nodes.weights.directions")
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(OFFICIAL_MEMBERS, OFFICIAL_COMPONENTS, generator=generator)
    layout, empty = _layout({"a": (1, 1)}, 1), torch.zeros(2)
    space = spaces.Space(layout, empty, empty, torch.zeros(OFFICIAL_COMPONENTS, 2), rows, (), empty)
    vectors = torch.randn(OFFICIAL_DIRECTIONS, OFFICIAL_COMPONENTS, generator=generator)
    space = space.with_directions(
        {f"d{number}": spaces.Direction(one, 2.0) for number, one in enumerate(vectors)}
    )

    def first() -> None:
        space.__dict__.pop("projections", None)
        directions.slider_ranges(space)

    contenders = {
        "first": first,
        "again": lambda: directions.slider_ranges(space),
        "one by one": lambda: [float((rows @ (one / one.norm())).min()) for one in vectors],
    }
    what = (
        f"{OFFICIAL_MEMBERS:,} members, {OFFICIAL_COMPONENTS:,} components, {OFFICIAL_DIRECTIONS} "
        "directions"
    )
    return {
        f"slider ranges, {name}": results.bootstrap(values, what, "ms", np.median)
        for name, values in times(contenders, turns, alone=True).items()
    }


def _sdxl_space():
    spaces, layout = host.pack("nodes.weights.space"), _layout(layer_shapes(), RANK)
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(MEMBERS, layout.size, generator=generator).div_(layout.size**0.5)
    mean = 0.01 * torch.randn(layout.size, generator=generator)
    rows = torch.randn(MEMBERS, MEMBERS, generator=generator)
    space = spaces.Space(
        layout, mean, 0.01 + mean.abs(), basis, rows, tuple(map(str, range(MEMBERS))), torch.ones(2)
    )
    vectors = torch.randn(max(COUNTS), MEMBERS, generator=generator)
    return space.with_directions(
        {f"d{number}": spaces.Direction(one, 2.0) for number, one in enumerate(vectors)}
    )


def _layout(layers: dict[str, tuple[int, int]], rank: int):
    shapes = {name: ((rank, inputs), (outputs, rank)) for name, (inputs, outputs) in layers.items()}
    return host.pack("nodes.weights.flat_layout").Layout.of(shapes, rank, float(rank))
