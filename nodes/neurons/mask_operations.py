"""Combine and change neuron masks.

Finding NeMo (arXiv 2406.02366), section 4, uses as many random neurons as a control and, in
appendix C, the neurons that were found for most prompts.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from .mask import NO_SEARCHES, NeuronMask, uniform_scales, union


class MaskOperation(enum.StrEnum):
    """The operations of Neuron Mask Edit."""

    UNION = "union"
    INTERSECTION = "intersection"
    SUBTRACT = "subtract"
    MOST_FREQUENT = "most_frequent"
    LARGEST_Z = "largest_z"
    RANDOM_CONTROL = "random_control"
    KEEP_NAMED = "keep_named"
    DROP_NAMED = "drop_named"


def intersection(mask: NeuronMask, other: NeuronMask) -> NeuronMask:
    """Neurons of both, with the first one's factors."""
    shared = set(other.neurons)
    return _keep(mask, lambda neuron: neuron in shared, MaskOperation.INTERSECTION.value)


def subtract(mask: NeuronMask, other: NeuronMask) -> NeuronMask:
    """Neurons of the first that the other does not have."""
    unwanted = set(other.neurons)
    return _keep(mask, lambda neuron: neuron not in unwanted, MaskOperation.SUBTRACT.value)


def most_frequent(mask: NeuronMask, count: int) -> NeuronMask:
    """The ``count`` neurons that were found for most prompts; ties go to the earlier layer and the
    lower index.

    Raises ValueError for a mask without the searches of its prompts.
    """
    if not mask.searches:
        raise ValueError(NO_SEARCHES)
    counted = Counter(
        (path, i) for one in mask.searches for path, indices in one.neurons.items() for i in indices
    )
    masked = set(mask.neurons)
    present = {neuron: times for neuron, times in counted.items() if neuron in masked}
    best = sorted(present, key=lambda neuron: (-present[neuron], neuron))[:count]
    chosen = set(best)
    return _keep(mask, lambda neuron: neuron in chosen, f"{MaskOperation.MOST_FREQUENT} {count}")


def largest_z(mask: NeuronMask, count: int) -> NeuronMask:
    """The ``count`` neurons of the largest |z| in any search. Raises ValueError for a mask without
    z.
    """
    z = {neuron: abs(value) for neuron, value in mask.largest_z().items()}
    if not z:
        raise ValueError("This mask holds no z of its neurons: make it with NeMo Localize.")
    chosen = set(
        sorted((n for n in mask.neurons if n in z), key=lambda neuron: (-z[neuron], neuron))[:count]
    )
    return _keep(mask, lambda neuron: neuron in chosen, f"{MaskOperation.LARGEST_Z} {count}")


def random_control(mask: NeuronMask, widths: dict[str, int], seed: int) -> NeuronMask:
    """As many random neurons in each layer, none of them in the mask, with the factor 0.

    The official code may draw the found neurons again. Raises ValueError when a layer has too few
    other neurons.
    """
    generator = torch.Generator().manual_seed(seed)
    neurons = []
    for path, of_layer in mask.scales.items():
        if path not in widths:
            raise ValueError(
                f"This MODEL has no layer {path}: the mask was made for another architecture."
            )
        others = [index for index in range(widths[path]) if index not in of_layer]
        if len(others) < len(of_layer):
            raise ValueError(
                f"{path} has only {len(others)} other neurons for a control of {len(of_layer)}: "
                "use a smaller mask."
            )
        drawn = torch.randperm(len(others), generator=generator)[: len(of_layer)].tolist()
        neurons += [(path, others[position]) for position in drawn]
    control = NeuronMask({}, (), mask.fingerprint, mask.history)
    return control.with_scales(
        uniform_scales(neurons), f"{MaskOperation.RANDOM_CONTROL}, seed {seed}"
    )


def select_named(mask: NeuronMask, text: str, keep: bool) -> NeuronMask:
    """Keep or drop the layers and neurons that lines name: ``input_blocks.1.1`` or
    ``input_blocks.1.1 25, 221``.

    Raises ValueError for a line that names nothing in the mask, and when there is no line to keep.
    """
    layers: dict[str, list[str]] = {}  # by its path and by what it begins with
    for path in mask.scales:
        parts = path.split(".")
        for count in range(1, len(parts) + 1):
            layers.setdefault(".".join(parts[:count]), []).append(path)
    whole: set[str] = set()
    chosen: set[tuple[str, int]] = set()
    for line in filter(None, map(str.strip, text.splitlines())):
        head, _, numbers = line.partition(" ")
        parts = numbers.replace(",", " ").split()
        if not all(part.isdigit() for part in parts):
            raise ValueError(
                f"{line!r} is not a layer and numbers: write for example input_blocks.1.1 25, 221."
            )
        found: list = layers.get(head, [])
        if parts:
            found = [
                (path, index)
                for path in found
                for index in map(int, parts)
                if index in mask.scales[path]
            ]
            chosen.update(found)
        elif head not in whole:  # named a second time it has all its layers already
            whole.update(found, [head])
        if not found:
            raise ValueError(
                f"'{line}' names no neuron of this mask: write a layer such as input_blocks.1.1, "
                "optionally with neuron numbers."
            )
    if keep and not chosen and not whole:
        raise ValueError(
            "No neuron is named: write one line per layer, such as input_blocks.1.1 25, 221."
        )
    step = MaskOperation.KEEP_NAMED if keep else MaskOperation.DROP_NAMED
    return _keep(mask, lambda neuron: (neuron[0] in whole or neuron in chosen) == keep, step.value)


@dataclass(frozen=True, kw_only=True)
class MaskEdit:
    """What an operation works on; each reads what it needs. ``widths``: neurons by layer path, of
    the MODEL.
    """

    mask: NeuronMask
    count: int = 0
    neurons: str = ""
    seed: int = 0
    other: NeuronMask | None = None
    widths: dict[str, int] = field(default_factory=dict)


def _of_two(
    operation: MaskOperation, combine: Callable[[NeuronMask, NeuronMask], NeuronMask]
) -> Callable[[MaskEdit], NeuronMask]:
    def edited(edit: MaskEdit) -> NeuronMask:
        if edit.other is None:
            raise ValueError(f"{operation} needs a second mask: connect it to other_mask.")
        return combine(edit.mask, edit.other)

    return edited


def _random_control(edit: MaskEdit) -> NeuronMask:
    if not edit.widths:
        raise ValueError("random_control needs the number of neurons: connect the MODEL.")
    return random_control(edit.mask, edit.widths, edit.seed)


#: Raise ValueError when what they need is not connected.
OPERATIONS: dict[MaskOperation, Callable[[MaskEdit], NeuronMask]] = {
    MaskOperation.UNION: _of_two(MaskOperation.UNION, union),
    MaskOperation.INTERSECTION: _of_two(MaskOperation.INTERSECTION, intersection),
    MaskOperation.SUBTRACT: _of_two(MaskOperation.SUBTRACT, subtract),
    MaskOperation.MOST_FREQUENT: lambda edit: most_frequent(edit.mask, edit.count),
    MaskOperation.LARGEST_Z: lambda edit: largest_z(edit.mask, edit.count),
    MaskOperation.RANDOM_CONTROL: _random_control,
    MaskOperation.KEEP_NAMED: lambda edit: select_named(edit.mask, edit.neurons, keep=True),
    MaskOperation.DROP_NAMED: lambda edit: select_named(edit.mask, edit.neurons, keep=False),
}
OF_TWO = (MaskOperation.UNION, MaskOperation.INTERSECTION, MaskOperation.SUBTRACT)


def _keep(mask: NeuronMask, chosen: Callable[[tuple[str, int]], bool], step: str) -> NeuronMask:
    scales = {
        path: {index: scale for index, scale in of_layer.items() if chosen((path, index))}
        for path, of_layer in mask.scales.items()
    }
    return mask.with_scales(scales, step)
