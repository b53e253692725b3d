"""Concept neurons: found by contrast of prompts with and without a concept, put out as a neuron
mask.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import torch
from comfy_api.latest import io

from ..host.progress import with_progress
from ..host.schema import int_input, later_seed, schema, seed
from ..host.sockets import NeuronMask as MaskSocket
from ..host.text_encoding import encode
from . import nemo_inputs, neuron_statistics
from .first_step_comfy import (
    embedding,
    latent_shape,
    layers_of_type,
    probe_outputs,
    value_outputs,
)
from .mask import NeuronMask, SearchRecord, uniform_scales
from .nemo_inputs import parse_prompts
from .neuron_layers import NeuronLayer, NeuronType, depend_on_text_alone, select_layers

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, ModelPatcher
    from .concept_neurons import Contrast

_SIZE = "Image {} in pixels; use the training resolution of the model. Unused for U-Net values."


class ConceptNeurons(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ConceptNeurons",
            advanced=("width", "height"),
            display_name="Concept Neurons",
            category=nemo_inputs.CATEGORY,
            description=(
                "Finds neurons whose activation differs significantly between prompts with a "
                "concept and the same prompts without it. NeMo Neuron Mask then switches them "
                "off, negates or amplifies them; its strength is the slider. Activations as in "
                "Finding NeMo (arXiv 2406.02366), section 3.2; maximum statistic of Westfall and "
                "Young (1993)."
            ),
            search_aliases=[
                "concept slider",
                "remove concept",
                "attribute neurons",
                "nemo",
                "memorization",
            ],
            inputs=[
                io.Model.Input(**nemo_inputs.MODEL),
                io.Clip.Input(**nemo_inputs.CLIP),
                io.String.Input(
                    "concept_prompts",
                    default="",
                    multiline=True,
                    tooltip=(
                        "Prompts with the concept, one per line. Empty: neutral_prompts with the "
                        "concept appended."
                    ),
                ),
                io.String.Input(
                    "neutral_prompts",
                    default="",
                    multiline=True,
                    tooltip=(
                        "The same prompts without the concept, in the same order; six or more, "
                        "with varied content."
                    ),
                ),
                io.String.Input(
                    "concept",
                    default="",
                    tooltip=(
                        "Word or phrase, e.g. sunglasses; also the name of the mask. If "
                        "concept_prompts is empty, it is appended to each neutral prompt after a "
                        "comma."
                    ),
                ),
                io.Combo.Input(
                    "neuron_type",
                    options=[NeuronType.FEED_FORWARD.value, NeuronType.VALUE.value],
                    tooltip=(
                        "feed_forward: hidden units of feed-forward layers. value: channels of "
                        "cross-attention values, or of a transformer's values at the positions "
                        "of the text. One evaluation per prompt, but for values of U-Nets, "
                        "which depend on the text alone."
                    ),
                ),
                io.String.Input(
                    "layers",
                    default="all",
                    tooltip=(
                        "Layers: down, middle, up, all, or names such as input_blocks.1.1, "
                        "comma-separated."
                    ),
                ),
                int_input(
                    "count",
                    10,
                    (0, 100000),
                    "Number of neurons, by largest absolute effect. 0: all significant ones.",
                ),
                seed(
                    "Seed of the noise samples (one per prompt pair) and of the sign flips.",
                    1,
                    control=False,
                ),
                io.Int.Input(**{**nemo_inputs.WIDTH, "tooltip": _SIZE.format("width")}),
                io.Int.Input(**{**nemo_inputs.HEIGHT, "tooltip": _SIZE.format("height")}),
            ],
            outputs=[
                MaskSocket.Output(
                    display_name="mask",
                    tooltip=(
                        "For NeMo Neuron Mask: strength 1 switches the neurons off, 2 negates, -1 "
                        "doubles them."
                    ),
                ),
                io.String.Output(
                    display_name="report",
                    tooltip="Number of significant neurons, and the effect of the selected ones.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        clip: CLIP,
        concept_prompts: str,
        neutral_prompts: str,
        concept: str,
        neuron_type: str,
        layers: str,
        count: int,
        seed: int,
        width: int,
        height: int,
    ) -> io.NodeOutput:
        from . import concept_neurons, neuron_reports
        from .scan_file import Pace

        pairs = prompt_pairs(concept_prompts, neutral_prompts, concept)
        of_image = latent_shape(model, width, height)
        known = layers_of_type(
            model, neuron_type, conditioning=lambda: encode(clip, pairs[0][0])[1], shape=of_image
        )
        chosen = select_layers(known, layers)
        shape = None if depend_on_text_alone(chosen) else of_image
        rows = 2 * len(pairs) if shape else 0
        logging.info(
            "Concept Neurons: %d pairs of prompts: %d rows of the network.", len(pairs), rows
        )
        began = time.monotonic()
        pace = Pace(len(pairs))
        measured = []
        for number, pair in enumerate(with_progress(pairs)):
            measured.append(
                [
                    _activations(
                        model,
                        clip,
                        layers=chosen,
                        shape=shape,
                        text=text,
                        seed=later_seed(seed, number),
                    )
                    for text in pair
                ]
            )
            logging.info("Concept Neurons: %s.", pace.step())
        present, absent = (torch.stack(side) for side in zip(*measured, strict=True))
        found = concept_neurons.contrast(present, absent, seed)
        identity = neuron_statistics.fingerprint(
            probe_outputs(model, [layer.path for layer in chosen])
        )
        name = concept.strip() or pairs[0][0]
        selected = found.select(count)
        mask = _mask(
            name,
            found,
            chosen=selected,
            layers=chosen,
            fingerprint=identity,
            settings={"count": count, "seed": seed},
        )
        cost = f"{rows} rows of the network" if rows else f"{2 * len(pairs)} text embeddings"
        report = neuron_reports.concept_report(
            name, found, chosen=selected, pairs=len(pairs), layers=chosen
        )
        return io.NodeOutput(mask, f"{report}\nCost: {cost}, {time.monotonic() - began:.1f} s.")


def prompt_pairs(with_concept: str, without: str, concept: str) -> list[tuple[str, str]]:
    """The prompts with a concept and without it, line by line; without the first text the concept
    is added.

    Raises ValueError for fewer than two pairs, and for lines that do not pair.
    """
    present = parse_prompts(with_concept)
    absent = parse_prompts(without)
    word = concept.strip()
    if not present:
        if not word:
            raise ValueError(
                "Write concept_prompts, or a concept that is added to each of neutral_prompts."
            )
        present = [f"{text}, {word}" for text in absent]
    if len(present) != len(absent):
        raise ValueError(
            f"concept_prompts has {len(present)} lines and neutral_prompts {len(absent)}: they are "
            "compared line by line, so write as many."
        )
    if len(present) < 2:
        raise ValueError(
            f"Two pairs of prompts or more are needed and there are {len(present)}: write one per "
            "line."
        )
    return [*zip(present, absent, strict=True)]


def _activations(
    model: ModelPatcher,
    clip: CLIP,
    layers: list[NeuronLayer],
    shape: tuple[int, ...] | None,
    text: str,
    seed: int,
) -> torch.Tensor:
    """Activation of each neuron of the layers on one prompt, one after the other, float64."""
    from .neuron_statistics_comfy import hidden_moments

    conditioning = encode(clip, text)[1]
    if shape is None:
        values = value_outputs(model, embedding(conditioning), [layer.path for layer in layers])
        moments = neuron_statistics.layer_moments(values)
    else:
        moments = hidden_moments(model, conditioning, layers=layers, shape=shape, seed=seed)
    return torch.cat([moments[layer.path].mean for layer in layers])


def _mask(
    name: str,
    found: Contrast,
    chosen: list[int],
    layers: list[NeuronLayer],
    fingerprint: dict,
    settings: dict,
) -> NeuronMask:
    """The chosen neurons at factor 0, with a search that holds their effects as z."""
    every = [(layer.path, index) for layer in layers for index in range(layer.width)]
    neurons: dict[str, tuple[int, ...]] = {}
    details: dict[str, dict] = {"z": {}, "selected_by": {}}
    for place in sorted(chosen):
        path, index = every[place]
        neurons[path] = (*neurons.get(path, ()), index)
        details["z"].setdefault(path, {})[str(index)] = round(float(found.effect[place]), 4)
        details["selected_by"].setdefault(path, {})[str(index)] = "contrast"
    sure = bool(chosen) and bool(found.beyond_chance[chosen].all())
    record = SearchRecord(name, neurons, sure, {**details, "settings": settings})
    return NeuronMask(
        uniform_scales(every[place] for place in chosen),
        (record,),
        fingerprint,
        ("Concept Neurons",),
    )


NODES = [ConceptNeurons]
