"""Neuron activation statistics over ordinary prompts: measure them or read them from a file."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

from comfy_api.latest import io

from ..host import folders
from ..host.folders import input_stamp, resolve_input_file, resolve_optional_file, texts_stamp
from ..host.schema import schema
from ..host.sockets import NeuronStatistics as Socket
from ..host.text_encoding import encode
from . import nemo_inputs, neuron_statistics
from .first_step_comfy import latent_shape, layers_of_type, probe_outputs
from .nemo_inputs import PromptSyntax, collect_prompts
from .neuron_layers import NeuronType, all_layers, depend_on_text_alone, select_layers

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, ModelPatcher
    from .neuron_statistics import Statistics

CATEGORY = nemo_inputs.CATEGORY
PAPER = nemo_inputs.PAPER
_LIST = "list of prompts"
_KEPT = "statistics file"
_CLIP = "Text encoder of the model; not needed if only a file is read."
_FILE = {
    "id": "statistics_file",
    "default": "",
    "tooltip": (
        "Statistics file, by its path in ComfyUI's input or output folder: a .safetensors of "
        "this node, or the official .pt for SD1.4 (no pickle is executed). With prompts, a "
        ".safetensors is merged with their statistics; the .pt works alone only."
    ),
}
_SIZE = "Image {} in pixels, as in NeMo Localize. Unused for U-Net values."


class NeuronStatistics(io.ComfyNode):
    READS: ClassVar = {
        "prompts_file": functools.partial(texts_stamp, what=_LIST),
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
            description=(
                "Measures mean and standard deviation of each neuron's activation over ordinary "
                "prompts, as reference for NeMo Localize. Value neurons need only the text "
                f"embeddings, so thousands of prompts take minutes. {PAPER}, section 3.2."
            ),
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
                    tooltip="Statistics of other prompts for the same model, merged with these.",
                ),
                io.Combo.Input(**nemo_inputs.NEURON_TYPE),
                io.Int.Input(
                    **{**nemo_inputs.WIDTH, "tooltip": _SIZE.format("width")}, optional=True
                ),
                io.Int.Input(
                    **{**nemo_inputs.HEIGHT, "tooltip": _SIZE.format("height")}, optional=True
                ),
                io.String.Input(**nemo_inputs.SCAN_FILE),
                io.Combo.Input(**nemo_inputs.PROMPT_SYNTAX),
                io.String.Input(**_FILE, optional=True),
            ],
            outputs=[
                Socket.Output(display_name="statistics", tooltip="For NeMo Localize."),
                io.String.Output(
                    display_name="report", tooltip="One line per layer, and the saved file."
                ),
                io.String.Output(
                    display_name="file",
                    tooltip="Path of the saved file, for statistics_file; empty if not saved.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        prompts: str,
        prompts_file: str,
        layers: str,
        filename_prefix: str,
        clip: CLIP | None = None,
        previous_statistics: Statistics | None = None,
        neuron_type: str = NeuronType.VALUE,
        width: int = 512,
        height: int = 512,
        scan_file: str = "",
        prompt_syntax: str = PromptSyntax.LITERAL,
        statistics_file: str = "",
    ) -> io.NodeOutput:
        from . import neuron_reports
        from . import statistics_file as files
        from .neuron_statistics_comfy import scan_statistics

        network = model.model.diffusion_model
        known = []
        failures = []
        kept, remark = _read(model, statistics_file) if statistics_file.strip() else (None, "")
        parts = [part for part in (previous_statistics, kept) if part is not None]
        texts = collect_prompts(prompts, resolve_optional_file(prompts_file, _LIST))
        _check(texts, clip, parts, kept)
        if texts:
            shape = latent_shape(model, width, height)
            first = texts[0]
            known = layers_of_type(
                model, neuron_type, conditioning=lambda: encode(clip, first)[1], shape=shape
            )
            chosen = select_layers(known, layers)
            scan = scan_statistics(
                model,
                clip,
                texts=texts,
                neuron_type=NeuronType(neuron_type),
                layers=chosen,
                shape=None if depend_on_text_alone(chosen) else shape,
                name=scan_file,
                prompt_syntax=prompt_syntax,
            )
            parts = [*parts, *filter(None, [scan.statistics])]
            failures = scan.failures
        if not parts:
            raise ValueError(f"Every prompt failed. {failures[0]}")
        result = functools.reduce(neuron_statistics.merge, parts)
        file = ""
        report = remark + "\n".join(
            [neuron_reports.statistics_report(result, known or all_layers(network)), *failures]
        )
        if filename_prefix.strip():
            path = folders.next_file(filename_prefix.strip(), ".safetensors")
            files.write(result, path)
            file = folders.relative(path)
            report += f"\nSaved as {file} in ComfyUI's output folder."
        return io.NodeOutput(result, report, file)


def _check(
    texts: list[str], clip: CLIP, parts: list[neuron_statistics.Statistics], kept: Any
) -> None:
    if kept is None and len(texts) + sum(part.count for part in parts) < 2:
        raise ValueError("Statistics need two prompts or more: write one per line, or name a file.")
    if texts and clip is None:
        raise ValueError(
            "Prompts need a CLIP: connect clip, or leave prompts and prompts_file empty."
        )


def _read(model: ModelPatcher, file: str) -> tuple[neuron_statistics.Statistics, str]:
    """The statistics of a file, and a remark where they belong to another model."""
    from . import neuron_reports, statistics_file

    known = all_layers(model.model.diffusion_model)
    found = statistics_file.read(resolve_input_file(file, _KEPT), known)
    found.check([layer for layer in known if layer.path in found.layers])
    own = neuron_statistics.fingerprint(probe_outputs(model, list(found.fingerprint)))
    same = neuron_statistics.same_model(found.fingerprint, own)
    return found, "" if same else f"{neuron_reports.OTHER_STATISTICS}\n"


NODES = [NeuronStatistics]
