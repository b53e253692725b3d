"""Sliders: LoRAs with a live slider each, and pairs of images to train them on."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from comfy_api.latest import io

from ..common import lora_reader, named_strengths
from ..host import folders
from ..host.schema import int_input, schema
from .point_inputs import CATEGORY

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, ClipVisionModel, ModelPatcher

#: Words that name directions where none are given.
WORDS = (
    "smiling",
    "serious",
    "closed eyes",
    "sunglasses",
    "no glasses",
    "beard",
    "shaven",
    "bald",
    "red hair",
    "black hair",
    "pale skin",
    "black skin",
    "young",
    "old",
    "man",
    "woman",
    "close-up",
    "wide shot",
    "bright",
    "dark",
    "indoors",
    "outdoors",
    "colorful",
    "black and white",
    "photo",
    "painting",
)


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


class DiscoverSliders(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_DiscoverSliders",
            display_name="Discover Sliders",
            category=CATEGORY,
            description=(
                "Finds the directions in which images of one prompt vary, and pairs of images at "
                "both ends of each. Train Slider trains one slider from each list of pairs, "
                "without phrases or labels. After SliderSpace (arXiv 2502.01639)."
            ),
            search_aliases=[
                "concept slider",
                "sliderspace",
                "weight space",
                "weights2weights",
                "w2w",
                "principal components",
                "variation",
            ],
            inputs=[
                io.Image.Input(
                    "images",
                    tooltip=(
                        "Images that the model generated from one prompt, each from its own seed: "
                        "at least 16, better 64 or more."
                    ),
                ),
                int_input(
                    "sliders", 4, (1, 64), "Number of directions, those that vary most first."
                ),
                io.String.Input(
                    "words",
                    default="\n".join(WORDS),
                    multiline=True,
                    tooltip=(
                        "Words to name the ends of the directions with, one per line. They do not "
                        "change the directions."
                    ),
                ),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    tooltip=(
                        "Compares images and words. The demo model's CLIP also sees the images; "
                        "others need clip_vision."
                    ),
                ),
                io.ClipVision.Input(
                    "clip_vision",
                    optional=True,
                    tooltip=(
                        "Embeds the images. Names need the one that was trained together with clip."
                    ),
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="before",
                    is_output_list=True,
                    tooltip="The low end of each direction's pairs, for Train Slider.",
                ),
                io.Image.Output(
                    display_name="after",
                    is_output_list=True,
                    tooltip="The high end of each direction's pairs, for Train Slider.",
                ),
                io.String.Output(
                    display_name="increase",
                    is_output_list=True,
                    tooltip="Name of each direction's high end.",
                ),
                io.String.Output(
                    display_name="decrease",
                    is_output_list=True,
                    tooltip="Name of each direction's low end; may be empty.",
                ),
                io.Image.Output(
                    display_name="figure", tooltip="Images at the low and high end per direction."
                ),
                io.String.Output(
                    display_name="report",
                    tooltip=(
                        "Variance that each direction explains beside chance, and how well its "
                        "words fit."
                    ),
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        images: torch.Tensor,
        sliders: int,
        words: str,
        clip: CLIP | None = None,
        clip_vision: ClipVisionModel | None = None,
    ) -> io.NodeOutput:
        from ..common import prompt_alignment
        from ..host.image_output import new_figure, to_image
        from ..host.progress import interruptible
        from . import slider_discovery, slider_phrases

        images = images[..., :3]
        try:
            embeddings = prompt_alignment.embed(images, clip, clip_vision)
        except prompt_alignment.AbsentError as error:
            raise ValueError(f"The images cannot be compared: {error}.") from error
        directions = interruptible(lambda: slider_discovery.discover(embeddings, sliders))
        agreements: dict[str, torch.Tensor] = {}
        remark = ""
        vocabulary = list(dict.fromkeys(slider_phrases.lines_of(words)))
        if clip is None:
            remark = "No names: connect clip."
        elif vocabulary:
            try:
                agreements = prompt_alignment.measure_words(
                    vocabulary, images, clip, seen=embeddings
                )
            except prompt_alignment.AbsentError as error:
                remark = f"No names: {error}."
        names = [slider_discovery.nearest_words(one.scores, agreements) for one in directions]
        phrases = slider_discovery.phrases_of([(high[0], low[0]) for high, low in names])
        figure = new_figure(900, 40 + 120 * len(directions))
        slider_discovery.draw(figure, images, directions, phrases=phrases)
        report = slider_discovery.describe(directions, phrases, names, remark=remark)
        return io.NodeOutput(
            [images[one.low] for one in directions],
            [images[one.high] for one in directions],
            [high for high, _ in phrases],
            [low for _, low in phrases],
            to_image(figure),
            report,
        )


NODES = [Sliders, DiscoverSliders]
