"""W2W Invert: the point of a space for one or several images."""

from __future__ import annotations

import logging

import torch
from comfy_api.latest import io

from ..host.folders import named_file
from ..host.image_output import new_figure, to_image
from ..host.progress import nothing_to_show
from ..host.schema import W2WPoint, W2WSpace, float_input, int_input, schema, seed
from .point_inputs import CATEGORY, COMPONENTS_MAX, PAPER
from .space import Point, Space


class W2WInvert(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WInvert",
            advanced=(
                "weight_decay",
                "precision",
                "gradient_checkpointing",
                "prior",
                "noise_samples",
            ),
            display_name="W2W Invert",
            category=CATEGORY,
            description="Finds the point of a space that generates the person in an image, by training only the "
            f"point's coefficients. {PAPER}, section 3.4. Finish now takes the point trained so far.",
            search_aliases=["weight space", "weights2weights", "inversion", "identity from one image", "dreambooth"],
            inputs=[
                io.Model.Input("model", tooltip="The base model of the space."),
                W2WSpace.Input("space", tooltip="Space of the point."),
                io.Latent.Input(
                    "latent",
                    tooltip="One image, or a few of one person, from VAE Encode. The paper: 512 pixels for SD1.5, "
                    "cropped to the face.",
                ),
                io.Conditioning.Input(
                    "positive",
                    tooltip="Prompt with which the members were trained; 'sks person' for the official space.",
                ),
                int_input(
                    "steps",
                    120,
                    (1, 100_000),
                    "Steps of Adam. 120 for a space of W2W Train Space; 400, as in the paper, for others.",
                ),
                float_input(
                    "learning_rate",
                    0.15,
                    (1e-6, 10.0, 0.001),
                    "Learning rate of Adam. 0.15 for a space of W2W Train Space; others: 0.1, as in the paper, "
                    "and 1 for images unlike those of the members.",
                ),
                float_input(
                    "weight_decay",
                    1e-10,
                    (0.0, 1.0, 1e-10),
                    "Weight decay of Adam towards the mean, as in the paper. Higher values stay nearer to the members.",
                ),
                int_input(
                    "components",
                    10_000,
                    (1, COMPONENTS_MAX),
                    "Number of first coefficients to train (paper: 10,000, and 1,000 for images unlike those "
                    "of the members). Few underfit, many overfit.",
                ),
                seed("Seed of the noise and noise levels of the steps."),
                io.Combo.Input(
                    "precision",
                    options=["bf16", "fp32"],
                    tooltip="Precision of the model; the coefficients are always float32.",
                ),
                io.Boolean.Input(
                    "gradient_checkpointing",
                    default=True,
                    tooltip="Recompute activations instead of storing them: slower, less memory.",
                ),
                int_input(
                    "preview_interval",
                    25,
                    (0, 100_000),
                    "Steps between previews of the image restored from noise; 0 turns previews off. Needs a VAE.",
                ),
                io.String.Input(
                    "checkpoint_name",
                    default="",
                    tooltip="Name of a file in the output folder, such as glassbox/inversion. After Stop the same "
                    "workflow queued again resumes from it exactly. Empty: no checkpoint.",
                ),
                io.Mask.Input("mask", optional=True, tooltip="Area of the person: the loss counts only there."),
                W2WPoint.Input("start_point", optional=True, tooltip="Initial point; default: the mean."),
                io.Vae.Input("vae", optional=True, tooltip="Needed for previews and restored images."),
                int_input(
                    "early_stop",
                    0,
                    (0, 100_000, 25),
                    "Steps without a lower loss on held-out noise after which training ends; the point of the "
                    "lowest loss is taken. 0: all steps, as in the paper. Costs about a tenth more time.",
                    optional=True,
                ),
                float_input(
                    "prior",
                    0.0001,
                    (0.0, 10.0, 0.00001),
                    "In a space of W2W Train Space: how much the loss counts the sum of squares of the point's "
                    "coefficients, which are trained in standard deviations there, at a falling rate. 0: off. "
                    "Without effect in other spaces.",
                    optional=True,
                ),
                int_input(
                    "noise_samples",
                    6,
                    (1, 64),
                    "In a space of W2W Train Space: noise samples and noise levels of a step. A step takes that "
                    "many times as long. Without effect in other spaces.",
                    optional=True,
                ),
            ],
            outputs=[
                W2WPoint.Output(display_name="point", tooltip="For W2W Edit, W2W Apply, W2W To LoRA."),
                io.Image.Output(display_name="images", tooltip="Each image restored from noise; empty without a VAE."),
                io.Image.Output(display_name="figure", tooltip="Loss over steps."),
                io.Custom("LOSS_MAP").Output(display_name="loss_map", tooltip="For Plot Loss Graph."),
                io.String.Output(
                    display_name="report", tooltip="Losses, time, and the position of the point among the members."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model,
        space: Space,
        latent: dict,
        positive: list,
        steps: int,
        learning_rate: float,
        weight_decay: float,
        components: int,
        seed: int,
        precision: str,
        gradient_checkpointing: bool,
        preview_interval: int,
        checkpoint_name: str,
        mask: torch.Tensor | None = None,
        start_point: Point | None = None,
        vae=None,
        early_stop: int = 0,
        prior: float = 0.0001,
        noise_samples: int = 6,
    ) -> io.NodeOutput:
        from . import inversion, inversion_comfy, space_report

        if not space.learned:
            prior, noise_samples = 0.0, 1
        settings = inversion.InversionSettings(
            steps, learning_rate, weight_decay, components, seed, early_stop, prior, noise_samples
        )
        images = inversion_comfy.Images(list(latent["samples"].split(1)), positive, mask, vae)
        start = space.coefficients[0, :0] if start_point is None else start_point.coefficients
        path = named_file(checkpoint_name, ".safetensors") if checkpoint_name.strip() else None
        how = inversion_comfy.How(precision, gradient_checkpointing, preview_interval, path)
        point, run = inversion_comfy.invert(model, space, settings, images, start, how)
        figure = new_figure()
        inversion.draw_losses(figure, run.inversion)
        restored = run.restored if run.restored is not None else nothing_to_show()
        lines = [inversion.describe_inversion(run.inversion, run.seconds), space_report.describe_point(point)]
        if outside := space_report.warn_outside(point):
            logging.warning("W2W Invert: %s", outside)
            lines.append(outside)
        losses = {"loss": list(run.inversion.losses)}
        ui = {"glassbox_curve": [run.curve()]}
        return io.NodeOutput(point, restored, to_image(figure), losses, "\n".join(lines), ui=ui)


NODES = [W2WInvert]
