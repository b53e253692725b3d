"""Neuron activation statistics over ordinary prompts: measure them or read them from a file."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from ..host import folders
from ..host.first_step import embedding, probe_outputs, value_outputs
from ..host.folders import input_stamp, resolve_input_file, resolve_optional_file
from ..host.progress import with_progress
from ..host.schema import NeuronStatistics as Socket
from ..host.schema import schema
from ..host.text_encoding import encode
from . import nemo_inputs
from .nemo_inputs import collect_prompts
from .value_layers import select_layers, value_layers

CATEGORY, PAPER = nemo_inputs.CATEGORY, nemo_inputs.PAPER
_BATCH = 32
_LIST = "list of prompts"


class NeuronStatistics(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NeuronStatistics",
            display_name="Neuron Statistics",
            category=CATEGORY,
            description="Measures mean and standard deviation of each value neuron's activation over ordinary "
            "prompts, the reference of NeMo Localize. Uses the text embedding alone, so thousands of prompts take "
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
        cls, model, clip, prompts, prompts_file, layers, filename_prefix, previous_statistics=None
    ) -> io.NodeOutput:
        from . import neuron_reports, neuron_statistics, statistics_file

        texts, result = collect_prompts(prompts, resolve_optional_file(prompts_file, _LIST)), previous_statistics
        if len(texts) + (result.count if result else 0) < 2:
            raise ValueError("Statistics need two prompts or more: write one per line, or name a file.")
        known = value_layers(model.model.diffusion_model)
        paths = [layer.path for layer in select_layers(known, layers)]
        identity = neuron_statistics.fingerprint(probe_outputs(model, paths))
        for first in with_progress(range(0, len(texts), _BATCH)):
            by_length: dict[int, list] = {}  # long prompts have more tokens
            for text in texts[first : first + _BATCH]:
                encoded = embedding(encode(clip, text)[1])
                by_length.setdefault(encoded.shape[1], []).append(encoded)
            for batch in by_length.values():
                moments = neuron_statistics.layer_moments(value_outputs(model, torch.cat(batch), paths))
                part = neuron_statistics.Statistics(len(batch), moments, identity, "Neuron Statistics")
                result = part if result is None else neuron_statistics.merge(result, part)
        report, file = neuron_reports.statistics_report(result, known), ""
        if filename_prefix.strip():
            path = folders.next_file(filename_prefix.strip(), ".safetensors")
            statistics_file.write(result, path)
            file = folders.relative(path)
            report += f"\nSaved as {file} in ComfyUI's output folder."
        return io.NodeOutput(result, report, file)


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
        from . import neuron_reports, neuron_statistics, statistics_file

        known = value_layers(model.model.diffusion_model)
        found = statistics_file.read(resolve_input_file(file, "statistics file"), known)
        found.check([layer for layer in known if layer.path in found.layers])
        report = neuron_reports.statistics_report(found, known)
        if not neuron_statistics.same_model(
            found.fingerprint, neuron_statistics.fingerprint(probe_outputs(model, list(found.fingerprint)))
        ):
            report = f"{neuron_reports.OTHER_STATISTICS}\n{report}"
        return io.NodeOutput(found, report)
