"""Neuron activation statistics over ordinary prompts: measure them or read them from a file."""

from __future__ import annotations

import functools
from typing import ClassVar

from comfy_api.latest import io

from ..host import folders
from ..host.folders import input_stamp, resolve_input_file, resolve_optional_file
from ..host.schema import NeuronStatistics as Socket
from ..host.schema import schema
from . import nemo_inputs, neuron_statistics
from .first_step_comfy import latent_shape, probe_outputs
from .nemo_inputs import PromptSyntax, collect_prompts
from .neuron_layers import NeuronType, all_layers, neuron_layers, select_layers

CATEGORY, PAPER = nemo_inputs.CATEGORY, nemo_inputs.PAPER
_LIST = "list of prompts"
_SIZE = "For feed_forward: image {} in pixels, as in NeMo Localize."


class NeuronStatistics(io.ComfyNode):
    READS: ClassVar = {"prompts_file": functools.partial(input_stamp, what=_LIST)}
    WRITES: ClassVar = {"scan_file": functools.partial(folders.named_file, suffix=".csv")}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NeuronStatistics",
            display_name="Neuron Statistics",
            category=CATEGORY,
            description="Measures mean and standard deviation of each neuron's activation over ordinary prompts, the "
            "reference of NeMo Localize. Value neurons need the text embedding alone, so thousands of prompts take "
            f"minutes. {PAPER}, section 3.2.",
            search_aliases=[
                "memorization",
                "nemo",
                "reference statistics",
                "activation statistics",
                "mean and deviation of neurons",
            ],
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
                io.String.Input(**nemo_inputs.SCAN_FILE),
                io.Combo.Input(**nemo_inputs.PROMPT_SYNTAX),
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
        scan_file="",
        prompt_syntax=PromptSyntax.LITERAL,
    ) -> io.NodeOutput:
        from . import neuron_reports, statistics_file
        from .neuron_statistics_comfy import scan_statistics

        texts = collect_prompts(prompts, resolve_optional_file(prompts_file, _LIST))
        if len(texts) + (previous_statistics.count if previous_statistics else 0) < 2:
            raise ValueError("Statistics need two prompts or more: write one per line, or name a file.")
        known = neuron_layers(model.model.diffusion_model, neuron_type)
        chosen, shape = select_layers(known, layers), None
        if neuron_type == NeuronType.FEED_FORWARD:
            shape = latent_shape(model, width, height)
        scan = scan_statistics(model, clip, texts, neuron_type, chosen, shape, scan_file, prompt_syntax)
        measured = [part for part in (previous_statistics, scan.statistics) if part is not None]
        if not measured:
            raise ValueError(f"Every prompt failed. {scan.failures[0]}")
        result = functools.reduce(neuron_statistics.merge, measured)
        report, file = "\n".join([neuron_reports.statistics_report(result, known), *scan.failures]), ""
        if filename_prefix.strip():
            path = folders.next_file(filename_prefix.strip(), ".safetensors")
            statistics_file.write(result, path)
            file = folders.relative(path)
            report += f"\nSaved as {file} in ComfyUI's output folder."
        return io.NodeOutput(result, report, file)


class LoadNeuronStatistics(io.ComfyNode):
    READS: ClassVar = {"file": functools.partial(input_stamp, what="statistics file")}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_LoadNeuronStatistics",
            display_name="Load Neuron Statistics",
            category=CATEGORY,
            description="Reads a file from Neuron Statistics, or the official code's file for SD1.4 "
            "(statistics_additional_laion_prompts_v1_4.pt; no pickle is executed). "
            f"{PAPER}, section 3.2.",
            search_aliases=[
                "memorization",
                "nemo",
                "reference statistics",
                "open statistics file",
                "mean and deviation of neurons",
            ],
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


NODES = [NeuronStatistics, LoadNeuronStatistics]
