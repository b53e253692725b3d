"""Neuron activation statistics over ordinary prompts: measure them or read them from a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from comfy_api.latest import io

from ..host import folders
from ..host.first_step import embedding, hidden_units, latent_shape, probe_outputs, value_outputs
from ..host.folders import input_stamp, resolve_input_file, resolve_optional_file
from ..host.progress import with_progress
from ..host.schema import NeuronStatistics as Socket
from ..host.schema import schema
from ..host.text_encoding import encode
from . import nemo_inputs, neuron_statistics
from .memorization_score import OFFICIAL_TIMESTEP, seeded_noise
from .nemo_inputs import collect_prompts
from .neuron_layers import NeuronLayer, NeuronType, all_layers, neuron_layers, select_layers
from .neuron_statistics import LayerStatistics

CATEGORY, PAPER = nemo_inputs.CATEGORY, nemo_inputs.PAPER
_BATCH = 32
_LIST = "list of prompts"
_NOISE_SEED = 1
_SIZE = "For feed_forward: image {} in pixels, as in NeMo Localize."


class NeuronStatistics(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NeuronStatistics",
            display_name="Neuron Statistics",
            category=CATEGORY,
            description="Measures mean and standard deviation of each neuron's activation over ordinary prompts, the "
            "reference of NeMo Localize. Value neurons need the text embedding alone, so thousands of prompts take "
            f"minutes. {PAPER}, section 3.2.",
            search_aliases=["memorization", "nemo", "reference statistics", "activation statistics"],
            inputs=[
                io.Model.Input(**nemo_inputs.MODEL),
                io.Clip.Input(**nemo_inputs.CLIP),
                io.String.Input(**nemo_inputs.PROMPTS),
                io.String.Input(**nemo_inputs.PROMPTS_FILE),
                io.String.Input(**nemo_inputs.LAYERS),
                io.String.Input(**nemo_inputs.FILENAME_PREFIX),
                Socket.Input(
                    "previous_statistics",
                    optional=True,
                    tooltip="Statistics of other prompts for the same model, to be merged with these.",
                ),
                io.Combo.Input(**nemo_inputs.NEURON_TYPE),
                io.Int.Input(**{**nemo_inputs.WIDTH, "tooltip": _SIZE.format("width")}, optional=True),
                io.Int.Input(**{**nemo_inputs.HEIGHT, "tooltip": _SIZE.format("height")}, optional=True),
            ],
            outputs=[
                Socket.Output(display_name="statistics", tooltip="For NeMo Localize."),
                io.String.Output(display_name="report", tooltip="One line per layer, and the saved file."),
                io.String.Output(
                    display_name="file",
                    tooltip="Path of the saved file, for Load Neuron Statistics; empty if not saved.",
                ),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, prompts_file: str | None = "", **_) -> str:
        """Changes with the list of prompts."""
        return input_stamp(prompts_file, _LIST)

    @classmethod
    def execute(
        cls,
        model,
        clip,
        prompts,
        prompts_file,
        layers,
        filename_prefix,
        previous_statistics=None,
        neuron_type=NeuronType.VALUE,
        width=512,
        height=512,
    ) -> io.NodeOutput:
        from . import neuron_reports, statistics_file

        texts, result = collect_prompts(prompts, resolve_optional_file(prompts_file, _LIST)), previous_statistics
        if len(texts) + (result.count if result else 0) < 2:
            raise ValueError("Statistics need two prompts or more: write one per line, or name a file.")
        known = neuron_layers(model.model.diffusion_model, neuron_type)
        chosen = select_layers(known, layers)
        identity = neuron_statistics.fingerprint(probe_outputs(model, [layer.path for layer in chosen]))
        if neuron_type == NeuronType.FEED_FORWARD:
            batches = _hidden_moments(model, clip, texts, chosen, latent_shape(model, width, height))
        else:
            batches = _value_moments(model, clip, texts, chosen)
        for count, moments in batches:
            part = neuron_statistics.Statistics(count, moments, identity, "Neuron Statistics")
            result = part if result is None else neuron_statistics.merge(result, part)
        report, file = neuron_reports.statistics_report(result, known), ""
        if filename_prefix.strip():
            path = folders.next_file(filename_prefix.strip(), ".safetensors")
            statistics_file.write(result, path)
            file = folders.relative(path)
            report += f"\nSaved as {file} in ComfyUI's output folder."
        return io.NodeOutput(result, report, file)


def _value_moments(model, clip, texts: list[str], layers: list[NeuronLayer]) -> Iterator[tuple[int, dict]]:
    """Numbers of prompts and the moments of their value neurons, in batches of one length."""
    paths = [layer.path for layer in layers]
    for first in with_progress(range(0, len(texts), _BATCH)):
        by_length: dict[int, list] = {}  # long prompts have more tokens
        for text in texts[first : first + _BATCH]:
            encoded = embedding(encode(clip, text)[1])
            by_length.setdefault(encoded.shape[1], []).append(encoded)
        for batch in by_length.values():
            yield len(batch), neuron_statistics.layer_moments(value_outputs(model, torch.cat(batch), paths))


def _hidden_moments(model, clip, texts: list[str], layers: list[NeuronLayer], shape) -> Iterator[tuple[int, dict]]:
    """One, and the moments of the hidden units on a prompt, for each prompt."""
    for text in with_progress(texts):
        yield 1, hidden_moments(model, encode(clip, text)[1], layers, shape)


def hidden_moments(
    model, conditioning: list, layers: Sequence[NeuronLayer], shape: tuple[int, int, int]
) -> dict[str, LayerStatistics]:
    """Moments of the hidden units of feed-forward layers on one prompt, by path: at the first step.

    In one noise sample, always the same, so that like those of value neurons they depend on the text alone.
    """
    widths = {layer.path: layer.width for layer in layers}
    noise = seeded_noise(shape, 1, _NOISE_SEED)
    return hidden_units(model, conditioning, noise, OFFICIAL_TIMESTEP, widths, neuron_statistics.moments)


class LoadNeuronStatistics(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_LoadNeuronStatistics",
            display_name="Load Neuron Statistics",
            category=CATEGORY,
            description="Reads a file from Neuron Statistics, or the official code's file for SD1.4 "
            "(statistics_additional_laion_prompts_v1_4.pt; no pickle is executed). "
            f"{PAPER}, section 3.2.",
            search_aliases=["memorization", "nemo", "reference statistics"],
            inputs=[
                io.Model.Input("model", tooltip="The model that was measured; the statistics are checked against it."),
                io.String.Input(
                    "file",
                    default="",
                    tooltip="Path in ComfyUI's input or output folder: a .safetensors from Neuron Statistics, or the "
                    "official .pt.",
                ),
            ],
            outputs=[
                Socket.Output(display_name="statistics", tooltip="For NeMo Localize."),
                io.String.Output(display_name="report", tooltip="One line per layer."),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, file: str | None = "", **_) -> str:
        """Changes with the file."""
        return input_stamp(file, "statistics file")

    @classmethod
    def execute(cls, model, file: str) -> io.NodeOutput:
        from . import neuron_reports, statistics_file

        known = all_layers(model.model.diffusion_model)
        found = statistics_file.read(resolve_input_file(file, "statistics file"), known)
        found.check([layer for layer in known if layer.path in found.layers])
        report = neuron_reports.statistics_report(found, known)
        if not neuron_statistics.same_model(
            found.fingerprint, neuron_statistics.fingerprint(probe_outputs(model, list(found.fingerprint)))
        ):
            report = f"{neuron_reports.OTHER_STATISTICS}\n{report}"
        return io.NodeOutput(found, report)
