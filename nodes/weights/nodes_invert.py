"""W2W Invert: the point of a space for one or several images."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from comfy_api.latest import io

from ..host.folders import named_file
from ..host.image_output import new_figure, to_image
from ..host.progress import nothing_to_show
from ..host.schema import float_input, int_input, precision_input, schema, seed
from ..host.sockets import W2WPoint, W2WSpace
from .point_inputs import CATEGORY, COMPONENTS_MAX, PAPER
from .space import Point, Space

if TYPE_CHECKING:
    from ..host.socket_types import VAE, ModelPatcher


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
            description=(
                "Finds the point that reproduces the person in an image: trains the point's "
                f"coefficients and keeps the model frozen. {PAPER}, section 3.4. Finish now "
                "returns the point trained so far."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "inversion",
                "identity from one image",
                "dreambooth",
            ],
            inputs=[
                io.Model.Input("model", tooltip="The base model of the space."),
                W2WSpace.Input("space", tooltip="Space of the point."),
                io.Latent.Input(
                    "latent",
                    tooltip=(
                        "VAE-encoded image, or several of the same person. The paper crops to "
                        "the face, at 512 pixels for SD1.5."
                    ),
                ),
                io.Conditioning.Input(
                    "positive",
                    tooltip="The members' training prompt; 'sks person' for the official space.",
                ),
                int_input(
                    "steps",
                    120,
                    (1, 100_000),
                    "Training steps (Adam). 120 for a space of W2W Train Space; 400, as in the "
                    "paper, for others.",
                ),
                float_input(
                    "learning_rate",
                    0.15,
                    (1e-6, 10.0, 0.001),
                    "Learning rate of Adam. 0.15 for a space of W2W Train Space; 0.1, as in the "
                    "paper, for others; 1 for images far from the members.",
                ),
                float_input(
                    "weight_decay",
                    1e-10,
                    (0.0, 1.0, 1e-10),
                    "Adam's weight decay, which pulls towards the mean as in the paper. Higher "
                    "stays closer to the members.",
                ),
                int_input(
                    "components",
                    10_000,
                    (1, COMPONENTS_MAX),
                    "Number of leading coefficients to train. The paper uses 10,000, and 1,000 "
                    "for images far from the members. Too few underfit, too many overfit.",
                ),
                seed("Seed of the noise and timesteps used in training."),
                precision_input("Coefficients are always float32."),
                io.Boolean.Input(
                    "gradient_checkpointing",
                    default=True,
                    tooltip="Recompute activations instead of storing them: slower, less memory.",
                ),
                int_input(
                    "preview_interval",
                    25,
                    (0, 100_000),
                    "Steps between previews of the denoised image; 0: off. Needs a VAE.",
                ),
                io.String.Input(
                    "checkpoint_name",
                    default="",
                    tooltip=(
                        "Checkpoint file in the output folder, e.g. glassbox/inversion. After "
                        "Stop, queue the same workflow again to resume exactly. Empty: no "
                        "checkpoint."
                    ),
                ),
                io.Mask.Input(
                    "mask",
                    optional=True,
                    tooltip="Mask of the person; only this area counts in the loss.",
                ),
                W2WPoint.Input(
                    "start_point", optional=True, tooltip="Initial point; default: the mean."
                ),
                io.Vae.Input(
                    "vae", optional=True, tooltip="Needed for previews and restored images."
                ),
                int_input(
                    "early_stop",
                    0,
                    (0, 100_000, 25),
                    "Early stopping: training ends after this many steps without improvement of "
                    "the loss on held-out noise, and the point with the lowest loss is returned. "
                    "0: run all steps, as in the paper. Adds about 10 % to the time.",
                    optional=True,
                ),
                float_input(
                    "prior",
                    0.0001,
                    (0.0, 10.0, 0.00001),
                    "Weight of the L2 penalty on the point's coefficients, for a space of W2W "
                    "Train Space. There the coefficients are trained in standard deviations, "
                    "with a decaying learning rate. 0: off. Ignored for other spaces.",
                    optional=True,
                ),
                int_input(
                    "noise_samples",
                    6,
                    (1, 64),
                    "Noise samples per step, each at its own timestep, for a space of W2W Train "
                    "Space. Time per step grows in proportion. Ignored for other spaces.",
                    optional=True,
                ),
            ],
            outputs=[
                W2WPoint.Output(
                    display_name="point", tooltip="For W2W Edit, W2W Apply, W2W To LoRA."
                ),
                io.Image.Output(
                    display_name="images",
                    tooltip="Each image denoised with the point; empty without a VAE.",
                ),
                io.Image.Output(display_name="figure", tooltip="Loss over steps."),
                io.Custom("LOSS_MAP").Output(
                    display_name="loss_map", tooltip="For Plot Loss Graph."
                ),
                io.String.Output(
                    display_name="report",
                    tooltip="Losses, time, and the point's position among the members.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
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
        vae: VAE | None = None,
        early_stop: int = 0,
        prior: float = 0.0001,
        noise_samples: int = 6,
    ) -> io.NodeOutput:
        from ..host.latent_shapes import split
        from ..host.precision import describe_precision, resolve_precision
        from . import inversion, inversion_comfy, space_report

        if not space.learned:
            prior = 0.0
            noise_samples = 1
        settings = inversion.InversionSettings(
            steps=steps,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            components=components,
            seed=seed,
            early_stop=early_stop,
            prior=prior,
            noise_samples=noise_samples,
        )
        first, *rest = split(latent["samples"])
        others = [part.split(1) for part in rest]
        images = inversion_comfy.Images(
            latents=list(first.split(1)),
            sounds=[list(sound) for sound in zip(*others, strict=True)],
            positive=positive,
            mask=mask,
            vae=vae,
        )
        start = space.coefficients[0, :0] if start_point is None else start_point.coefficients
        path = named_file(checkpoint_name, ".safetensors") if checkpoint_name.strip() else None
        resolved = resolve_precision(precision, model.load_device)
        how = inversion_comfy.How(
            precision=resolved,
            gradient_checkpointing=gradient_checkpointing,
            preview_interval=preview_interval,
            checkpoint=path,
        )
        point, run = inversion_comfy.invert(
            model, space, settings=settings, images=images, start=start, how=how
        )
        figure = new_figure()
        inversion.draw_losses(figure, run.inversion)
        restored = run.restored if run.restored is not None else nothing_to_show()
        lines = [
            inversion.describe_inversion(run.inversion, run.seconds),
            space_report.describe_point(point),
        ]
        lines.append(describe_precision(precision, resolved))
        if outside := space_report.warn_outside(point):
            logging.warning("W2W Invert: %s", outside)
            lines.append(outside)
        losses = {"loss": list(run.inversion.losses)}
        ui = {"glassbox_curve": [run.curve()]}
        return io.NodeOutput(point, restored, to_image(figure), losses, "\n".join(lines), ui=ui)


NODES = [W2WInvert]
