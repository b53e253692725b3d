"""W2W Train Space: a space from folders of images, in one training."""

from __future__ import annotations

from typing import ClassVar

from comfy_api.latest import io

from ..host.folders import named_file, people_folder
from ..host.image_output import new_figure, to_image
from ..host.progress import with_progress
from ..host.schema import W2WSpace, float_input, int_input, schema, seed
from . import member_folders
from .point_inputs import CATEGORY, PAPER


def _rate(name: str, default: float, what: str) -> io.Float.Input:
    return float_input(name, default, (0.0, 100.0, 0.05), f"Learning rate of {what}, as a multiple of learning_rate.")


def _stamp(folder: str) -> str:
    return member_folders.folder_stamp(people_folder(folder))


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
                "code_rate",
                "projection_rate",
                "prior",
                "end_percent",
                "caption_dropout",
                "precision",
                "gradient_checkpointing",
                "preview_interval",
                "checkpoint_interval",
            ),
            display_name="W2W Train Space",
            category=CATEGORY,
            description="Learns a weight space from images, one folder for each person, in one training: all people "
            "share the trained weights, and each is a code of a few numbers. The result is a space as W2W Build Space "
            f"makes one of many LoRAs. {PAPER} collects LoRAs; the joint training is Glassbox's own. Use images "
            "of people who have agreed to it. Finish now takes the space trained so far.",
            search_aliases=["weight space", "weights2weights", "train identities", "many people", "lora training"],
            inputs=[
                io.Model.Input("model", tooltip="The base model."),
                io.Clip.Input("clip", tooltip="CLIP that encodes the captions. It is not trained."),
                io.Vae.Input("vae", tooltip="VAE that encodes the images and decodes previews."),
                io.String.Input(
                    "folder",
                    default="people",
                    tooltip="Folder in ComfyUI's input or output folder with a folder of images for each person, whose "
                    "name it has. A text file beside an image, of the same name, is its caption. Where an image is "
                    "transparent, the loss does not count.",
                ),
                io.String.Input(
                    "prompt",
                    default="photo of a person",
                    tooltip="Caption of images without a text file. Say what varies and nothing of who it is: what the "
                    "caption says, the space does not learn.",
                ),
                int_input("rank", 4, (1, 128), "Rank of every layer's update: a point is a LoRA of it."),
                int_input(
                    "components",
                    64,
                    (1, 1024),
                    "Length of a person's code, and number of axes of the space: at most the number of people minus 1.",
                ),
                int_input(
                    "steps",
                    600,
                    (1, 1_000_000),
                    "Steps of Adam. Everybody should come up in 50 steps or more: steps x members_per_step / people.",
                ),
                float_input(
                    "learning_rate",
                    0.0002,
                    (1e-7, 1.0, 1e-7),
                    "Learning rate of the shared directions at its highest; it falls to a tenth. Measured on "
                    "the demo model alone, where 0.004 is best; start lower on others.",
                ),
                int_input("members_per_step", 8, (1, 1024), "People in a step, drawn at random."),
                int_input(
                    "images_per_member",
                    3,
                    (1, 64),
                    "Images of each person in a step; where there are fewer, they come again with other noise.",
                ),
                int_input(
                    "batch_size",
                    4,
                    (1, 1024),
                    "Largest number of images in one evaluation of the model, of any people. Takes memory, and "
                    "changes nothing but the speed.",
                ),
                int_input(
                    "resolution",
                    512,
                    (64, 4096, 8),
                    "Images are resized to this square's area at the nearest aspect ratio, and "
                    "cropped: 512 for SD1.5, 1024 for SDXL, SD3 and Flux, 128 for the demo model.",
                ),
                seed("Seed of the start, the order of people and images, noise and noise levels."),
                io.String.Input(
                    "layers",
                    default="",
                    tooltip="Comma-separated words: the linear layers with one of them in their name are changed, such "
                    "as attn2, or to_q, to_k, to_v. Empty: queries and values of attention, as in the paper.",
                ),
                _rate("code_rate", 7.5, "the codes"),
                _rate("projection_rate", 0.75, "the shared projections (0 leaves them as drawn)"),
                float_input(
                    "prior",
                    0.0,
                    (0.0, 100.0, 0.0001),
                    "Weight of the mean square of a code's numbers in the loss: higher keeps people nearer to "
                    "each other.",
                ),
                float_input(
                    "end_percent",
                    0.85,
                    (0.01, 1.0, 0.01),
                    "Noise levels are drawn from the start of the sampling range (0, pure noise) up to here: "
                    "by then it is settled who is seen.",
                ),
                float_input(
                    "caption_dropout", 0.0, (0.0, 1.0, 0.01), "How often a caption is replaced by an empty prompt."
                ),
                io.Combo.Input(
                    "precision",
                    options=["bf16", "fp32"],
                    tooltip="Precision of the model; what is trained is always float32.",
                ),
                io.Boolean.Input(
                    "gradient_checkpointing",
                    default=True,
                    tooltip="Recompute activations instead of storing them: slower, less memory.",
                ),
                int_input(
                    "preview_interval",
                    100,
                    (0, 1_000_000),
                    "Steps between previews of two people and of a sampled point; 0: at the end alone.",
                ),
                io.String.Input(
                    "checkpoint_name",
                    default="",
                    tooltip="Name of a file in the output folder, such as glassbox/space. After Stop the same "
                    "workflow queued again resumes from it exactly. Empty: no checkpoint.",
                ),
                int_input(
                    "checkpoint_interval",
                    50,
                    (1, 1_000_000),
                    "Steps between two saves of the checkpoint; it is also saved at the end and at a stop.",
                ),
            ],
            outputs=[
                W2WSpace.Output(display_name="space", tooltip="For W2W Save Space, W2W Sample, W2W Fit Directions."),
                io.Image.Output(display_name="images", tooltip="The first two people and a sampled point."),
                io.Image.Output(display_name="figure", tooltip="Loss over steps."),
                io.Custom("LOSS_MAP").Output(display_name="loss_map", tooltip="For Plot Loss Graph."),
                io.String.Output(display_name="report", tooltip="What was trained, and how much of it is the person."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model,
        clip,
        vae,
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
        code_rate: float,
        projection_rate: float,
        prior: float,
        end_percent: float,
        caption_dropout: float,
        precision: str,
        gradient_checkpointing: bool,
        preview_interval: int,
        checkpoint_name: str,
        checkpoint_interval: int,
    ) -> io.NodeOutput:
        from . import learned_space_comfy, space_training, space_training_comfy

        path = people_folder(folder)
        found = member_folders.find_members(path, prompt)
        people = learned_space_comfy.gather(found, clip, vae, resolution, with_progress)
        settings = space_training.SpaceTrainingSettings(
            *(steps, learning_rate, members_per_step, images_per_member, code_rate, projection_rate, prior),
            *(end_percent, caption_dropout, batch_size, seed),
        )
        checkpoint = named_file(checkpoint_name, ".safetensors") if checkpoint_name.strip() else None
        how = space_training_comfy.How(
            precision, gradient_checkpointing, preview_interval, checkpoint, checkpoint_interval
        )
        shape = space_training_comfy.Shape(layers, rank, components)
        space, run = space_training_comfy.train(model, vae, people, path.name, shape, settings, how)
        figure = new_figure()
        space_training.draw_losses(figure, run.training)
        report = [space_training.describe_training(run.training, space, run.seconds, run.fit), *people.remarks]
        losses = {"loss": list(run.training.losses)}
        ui = {"glassbox_curve": [run.curve()]}
        return io.NodeOutput(space, run.images, to_image(figure), losses, "\n".join(report), ui=ui)


NODES = [W2WTrainSpace]
