"""Seed Scout: a few steps of many seeds, ranked, and the best seeds for a stock KSampler."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import torch
from comfy_api.latest import io

from ..host.evaluate import sample_seeds, takes_batches
from ..host.image_output import new_figure, to_image
from ..host.latent_shapes import split
from ..host.schema import NOISE, float_input, int_input, later_seed, schema, seed
from .seed_scout import Ranking, draw_sheet, report

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, VAE, ClipVisionModel, ModelPatcher, NoiseSource

# of the sheet: columns, and pixels of an image and of the text above it
_COLUMNS = 6
_CELL = 190
_LABELS = 70


class SeedScout(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_SeedScout",
            advanced=("batch_size",),
            display_name="Seed Scout",
            category=NOISE,
            description=(
                "Samples many seeds for a few steps and ranks them: by how well the words of the "
                "prompt act in the image (cross-attention, after InitNO, arXiv 2404.04650), by "
                "similarity to a reference image, by prompt alignment, or so that the first ones "
                "differ most. KSampler then runs the best seeds in full, from exactly the same "
                "noise."
            ),
            search_aliases=[
                "seed search",
                "best of n",
                "seed selection",
                "InitNO",
                "golden noise",
                "image grid",
                "diverse seeds",
            ],
            inputs=[
                io.Model.Input(
                    "model", tooltip="The model of the following KSampler, with its LoRAs."
                ),
                io.Conditioning.Input("positive", tooltip="The prompt, as in KSampler."),
                io.Conditioning.Input("negative", tooltip="The negative prompt, as in KSampler."),
                io.Vae.Input(
                    "vae",
                    tooltip="Decodes the scouted images; of a video the middle frame is compared.",
                ),
                io.Latent.Input(
                    "latent",
                    tooltip=(
                        "The latent of the following KSampler: one image or video, e.g. Empty "
                        "Latent Image."
                    ),
                ),
                io.Combo.Input(
                    "ranking",
                    options=list(Ranking),
                    tooltip=(
                        "word_coverage: how distinctly the weakest word acts, by attention "
                        "(clip, prompt). layout_likeness: similarity of colors and layout to "
                        "reference. image_likeness: CLIP_VISION cosine to reference. "
                        "prompt_alignment: CLIP cosine of image and prompt (clip, clip_vision, "
                        "prompt). diversity: the first seeds differ most from each other, by "
                        "clip_vision, else by layout and colors."
                    ),
                ),
                io.String.Input(
                    "prompt",
                    default="",
                    multiline=True,
                    tooltip="Exact text of positive, for word_coverage and prompt_alignment.",
                ),
                io.String.Input(
                    "words",
                    default="",
                    multiline=True,
                    tooltip=(
                        "For word_coverage: required words or phrases of the prompt, separated "
                        "by commas or line breaks. Empty: every word."
                    ),
                ),
                seed("The first seed; then seed + 1, seed + 2, ..."),
                int_input("count", 16, (2, 256), "Number of seeds to scout."),
                int_input("keep", 4, (1, 256), "Number of best seeds to return."),
                int_input(
                    "steps",
                    4,
                    (1, 200),
                    "Euler steps per scouted seed, normal scheduler. 1: one prediction of the "
                    "clean image.",
                ),
                float_input("cfg", 7.0, (0.0, 100.0, 0.1), "CFG, as in KSampler."),
                int_input("batch_size", 4, (1, 64), "Seeds per batch: more is faster on a GPU."),
                io.Clip.Input("clip", optional=True, tooltip="The CLIP that encoded the prompt."),
                io.Image.Input(
                    "reference",
                    optional=True,
                    tooltip="Reference image; the first one of a batch is used.",
                ),
                io.ClipVision.Input(
                    "clip_vision",
                    optional=True,
                    tooltip="For image_likeness, prompt_alignment and diversity.",
                ),
                io.Noise.Input(
                    "noise",
                    optional=True,
                    tooltip=(
                        "Noise to scout, e.g. Composition Noise: starts at its own seed instead "
                        "of seed."
                    ),
                ),
            ],
            outputs=[
                io.Int.Output(
                    display_name="seeds",
                    is_output_list=True,
                    tooltip=(
                        "The best seeds as a list: connect it to the seed of a KSampler, which "
                        "runs once per seed."
                    ),
                ),
                io.Image.Output(display_name="images", tooltip="The scouted images, best first."),
                io.Image.Output(
                    display_name="figure",
                    tooltip="Sheet of all seeds with their scores, best first.",
                ),
                io.String.Output(display_name="report", tooltip="Seeds and scores, best first."),
                io.Noise.Output(
                    display_name="noise",
                    is_output_list=True,
                    tooltip="The noise of the best seeds as a list, for SamplerCustomAdvanced.",
                ),
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
        ranking: str,
        prompt: str,
        words: str,
        seed: int,
        count: int,
        keep: int,
        steps: int,
        cfg: float,
        batch_size: int,
        clip: CLIP | None = None,
        reference: torch.Tensor | None = None,
        clip_vision: ClipVisionModel | None = None,
        noise: NoiseSource | None = None,
    ) -> io.NodeOutput:
        from .seed_scout_comfy import (
            SeedsNoise,
            WordMaps,
            decoded_images,
            image_scorer,
        )

        rows = len(split(latent["samples"])[0])
        if rows != 1:
            raise ValueError(
                f"latent holds {rows} images: set batch_size of Empty Latent "
                "Image to 1, since KSampler runs once per seed."
            )
        drawn = SeedsNoise(noise, seed, latent)
        keep = min(keep, count)
        seeds = [later_seed(drawn.first, number) for number in range(count)]
        attention = (
            WordMaps(model, clip, prompt, words) if ranking == Ranking.WORD_COVERAGE else None
        )
        score = (
            attention.scores
            if attention
            else image_scorer(
                ranking, prompt, reference=reference, clip=clip, clip_vision=clip_vision
            )
        )
        watched, read = (attention.model, attention.read) if attention else (model, None)
        sample = partial(
            sample_seeds, watched, positive, negative, latent, steps=steps, cfg=cfg, draw=drawn.draw
        )
        together = batch_size if takes_batches(model.model) else 1
        images = decoded_images(sample, vae, seeds=seeds, batch_size=together, read=read)
        scores = score(images)
        columns = min(_COLUMNS, count)
        order = scores.order()
        figure = new_figure(_CELL * columns, 40 + (_CELL + _LABELS) * math.ceil(count / columns))
        draw_sheet(figure, columns, images=images, seeds=seeds, scores=scores, keep=keep)
        best = [seeds[index] for index in order[:keep]]
        kept = [drawn.of(one) for one in best]
        return io.NodeOutput(
            best, images[order], to_image(figure), report(seeds, scores, keep), kept
        )


NODES = [SeedScout]
