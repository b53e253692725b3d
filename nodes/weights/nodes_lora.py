"""Nodes that use a point: on a MODEL, as a LoRA file, or merged with a style LoRA."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import torch
from comfy_api.latest import io

from ..common import lora_reader
from ..common.lora_keys import TEXT, FileFormat
from ..common.lora_reader import NONE
from ..host import folders
from ..host.folders import next_file, relative
from ..host.schema import float_input, int_input, schema
from ..host.sockets import LoraModel, W2WPoint
from .point_inputs import CATEGORY, END, PAPER, POINT_TOOLTIP, START, STRENGTH
from .space import Point

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, ModelPatcher

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
_PRECISION = io.Combo.Input(
    "precision",
    options=list(_DTYPES),
    optional=True,
    tooltip=(
        "Number format of the LoRA. fp16 halves the size of fp32; the report gives the rounding "
        "error."
    ),
)
_NAMES = io.Model.Input(
    "model",
    optional=True,
    tooltip=(
        "Base model. With it, layers get the names its loaders expect, and missing layers are "
        "reported. Without it, layers keep the names in the members' files."
    ),
)
_LORA = LoraModel.Output(
    display_name="lora", tooltip="LoRA weights, for Load LoRA Model or Save LoRA Weights."
)


class W2WApply(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WApply",
            display_name="W2W Apply",
            category=CATEGORY,
            description=(
                f"Applies a point's weights to a model. {PAPER}. Over the whole run the result "
                "equals Load LoRA with the saved point; with an interval it is the delayed "
                "injection of appendix I."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "delayed injection",
                "lora start end",
                "apply identity",
            ],
            inputs=[
                io.Model.Input("model", tooltip="The base model of the space."),
                W2WPoint.Input("point", tooltip=POINT_TOOLTIP),
                io.Float.Input(**STRENGTH),
                io.Float.Input(**START),
                io.Float.Input(**END),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    tooltip="For spaces with text-encoder layers, which act over the whole run.",
                ),
            ],
            outputs=[
                io.Model.Output(
                    display_name="model",
                    tooltip="The model with the point's weights, for any sampler.",
                ),
                io.Clip.Output(
                    display_name="clip",
                    tooltip="The CLIP with the point's weights, for the prompts.",
                ),
                io.String.Output(
                    display_name="report",
                    tooltip="Number of applied layers, and layers missing from the model or CLIP.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        point: Point,
        strength: float,
        start_percent: float,
        end_percent: float,
        clip: CLIP | None = None,
    ) -> io.NodeOutput:
        from ..host import lora_targets
        from .lora_intervals_comfy import adapters, apply_changes, apply_to_text

        if strength == 0:
            return io.NodeOutput(model, clip, "Strength 0: nothing is changed.")
        layers = point.lazy_layers()
        sizes = point.space.layout.matrix_sizes
        stems = point.space.stems
        fit = lora_targets.fit(model, sizes, stems)
        changes = adapters(layers, fit.targets)
        patched = apply_changes(
            model, changes, strength=strength, start_percent=start_percent, end_percent=end_percent
        )
        report = [fit.report("model")]
        if clip is not None and fit.elsewhere:
            fit = lora_targets.fit(clip.patcher, sizes, stems, of_text=True)
            clip = apply_to_text(clip, adapters(layers, fit.targets), strength)
            report.append(fit.report("CLIP"))
        elif fit.elsewhere:
            report.append(f"{fit.elsewhere} text encoder layers are left out: connect clip.")
        return io.NodeOutput(patched, clip, " ".join(report))


class W2WToLoRA(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WToLoRA",
            display_name="W2W To LoRA",
            category=CATEGORY,
            description=(
                "Exports a point as an ordinary LoRA with alpha, as an output and as a file for "
                f"Load LoRA, Forge and diffusers. {PAPER}."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "export lora",
                "save lora",
                "lora file",
            ],
            is_output_node=True,
            inputs=[
                W2WPoint.Input("point", tooltip=POINT_TOOLTIP),
                io.String.Input(
                    "filename_prefix",
                    default="loras/w2w",
                    tooltip=(
                        "Folder and name in ComfyUI's output folder; a number is appended. Load "
                        "LoRA lists files in output/loras after a refresh. Empty: no file."
                    ),
                ),
                int_input(
                    "rank",
                    0,
                    (0, 2048),
                    "Maximum rank per layer; the report gives the truncation error. 0: the "
                    "smallest lossless rank of each layer.",
                ),
                io.Combo.Input(
                    "file_format",
                    options=list(FileFormat),
                    tooltip=(
                        "kohya: one file. peft: an adapter folder for diffusers and peft; needs "
                        "the package peft."
                    ),
                ),
                _PRECISION,
                _NAMES,
            ],
            outputs=[
                _LORA,
                io.String.Output(
                    display_name="file", tooltip="Path of the file in the output folder."
                ),
                io.String.Output(
                    display_name="report",
                    tooltip=(
                        "Ranks of the layers, fraction of the change kept, and file size; "
                        "computed even if nothing is saved."
                    ),
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        point: Point,
        filename_prefix: str,
        rank: int,
        file_format: str,
        precision: str = "fp16",
        model: ModelPatcher | None = None,
    ) -> io.NodeOutput:
        from . import lora_writer

        layers, report = lora_writer.reduce(
            point.lazy_layers(), rank, point.tolerances(), _DTYPES[precision]
        )
        layers, stems, remark = _named(layers, point.space.stems, model)
        tensors = lora_writer.to_tensors(layers, stems)
        file = ""
        report = report + remark
        logging.info(report)
        if filename_prefix.strip() and file_format == FileFormat.PEFT:
            path = next_file(filename_prefix.strip(), "")
            report += lora_writer.write_peft(layers, path)
            file = relative(path)
        else:
            file = _save(tensors, filename_prefix, f"{point.name} of {point.space.name}")
        return io.NodeOutput(tensors, file, report)


class W2WStyleMerge(io.ComfyNode):
    READS: ClassVar = {"style_lora_name": folders.lora_stamp}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WStyleMerge",
            display_name="W2W Style Merge",
            category=CATEGORY,
            description=(
                f"Merges a point and a style LoRA into one LoRA: the sum of both changes. {PAPER}, "
                "appendix H. Exact for any ranks and layers."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "merge loras",
                "style",
                "person in a style",
            ],
            inputs=[
                W2WPoint.Input("point", tooltip=POINT_TOOLTIP),
                io.Combo.Input(
                    "style_lora_name",
                    options=[NONE, *folders.lora_names()],
                    tooltip="File in models/loras, for the same base model.",
                ),
                float_input(
                    "point_strength", 1.0, (-100.0, 100.0, 0.01), "Strength of the point's change."
                ),
                float_input(
                    "style_strength", 1.0, (-100.0, 100.0, 0.01), "Strength of the style's change."
                ),
                io.String.Input(
                    "filename_prefix",
                    default="",
                    tooltip=(
                        "Folder and name in ComfyUI's output folder, such as loras/styled. Empty: "
                        "no file."
                    ),
                ),
                LoraModel.Input(
                    "style_lora",
                    optional=True,
                    tooltip="Style LoRA from another node, instead of a file.",
                ),
                _PRECISION,
                _NAMES,
            ],
            outputs=[
                _LORA,
                io.String.Output(
                    display_name="file", tooltip="Path of the file in the output folder."
                ),
                io.String.Output(
                    display_name="report", tooltip="Norms of both changes and their cosine."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        point: Point,
        style_lora_name: str,
        point_strength: float,
        style_strength: float,
        filename_prefix: str,
        style_lora: dict | None = None,
        precision: str = "fp16",
        model: ModelPatcher | None = None,
    ) -> io.NodeOutput:
        from ..host.adapter_updates import ComfyAdapters
        from . import lora_writer, style_merge

        found, name = lora_reader.resolve_lora(
            style_lora_name, style_lora, folders.lora_path, ComfyAdapters()
        )
        layers = point.layers()
        merged = style_merge.merge(layers, found.layers, (point_strength, style_strength))
        merged, size = lora_writer.reduce(merged, 0, point.tolerances(), _DTYPES[precision])
        merged, stems, remark = _named(merged, {**found.stems, **point.space.stems}, model)
        tensors = lora_writer.to_tensors(merged, stems)
        file = _save(tensors, filename_prefix, f"{point.name} and {name}")
        return io.NodeOutput(
            tensors, file, f"{style_merge.describe(layers, found)}\n{size}{remark}"
        )


def _named(
    layers: dict, stems: Mapping[str, str], model: ModelPatcher
) -> tuple[dict, dict[str, str], str]:
    """The layers that go into a file, their names in it, and a remark on those that a connected
    MODEL lacks.
    """
    from . import lora_writer

    if model is None:
        return layers, lora_writer.file_stems(layers, stems), ""
    from ..host import lora_targets

    fit = lora_targets.fit(model, lora_targets.sizes_of(layers), stems)
    text = {layer: one for layer, one in layers.items() if layer.startswith(TEXT)}
    fitting = {layer: layers[layer] for layer in fit.targets}
    return (
        {**fitting, **text},
        {**lora_writer.file_stems(text, stems), **fit.stems},
        f" {fit.report('model')}",
    )


def _save(tensors: dict, prefix: str, about: str) -> str:
    from . import lora_writer

    if not prefix.strip():
        return ""
    path = next_file(prefix.strip(), ".safetensors")
    lora_writer.write(tensors, path, about)
    return relative(path)


NODES = [W2WApply, W2WToLoRA, W2WStyleMerge]
