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
_LIST, _KEPT = "list of prompts", "statistics file"
_CLIP = "Text encoder of the model; without prompts, for a file alone, it is not needed."
_FILE = {
    "id": "statistics_file",
    "default": "",
    "tooltip": "A file of statistics, alone or merged with those of the prompts: a .safetensors from this node, or the "
    "official code's .pt for SD1.4 (alone; no pickle is executed), by its path in ComfyUI's input or output folder.",
}
_SIZE = "For feed_forward: image {} in pixels, as in NeMo Localize."


class NeuronStatistics(io.ComfyNode):
    READS: ClassVar = {
        "prompts_file": functools.partial(input_stamp, what=_LIST),
        "statistics_file": functools.partial(input_stamp, what=_KEPT),
    }
    WRITES: ClassVar = {"scan_file": functools.partial(folders.named_file, suffix=".csv")}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NeuronStatistics",
            advanced=("prompt_syntax",),
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
                "load statistics",
            ],
            inputs=[
                io.Model.Input(**nemo_inputs.MODEL),
                io.Clip.Input(**{**nemo_inputs.CLIP, "tooltip": _CLIP}, optional=True),
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
                io.String.Input(**_FILE, optional=True),
            ],
            outputs=[
                Socket.Output(display_name="statistics", tooltip="For NeMo Localize."),
                io.String.Output(display_name="report", tooltip="One line per layer, and the saved file."),
                io.String.Output(
                    display_name="file", tooltip="Path of the saved file, for statistics_file; empty if not saved."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model,
        prompts,
        prompts_file,
        layers,
        filename_prefix,
        clip=None,
        previous_statistics=None,
        neuron_type=NeuronType.VALUE,
        width=512,
        height=512,
        scan_file="",
        prompt_syntax=PromptSyntax.LITERAL,
        statistics_file="",
    ) -> io.NodeOutput:
        from . import neuron_reports
        from . import statistics_file as files
        from .neuron_statistics_comfy import scan_statistics

        network, failures = model.model.diffusion_model, []
        kept, remark = _read(model, statistics_file) if statistics_file.strip() else (None, "")
        parts = [part for part in (previous_statistics, kept) if part is not None]
        texts = collect_prompts(prompts, resolve_optional_file(prompts_file, _LIST))
        _check(texts, clip, parts, kept)
        if texts:
            chosen = select_layers(neuron_layers(network, neuron_type), layers)
            shape = latent_shape(model, width, height) if neuron_type == NeuronType.FEED_FORWARD else None
            scan = scan_statistics(model, clip, texts, neuron_type, chosen, shape, scan_file, prompt_syntax)
            parts, failures = [*parts, *filter(None, [scan.statistics])], scan.failures
        if not parts:
            raise ValueError(f"Every prompt failed. {failures[0]}")
        result, file = functools.reduce(neuron_statistics.merge, parts), ""
        known = neuron_layers(network, neuron_type) if texts else all_layers(network)
        report = remark + "\n".join([neuron_reports.statistics_report(result, known), *failures])
        if filename_prefix.strip():
            path = folders.next_file(filename_prefix.strip(), ".safetensors")
            files.write(result, path)
            file = folders.relative(path)
            report += f"\nSaved as {file} in ComfyUI's output folder."
        return io.NodeOutput(result, report, file)


def _check(texts: list[str], clip, parts: list[neuron_statistics.Statistics], kept) -> None:
    if kept is None and len(texts) + sum(part.count for part in parts) < 2:
        raise ValueError("Statistics need two prompts or more: write one per line, or name a file.")
    if texts and clip is None:
        raise ValueError("Prompts need a CLIP: connect clip, or leave prompts and prompts_file empty.")


def _read(model, file: str) -> tuple[neuron_statistics.Statistics, str]:
    """The statistics of a file, and a remark where they belong to another model."""
    from . import neuron_reports, statistics_file

    known = all_layers(model.model.diffusion_model)
    found = statistics_file.read(resolve_input_file(file, _KEPT), known)
    found.check([layer for layer in known if layer.path in found.layers])
    own = neuron_statistics.fingerprint(probe_outputs(model, list(found.fingerprint)))
    same = neuron_statistics.same_model(found.fingerprint, own)
    return found, "" if same else f"{neuron_reports.OTHER_STATISTICS}\n"


class LoadNeuronStatistics(io.ComfyNode):
    READS: ClassVar = {"file": functools.partial(input_stamp, what=_KEPT)}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_LoadNeuronStatistics",
            display_name="Load Neuron Statistics",
            category=CATEGORY,
            is_deprecated=True,
            description=f"Deprecated: Neuron Statistics reads files too, with statistics_file. {PAPER}, section 3.2.",
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
        from . import neuron_reports

        found, remark = _read(model, file)
        known = all_layers(model.model.diffusion_model)
        return io.NodeOutput(found, remark + neuron_reports.statistics_report(found, known))


NODES = [NeuronStatistics, LoadNeuronStatistics]
