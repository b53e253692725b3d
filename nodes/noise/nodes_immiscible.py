"""Noise paired with images on the canvas: Immiscible Diffusion."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from comfy_api.latest import io

from ..host.image_output import new_figure, to_image
from ..host.latent_shapes import view
from ..host.progress import interruptible, with_progress
from ..host.schema import NOISE, float_input, int_input, schema, seed
from .assignment import Cost, Grouping
from .nearest import NearestForm
from .pairing import DrawnNoise, Pairing, PairingMode, PairingSettings, pair

if TYPE_CHECKING:
    from .noise_objects_comfy import PairedNoise

_PAPERS = "Immiscible Diffusion (arXiv 2406.12303, NeurIPS 2024), Improved Immiscible Diffusion (arXiv 2505.18521)"

_POOL_MAX = 4096
_K_MAX = 256

_COST = io.Combo.Input(
    "cost",
    options=list(Cost),
    tooltip="What assignment minimizes. dot_product: squared L2, exact and fast. l2_fp16: L2 in half precision as in "
    "the paper's code, nearly the same result, slow above 256 images.",
)
_POOL_SIZE = int_input(
    "pool_size",
    256,
    (1, _POOL_MAX),
    "For pool: how many noise samples are assigned to the images at once, the same number to each (rounded "
    "up). Larger gains more and takes that many times the memory of one noise sample.",
)
_POOL_INDEX = int_input(
    "pool_index",
    0,
    (0, _POOL_MAX - 1),
    "For pool: which of its noise samples each image gets, in the order in which they were drawn (wraps "
    "around). Over all indices every sample of the pool is used once.",
)
_GROUPING = io.Combo.Input(
    "grouping",
    options=list(Grouping),
    tooltip="How assignment treats images of different conditions (captions, classes): ignore them (as the paper), "
    "swap only within groups, or with a penalty (C2OT, arXiv 2503.10636). Not used by nearest.",
)
_LABELS = io.String.Input(
    "labels",
    default="",
    multiline=True,
    tooltip="For grouping: one line per image, the same line for images of one group, such as their captions.",
)
_PENALTY = float_input(
    "penalty",
    1.0,
    (0.0, 100.0, 0.1),
    "For grouping penalty: the cost of noise from another group, in standard deviations of the cost. 0 "
    "ignores groups; from about 5 on, noise stays within them.",
)
_MODEL = io.Model.Input(
    "model",
    optional=True,
    tooltip="Scales latents as the model sees them. Needed for nearest, and for models whose channels have scales of "
    "their own (Wan, Qwen).",
)


class ImmiscibleNoise(io.ComfyNode):
    EVALUATES = False

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ImmiscibleNoise",
            advanced=(
                "cost",
                "nearest_form",
                "penalty",
            ),
            display_name="Immiscible Noise",
            category=NOISE,
            is_experimental=True,
            description=(
                f"Assigns to each image of a batch the nearest noise. {_PAPERS}. Made for training; in image to image "
                "it keeps a little more of each image. Nothing changes at batch 1 (except with nearest) or from empty "
                "latents."
            ),
            search_aliases=[
                "immiscible diffusion",
                "optimal transport noise",
                "noise assignment",
                "knn noise",
                "noise for a batch",
            ],
            inputs=[
                io.Noise.Input("noise", tooltip="Any NOISE, such as Random Noise; this node pairs what it draws."),
                io.Latent.Input(
                    "latent",
                    tooltip="The batch that the sampler gets. Its noise_mask weighs the pixels, and its batch_index "
                    "numbers the noise samples.",
                ),
                io.Combo.Input(
                    "pairing",
                    options=list(PairingMode),
                    default=PairingMode.ASSIGN,
                    tooltip="off: the noise as it comes, bit for bit. assign: swap noise within the batch, which keeps "
                    "the set as drawn. pool: assign more noise samples than images, and serve one each. nearest: "
                    "the nearest of k noise samples for each image alone.",
                ),
                _COST,
                _POOL_SIZE,
                _POOL_INDEX,
                float_input(
                    "k",
                    4.0,
                    (1.0, _K_MAX, 0.5),
                    "For nearest: how many noise samples to choose from. The papers use 4 (flow matching) to "
                    "64 (Stable Diffusion from scratch); 1 changes nothing. Fractions need nearest_form dot_product.",
                ),
                io.Combo.Input(
                    "nearest_form",
                    options=list(NearestForm),
                    tooltip="For nearest. closed_form: the official law at the cost of one noise sample for any k. "
                    "dot_product: moves the noise along the image only and keeps its strength. official: draws k "
                    "samples and compares them in half precision (slow, for reference).",
                ),
                _GROUPING,
                _LABELS,
                _PENALTY,
                _MODEL,
            ],
            outputs=[
                io.Noise.Output(display_name="noise", tooltip="For SamplerCustomAdvanced; paired with each LATENT."),
                io.String.Output(display_name="permutation", tooltip="Number of the noise sample of each image."),
                io.String.Output(display_name="report", tooltip="L2 before and after, percent gained, time."),
                io.Image.Output(display_name="figure", tooltip="Distance of each image from its noise."),
            ],
        )

    @classmethod
    def execute(cls, noise, latent: dict, model=None, **options) -> io.NodeOutput:
        settings = PairingSettings(**options)
        paired = _paired(noise, settings, model)
        output = noise if settings.pairing == PairingMode.OFF else paired
        return io.NodeOutput(output, *_report(settings, latent, model, paired.look(latent)))


class ImmiscibleLatentBatch(io.ComfyNode):
    EVALUATES = False

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ImmiscibleLatentBatch",
            advanced=(
                "cost",
                "penalty",
            ),
            display_name="Immiscible Noise for KSampler",
            category=NOISE,
            is_experimental=True,
            description=(
                "Immiscible noise for any stock KSampler: writes the batch_index with which KSampler draws, from the "
                f"same seed, the noise nearest to each image. {_PAPERS}. Latent From Batch then repeats a single image "
                "from its seed."
            ),
            search_aliases=[
                "immiscible diffusion",
                "batch_index",
                "optimal transport noise",
                "noise assignment",
                "noise for a batch",
            ],
            inputs=[
                io.Latent.Input(
                    "latent",
                    tooltip="The batch that KSampler gets; a noise_mask weighs the pixels, a batch_index numbers the "
                    "noise samples.",
                ),
                seed("Seed of the noise: connect the output seed to KSampler, so that both use the same."),
                io.Combo.Input(
                    "pairing",
                    options=list(PairingMode),
                    default=PairingMode.ASSIGN,
                    tooltip="off: the latent as it comes. assign: swap noise within the batch. pool: assign more "
                    "noise samples of the seed than there are images, and serve one each. nearest: the nearest of k "
                    "noise samples of the seed for each image alone (the official form).",
                ),
                _COST,
                _POOL_SIZE,
                _POOL_INDEX,
                int_input(
                    "k",
                    4,
                    (1, _K_MAX),
                    "For nearest: how many noise samples of the seed to choose from; 1 changes nothing.",
                ),
                _GROUPING,
                _LABELS,
                _PENALTY,
                _MODEL,
            ],
            outputs=[
                io.Latent.Output(display_name="latent", tooltip="The same batch with its batch_index."),
                io.Int.Output(display_name="seed", tooltip="The seed, for KSampler."),
                io.String.Output(display_name="permutation", tooltip="Number of the noise sample of each image."),
                io.String.Output(display_name="report", tooltip="L2 before and after, percent gained, time."),
                io.Image.Output(display_name="figure", tooltip="Distance of each image from its noise."),
            ],
        )

    @classmethod
    def execute(cls, latent: dict, seed: int, model=None, **options) -> io.NodeOutput:
        from .noise_objects_comfy import SeededNoise

        settings = PairingSettings(nearest_form=NearestForm.OFFICIAL, **options)
        pairing = _paired(SeededNoise(seed), settings, model).look(latent)
        numbered = {**latent, "batch_index": pairing.numbers} if pairing.moved else latent
        return io.NodeOutput(numbered, seed, *_report(settings, latent, model, pairing))


class NoiseGainPreview(io.ComfyNode):
    EVALUATES = False

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NoiseGainPreview",
            display_name="Immiscible Gain Estimate",
            category=f"{NOISE}/Research",
            description=(
                "Measures, before a training, by how much pairing shortens the distance between noise and these "
                f"images: by assignment in a batch, in a pool, and by the nearest of k. {_PAPERS}. A shorter distance "
                "alone does not make a better model; see the help page."
            ),
            search_aliases=[
                "immiscible diffusion",
                "noise statistics",
                "assignment gain",
                "is pairing worth it",
                "batch size",
            ],
            inputs=[
                io.Latent.Input(
                    "latents",
                    tooltip="The images: a batch, or a list of batches of several sizes. Only images of one size "
                    "swap noise with each other.",
                ),
                int_input("batch_size", 4, (1, _POOL_MAX), "Images in one training step or one sampling run."),
                int_input("pool_size", 256, (1, _POOL_MAX), "How many noise samples a pool would assign at once."),
                float_input(
                    "k",
                    4.0,
                    (1.0, _K_MAX, 0.5),
                    "How many noise samples nearest would choose from; fractions by the dot product.",
                ),
                seed("Seed of the noise drawn for measuring, from a private generator."),
                _MODEL,
            ],
            outputs=[
                io.Image.Output(display_name="figure", tooltip="Gain over the number of images assigned at once."),
                io.String.Output(display_name="report", tooltip="The three gains, and why one is zero."),
                io.Float.Output(display_name="batch_gain", tooltip="Percent of L2 by assignment in a batch."),
                io.Float.Output(display_name="pool_gain", tooltip="Percent of L2 by assignment in a pool."),
                io.Float.Output(display_name="nearest_gain", tooltip="Percent of L2 by the nearest of k."),
            ],
            is_input_list=True,
        )

    @classmethod
    def execute(cls, latents: list[dict], batch_size, pool_size, k, seed, model=(None,)) -> io.NodeOutput:
        from . import gain, noise_report

        buckets = gain.make_buckets([view(latent, model[0]) for latent in latents])
        plan = gain.GainPlan(batch_size[0], pool_size[0], k[0])
        generator = torch.Generator().manual_seed(seed[0])
        gains = {
            size: interruptible(functools.partial(gain.estimate_assignment, buckets, size, generator))
            for size in with_progress(plan.sizes)
        }
        estimate = gain.GainEstimate(plan, gains, gain.estimate_nearest(buckets, plan.k, generator))
        figure = new_figure()
        noise_report.draw_gains(figure, gain.gain_curve(buckets, estimate), plan.k, estimate.nearest)
        report = gain.describe_gain(buckets, estimate)
        return io.NodeOutput(to_image(figure), report, estimate.batch, estimate.pool, estimate.nearest)


def _paired(noise, settings: PairingSettings, model) -> PairedNoise:
    """NOISE whose samples are paired with each LATENT that it is drawn for."""
    from .noise_objects_comfy import PairedNoise

    def pair_latent(batch, drawn, draw, seed: int) -> Pairing:
        return pair(settings, batch, drawn, DrawnNoise(batch.numbers, draw), seed, call=interruptible)

    return PairedNoise(noise, pair_latent, model)


def _report(settings: PairingSettings, latent: dict, model, pairing: Pairing) -> tuple[str, str, torch.Tensor]:
    """Numbers of the noise samples, report and figure of a pairing."""
    from . import noise_report

    figure = new_figure()
    noise_report.draw_distances(figure, pairing, f"Noise paired by {settings.pairing}")
    report = noise_report.describe_pairing(settings, view(latent, model), pairing)
    return noise_report.list_numbers(pairing), report, to_image(figure)


NODES = [ImmiscibleNoise, ImmiscibleLatentBatch, NoiseGainPreview]
