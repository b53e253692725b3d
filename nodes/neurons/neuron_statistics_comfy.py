"""Measure the moments of a MODEL's neurons on prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..host.text_encoding import encode
from . import neuron_statistics
from .first_step_comfy import embedding, hidden_units, value_outputs
from .memorization_score import OFFICIAL_TIMESTEP, seeded_noise
from .neuron_layers import NeuronLayer
from .neuron_statistics import LayerStatistics

_NOISE_SEED = 1


def hidden_moments(
    model, conditioning: list, layers: Sequence[NeuronLayer], shape: tuple[int, int, int], seed: int = _NOISE_SEED
) -> dict[str, LayerStatistics]:
    """Moments of the hidden units of feed-forward layers on one prompt, by path: at the first step.

    In one noise sample, by default always the same, so that like those of value neurons they depend on the text alone.
    """
    widths = {layer.path: layer.width for layer in layers}
    noise = seeded_noise(shape, 1, seed)
    return hidden_units(model, conditioning, noise, OFFICIAL_TIMESTEP, widths, neuron_statistics.moments)


def prompt_moments_of_values(model, clip, layers: list[NeuronLayer], texts: list[str]) -> Iterator[tuple[int, dict]]:
    """Numbers of prompts and the moments of their value neurons, in batches of one length."""
    paths = [layer.path for layer in layers]
    by_length: dict[int, list] = {}  # long prompts have more tokens
    for text in texts:
        encoded = embedding(encode(clip, text)[1])
        by_length.setdefault(encoded.shape[1], []).append(encoded)
    for batch in by_length.values():
        yield len(batch), neuron_statistics.layer_moments(value_outputs(model, torch.cat(batch), paths))


def prompt_moments_of_hidden_units(
    model, clip, layers: list[NeuronLayer], shape, texts: list[str]
) -> Iterator[tuple[int, dict]]:
    """One, and the moments of the hidden units on a prompt, for each prompt."""
    for text in texts:
        yield 1, hidden_moments(model, encode(clip, text)[1], layers, shape)
