"""Out of the space again: a point on a MODEL, as a LoRA file, or together with a style LoRA."""

from __future__ import annotations

from comfy_api.latest import io

from ...host import model_folders
from ...host.lora_patches import apply_lora
from ...host.output_files import next_file, relative
from ...host.schema import schema
from ...host.sockets import LoraModel, W2WPoint
from .. import lora_export, lora_files, style_merge
from ..inputs import CATEGORY, END, PAPER, POINT_TOOLTIP, START, STRENGTH
from ..lora_files import NONE
from ..space import Point

_LORA = LoraModel.Output(display_name="lora", tooltip="LoRA weights, for Load LoRA Model or Save LoRA Weights.")


class W2WApply(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WApply",
            display_name="W2W Apply",
            category=CATEGORY,
            description=f"Gives a MODEL the weights of a point. {PAPER}. Over the whole run it is exactly what Load "
            "LoRA makes of the saved point; between two percents it is the delayed injection of appendix I.",
            search_aliases=["weight space", "weights2weights", "delayed injection", "lora start end"],
            inputs=[
                io.Model.Input("model", tooltip="The base model that the space's members were trained on."),
                W2WPoint.Input("point", tooltip=POINT_TOOLTIP),
                io.Float.Input(**STRENGTH),
                io.Float.Input(**START),
                io.Float.Input(**END),
            ],
            outputs=[io.Model.Output(display_name="model", tooltip="For any sampler.")],
        )

    @classmethod
    def execute(cls, model, point: Point, strength: float, start_percent: float, end_percent: float) -> io.NodeOutput:
        tensors = lora_export.to_tensors(point.layers())
        return io.NodeOutput(apply_lora(model, tensors, strength, start_percent, end_percent))


class W2WToLoRA(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WToLoRA",
            display_name="W2W To LoRA",
            category=CATEGORY,
            description=f"A point as an ordinary LoRA with alpha, on a wire and as a file that Load LoRA, Forge and "
            f"diffusers read. {PAPER}.",
            search_aliases=["weight space", "weights2weights", "export lora", "save lora"],
            is_output_node=True,
            inputs=[
                W2WPoint.Input("point", tooltip=POINT_TOOLTIP),
                io.String.Input("filename_prefix", default="loras/w2w",
                                tooltip="Folder and name in ComfyUI's output folder; a number is added. What lies in "
                                "output/loras is in Load LoRA's list after a refresh. Empty: no file."),
            ],
            outputs=[_LORA, io.String.Output(display_name="file", tooltip="Path inside the output folder.")],
        )  # fmt: skip

    @classmethod
    def execute(cls, point: Point, filename_prefix: str) -> io.NodeOutput:
        tensors = lora_export.to_tensors(point.layers())
        return io.NodeOutput(tensors, _save(tensors, filename_prefix, f"{point.name} of {point.space.name}"))


class W2WStyleMerge(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WStyleMerge",
            display_name="W2W Style Merge",
            category=CATEGORY,
            description=f"A point and a style LoRA as one LoRA: the plain sum of both changes. {PAPER}, appendix H. "
            "Exact for any ranks and layers.",
            search_aliases=["weight space", "weights2weights", "merge loras", "style"],
            inputs=[
                W2WPoint.Input("point", tooltip=POINT_TOOLTIP),
                io.Combo.Input("style_name", options=[NONE, *model_folders.lora_names()],
                               tooltip="A LoRA of models/loras for the same base model."),
                io.Float.Input("strength_point", default=1.0, min=-100.0, max=100.0, step=0.01,
                               tooltip="Factor of the point's change."),
                io.Float.Input("strength_style", default=1.0, min=-100.0, max=100.0, step=0.01,
                               tooltip="Factor of the style's change."),
                io.String.Input("filename_prefix", default="",
                                tooltip="Folder and name in ComfyUI's output folder, such as loras/styled, or none."),
                LoraModel.Input("style", optional=True, tooltip="A style LoRA from a wire, instead of a file."),
            ],
            outputs=[_LORA, io.String.Output(display_name="file", tooltip="Path inside the output folder."),
                     io.String.Output(display_name="report", tooltip="Sizes of the changes and how they meet.")],
        )  # fmt: skip

    @classmethod
    def fingerprint_inputs(cls, style_name: str | None, **_) -> str:
        """Changes with the file."""
        return model_folders.lora_stamp(style_name)

    @classmethod
    def execute(cls, point: Point, style_name, strength_point, strength_style, filename_prefix,
                style=None) -> io.NodeOutput:  # fmt: skip
        found, name = lora_files.chosen(style_name, style, model_folders.lora_path)
        merged = style_merge.merge(point.layers(), found.layers, (strength_point, strength_style))
        tensors = lora_export.to_tensors(merged)
        file = _save(tensors, filename_prefix, f"{point.name} and {name}")
        return io.NodeOutput(tensors, file, style_merge.describe(point.layers(), found))


def _save(tensors: dict, prefix: str, about: str) -> str:
    if not prefix.strip():
        return ""
    path = next_file(prefix.strip(), ".safetensors")
    lora_export.write(tensors, path, about)
    return relative(path)
