"""Which sources become members of a space: their headers are read, and their layers aligned with
those of the majority.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from ..common.lora_keys import declared_base, usual_stem
from ..common.lora_reader import Shape
from .member_store import MemberSource

#: Is given the name of a source that does not fit, and why.
Skip = Callable[[str, str], None]
Track = Callable[[Iterable], Iterable]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A source whose header could be read.

    ``shapes``: inputs and outputs of each layer, as a kernel where the file has it so. ``stems``:
    by layer, the beginning of its keys. ``base``: the base model that the file declares.
    """

    source: MemberSource
    shapes: dict[str, Shape]
    stems: dict[str, str]
    base: str | None


@dataclass(frozen=True, kw_only=True)
class AlignedMembers:
    """The sources made for the base model of the majority, and the layers of all of them, sorted.

    ``stems``: of layers whose keys do not begin as usual. ``bases``: the names of the sources by
    the base model that they declare, also of those that do not fit.
    """

    sources: list[MemberSource]
    shapes: dict[str, Shape]
    stems: dict[str, str]
    bases: dict[str, list[str]]


def read_candidates(
    sources: list[MemberSource], with_text: bool, skip: Skip, track: Track
) -> list[Candidate]:
    """The sources with a readable header, without second copies of a file; ``with_text``: with
    layers of text encoders.
    """
    candidates = []
    first_of_content: dict[str, str] = {}
    for source in track(sources):
        try:
            header = source.header()
        except ValueError as error:
            skip(source.name, str(error))
            continue
        twin = first_of_content.setdefault(source.content(), source.name)
        if twin != source.name:
            skip(source.name, f"it is the same file as {twin}.")
            continue
        candidate = Candidate(
            source=source,
            shapes=header.shapes | (header.text if with_text else {}),
            stems=header.stems,
            base=declared_base(header.metadata),
        )
        candidates.append(candidate)
    return candidates


def align(candidates: list[Candidate], skip: Skip) -> AlignedMembers:
    """The candidates whose layers have the majority's numbers of inputs and outputs, and that share
    a layer with half of all.

    A layer may be a matrix in one file and a kernel in another: kernels are kept, since a matrix
    follows from them. Candidates may have layers that others lack.
    """
    votes = Counter(
        (layer, _counts(shape))
        for candidate in candidates
        for layer, shape in candidate.shapes.items()
    )
    majority: dict[str, tuple[int, ...]] = {}
    for (layer, counts), _ in votes.most_common():
        majority.setdefault(layer, counts)
    shapes = _fullest_shapes(candidates, majority)
    fitting = []
    for candidate in candidates:
        name = candidate.source.name
        counts_of = {layer: _counts(shape) for layer, shape in candidate.shapes.items()}
        other = [layer for layer, counts in counts_of.items() if counts != majority[layer]]
        is_shared = any(
            2 * votes[layer, counts] >= len(candidates) for layer, counts in counts_of.items()
        )
        if other:
            here = candidate.shapes[other[0]]
            most = shapes[other[0]]
            skip(name, f"{other[0]} has inputs and outputs {here} here and {most} in most others.")
        elif not is_shared:
            skip(
                name,
                "it shares no layer with most of the others (another base model, or other layer "
                "names for Flux).",
            )
        else:
            fitting.append(candidate)
    layers = sorted({layer for candidate in fitting for layer in candidate.shapes})
    stems: dict[str, str] = {}
    bases: dict[str, list[str]] = {}
    for candidate in candidates:
        stems = {**candidate.stems, **stems}  # of the first that names a layer
        if candidate.base:
            bases.setdefault(candidate.base, []).append(candidate.source.name)
    return AlignedMembers(
        sources=[candidate.source for candidate in fitting],
        shapes={layer: shapes[layer] for layer in layers},
        stems={
            layer: stems[layer]
            for layer in layers
            if stems.get(layer, "") not in ("", usual_stem(layer))
        },
        bases=bases,
    )


def _fullest_shapes(
    candidates: list[Candidate], majority: dict[str, tuple[int, ...]]
) -> dict[str, Shape]:
    """The shape of each layer with the most dimensions, of those with the majority's counts."""
    shapes: dict[str, Shape] = {}
    for candidate in candidates:
        for layer, shape in candidate.shapes.items():
            dimensions = len(shapes[layer][0]) if layer in shapes else 0
            if _counts(shape) == majority[layer] and len(shape[0]) > dimensions:
                shapes[layer] = shape
    return shapes


def _counts(shape: Shape) -> tuple[int, ...]:
    """How many inputs and outputs a layer has: trainers write a kernel as it is, or as a matrix."""
    return tuple(torch.Size(side).numel() for side in shape)
