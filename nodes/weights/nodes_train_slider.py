"""Train Slider: a LoRA whose strength moves one concept, from two phrases or from pairs of
images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from comfy_api.latest import io

from ..common.training.training_loss import PairObjective
from ..host.folders import named_file, next_file, relative
from ..host.image_output import new_figure, to_image
from ..host.progress import nothing_to_show
from ..host.schema import float_input, int_input, precision_input, schema, seed
from ..host.sockets import LoraModel, W2WSpace
from . import directions as fitted
from .point_inputs import CATEGORY

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, VAE, ModelPatcher
    from .slider_phrases import SliderPhrases
    from .space import Space

#: Learning rates where none is set.
_LORA_RATE = 0.0002
_SPACE_RATE = 0.05

_PAPER = "Concept Sliders (arXiv 2311.12092)"
_ADVANCED = (
    "sampling_steps",
    "checkpoint_name",
    "keep",
    "rank",
    "learning_rate",
    "batch_size",
    "images",
    "end_percent",
    "layers",
    "pair_objective",
    "precision",
    "gradient_checkpointing",
    "preview_interval",
    "checkpoint_interval",
)


def _text_inputs() -> list[io.Input]:
    return [
        io.String.Input(
            "increase",
            default="beard",
            multiline=True,
            tooltip=(
                "Phrase for the positive end, such as old, wrinkled. One slider per line: all are "
                "trained together. With pairs of images it only labels the slider."
            ),
        ),
        io.String.Input(
            "decrease",
            default="shaven",
            multiline=True,
            tooltip=(
                "Phrase for the negative end, such as young, in the same line as its opposite. "
                "Empty: the base prompt alone."
            ),
        ),
        io.String.Input(
            "base_prompt",
            default="portrait",
            multiline=True,
            tooltip=(
                "Prompt of the images that the slider acts on, such as photo of a person; both "
                "phrases are appended to it, or replace WORD in it. Several prompts, one per "
                "line, make the slider general. For pairs: one for all, or one per pair."
            ),
        ),
        io.String.Input(
            "keep",
            default="",
            multiline=True,
            tooltip=(
                "Concepts to preserve, one per line, such as man and woman: each is added to both "
                "phrases, so the slider learns only what differs between them."
            ),
        ),
    ]


def _training_inputs() -> list[io.Input]:
    return [
        int_input("rank", 4, (1, 128), "Rank of the LoRA."),
        int_input(
            "steps",
            300,
            (1, 1_000_000),
            "Training steps (Adam). At the default rate 300 move the weights as far as 1,000 of "
            "the official code, whose alpha is a quarter of the rank. The demo model takes 40 to "
            "100 at 0.01.",
        ),
        float_input(
            "learning_rate",
            0.0,
            (0.0, 1.0, 1e-7),
            "Peak learning rate; it decays to a tenth. 0: 0.0002 for a LoRA, 0.05 inside a space. "
            "Measured on the demo model only, where a LoRA learns with 0.01.",
        ),
        float_input(
            "guidance_scale",
            2.0,
            (0.1, 30.0, 0.1),
            "How far strength 1 goes, as a multiple of the difference between the phrases: the "
            "paper's eta. For pair_objective difference: a multiple of the pairs' difference.",
        ),
        int_input(
            "batch_size",
            4,
            (1, 256),
            "Noised images per step. Each is evaluated three times without gradients and trained "
            "at strength 1 and -1.",
        ),
        int_input(
            "images",
            8,
            (1, 256),
            "Number of images that the model generates first, to train on. Ignored if the latent "
            "holds images, and for pairs.",
        ),
        int_input("sampling_steps", 20, (1, 200), "Euler steps of these images and the previews."),
        float_input(
            "cfg",
            3.0,
            (1.0, 30.0, 0.1),
            "CFG of these images and the previews; 1 for distilled models.",
        ),
        float_input(
            "end_percent",
            1.0,
            (0.01, 1.0, 0.01),
            "Timesteps are drawn from the start of sampling (0, pure noise) up to here. Lower it "
            "for concepts that shape the layout.",
        ),
        seed("Seed of the generated images, noise, timesteps and initial factors."),
        io.String.Input(
            "layers",
            default="",
            tooltip=(
                "Comma-separated words; linear layers with one of them in their name are trained. "
                "Empty: all linear layers of attention."
            ),
        ),
        precision_input("The LoRA is always float32."),
        io.Boolean.Input(
            "gradient_checkpointing",
            default=True,
            tooltip="Recompute activations instead of storing them: slower, less memory.",
        ),
        int_input(
            "preview_interval",
            20,
            (0, 1_000_000),
            "Steps between previews of each slider at -1, 0 and 1; 0: only at the end. Needs a "
            "VAE.",
        ),
        io.String.Input(
            "filename_prefix",
            default="loras/slider",
            tooltip=(
                "Folder and name in ComfyUI's output folder; the phrase and a number are appended. "
                "Load LoRA lists files in output/loras after a refresh. Empty: no file."
            ),
        ),
        io.String.Input(
            "checkpoint_name",
            default="",
            tooltip=(
                "Checkpoint file in the output folder, e.g. glassbox/slider. After Stop, queue "
                "the same workflow again to resume exactly. Empty: no checkpoint."
            ),
        ),
        int_input(
            "checkpoint_interval",
            50,
            (1, 1_000_000),
            "Steps between checkpoints; one is also saved at the end and on Stop.",
        ),
    ]


def _source_inputs() -> list[io.Input]:
    return [
        W2WSpace.Input(
            "space",
            optional=True,
            tooltip=(
                "A space of W2W Train Space: the sliders become directions of it, trained on "
                "images of many people, so that a person stays one person. rank and layers are "
                "ignored."
            ),
        ),
        io.Latent.Input(
            "latent",
            optional=True,
            tooltip=(
                "Empty latent of the size to train at: the model generates its own images of the "
                "base prompt. Or VAE-encoded images to train on. Videos are trained beside their "
                "sound. Not needed for pairs."
            ),
        ),
        io.Vae.Input(
            "vae", optional=True, tooltip="Decodes the previews and encodes pairs of images."
        ),
        io.Image.Input(
            "before",
            optional=True,
            tooltip=(
                "Pairs instead of phrases: images at the negative end, two or more. Each pair "
                "should differ in the concept only."
            ),
        ),
        io.Image.Input(
            "after",
            optional=True,
            tooltip="Images at the positive end, in the same order and size as before.",
        ),
        io.Mask.Input(
            "masks",
            optional=True,
            tooltip=(
                "For pairs: loss mask, one for all or one per pair. Mask the changed part to keep "
                "the rest out of the slider."
            ),
        ),
        io.Combo.Input(
            "pair_objective",
            options=list(PairObjective),
            optional=True,
            tooltip=(
                "For pairs. visual: predict the noise of before at -1 and of after at 1, as in "
                "the paper. difference: the model's own prediction plus the pairs' difference; "
                "for distilled models, which may lose their few steps when trained on images."
            ),
        ),
    ]


class TrainSlider(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_TrainSlider",
            advanced=_ADVANCED,
            display_name="Train Slider",
            category=CATEGORY,
            description=(
                "Trains a LoRA whose strength is a slider for one concept, from two phrases or "
                f"from pairs of images, without any labels. {_PAPER}. Strength 1 moves towards "
                "increase, -1 towards decrease, 0 changes nothing. Finish now returns the sliders "
                "trained so far."
            ),
            search_aliases=[
                "concept slider",
                "weight space",
                "weights2weights",
                "w2w",
                "attribute slider",
                "text sliders",
                "image sliders",
                "lora training",
            ],
            inputs=[
                io.Model.Input("model", tooltip="The model to train the slider on."),
                io.Clip.Input("clip", tooltip="CLIP that encodes the phrases; not trained."),
                *_text_inputs(),
                *_training_inputs(),
                *_source_inputs(),
            ],
            outputs=[
                io.Model.Output(
                    display_name="model",
                    is_output_list=True,
                    tooltip="The model with the slider at strength 1; a list, one per slider.",
                ),
                LoraModel.Output(
                    display_name="lora",
                    is_output_list=True,
                    tooltip="LoRA weights of each slider, for Load LoRA Model, Save LoRA Weights.",
                ),
                io.String.Output(
                    display_name="file",
                    is_output_list=True,
                    tooltip="Path of each slider's file in the output folder, for Load LoRA.",
                ),
                io.Image.Output(
                    display_name="images",
                    tooltip="Each slider at -1, 0 and 1; empty without a VAE.",
                ),
                io.Image.Output(display_name="figure", tooltip="Loss over steps."),
                io.Custom("LOSS_MAP").Output(
                    display_name="loss_map", tooltip="For Plot Loss Graph."
                ),
                io.String.Output(
                    display_name="report",
                    tooltip="Settings, losses, and the fraction of the error left for each slider.",
                ),
                W2WSpace.Output(
                    display_name="space",
                    tooltip="The space with the sliders as directions, for W2W Edit.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        clip: CLIP,
        increase: str,
        decrease: str,
        base_prompt: str,
        keep: str,
        rank: int,
        steps: int,
        learning_rate: float,
        guidance_scale: float,
        batch_size: int,
        images: int,
        sampling_steps: int,
        cfg: float,
        end_percent: float,
        seed: int,
        layers: str,
        precision: str,
        gradient_checkpointing: bool,
        preview_interval: int,
        filename_prefix: str,
        checkpoint_name: str,
        checkpoint_interval: int,
        latent: dict | None = None,
        vae: VAE | None = None,
        before: torch.Tensor | None = None,
        after: torch.Tensor | None = None,
        masks: torch.Tensor | None = None,
        pair_objective: str = PairObjective.VISUAL,
        space: Space | None = None,
    ) -> io.NodeOutput:
        from ..host.precision import describe_precision, resolve_precision
        from ..host.training.adapters import applied
        from . import (
            monitored_run_comfy,
            resumable_training,
            slider_phrases,
            slider_training,
            slider_training_comfy,
        )

        base_prompts = slider_phrases.lines_of(base_prompt) or [""]
        own = slider_training_comfy.OwnImages(
            count=max(images, len(base_prompts)),
            steps=sampling_steps,
            cfg=cfg,
            seed=seed,
            latent=None if latent is None else latent["samples"],
        )
        if (before is None) != (after is None):
            raise ValueError("before and after belong together: connect both, or neither.")
        if before is not None and after is not None:
            if space is not None:
                raise ValueError(
                    "Sliders inside a space are trained from phrases: disconnect before and after, "
                    "or space."
                )
            labels = slider_phrases.SliderPhrases(
                increase=" ".join(slider_phrases.lines_of(increase)),
                decrease=" ".join(slider_phrases.lines_of(decrease)),
            )
            source = slider_training_comfy.from_pairs(
                clip,
                vae,
                labels,
                base_prompts=base_prompts,
                images=(before, after),
                masks=masks,
                objective=PairObjective(pair_objective),
                own=own,
            )
        else:
            source = slider_training_comfy.from_phrases(
                clip,
                slider_phrases.parse_sliders(increase, decrease),
                base_prompts=base_prompts,
                preserved=slider_phrases.lines_of(keep),
                own=own,
                space=space,
            )
        settings = slider_training.SliderSettings(
            steps=steps,
            learning_rate=learning_rate or (_LORA_RATE if space is None else _SPACE_RATE),
            batch_size=batch_size,
            guidance_scale=guidance_scale,
            end_percent=end_percent,
            seed=seed,
        )
        resolved = resolve_precision(precision, model.load_device)
        monitoring = monitored_run_comfy.Monitoring(
            precision=resolved,
            gradient_checkpointing=gradient_checkpointing,
            preview_interval=preview_interval,
            checkpoint=(
                named_file(checkpoint_name, ".safetensors") if checkpoint_name.strip() else None
            ),
            checkpoint_interval=checkpoint_interval,
        )
        loras, run = slider_training_comfy.train(
            model,
            vae,
            source,
            layers=layers,
            rank=rank,
            settings=settings,
            monitoring=monitoring,
        )
        files = [
            _save(lora, filename_prefix, phrases)
            for lora, phrases in zip(loras, source.sliders, strict=True)
        ]
        figure = new_figure()
        resumable_training.draw_losses(figure, run.training, "Slider")
        report = [
            slider_training.describe_slider_training(
                run.training,
                [phrases.name for phrases in source.sliders],
                left=run.left,
                seconds=run.seconds,
            ),
            describe_precision(precision, resolved),
        ]
        if space is not None:
            directions = slider_training_comfy.directions_of(run)
            replaced = [name for name in directions if name in space.directions]
            if replaced:
                report.append(f"Replaced in the space: {', '.join(replaced)}.")
            space = space.with_directions(directions)
            report.append(fitted.describe(directions))
        return io.NodeOutput(
            [applied(model, lora) for lora in loras],
            loras,
            files,
            nothing_to_show() if run.images is None else run.images,
            to_image(figure),
            {"loss": list(run.training.losses)},
            "\n".join(report),
            nothing_to_show() if space is None else space,
            ui={"glassbox_curve": [run.curve()]},
        )


def _save(lora: dict[str, torch.Tensor], prefix: str, phrases: SliderPhrases) -> str:
    """Write a slider's file; "" without a prefix."""
    from . import lora_writer

    if not prefix.strip():
        return ""
    path = next_file(f"{prefix.strip()}_{phrases.slug}", ".safetensors")
    lora_writer.write(lora, path, f"slider: {phrases.name}", phrases.header())
    return relative(path)


NODES = [TrainSlider]
