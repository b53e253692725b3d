"""A labeled sheet of images over original size, target size or crop, with and without the gate."""

from __future__ import annotations

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

_COLUMN = 260  # pixels of the sheet


class SizeSheet(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_SizeSheet",
            display_name="Size Sheet",
            category=CONDITIONING,
            description=(
                "One labeled sheet of images over original size, target size or crop, smaller and larger than the "
                "image, with the stock model and with the gate of Metadata Schedule. On Improved Conditioning "
                "Mechanisms and Pre-training Strategies for Diffusion Models (arXiv 2411.03177)."
            ),
            search_aliases=[
                "improved conditioning",
                "size sweep",
                "xy plot",
                "sdxl size conditioning",
                "micro-conditioning",
            ],
            inputs=[
                io.Model.Input("model", tooltip="A model with size metadata: SDXL, its refiner, the demo model."),
                io.Conditioning.Input("positive", tooltip="The prompt; each column sets its metadata."),
                io.Conditioning.Input("negative", tooltip="The negative prompt."),
                io.Vae.Input("vae", tooltip="Decodes the images."),
                io.Latent.Input("latent", tooltip="An empty latent: its size is that of the images."),
                io.Combo.Input(
                    "field",
                    options=list(SweptField),
                    tooltip="What changes from column to column. original_size: artifacts of small images against "
                    "detail. crop_left, crop_top: moves the subject, if the model follows crops.",
                ),
                io.String.Input(
                    "values",
                    default="0.25, 0.5, 1, 2, 4",
                    tooltip="Multiples of the image's sides, comma-separated: 0.25 of 1024 is 256. For crops, of the "
                    "side that is cropped.",
                ),
                float_input(
                    "gate_exponent",
                    2.0,
                    (0.0, 64.0, 0.5),
                    "A second row with the cosine gate of Metadata Schedule on the field. 0: no second row.",
                ),
                io.Combo.Input(
                    "apply_to",
                    options=list(PromptRole),
                    default=PromptRole.POSITIVE,
                    tooltip="Which prompt gets the metadata. positive: CFG strengthens what it changes. both: as most "
                    "workflows set it, with a weaker effect.",
                ),
                seed("Seed of the noise, the same in every image, as in KSampler."),
                int_input("steps", 20, (1, 200), "Euler steps with the normal scheduler."),
                float_input("cfg", 7.0, (0.0, 100.0, 0.1), "CFG, as in KSampler."),
            ],
            outputs=[
                io.Image.Output(display_name="figure", tooltip="The labeled sheet."),
                io.Image.Output(display_name="images", tooltip="The images row by row: stock, then gated."),
                io.String.Output(display_name="report", tooltip="The metadata of every column."),
            ],
        )

    @classmethod
    def execute(
        cls, model, positive, negative, vae, latent, field, values, gate_exponent, apply_to, seed, steps, cfg
    ) -> io.NodeOutput:
        from . import metadata_schedule_comfy, size_metadata_comfy

        layout, canvas, multiples = size_metadata_comfy.layout_of(model), pixels(latent, model), parse_multiples(values)
        columns = [swept_entries(field, multiple, canvas) for multiple in multiples]
        check_fields(columns[0], layout.fields, layout.model)
        models, shape, images = {"stock": model}, latent["samples"].shape[1:], []
        if gate_exponent:
            group, whom = SweptField(field).gated_fields, PromptRole.BOTH
            schedule = GateSchedule(GateCurve.COSINE, gate_exponent, group, 0, 0, GateMode.VALUE, whom)
            models["gated"] = metadata_schedule_comfy.gated(model, schedule, inside=False)
        for name, entries in with_progress([(name, entries) for name in models for entries in columns]):
            prompts = [
                size_metadata_comfy.write_metadata(prompt, entries) if apply_to in (role, PromptRole.BOTH) else prompt
                for prompt, role in ((positive, PromptRole.POSITIVE), (negative, PromptRole.NEGATIVE))
            ]
            batch = sample_images(models[name], vae, prompts[0], prompts[1], shape, 1, seed, steps=steps, cfg=cfg)
            images.append(batch[0])
        rows = {name: images[index * len(columns) : (index + 1) * len(columns)] for index, name in enumerate(models)}
        labels = [f"{multiple:g} x" for multiple in multiples]
        figure = new_figure(80 + _COLUMN * len(columns), 80 + _COLUMN * len(rows))
        draw_sheet(figure, rows, labels, f"{field}, {canvas[0]} x {canvas[1]} pixels, seed {seed}")
        report = [f"{label}: {format_metadata(entries)}" for label, entries in zip(labels, columns, strict=True)]
        return io.NodeOutput(to_image(figure), torch.stack(images), "\n".join(report))


NODES = [SizeSheet]
