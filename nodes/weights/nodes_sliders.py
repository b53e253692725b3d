"""Sliders: LoRAs with a live slider each."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from comfy_api.latest import io

from ..common import lora_reader, named_strengths
from ..host import folders
from ..host.schema import schema
from .point_inputs import CATEGORY

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, ModelPatcher


def _stamp(text: str) -> str:
    """Changes with the files that a text of strengths names; "" where it names none."""
    from . import slider_files

    listed = slider_files.names_of(folders.lora_names())
    files = [slider_files.resolve_name(name, listed) for name, _ in named_strengths.parse(text)]
    return "\n".join(folders.lora_stamp(file) for file in files if file is not None)


def sliders_of(named: str) -> dict:
    """What the panel shows before a run: the names of all LoRAs, and the labels of both ends of the
    LoRAs in ``named``, one per line.
    """
    from . import slider_files, slider_phrases

    listed = slider_files.names_of(folders.lora_names())
    sliders = {}
    for name in filter(None, named.split("\n")):
        file = slider_files.resolve_name(name, listed)
        if file is not None:
            metadata = lora_reader.read_metadata(folders.lora_path(file))
            labels = slider_phrases.labels_of(metadata)
            sliders[name] = slider_files.outline(slider_files.short_name(file), labels)
    return {"files": list(reversed(listed)), "sliders": sliders}


class Sliders(io.ComfyNode):
    READS: ClassVar = {"edits": _stamp, "files": folders.output_stamp}
    EVALUATES = False

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_Sliders",
            display_name="Sliders",
            category=CATEGORY,
            description=(
                "Loads any number of LoRAs, each with a live slider for its strength; those of "
                "Train Slider show the phrases of both ends. At 0 a LoRA is not loaded. Concept "
                "Sliders (arXiv 2311.12092)."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "w2w",
                "lora stack",
                "multi lora loader",
                "concept slider",
                "slider lora",
                "lora strength",
            ],
            is_input_list=True,
            inputs=[
                io.Model.Input("model", tooltip="The model that the LoRAs were trained on."),
                io.String.Input(
                    "edits",
                    default="",
                    multiline=True,
                    tooltip=(
                        "LoRA files of models/loras without their ending, and strengths: "
                        "old: 0.8, details/film: -0.5. The panel writes this text."
                    ),
                ),
                io.String.Input(
                    "files",
                    optional=True,
                    force_input=True,
                    tooltip="Files from Train Slider; each gets a slider named by its phrase.",
                ),
                io.Clip.Input("clip", optional=True, tooltip="For LoRAs with text-encoder layers."),
            ],
            outputs=[
                io.Model.Output(display_name="model", tooltip="The model with all sliders on."),
                io.Clip.Output(
                    display_name="clip",
                    tooltip="The CLIP with all sliders on; empty if no clip is connected.",
                ),
                io.String.Output(
                    display_name="label", tooltip="The sliders in use, for Labeled Sheet."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: list[ModelPatcher],
        edits: list[str],
        files: list[str] | None = None,
        clip: list[CLIP | None] | None = None,
    ) -> io.NodeOutput:
        from ..host.progress import nothing_to_show
        from . import slider_files, sliders_comfy

        paths = [folders.existing_file(file) for file in files or [] if file.strip()]
        wired = slider_files.wired_sliders(paths, lora_reader.read_metadata)
        strengths = slider_files.strengths_of(", ".join(edits), wired, folders.lora_names())
        by_name = {slider.name: slider for slider in wired}
        patcher = model[0]
        text = clip[0] if clip else None
        used = []
        for each in strengths:
            path = folders.lora_path(each.file) if each.file else by_name[each.name].path
            if each.strength:
                patcher, text = sliders_comfy.apply_file(patcher, text, path, each.strength)
                used.append(f"{each.name} {each.strength:+g}")
        outlines = [slider_files.outline(slider.name, slider.labels) for slider in wired]
        return io.NodeOutput(
            patcher,
            nothing_to_show() if text is None else text,
            ", ".join(used) or "no slider",
            ui={"glassbox_sliders": [outlines]},
        )


NODES = [Sliders]
