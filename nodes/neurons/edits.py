"""Combine and change neuron masks.

Finding NeMo (arXiv 2406.02366), section 4, studies random neurons of equal number as a control and, in appendix C, the
neurons found most often over many prompts.
"""

from __future__ import annotations

from collections import Counter

import torch

from .mask import NeuronMask, Scales, of_neurons

UNION, INTERSECTION, DROP = "union", "intersection", "drop those of the other"
FREQUENT, STRONGEST, RANDOM = "most frequent over prompts", "largest z", "random control"
KEEP_NAMED, DROP_NAMED = "keep named", "drop named"
OPERATIONS = (UNION, INTERSECTION, DROP, FREQUENT, STRONGEST, RANDOM, KEEP_NAMED, DROP_NAMED)


def union(mask: NeuronMask, other: NeuronMask) -> NeuronMask:
    """Neurons of either; where both scale one, the smaller factor counts."""
    scales: Scales = {path: dict(of_layer) for path, of_layer in mask.scales.items()}
    for path, of_layer in other.scales.items():
        for index, scale in of_layer.items():
            known = scales.setdefault(path, {})
            known[index] = min(scale, known.get(index, scale))
    joined = NeuronMask(mask.scales, (*mask.findings, *other.findings), mask.fingerprint or other.fingerprint,
                        mask.history)  # fmt: skip
    return joined.with_scales(scales, UNION)


def intersection(mask: NeuronMask, other: NeuronMask) -> NeuronMask:
    """Neurons of both, with the first one's factors."""
    shared = set(other.neurons)
    return _kept(mask, lambda neuron: neuron in shared, INTERSECTION)


def drop(mask: NeuronMask, other: NeuronMask) -> NeuronMask:
    """Neurons of the first that the other does not have."""
    unwanted = set(other.neurons)
    return _kept(mask, lambda neuron: neuron not in unwanted, DROP)


def most_frequent(mask: NeuronMask, count: int) -> NeuronMask:
    """The ``count`` neurons that were found for most prompts; ties go to the earlier layer and the lower index.

    Raises ValueError for a mask that does not know its prompts.
    """
    if not mask.findings:
        raise ValueError("This mask does not say which prompts its neurons are of: make it with NeMo Localize, or load "
                         "a file that does.")  # fmt: skip
    counted = Counter((path, i) for found in mask.findings for path, indices in found.neurons.items() for i in indices)
    masked = set(mask.neurons)
    present = {neuron: times for neuron, times in counted.items() if neuron in masked}
    best = sorted(present, key=lambda neuron: (-present[neuron], neuron))[:count]
    chosen = set(best)
    return _kept(mask, lambda neuron: neuron in chosen, f"{count} {FREQUENT}")


def strongest(mask: NeuronMask, count: int) -> NeuronMask:
    """The ``count`` neurons of the largest |z| in any finding. Raises ValueError for a mask without z."""
    z: dict[tuple[str, int], float] = {}
    for found in mask.findings:
        for path, of_layer in found.details.get("z", {}).items():
            for index, value in of_layer.items():
                neuron = (path, int(index))
                z[neuron] = max(abs(value), z.get(neuron, 0.0))
    if not z:
        raise ValueError("This mask holds no z of its neurons: make it with NeMo Localize.")
    chosen = set(sorted((n for n in mask.neurons if n in z), key=lambda neuron: (-z[neuron], neuron))[:count])
    return _kept(mask, lambda neuron: neuron in chosen, f"{count} of {STRONGEST}")


def random_control(mask: NeuronMask, widths: dict[str, int], seed: int) -> NeuronMask:
    """As many neurons in each layer, drawn among those that the mask does not have, with the factor 0.

    Unlike the official code, which may draw the found neurons again. Raises ValueError when a layer has too few others.
    """
    generator = torch.Generator().manual_seed(seed)
    neurons = []
    for path, of_layer in mask.scales.items():
        if path not in widths:
            raise ValueError(f"This MODEL has no layer {path}: the mask was made for another architecture.")
        others = [index for index in range(widths[path]) if index not in of_layer]
        if len(others) < len(of_layer):
            raise ValueError(f"{path} has only {len(others)} other neurons for a control of {len(of_layer)}: use a "
                             "smaller mask.")  # fmt: skip
        drawn = torch.randperm(len(others), generator=generator)[: len(of_layer)].tolist()
        neurons += [(path, others[position]) for position in drawn]
    control = NeuronMask({}, (), mask.fingerprint, mask.history)
    return control.with_scales(of_neurons(neurons), f"{RANDOM}, seed {seed}")


def named(mask: NeuronMask, text: str, keep: bool) -> NeuronMask:
    """Keep or drop the layers and neurons that lines name: ``input_blocks.1.1`` or ``input_blocks.1.1 25, 221``.

    Without a line nothing is dropped. Raises ValueError for a line that names nothing in the mask, and when nothing is
    named to keep.
    """
    chosen: set[tuple[str, int]] = set()
    for line in filter(None, map(str.strip, text.splitlines())):
        head, _, numbers = line.partition(" ")
        found = [(path, index) for path, index in mask.neurons if path == head or path.startswith(f"{head}.")]
        if numbers.strip():
            wanted = _numbers(numbers, line)
            found = [neuron for neuron in found if neuron[1] in wanted]
        if not found:
            raise ValueError(f"'{line}' names no neuron of this mask: write a layer such as input_blocks.1.1, and "
                             "numbers behind it to choose.")  # fmt: skip
        chosen.update(found)
    if keep and not chosen:
        raise ValueError("No neuron is named: write one line a layer, such as input_blocks.1.1 25, 221.")
    return _kept(mask, lambda neuron: (neuron in chosen) == keep, KEEP_NAMED if keep else DROP_NAMED)


def _numbers(text: str, line: str) -> set[int]:
    parts = text.replace(",", " ").split()
    if not all(part.isdigit() for part in parts):
        raise ValueError(f"'{line}' is not a layer and numbers: write for example input_blocks.1.1 25, 221.")
    return {int(part) for part in parts}


def _kept(mask: NeuronMask, wanted, step: str) -> NeuronMask:
    scales = {
        path: {index: scale for index, scale in of_layer.items() if wanted((path, index))}
        for path, of_layer in mask.scales.items()
    }
    return mask.with_scales(scales, step)
