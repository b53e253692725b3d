"""Seed Scout: a few steps of many seeds, ranked, and the best seeds for a stock KSampler."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from comfy_api.latest import io

from ..host import prompt_alignment
from ..host.evaluate import sample_seeds, timestep_of
from ..host.hooks import observe, refuse_compiled
from ..host.image_output import new_figure, to_image
from ..host.progress import Progress, check_stop
from ..host.schema import schema
from ..host.text_encoding import tokens_of, words_of
from .catalog_unet import catalog
from .recorder import Recorder
from .seed_scout import Ranking, Scores, draw_sheet, layout_likeness, report, word_coverage
from .select_ids import ATTENTION_MEAN
from .tap import TapSettings
from .tap_inputs import SEED_MAX

_COLUMNS, _CELL, _LABELS = 6, 190, 70  # of the sheet: columns, and pixels of an image and of the text above it


class SeedScout(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_SeedScout",
            advanced=("batch_size",),
            display_name="Seed Scout",
            category="Glassbox/Noise",
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
                io.Int.Input(
                    "seed",
                    default=0,
                    min=0,
                    max=SEED_MAX,
                    control_after_generate=True,
                    tooltip="The first seed; the others are seed + 1, seed + 2, ...",
                ),
                io.Int.Input("count", default=16, min=2, max=256, tooltip="How many seeds to scout."),
                io.Int.Input("keep", default=4, min=1, max=256, tooltip="How many of the best seeds to output."),
                io.Int.Input(
                    "steps",
                    default=4,
                    min=1,
                    max=200,
                    tooltip="Euler steps per scouted seed, normal scheduler. 1: one prediction of the clean image.",
                ),
                io.Float.Input("cfg", default=7.0, min=0.0, max=100.0, step=0.1, tooltip="CFG, as in KSampler."),
                io.Int.Input(
                    "batch_size", default=4, min=1, max=64, tooltip="Seeds at a time: more is faster on a GPU."
                ),
                io.Clip.Input("clip", optional=True, tooltip="The CLIP that encoded the prompt."),
                io.Image.Input("reference", optional=True, tooltip="What the image should be like; its first image."),
                io.ClipVision.Input("clip_vision", optional=True, tooltip="For image_likeness and prompt_alignment."),
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
    ) -> io.NodeOutput:
        if len(latent["samples"]) != 1:
            raise ValueError(
                f"latent holds {len(latent['samples'])} images: set batch_size of Empty Latent Image to 1, since "
                "KSampler runs once per seed."
            )
        seeds, keep = [(seed + number) % (SEED_MAX + 1) for number in range(count)], min(keep, count)
        attention = WordMaps(model, clip, prompt, words) if ranking == Ranking.WORD_COVERAGE else None
        score = attention.scores if attention else _image_scorer(ranking, prompt, reference, clip, clip_vision)
        watched = attention.model if attention else model
        decoded, progress = [], Progress(count)
        for begin in range(0, count, batch_size):
            check_stop()
            part = seeds[begin : begin + batch_size]
            samples = sample_seeds(watched, positive, negative, latent, part, steps, cfg)
            if attention:
                attention.read(samples)
            decoded.append(vae.decode(samples).flatten(0, -4)[..., :3])
            progress.show(begin + len(part), decoded[-1])
        images = torch.cat(decoded)
        if len(images) != count:
            raise ValueError("latent is a video: Seed Scout compares single images.")
        scores = score(images)
        columns, order = min(_COLUMNS, count), scores.order()
        figure = new_figure(_CELL * columns, 40 + (_CELL + _LABELS) * math.ceil(count / columns))
        draw_sheet(figure, columns, images, seeds, scores, keep)
        best = [seeds[index] for index in order[:keep]]
        return io.NodeOutput(best, images[order], to_image(figure), report(seeds, scores, keep))


class WordMaps:
    """The words' heat maps (N, H, W) of the sampling runs on ``model``, a clone of a MODEL."""

    def __init__(self, model, clip, prompt: str, words: str):
        if clip is None:
            raise ValueError("word_coverage needs clip: connect the CLIP that encoded the prompt.")
        from .token_heatmap import word_positions

        refuse_compiled(model)
        self._positions, self._length = word_positions(prompt, words, words_of, partial(tokens_of, clip))
        specs = catalog(model.model.diffusion_model)
        if not any(spec.id == ATTENTION_MEAN for spec in specs):
            raise ValueError("The image-to-text attention of this model cannot be read: use another ranking.")
        mean = [spec for spec in specs if spec.id == ATTENTION_MEAN]
        settings = TapSettings(dtype=torch.float32)
        self._recorder = Recorder(mean, settings, lambda *_: True, lambda sigma: timestep_of(model, sigma), True)
        self.model = observe(model, self._recorder)
        self._maps: dict[str, torch.Tensor] = {}

    def read(self, samples: torch.Tensor) -> None:
        """Add the maps of the run that ended with these latents, a mean over its steps."""
        from .token_heatmap import heat_map

        run = self._recorder.run_of(samples)
        if not run.snapshots:
            raise ValueError(f"The attention to the words could not be read. {run.skipped_report()}")
        recorded = run.average()
        attention = recorded.tensors[ATTENTION_MEAN][:, : recorded.rows[0].text_tokens]
        for word, positions in self._positions.items():
            maps = heat_map(attention, positions, self._length)
            self._maps[word] = torch.cat([self._maps[word], maps]) if word in self._maps else maps

    def scores(self, _images: torch.Tensor) -> Scores:
        """The coverage of all runs that were read."""
        return word_coverage(self._maps)


def _image_scorer(
    ranking: str, prompt: str, reference: torch.Tensor | None, clip, clip_vision
) -> Callable[[torch.Tensor], Scores]:
    """What scores images (N, H, W, 3); raises ValueError when an input that it needs is not connected."""
    if ranking == Ranking.PROMPT_ALIGNMENT:
        return lambda images: _alignment(prompt, images, clip, clip_vision)
    if reference is None:
        raise ValueError(f"{ranking} needs reference: connect the image that the result should be like.")
    first = reference[:1]
    if ranking == Ranking.LAYOUT_LIKENESS:
        return lambda images: layout_likeness(images, first)
    own = prompt_alignment.own_embedder(clip)
    if clip_vision is not None:
        return lambda images: _likeness(lambda part: clip_vision.encode_image(part)["image_embeds"], images, first)
    if own is None:
        raise ValueError("image_likeness needs clip_vision: connect one from Load CLIP Vision.")
    return lambda images: _likeness(own, images, first)


def _likeness(embed: Callable, images: torch.Tensor, reference: torch.Tensor) -> Scores:
    """Cosine of the embeddings of images (N, H, W, 3) and of a reference (1, h, w, 3)."""
    values = torch.cosine_similarity(embed(images).float(), embed(reference).float(), dim=1)
    return Scores(values.cpu(), "cosine of the embeddings of image and reference")


def _alignment(prompt: str, images: torch.Tensor, clip, clip_vision) -> Scores:
    try:
        alignment = prompt_alignment.measure(prompt, images, clip, clip_vision)
    except prompt_alignment.AbsentError as error:
        raise ValueError(f"prompt_alignment cannot be measured: {error}.") from error
    return Scores(alignment.values, alignment.what)


NODES = [SeedScout]
