"""The neurons of a mask as plain data, for the chart on the canvas."""

from __future__ import annotations

from .mask import NeuronMask

_MOST = 1000


def outline(mask: NeuronMask) -> dict:
    """``neurons``: [layer path, index, factor, z or None] in the mask's order, at most the 1,000 of the largest |z|;
    ``count``: how many there are. Of several findings the z that is furthest from 0 counts.
    """
    z: dict[tuple[str, int], float] = {}
    for found in mask.findings:
        for path, of_layer in found.details.get("z", {}).items():
            for index, value in of_layer.items():
                z[path, int(index)] = max(value, z.get((path, int(index)), 0.0), key=abs)
    largest = sorted(mask.neurons, key=lambda neuron: -abs(z.get(neuron, 0.0)))[:_MOST]
    kept = set(largest)
    neurons = [[path, index, mask.scales[path][index], z.get((path, index))]
               for path, index in mask.neurons if (path, index) in kept]  # fmt: skip
    return {"neurons": neurons, "count": mask.count}
