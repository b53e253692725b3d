"""Matching: the path of Activation Correspondence, and best matches between all positions of two
images.

The node multiplies before it enlarges; as it is usually written all channels are enlarged first.
Best matches are the kernel's against the matrix of all similarities.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from studies.common import host, results
from studies.common.turns import times, timing_numbers

WIDTH = 320  # channels, as SD1.5's finest activations have


def materialized(queries: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As it is usually written: normalize, multiply, take the largest."""
    return (F.normalize(queries, dim=1) @ F.normalize(targets, dim=1).T).max(1)


def measure(quick: bool) -> dict[str, dict]:
    """Time and the bytes of the similarities that exist at once, at 64, 96 and 128 positions a
    side.
    """
    kernels, eager = host.pack("kernels"), host.pack("kernels.eager.best_match")
    numbers = _correspondence(quick)
    for side in (64,) if quick else (64, 96, 128):
        generator = torch.Generator().manual_seed(side)
        queries, targets = (torch.randn(side * side, WIDTH, generator=generator) for _ in range(2))
        contenders = {
            "kernel": lambda q=queries, t=targets: kernels.best_match(q, t),
            "whole matrix": lambda q=queries, t=targets: materialized(q, t),
        }
        where = f"matching {side} x {side} positions"
        what = f"{WIDTH} channels" + (
            "" if torch.cuda.is_available() else "; processor time, 1 thread"
        )
        numbers |= timing_numbers(where, times(contenders, 3, alone=True), "kernel", what)
        whole, sliced = 4 * side**4, 4 * min(eager.BLOCK // 4, side**4)
        for name, value in (("whole matrix", whole), ("kernel", sliced)):
            numbers[f"{where}, {name}: similarities at once"] = results.number(
                value / 2**20, 1, "MiB", "counted, float32"
            )
    return numbers


def enlarged_first(
    source: torch.Tensor, target: torch.Tensor, points: torch.Tensor, side: int
) -> torch.Tensor:
    """Points in the target by the official protocol's order: resize all channels, normalize,
    multiply, in strips.
    """
    features = host.pack("nodes.activations.activations")
    columns, rows = points.round().long().unbind(1)
    queries = F.normalize(features.values_at(source, rows, columns, (side, side)), dim=1)
    strips, height = [], max((1 << 26) // (4 * side * len(target)), 1)
    for top in range(0, side, height):
        lines = torch.arange(top, min(top + height, side))
        places = lines.repeat_interleave(side), torch.arange(side).repeat(len(lines))
        strips.append(
            queries @ F.normalize(features.values_at(target, *places, (side, side)), dim=1).T
        )
    index = torch.cat(strips, dim=1).argmax(1)
    return torch.stack([index % side, index // side], dim=1)


def _correspondence(quick: bool) -> dict[str, dict]:
    """Ten points from one image to another, 64 x 64 to 512 x 512: the node with its figure, and its
    search alone.
    """
    node = host.pack("nodes.activations.nodes_visualize").ActivationCorrespondence
    activations, search = (
        host.pack("nodes.activations.activations"),
        host.pack("nodes.activations.correspondence"),
    )
    numbers, side = {}, 512
    for channels in (640,) if quick else (640, 1280):
        generator = torch.Generator().manual_seed(channels)
        pair = torch.randn(2, channels, 64, 64, generator=generator)
        points = torch.rand(10, 2, generator=generator) * (side - 1)
        source, target = (
            activations.Activations({"up-level1-out": one[None]}, (activations.Row(0),), 1.0, 500.0)
            for one in pair
        )
        image, text = (
            torch.rand(1, side, side, 3, generator=generator),
            "\n".join(f"{x}, {y}" for x, y in points.tolist()),
        )
        contenders = {
            "search": lambda s=pair[0], t=pair[1], p=points: search.nearest_points(s, t, p, side),
            "the node": lambda s=source, t=target, i=image, p=text: node.execute(
                s, i, t, i, 0, p, side, False
            ),
            "channels enlarged first": lambda s=pair[0], t=pair[1], p=points: enlarged_first(
                s, t, p, side
            ),
        }
        where = f"correspondence of 10 points, {channels} channels"
        what = "64 x 64 to 512 x 512" + (
            "" if torch.cuda.is_available() else "; processor time, 1 thread"
        )
        numbers |= timing_numbers(where, times(contenders, 5, alone=True), "search", what)
        same = (contenders["search"]()[0] == contenders["channels enlarged first"]()).all(1)
        numbers[f"{where}: same points"] = results.number(
            float(same.float().mean()), 10, "fraction", "of 10 points"
        )
    return numbers
