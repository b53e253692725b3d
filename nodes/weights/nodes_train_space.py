"""W2W Train Space: a space from folders of images, in one training."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from comfy_api.latest import io

from ..host.folders import embedding_stamp, named_file, people_folder
from ..host.image_output import new_figure, to_image
from ..host.progress import with_progress
from ..host.schema import float_input, int_input, precision_input, schema, seed
from ..host.sockets import W2WSpace
from .point_inputs import CATEGORY, PAPER

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, VAE, ModelPatcher


def _stamp(folder: str) -> str:
    from . import member_folders

    path = people_folder(folder)
    captions = "\n".join(member_folders.captions(path))
    return "\n".join([member_folders.folder_stamp(path), embedding_stamp(captions)])


class W2WTrainSpace(io.ComfyNode):
    READS: ClassVar = {"folder": _stamp}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WTrainSpace",
            advanced=(
                "components",
                "batch_size",
                "members_per_step",
                "images_per_member",
                "layers",
                "end_percent",
                "caption_dropout",
                "precision",
                "gradient_checkpointing",
                "preview_interval",
                "checkpoint_interval",
            ),
            display_name="W2W Train Space",
            category=CATEGORY,
            description=(
                "Trains a weight space directly from images, one folder per person: the trained "
                "weights are shared, and each person is a code of a few numbers. The result has "
                f"the same form as a space of W2W Build Space. {PAPER} collects LoRAs; the joint "
                "training is Glassbox's own. Use images of people who have agreed to it. Finish "
                "now returns the space trained so far."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "train identities",
                "many people",
                "lora training",
            ],
            inputs=[
                io.Model.Input("model", tooltip="The base model."),
                io.Clip.Input("clip", tooltip="CLIP that encodes the captions; not trained."),
                io.Vae.Input("vae", tooltip="VAE that encodes the images and decodes previews."),
                io.String.Input(
                    "folder",
                    default="people",
                    tooltip=(
                        "Dataset folder inside input or output, with one subfolder of images per "
                        "person; the subfolder's name is the person's name. Optional captions: "
                        "image.txt beside image.png. Transparent pixels are masked out of the "
                        "loss."
                    ),
                ),
                io.String.Input(
                    "prompt",
                    default="photo of a person",
                    tooltip=(
                        "Default caption. Describe pose, clothes and background, not the person: "
                        "whatever the caption explains is not stored in the person's code."
                    ),
                ),
                int_input(
                    "rank",
                    4,
                    (1, 128),
                    ("Rank of each layer's update; every point is a LoRA of this rank."),
                ),
                int_input(
                    "components",
                    64,
                    (1, 1024),
                    "Length of a person's code, which is the number of axes of the space: at "
                    "most the number of people minus 1.",
                ),
                int_input(
                    "steps",
                    600,
                    (1, 1_000_000),
                    "Training steps (Adam). Aim for at least 50 updates per person: steps x "
                    "members_per_step / number of people.",
                ),
                float_input(
                    "learning_rate",
                    0.0002,
                    (1e-7, 1.0, 1e-7),
                    "Peak learning rate of the shared directions; it decays to a tenth. Measured "
                    "on the demo model only, where 0.004 is best; start lower on other models.",
                ),
                int_input("members_per_step", 8, (1, 1024), "People per step, chosen at random."),
                int_input(
                    "images_per_member",
                    3,
                    (1, 64),
                    "Images per person and step; if a person has fewer, images repeat with new "
                    "noise.",
                ),
                int_input(
                    "batch_size",
                    4,
                    (1, 1024),
                    "Maximum number of images per forward pass, across people. Affects memory "
                    "and speed only.",
                ),
                int_input(
                    "resolution",
                    512,
                    (64, 4096, 8),
                    "Images are cropped and resized to this square's area at the nearest aspect "
                    "ratio: 512 for SD1.5, 1024 for SDXL, SD3 and Flux, 128 for the demo model.",
                ),
                seed(
                    "Seed of the initialization, the order of people and images, noise and "
                    "timesteps."
                ),
                io.String.Input(
                    "layers",
                    default="",
                    tooltip=(
                        "Comma-separated words; linear layers with one of them in their name are "
                        "trained, e.g. attn2, or to_q, to_k, to_v. Empty: queries and values of "
                        "attention, as in the paper."
                    ),
                ),
                float_input(
                    "end_percent",
                    0.85,
                    (0.01, 1.0, 0.01),
                    "Timesteps are drawn from the start of sampling (0, pure noise) up to here; "
                    "later steps no longer decide the identity.",
                ),
                float_input(
                    "caption_dropout",
                    0.0,
                    (0.0, 1.0, 0.01),
                    "Probability of replacing a caption by an empty prompt.",
                ),
                precision_input("Trained weights are always float32."),
                io.Boolean.Input(
                    "gradient_checkpointing",
                    default=True,
                    tooltip="Recompute activations instead of storing them: slower, less memory.",
                ),
                int_input(
                    "preview_interval",
                    100,
                    (0, 1_000_000),
                    "Steps between previews of two people and one sampled point; 0: only at the "
                    "end.",
                ),
                io.String.Input(
                    "checkpoint_name",
                    default="",
                    tooltip=(
                        "Checkpoint file in the output folder, e.g. glassbox/space. After Stop, "
                        "queue the same workflow again to resume exactly. Empty: no checkpoint."
                    ),
                ),
                int_input(
                    "checkpoint_interval",
                    50,
                    (1, 1_000_000),
                    "Steps between checkpoints; one is also saved at the end and on Stop.",
                ),
            ],
            outputs=[
                W2WSpace.Output(
                    display_name="space",
                    tooltip="For W2W Save Space, W2W Sample, W2W Fit Directions.",
                ),
                io.Image.Output(
                    display_name="images", tooltip="The first two people and a sampled point."
                ),
                io.Image.Output(display_name="figure", tooltip="Loss over steps."),
                io.Custom("LOSS_MAP").Output(
                    display_name="loss_map", tooltip="For Plot Loss Graph."
                ),
                io.String.Output(
                    display_name="report",
                    tooltip=(
                        "Settings, losses, and how much lower the loss is with each member's own "
                        "code than with another's."
                    ),
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        clip: CLIP,
        vae: VAE,
        folder: str,
        prompt: str,
        rank: int,
        components: int,
        steps: int,
        learning_rate: float,
        members_per_step: int,
        images_per_member: int,
        batch_size: int,
        resolution: int,
        seed: int,
        layers: str,
        end_percent: float,
        caption_dropout: float,
        precision: str,
        gradient_checkpointing: bool,
        preview_interval: int,
        checkpoint_name: str,
        checkpoint_interval: int,
    ) -> io.NodeOutput:
        from ..host.precision import describe_precision, resolve_precision
        from . import (
            learned_space_comfy,
            member_folders,
            monitored_run_comfy,
            resumable_training,
            space_training,
            space_training_comfy,
        )

        path = people_folder(folder)
        found = member_folders.find_members(path, prompt)
        people = learned_space_comfy.gather(
            found, clip, vae=vae, resolution=resolution, track=with_progress
        )
        settings = space_training.SpaceTrainingSettings(
            steps=steps,
            learning_rate=learning_rate,
            members=members_per_step,
            images=images_per_member,
            end_percent=end_percent,
            caption_dropout=caption_dropout,
            batch_size=batch_size,
            seed=seed,
        )
        checkpoint = (
            named_file(checkpoint_name, ".safetensors") if checkpoint_name.strip() else None
        )
        resolved = resolve_precision(precision, model.load_device)
        monitoring = monitored_run_comfy.Monitoring(
            precision=resolved,
            gradient_checkpointing=gradient_checkpointing,
            preview_interval=preview_interval,
            checkpoint=checkpoint,
            checkpoint_interval=checkpoint_interval,
        )
        shape = space_training_comfy.Shape(layers=layers, rank=rank, components=components)
        space, run = space_training_comfy.train(
            model,
            vae,
            people=people,
            name=path.name,
            shape=shape,
            settings=settings,
            monitoring=monitoring,
        )
        figure = new_figure()
        resumable_training.draw_losses(figure, run.training, "Learning a space")
        report = [
            space_training.describe_training(run.training, space, run.seconds, run.fit),
            *people.remarks,
        ]
        report.append(describe_precision(precision, resolved))
        losses = {"loss": list(run.training.losses)}
        ui = {"glassbox_curve": [run.curve()]}
        return io.NodeOutput(space, run.images, to_image(figure), losses, "\n".join(report), ui=ui)


NODES = [W2WTrainSpace]
