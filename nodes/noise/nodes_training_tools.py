"""Around a training: images resized into buckets before it, two runs compared after it, and a small one to watch."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from ..host.evaluate import untouched
from ..host.image_output import new_figure, to_image
from ..host.progress import Progress, check_stop, nothing_to_show, with_progress
from ..host.schema import NOISE, float_input, int_input, schema, seed


class ResizeToBuckets(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ResizeToBuckets",
            display_name="Resize Images Into Buckets",
            category=NOISE,
            description=(
                "Resizes training images to a few sizes of about one area, each to that of the nearest shape, and "
                "crops the rest, for Make Training Dataset. No paper: NovelAI's aspect-ratio bucketing."
            ),
            search_aliases=[
                "immiscible diffusion",
                "aspect ratio bucketing",
                "resolution bucket",
                "resize dataset",
                "lora training",
            ],
            inputs=[
                io.Image.Input("images", tooltip="The training images, a list or batches of any sizes."),
                int_input(
                    "resolution",
                    1024,
                    (64, 8192, 8),
                    "Side of a square with the area of every size: 512 for SD1.5, 1024 for SDXL, SD3 and Flux.",
                ),
                int_input(
                    "step",
                    64,
                    (8, 512, 8),
                    "Sides are multiples of this. Larger gives fewer sizes with more images each.",
                ),
                float_input(
                    "largest_ratio",
                    2.0,
                    (1.0, 8.0, 0.1),
                    "The longest shape: 2 is twice as wide as high. 1 cuts every image to a square.",
                ),
                io.Mask.Input(
                    "masks", optional=True, tooltip="Masks of the images, in their order: resized and cropped alike."
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="images", is_output_list=True, tooltip="The images, one by one, in their order."
                ),
                io.Mask.Output(display_name="masks", is_output_list=True, tooltip="Their masks; none without masks."),
                io.String.Output(display_name="report", tooltip="Images of each size, and how much was cropped."),
            ],
            is_input_list=True,
        )

    @classmethod
    def execute(cls, images, resolution, step, largest_ratio, masks=()) -> io.NodeOutput:
        from ..common.training import aspect_buckets

        sizes = aspect_buckets.bucket_sizes(resolution[0], step[0], largest_ratio[0])
        single = [image for batch in images for image in batch]
        before = [(image.shape[1], image.shape[0]) for image in single]
        after = [aspect_buckets.nearest_bucket(*size, sizes) for size in before]
        shapes = [mask for batch in masks for mask in batch]
        if masks and [(mask.shape[1], mask.shape[0]) for mask in shapes] != before:
            raise ValueError(
                f"{len(shapes)} masks do not fit {len(single)} images: connect one mask of the same size per image."
            )
        pairs = list(zip(single, after, strict=True))
        resized = [aspect_buckets.resize_and_crop(image, size)[None] for image, size in with_progress(pairs)]
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
                "Shows two trainings in one figure: their held-out losses, which can be compared when both hold out "
                "the same images with the same seed, and their training losses. No paper: curves of Train LoRA."
            ),
            search_aliases=["immiscible diffusion", "loss graph", "validation loss", "compare loras", "lora training"],
            inputs=[
                loss_map.Input("loss_map_a", tooltip="The loss_map of a training."),
                loss_map.Input("loss_map_b", tooltip="The loss_map of the other."),
                io.String.Input("name_a", default="A", tooltip="Name of the first run in the figure."),
                io.String.Input("name_b", default="B", tooltip="Name of the other run in the figure."),
            ],
            outputs=[
                io.Image.Output(display_name="figure", tooltip="Held-out and training losses of both."),
                io.String.Output(display_name="report", tooltip="Which run is lower, at which steps and by how much."),
            ],
        )

    @classmethod
    def execute(cls, loss_map_a, loss_map_b, name_a, name_b) -> io.NodeOutput:
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
                "Trains two small networks on handwritten digits that differ only in the noise, as drawn and assigned, "
                "and shows samples of both: where Immiscible Diffusion (arXiv 2406.12303, NeurIPS 2024) helps, which "
                "is with few sampling steps. On the CPU, half a minute."
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
                    "Images in a training step, among which noise is assigned; 1 has nothing to assign.",
                ),
                int_input("steps", 1000, (8, 10000), "Training steps of each of the two networks."),
                int_input(
                    "sample_steps",
                    2,
                    (1, 50),
                    "Euler steps of the samples in images. The fewer, the more assigned noise shows.",
                ),
                seed("Seed of the networks, the order of images and the noise: the same for both.", control=False),
            ],
            outputs=[
                io.Image.Output(display_name="drawn", tooltip="Samples of the network trained with noise as drawn."),
                io.Image.Output(
                    display_name="assigned", tooltip="Samples from the same noise of the one with assigned noise."
                ),
                io.Image.Output(display_name="figure", tooltip="Distance from the digits, over training and sampling."),
                io.String.Output(display_name="report", tooltip="The distances by sampling steps."),
            ],
        )

    @classmethod
    def execute(cls, batch_size, steps, sample_steps, seed) -> io.NodeOutput:
        from . import scratch_training as method

        progress, runs = Progress(2 * steps), list[method.DigitsRun]()
        with torch.inference_mode(False), torch.enable_grad(), untouched():
            for assigned in (False, True):

                def show(step: int, before: int = len(runs) * steps) -> None:
                    check_stop()
                    progress.show(before + step)

                runs.append(method.train_digits(assigned, batch_size, steps, sample_steps, seed % 2**62, show))
        figure = new_figure(1000, 420)
        method.draw_distances(figure, runs[0], runs[1], sample_steps)
        sheets = [method.to_images(run.samples) for run in runs]
        return io.NodeOutput(*sheets, to_image(figure), method.describe_runs(*runs))


NODES = [ResizeToBuckets, CompareTrainingRuns, TrainingFromScratch]
