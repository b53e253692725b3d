"""Seed Scout: a few steps of many seeds, ranked, and the best seeds for a stock KSampler."""

from __future__ import annotations

import math
from functools import partial

import torch
from comfy_api.latest import io

from ..host.evaluate import sample_seeds
from ..host.image_output import new_figure, to_image
from ..host.schema import NOISE, float_input, int_input, later_seed, schema, seed
from .seed_scout import Ranking, draw_sheet, report

_COLUMNS, _CELL, _LABELS = 6, 190, 70  # of the sheet: columns, and pixels of an image and of the text above it


class SeedScout(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_SeedScout",
            advanced=("batch_size",),
            display_name="Seed Scout",
            category=NOISE,
            description=(
                "Tries many seeds for a few steps each and ranks them: by how well the words of the prompt act in the "
                "image (cross-attention, after InitNO, arXiv 2404.04650), by likeness to a reference image, or by "
                "alignment with the prompt. KSampler then repeats the best seeds from exactly the same noise."
            ),
            search_aliases=["seed search", "best of n", "seed selection", "InitNO", "golden noise", "image grid"],
            inputs=[
                io.Model.Input("model", tooltip="The model of the KSampler that follows, with its LoRAs."),
                io.Conditioning.Input("positive", tooltip="The prompt, as in KSampler."),
                io.Conditioning.Input("negative", tooltip="The negative prompt, as in KSampler."),
                io.Vae.Input("vae", tooltip="Decodes the scouted images."),
                io.Latent.Input(
                    "latent", tooltip="The latent of the KSampler that follows: one image, such as Empty Latent Image."
                ),
                io.Combo.Input(
                    "ranking",
                    options=list(Ranking),
                    tooltip="word_coverage: how distinctly the weakest word acts, by attention (clip, prompt). "
                    "layout_likeness: colors and layout like reference. image_likeness: CLIP_VISION cosine to "
                    "reference. prompt_alignment: CLIP cosine of image and prompt (clip, clip_vision, prompt).",
                ),
                io.String.Input(
                    "prompt",
                    default="",
                    multiline=True,
                    tooltip="The exact text of positive, for word_coverage and prompt_alignment.",
                ),
                io.String.Input(
                    "words",
                    default="",
                    multiline=True,
                    tooltip="For word_coverage: words or phrases of the prompt that must act, separated by commas or "
                    "line breaks. Empty: every word.",
                ),
                seed("The first seed; the others are seed + 1, seed + 2, ..."),
                int_input("count", 16, (2, 256), "How many seeds to scout."),
                int_input("keep", 4, (1, 256), "How many of the best seeds to output."),
                int_input(
                    "steps",
                    4,
                    (1, 200),
                    "Euler steps per scouted seed, normal scheduler. 1: one prediction of the clean image.",
                ),
                float_input("cfg", 7.0, (0.0, 100.0, 0.1), "CFG, as in KSampler."),
                int_input("batch_size", 4, (1, 64), "Seeds at a time: more is faster on a GPU."),
                io.Clip.Input("clip", optional=True, tooltip="The CLIP that encoded the prompt."),
                io.Image.Input("reference", optional=True, tooltip="What the image should be like; its first image."),
                io.ClipVision.Input("clip_vision", optional=True, tooltip="For image_likeness and prompt_alignment."),
                io.Noise.Input(
                    "noise",
                    optional=True,
                    tooltip="Noise to scout, such as Composition Noise: first with its own seed, instead of seed.",
                ),
            ],
            outputs=[
                io.Int.Output(
                    display_name="seeds",
                    is_output_list=True,
                    tooltip="The best seeds as a list: connect it to the seed of a KSampler, which runs once per seed.",
                ),
                io.Image.Output(display_name="images", tooltip="The scouted images, best first."),
                io.Image.Output(display_name="figure", tooltip="The sheet: every seed with its score, best first."),
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
        model,
        positive: list,
        negative: list,
        vae,
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
        clip=None,
        reference: torch.Tensor | None = None,
        clip_vision=None,
        noise=None,
    ) -> io.NodeOutput:
        from .seed_scout_comfy import SeedsNoise, WordMaps, decoded_images, image_scorer

        if len(latent["samples"]) != 1:
            raise ValueError(
                f"latent holds {len(latent['samples'])} images: set batch_size of Empty Latent Image to 1, since "
                "KSampler runs once per seed."
            )
        drawn, keep = SeedsNoise(noise, seed, latent), min(keep, count)
        seeds = [later_seed(drawn.first, number) for number in range(count)]
        attention = WordMaps(model, clip, prompt, words) if ranking == Ranking.WORD_COVERAGE else None
        score = attention.scores if attention else image_scorer(ranking, prompt, reference, clip, clip_vision)
        watched, read = (attention.model, attention.read) if attention else (model, None)
        sample = partial(sample_seeds, watched, positive, negative, latent, steps=steps, cfg=cfg, draw=drawn.draw)
        images = decoded_images(sample, vae, seeds, batch_size, read)
        scores = score(images)
        columns, order = min(_COLUMNS, count), scores.order()
        figure = new_figure(_CELL * columns, 40 + (_CELL + _LABELS) * math.ceil(count / columns))
        draw_sheet(figure, columns, images, seeds, scores, keep)
        best = [seeds[index] for index in order[:keep]]
        kept = [drawn.of(one) for one in best]
        return io.NodeOutput(best, images[order], to_image(figure), report(seeds, scores, keep), kept)


NODES = [SeedScout]
