"""A labeled sheet of images over original size, target size or crop, with and without the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from comfy_api.latest import io

from ..host.evaluate import sample_images
from ..host.image_output import new_figure, to_image
from ..host.latent_shapes import pixels
from ..host.progress import with_progress
from ..host.schema import CONDITIONING, float_input, int_input, schema, seed
from .metadata_schedule import GateCurve, GateMode, GateSchedule, PromptRole
from .size_metadata import check_fields, format_metadata
from .size_sheet import SweptField, draw_sheet, parse_multiples, swept_entries

if TYPE_CHECKING:
    from ..host.socket_types import VAE, ModelPatcher

_COLUMN = 260  # pixels of the sheet


class SizeSheet(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_SizeSheet",
            display_name="Size Sheet",
            category=CONDITIONING,
            description=(
                "One labeled sheet of images with original size, target size or crop varied from "
                "smaller to larger than the image, with the stock model and with the gate of "
                "Metadata Schedule. On Improved Conditioning Mechanisms and Pre-training "
                "Strategies for Diffusion Models (arXiv 2411.03177)."
            ),
            search_aliases=[
                "improved conditioning",
                "size sweep",
                "xy plot",
                "sdxl size conditioning",
                "micro-conditioning",
            ],
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip="A model with size metadata: SDXL, its refiner, the demo model.",
                ),
                io.Conditioning.Input(
                    "positive", tooltip="The prompt; each column sets its metadata."
                ),
                io.Conditioning.Input("negative", tooltip="The negative prompt."),
                io.Vae.Input("vae", tooltip="Decodes the images."),
                io.Latent.Input("latent", tooltip="An empty latent; sets the size of the images."),
                io.Combo.Input(
                    "field",
                    options=list(SweptField),
                    tooltip=(
                        "The metadata field to vary over the columns. original_size: from "
                        "low-resolution artifacts to detail. crop_left, crop_top: moves the "
                        "subject, if the model follows crops."
                    ),
                ),
                io.String.Input(
                    "values",
                    default="0.25, 0.5, 1, 2, 4",
                    tooltip=(
                        "Multiples of the image's sides, comma-separated: 0.25 of 1024 is 256. "
                        "For crops, multiples of the cropped side."
                    ),
                ),
                float_input(
                    "gate_exponent",
                    2.0,
                    (0.0, 64.0, 0.5),
                    "Exponent of Metadata Schedule's cosine gate, in a second row. 0: no second "
                    "row.",
                ),
                io.Combo.Input(
                    "apply_to",
                    options=list(PromptRole),
                    default=PromptRole.POSITIVE,
                    tooltip=(
                        "Prompt that gets the metadata. positive: CFG amplifies the effect. "
                        "both: as in most workflows, with a weaker effect."
                    ),
                ),
                seed("Noise seed, the same for every image, as in KSampler."),
                int_input("steps", 20, (1, 200), "Euler steps with the normal scheduler."),
                float_input("cfg", 7.0, (0.0, 100.0, 0.1), "CFG, as in KSampler."),
            ],
            outputs=[
                io.Image.Output(display_name="figure", tooltip="The labeled sheet."),
                io.Image.Output(
                    display_name="images", tooltip="The images row by row: stock, then gated."
                ),
                io.String.Output(display_name="report", tooltip="The metadata of every column."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        positive: list,
        negative: list,
        vae: VAE,
        latent: dict,
        field: str,
        values: str,
        gate_exponent: float,
        apply_to: str,
        seed: int,
        steps: int,
        cfg: float,
    ) -> io.NodeOutput:
        from . import metadata_schedule_comfy, size_metadata_comfy

        layout = size_metadata_comfy.layout_of(model)
        canvas = pixels(latent, model)
        multiples = parse_multiples(values)
        columns = [swept_entries(field, multiple, canvas) for multiple in multiples]
        check_fields(columns[0], layout.fields, layout.model)
        models = {"stock": model}
        shape = latent["samples"].shape[1:]
        images = []
        if gate_exponent:
            group = SweptField(field).gated_fields
            whom = PromptRole.BOTH
            schedule = GateSchedule(
                curve=GateCurve.COSINE,
                exponent=gate_exponent,
                fields=group,
                reference_width=0,
                reference_height=0,
                mode=GateMode.VALUE,
                apply_to=whom,
            )
            models["gated"] = metadata_schedule_comfy.gated(model, schedule, inside=False)
        for name, entries in with_progress(
            [(name, entries) for name in models for entries in columns]
        ):
            prompts = [
                size_metadata_comfy.write_metadata(prompt, entries)
                if apply_to in (role, PromptRole.BOTH)
                else prompt
                for prompt, role in (
                    (positive, PromptRole.POSITIVE),
                    (negative, PromptRole.NEGATIVE),
                )
            ]
            batch = sample_images(
                models[name],
                vae,
                positive=prompts[0],
                negative=prompts[1],
                shape=shape,
                count=1,
                seed=seed,
                steps=steps,
                cfg=cfg,
            )
            images.append(batch[0])
        rows = {
            name: images[index * len(columns) : (index + 1) * len(columns)]
            for index, name in enumerate(models)
        }
        labels = [f"{multiple:g} x" for multiple in multiples]
        figure = new_figure(80 + _COLUMN * len(columns), 80 + _COLUMN * len(rows))
        draw_sheet(figure, rows, labels, f"{field}, {canvas[0]} x {canvas[1]} pixels, seed {seed}")
        report = [
            f"{label}: {format_metadata(entries)}"
            for label, entries in zip(labels, columns, strict=True)
        ]
        return io.NodeOutput(to_image(figure), torch.stack(images), "\n".join(report))


NODES = [SizeSheet]
