"""Around a training: images resized into buckets before it, two runs compared after it, and a small
one to watch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from comfy_api.latest import io

from ..host.evaluate import untouched
from ..host.image_output import new_figure, to_image
from ..host.progress import Progress, check_stop, nothing_to_show, with_progress
from ..host.schema import NOISE, int_input, schema, seed


class ResizeToBuckets(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ResizeToBuckets",
            display_name="Resize Images Into Buckets",
            category=NOISE,
            description=(
                "Aspect-ratio bucketing: resizes and crops training images to a few sizes of "
                "about equal area, each to the nearest aspect ratio, for Make Training Dataset. "
                "No paper: as introduced by NovelAI."
            ),
            search_aliases=[
                "immiscible diffusion",
                "aspect ratio bucketing",
                "resolution bucket",
                "resize dataset",
                "lora training",
            ],
            inputs=[
                io.Image.Input(
                    "images", tooltip="The training images, a list or batches of any sizes."
                ),
                int_input(
                    "resolution",
                    1024,
                    (64, 8192, 8),
                    "Side of a square with the area of every bucket: 512 for SD1.5, 1024 for "
                    "SDXL, SD3 and Flux.",
                ),
                int_input(
                    "step",
                    64,
                    (8, 512, 8),
                    "Bucket sides are multiples of this. Larger gives fewer buckets with more "
                    "images each.",
                ),
                io.Mask.Input(
                    "masks",
                    optional=True,
                    tooltip="Masks of the images, in the same order; resized and cropped alike.",
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="images",
                    is_output_list=True,
                    tooltip="The images, one by one, in the same order.",
                ),
                io.Mask.Output(
                    display_name="masks",
                    is_output_list=True,
                    tooltip="Their masks; empty if none are connected.",
                ),
                io.String.Output(
                    display_name="report", tooltip="Images per bucket, and cropped fraction."
                ),
            ],
            is_input_list=True,
        )

    @classmethod
    def execute(
        cls,
        images: Sequence[torch.Tensor],
        resolution: Sequence[int],
        step: Sequence[int],
        masks: Sequence[torch.Tensor] = (),
    ) -> io.NodeOutput:
        from ..common.training import aspect_buckets

        sizes = aspect_buckets.bucket_sizes(resolution[0], step[0], aspect_buckets.LARGEST_RATIO)
        single = [image for batch in images for image in batch]
        before = [(image.shape[1], image.shape[0]) for image in single]
        after = [aspect_buckets.nearest_bucket(*size, sizes) for size in before]
        shapes = [mask for batch in masks for mask in batch]
        if masks and [(mask.shape[1], mask.shape[0]) for mask in shapes] != before:
            raise ValueError(
                f"{len(shapes)} masks do not fit {len(single)} images: connect one mask of the "
                "same size per image."
            )
        pairs = list(zip(single, after, strict=True))
        resized = [
            aspect_buckets.resize_and_crop(image, size)[None]
            for image, size in with_progress(pairs)
        ]
        cut = []
        for mask, size in zip(shapes, after, strict=bool(masks)):
            check_stop()
            cut.append(aspect_buckets.resize_and_crop(mask[..., None], size)[None, ..., 0])
        return io.NodeOutput(
            resized,
            cut if masks else [nothing_to_show()],
            aspect_buckets.describe_buckets(before, after),
        )


class CompareTrainingRuns(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        loss_map = io.Custom("LOSS_MAP")
        return schema(
            node_id="GBX_CompareTrainingRuns",
            display_name="Compare Training Runs",
            category=f"{NOISE}/Research",
            description=(
                "Compares two trainings in one figure: training losses and held-out losses. "
                "Held-out losses are comparable if both runs hold out the same images with the "
                "same seed. No paper: curves of Train LoRA."
            ),
            search_aliases=[
                "immiscible diffusion",
                "loss graph",
                "validation loss",
                "compare loras",
                "lora training",
            ],
            inputs=[
                loss_map.Input("loss_map_a", tooltip="The loss_map of one training."),
                loss_map.Input("loss_map_b", tooltip="The loss_map of the other training."),
                io.String.Input(
                    "name_a", default="A", tooltip="Name of the first run in the figure."
                ),
                io.String.Input(
                    "name_b", default="B", tooltip="Name of the other run in the figure."
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="figure", tooltip="Held-out and training losses of both."
                ),
                io.String.Output(
                    display_name="report",
                    tooltip="Which run has the lower loss, at which steps, and the difference.",
                ),
            ],
        )

    @classmethod
    def execute(cls, loss_map_a: dict, loss_map_b: dict, name_a: str, name_b: str) -> io.NodeOutput:
        from ..common.training import run_comparison

        runs = {name_a: loss_map_a, name_b: loss_map_b}
        run_comparison.check_loss_maps(runs)
        figure = new_figure(1000, 420)
        run_comparison.draw_comparison(figure, runs)
        return io.NodeOutput(to_image(figure), run_comparison.describe_comparison(runs))


class TrainingFromScratch(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_TrainingFromScratch",
            display_name="Immiscible Training From Scratch",
            category=f"{NOISE}/Research",
            description=(
                "Trains two small networks on handwritten digits, one with random noise and one "
                "with assigned noise, and compares their samples. Shows where Immiscible "
                "Diffusion (arXiv 2406.12303, NeurIPS 2024) helps: few sampling steps. Half a "
                "minute on the CPU."
            ),
            search_aliases=[
                "immiscible diffusion",
                "rectified flow",
                "few-step sampling",
                "noise assignment",
                "optimal transport",
            ],
            inputs=[
                int_input(
                    "batch_size",
                    256,
                    (1, 1024),
                    "Batch size, within which noise is assigned; 1 leaves nothing to assign.",
                ),
                int_input(
                    "steps", 1000, (8, 10000), ("Training steps for each of the two networks.")
                ),
                int_input(
                    "sample_steps",
                    2,
                    (1, 50),
                    "Euler steps of the shown samples. The fewer, the larger the difference.",
                ),
                seed(
                    "Seed of the networks, the order of images and the noise; the same for both.",
                    control=False,
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="drawn",
                    tooltip="Samples of the network trained with random noise.",
                ),
                io.Image.Output(
                    display_name="assigned",
                    tooltip=(
                        "Samples of the network trained with assigned noise, from the same noise."
                    ),
                ),
                io.Image.Output(
                    display_name="figure",
                    tooltip=(
                        "Distance of the samples from the digits, over training and over "
                        "sampling steps."
                    ),
                ),
                io.String.Output(
                    display_name="report",
                    tooltip=("The distances for each number of sampling steps."),
                ),
            ],
        )

    @classmethod
    def execute(cls, batch_size: int, steps: int, sample_steps: int, seed: int) -> io.NodeOutput:
        from . import scratch_training as method

        progress = Progress(2 * steps)
        runs = list[method.DigitsRun]()
        with torch.inference_mode(False), torch.enable_grad(), untouched():
            for assigned in (False, True):

                def show(step: int, before: int = len(runs) * steps) -> None:
                    check_stop()
                    progress.show(before + step)

                runs.append(
                    method.train_digits(
                        assigned,
                        batch_size,
                        steps=steps,
                        sample_steps=sample_steps,
                        seed=seed % 2**62,
                        progress=show,
                    )
                )
        figure = new_figure(1000, 420)
        method.draw_distances(figure, runs[0], runs[1], sample_steps)
        sheets = [method.to_images(run.samples) for run in runs]
        return io.NodeOutput(*sheets, to_image(figure), method.describe_runs(*runs))


NODES = [ResizeToBuckets, CompareTrainingRuns, TrainingFromScratch]
