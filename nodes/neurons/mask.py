"""A neuron mask: which value neurons are scaled, by how much, and the searches that found them.

Finding NeMo (arXiv 2406.02366), section 3: silencing a memorized prompt's neurons (factor 0) keeps
it from replicating its training image. The official code scales a neuron's output, which is the
same as scaling its row of ``to_v``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch

from .nemo_search import Neurons, SearchResult
from .neuron_layers import NeuronLayer
from .neuron_statistics import Fingerprint

#: Shown in reports and help pages wherever a mask is made or used.
CAVEATS = (
    "A mask blocks one path from a prompt to an image; it does not remove the image from the "
    "model.",
    "Paraphrases and other text embeddings can bring the image back: a mask is no guarantee and "
    "no proof of deletion.",
    "A mask belongs to the checkpoint, the statistics and the threshold that it was found with: "
    "search again after a LoRA or a merge.",
    "Found neurons vary with seeds and precision, a search may end without converging, and about "
    "one ordinary prompt in nine gets a mask too (paper: 11.6 %).",
    "Template memorization, where only parts of an image return, is often blocked only in part.",
)

NO_SEARCHES = (
    "This mask does not say which prompts its neurons belong to: make it with NeMo Localize, or "
    "load a file that does say it."
)

Scales = dict[str, dict[int, float]]


@dataclass(frozen=True)
class SearchRecord:
    """The neurons found for one prompt by layer path, whether the search converged, and what was
    measured.

    ``details`` holds what is saved beside them, such as ``z`` and ``activation`` by layer path and
    neuron.
    """

    prompt: str
    neurons: dict[str, tuple[int, ...]]
    converged: bool
    details: dict = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many neurons were found."""
        return sum(map(len, self.neurons.values()))


@dataclass(frozen=True)
class NeuronMask:
    """Factor of each masked neuron by layer path (0 silences it), and the searches that the mask
    was made from.
    """

    scales: Scales
    searches: tuple[SearchRecord, ...] = ()
    fingerprint: Fingerprint = field(default_factory=dict)
    history: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"NEURON_MASK: {self.count} neurons of {len(self.scales)} layers\nof "
            f"{len(self.searches)} searches"
        )

    @property
    def count(self) -> int:
        """How many neurons are masked."""
        return sum(len(of_layer) for of_layer in self.scales.values())

    @property
    def neurons(self) -> list[tuple[str, int]]:
        """Layer path and index of each masked neuron."""
        return [(path, index) for path, of_layer in self.scales.items() for index in of_layer]

    def largest_z(self) -> dict[tuple[str, int], float]:
        """The z of each found neuron; of several searches the one that is furthest from 0."""
        z: dict[tuple[str, int], float] = {}
        for search in self.searches:
            for path, of_layer in search.details.get("z", {}).items():
                for index, value in of_layer.items():
                    z[path, int(index)] = max(value, z.get((path, int(index)), 0.0), key=abs)
        return z

    def with_scales(self, scales: Scales, step: str) -> NeuronMask:
        """The same searches with other neurons; ``step`` says what was done, for the history."""
        return replace(self, scales=sort_scales(scales), history=(*self.history, step))

    def by_prompt(self) -> dict[str, NeuronMask]:
        """The masked neurons that were found for each prompt, as masks of their own, by prompt.

        Neurons that belong to no prompt are left out. Raises ValueError for a mask without
        searches.
        """
        if not self.searches:
            raise ValueError(NO_SEARCHES)
        found: dict[str, Scales] = {}
        for search in self.searches:
            scales = found.setdefault(search.prompt, {})
            for path, indices in search.neurons.items():
                masked = self.scales.get(path, {})
                scales.setdefault(path, {}).update(
                    {index: masked[index] for index in indices if index in masked}
                )
        return {
            prompt: replace(self, scales=sort_scales(scales)) for prompt, scales in found.items()
        }


def sort_scales(scales: Scales) -> Scales:
    """Layers without neurons left out, neurons in ascending order."""
    return {path: dict(sorted(of_layer.items())) for path, of_layer in scales.items() if of_layer}


def uniform_scales(neurons: Iterable[tuple[str, int]], scale: float = 0.0) -> Scales:
    """Scales that give each neuron (layer path, index) the same factor."""
    scales: Scales = {}
    for path, index in neurons:
        scales.setdefault(path, {})[index] = scale
    return sort_scales(scales)


def channel_factors(
    mask: NeuronMask, layers: list[NeuronLayer], strength: float = 1.0
) -> dict[str, torch.Tensor]:
    """Factor of every channel (C,) by layer path, 1 + strength (scale - 1); unchanged layers are
    left out. Where a layer's width is not known they end at the last neuron of the mask.

    Raises ValueError for a layer or a neuron that the network does not have.
    """
    widths = {layer.path: layer.width for layer in layers}
    result = {}
    for path, of_layer in mask.scales.items():
        if path not in widths:
            raise ValueError(
                f"This MODEL has no layer {path}: the mask was made for another architecture."
            )
        if not of_layer:
            continue
        width = widths[path] or 1 + max(of_layer)
        if max(of_layer) >= width:
            raise ValueError(
                f"{path} has {width} neurons here and the mask names number "
                f"{max(of_layer)}: it was made for another architecture."
            )
        factor = torch.ones(width)
        for index, scale in of_layer.items():
            factor[index] = 1 + strength * (scale - 1)
        if bool((factor != 1).any()):
            result[path] = factor
    return result


def mask_from_search(
    prompt: str,
    result: SearchResult,
    neurons: Neurons,
    z: list[torch.Tensor],
    activations: list[torch.Tensor],
    settings: dict,
    fingerprint: Fingerprint,
) -> NeuronMask:
    """The refined neurons of one prompt as a mask with its search; ``settings`` are saved with it.

    ``z`` and ``activations``: (C,) per layer, or none where no statistics took part.
    """
    theta = result.trace[-1].theta if result.trace else 0.0
    chosen = {}
    deviations = {}
    active = {}
    selected_by = {}
    for position, (layer, of_layer) in enumerate(zip(neurons.layers, result.refined, strict=False)):
        indices = tuple(sorted(set(of_layer)))
        if indices:
            chosen[layer.path] = indices
            if z:
                deviations[layer.path] = {str(i): round(float(z[position][i]), 4) for i in indices}
                active[layer.path] = {
                    str(i): round(float(activations[position][i]), 5) for i in indices
                }
            by_z = {i for i in indices if theta is not None and abs(float(z[position][i])) > theta}
            other = "attribution" if theta is None else "top_k"
            selected_by[layer.path] = {str(i): "z" if i in by_z else other for i in indices}
    details = {
        "finished": result.finished,
        "score_after_selection": result.initial_score if result.initial else None,
        "score_after_refinement": result.score if result.initial else None,
        "z": deviations,
        "activation": active,
        "selected_by": selected_by,
        "trace": [
            f"{step.rule}: {step.neurons} neurons ({step.listed} listed), score {step.score:.6f}"
            for step in result.trace
        ],
        "settings": settings,
    }
    scales = uniform_scales((path, index) for path, indices in chosen.items() for index in indices)
    record = SearchRecord(prompt, chosen, result.converged, details)
    return NeuronMask(scales, (record,), fingerprint, ("NeMo Localize",))


def union(mask: NeuronMask, other: NeuronMask) -> NeuronMask:
    """Neurons of either; where both scale one, the smaller factor counts."""
    return _union([mask, other], "union")


def merge_masks(masks: Iterable[NeuronMask]) -> NeuronMask:
    """The union of the masks of several prompts, with all their searches; an empty mask when there
    is none.
    """
    given = list(masks)
    if not given:
        return NeuronMask({}, (), {}, ("NeMo Localize: no prompt was over the threshold",))
    return replace(_union(given, "union"), history=given[0].history)


def _union(masks: list[NeuronMask], step: str) -> NeuronMask:
    """One pass over all masks: the first one's history, the first fingerprint that there is, all
    searches in order.
    """
    scales: Scales = {}
    for mask in masks:
        for path, of_layer in mask.scales.items():
            known = scales.setdefault(path, {})
            for index, scale in of_layer.items():
                known[index] = min(scale, known.get(index, scale))
    searches = tuple(search for mask in masks for search in mask.searches)
    fingerprint = next(
        (mask.fingerprint for mask in masks if mask.fingerprint), masks[-1].fingerprint
    )
    return NeuronMask(masks[0].scales, searches, fingerprint, masks[0].history).with_scales(
        scales, step
    )
