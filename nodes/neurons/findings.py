"""From the search for one prompt to a mask that says where it comes from."""

from __future__ import annotations

import torch

from .edits import union
from .evaluation import Neurons
from .localization import Found, Look
from .mask import Finding, NeuronMask, of_neurons


def mask_of(
    prompt: str,
    found: Found,
    neurons: Neurons,
    z: list[torch.Tensor],
    activations: list[torch.Tensor],
    settings: dict,
    fingerprint: dict[str, float],
) -> NeuronMask:
    """The refined neurons of one prompt as a mask with its finding; ``settings`` are kept for who reads the file."""
    chosen = {
        layer.path: tuple(sorted(set(of_layer)))
        for layer, of_layer in zip(neurons.layers, found.refined or [[]] * len(neurons.layers), strict=True)
        if of_layer
    }
    position = {layer.path: number for number, layer in enumerate(neurons.layers)}
    theta = found.trace[-1].theta if found.trace else 0.0

    def told(value) -> dict:
        return {path: {str(i): value(position[path], i) for i in indices} for path, indices in chosen.items()}

    details = {
        "finished": found.finished,
        "score after selection": found.initial_score,
        "score after refinement": found.score,
        "z": told(lambda layer, i: round(float(z[layer][i]), 4)),
        "activation": told(lambda layer, i: round(float(activations[layer][i]), 5)),
        "why": told(lambda layer, i: "z" if abs(float(z[layer][i])) > theta else "most active"),
        "trace": [_line(look) for look in found.trace],
        "settings": settings,
    }
    scales = of_neurons((path, index) for path, indices in chosen.items() for index in indices)
    return NeuronMask(scales, (Finding(prompt, chosen, found.converged, details),), fingerprint, ("NeMo Localize",))


def joined(masks: list[NeuronMask]) -> NeuronMask:
    """The masks of several prompts as one, with all their findings; an empty mask when there is none."""
    if not masks:
        return NeuronMask({}, (), {}, ("NeMo Localize: no prompt was over the threshold",))
    result = masks[0]
    for mask in masks[1:]:
        result = union(result, mask)
    return NeuronMask(result.scales, result.findings, result.fingerprint, masks[0].history)


def _line(look: Look) -> str:
    return f"theta {look.theta:g}, k {look.k}: {look.neurons} neurons ({look.listed} listed), score {look.score:.6f}"
