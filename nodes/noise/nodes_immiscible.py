"""Noise paired with images on the canvas: Immiscible Diffusion."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from comfy_api.latest import io

from ..host.image_output import new_figure, to_image
from ..host.latent_shapes import view
from ..host.progress import interruptible, with_progress
from ..host.schema import NOISE, float_input, int_input, schema, seed
from .assignment import Grouping
from .nearest import NearestForm
from .pairing import DrawnNoise, Pairing, PairingMode, PairingSettings, pair

if TYPE_CHECKING:
    from ..host.socket_types import ModelPatcher, NoiseSource
    from .noise_objects_comfy import PairedNoise
    from .pairing import Batch

_PAPERS = (
    "Immiscible Diffusion (arXiv 2406.12303, NeurIPS 2024), Improved Immiscible Diffusion (arXiv "
    "2505.18521)"
)

_POOL_MAX = 4096
_K_MAX = 256

_POOL_SIZE = int_input(
    "pool_size",
    256,
    (1, _POOL_MAX),
    "For pool: number of noise samples assigned at once, the same number per image (rounded up). "
    "Larger gains more; memory grows in proportion.",
)
_POOL_INDEX = int_input(
    "pool_index",
    0,
    (0, _POOL_MAX - 1),
    "For pool: which of its assigned noise samples each image gets, in drawing order (wraps "
    "around). Over all indices, every sample of the pool is used once.",
)
_GROUPING = io.Combo.Input(
    "grouping",
    options=list(Grouping),
    tooltip=(
        "Handling of images with different conditions (captions, classes): ignore them (as in "
        "the paper), swap only within groups, or add a penalty of one standard deviation of the "
        "cost (C2OT, arXiv 2503.10636). Not used by nearest."
    ),
)
_LABELS = io.String.Input(
    "labels",
    default="",
    multiline=True,
    tooltip=(
        "For grouping: one line per image, e.g. its caption; images with equal lines form a group."
    ),
)
_MODEL = io.Model.Input(
    "model",
    optional=True,
    tooltip=(
        "Scales latents to the model's input range. Required for nearest, and for models with "
        "per-channel scales (Wan, Qwen)."
    ),
)


class ImmiscibleNoise(io.ComfyNode):
    EVALUATES = False

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ImmiscibleNoise",
            advanced=(
                "nearest_form",
                "gain_batch_size",
            ),
            display_name="Immiscible Noise",
            category=NOISE,
            is_experimental=True,
            description=(
                f"Assigns the nearest noise to each image of a batch. {_PAPERS}. Made for "
                "training; in image-to-image it preserves slightly more of each image. No effect "
                "at batch 1 (except nearest) or with empty latents. Can estimate, before a "
                "training, the gain on these images."
            ),
            search_aliases=[
                "immiscible diffusion",
                "optimal transport noise",
                "noise assignment",
                "knn noise",
                "noise for a batch",
                "assignment gain",
                "is pairing worth it",
            ],
            inputs=[
                io.Noise.Input(
                    "noise",
                    tooltip="Any NOISE, e.g. Random Noise; its noise samples are assigned.",
                ),
                io.Latent.Input(
                    "latent",
                    tooltip=(
                        "The sampler's batch. noise_mask weights the pixels, batch_index numbers "
                        "the noise samples."
                    ),
                ),
                io.Combo.Input(
                    "pairing",
                    options=list(PairingMode),
                    default=PairingMode.ASSIGN,
                    tooltip=(
                        "off: unchanged noise, bit for bit. assign: permutes the noise within "
                        "the batch. pool: assigns more noise samples than images, and uses one "
                        "per image. nearest: the nearest of k noise samples for each image alone."
                    ),
                ),
                _POOL_SIZE,
                _POOL_INDEX,
                float_input(
                    "k",
                    4.0,
                    (1.0, _K_MAX, 0.5),
                    "For nearest: number k of candidate noise samples. The papers use 4 (flow "
                    "matching) to 64 (Stable Diffusion from scratch); 1 changes nothing. "
                    "Fractions require nearest_form dot_product.",
                ),
                io.Combo.Input(
                    "nearest_form",
                    options=list(NearestForm),
                    tooltip=(
                        "For nearest. closed_form: the official distribution at the cost of one "
                        "noise sample, for any k. dot_product: shifts the noise along the image "
                        "only and preserves its norm. official: draws k samples and compares "
                        "them in half precision (slow, for reference)."
                    ),
                ),
                _GROUPING,
                _LABELS,
                int_input(
                    "gain_batch_size",
                    0,
                    (0, _POOL_MAX),
                    "Images per training step: report and figure then also estimate, on these "
                    "images, the gain of assignment within such a batch, in a pool of pool_size, "
                    "and of the nearest of k. 0: no estimate.",
                    optional=True,
                ),
                _MODEL,
            ],
            outputs=[
                io.Noise.Output(
                    display_name="noise",
                    tooltip="For SamplerCustomAdvanced; assigned again for each LATENT.",
                ),
                io.String.Output(
                    display_name="permutation", tooltip="Index of each image's noise sample."
                ),
                io.String.Output(
                    display_name="report",
                    tooltip=(
                        "L2 distance before and after, gain in percent, time; with "
                        "gain_batch_size the three estimated gains, and the reason for any zero."
                    ),
                ),
                io.Image.Output(
                    display_name="figure",
                    tooltip=(
                        "Distance between each image and its noise; with gain_batch_size a second "
                        "image: gain against the number of images assigned at once."
                    ),
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        noise: NoiseSource,
        latent: dict,
        gain_batch_size: int = 0,
        model: ModelPatcher | None = None,
        **options: Any,
    ) -> io.NodeOutput:
        settings = PairingSettings(**options)
        paired = _paired(noise, settings, model)
        output = noise if settings.pairing == PairingMode.OFF else paired
        numbers, report, figure = _report(settings, latent, model, paired.look(latent))
        if gain_batch_size:
            gains, curve = _estimated_gains(
                view(latent, model), settings, gain_batch_size, seed=noise.seed
            )
            report = f"{report}\n\n{gains}"
            figure = torch.cat([figure, curve])
        return io.NodeOutput(output, numbers, report, figure)


class ImmiscibleLatentBatch(io.ComfyNode):
    EVALUATES = False

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ImmiscibleLatentBatch",
            advanced=(),
            display_name="Immiscible Noise for KSampler",
            category=NOISE,
            is_experimental=True,
            description=(
                "Immiscible noise for a stock KSampler: writes a batch_index that makes KSampler "
                f"draw, from the same seed, the noise nearest to each image. {_PAPERS}. Latent "
                "From Batch then repeats a single image from its seed."
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
                    tooltip=(
                        "KSampler's batch. noise_mask weights the pixels, batch_index numbers "
                        "the noise samples."
                    ),
                ),
                seed("Noise seed: connect the output seed to KSampler so that both use the same."),
                io.Combo.Input(
                    "pairing",
                    options=list(PairingMode),
                    default=PairingMode.ASSIGN,
                    tooltip=(
                        "off: unchanged latent. assign: permutes the noise within the batch. "
                        "pool: assigns more noise samples of the seed than images, and uses one "
                        "per image. nearest: the nearest of k noise samples of the seed for each "
                        "image alone (the official form)."
                    ),
                ),
                _POOL_SIZE,
                _POOL_INDEX,
                int_input(
                    "k",
                    4,
                    (1, _K_MAX),
                    "For nearest: number k of candidate noise samples of the seed; 1 changes "
                    "nothing.",
                ),
                _GROUPING,
                _LABELS,
                _MODEL,
            ],
            outputs=[
                io.Latent.Output(
                    display_name="latent", tooltip="The same batch with its batch_index."
                ),
                io.Int.Output(display_name="seed", tooltip="The seed, for KSampler."),
                io.String.Output(
                    display_name="permutation", tooltip="Index of each image's noise sample."
                ),
                io.String.Output(
                    display_name="report",
                    tooltip=("L2 distance before and after, gain in percent, time."),
                ),
                io.Image.Output(
                    display_name="figure", tooltip="Distance between each image and its noise."
                ),
            ],
        )

    @classmethod
    def execute(
        cls, latent: dict, seed: int, model: ModelPatcher | None = None, **options: Any
    ) -> io.NodeOutput:
        from .noise_objects_comfy import SeededNoise

        settings = PairingSettings(nearest_form=NearestForm.OFFICIAL, **options)
        pairing = _paired(SeededNoise(seed), settings, model).look(latent)
        numbered = {**latent, "batch_index": pairing.numbers} if pairing.moved else latent
        return io.NodeOutput(numbered, seed, *_report(settings, latent, model, pairing))


def _paired(noise: NoiseSource, settings: PairingSettings, model: ModelPatcher) -> PairedNoise:
    """NOISE whose samples are paired with each LATENT that it is drawn for."""
    from .noise_objects_comfy import PairedNoise

    def pair_latent(batch: Batch, drawn: list[torch.Tensor], draw: Callable, seed: int) -> Pairing:
        return pair(
            settings,
            batch,
            drawn=drawn,
            source=DrawnNoise(batch.numbers, draw),
            seed=seed,
            call=interruptible,
        )

    return PairedNoise(noise, pair_latent, model)


def _estimated_gains(
    batch: Batch, settings: PairingSettings, batch_size: int, seed: int
) -> tuple[str, torch.Tensor]:
    """The gains of a training on these images, as text and as a figure; the noise measured comes
    from a private generator.
    """
    from . import gain, noise_report

    buckets = gain.make_buckets([batch])
    plan = gain.GainPlan(batch_size=batch_size, pool_size=settings.pool_size, k=settings.k)
    generator = torch.Generator().manual_seed(seed)
    gains = {
        size: interruptible(functools.partial(gain.estimate_assignment, buckets, size, generator))
        for size in with_progress(plan.sizes)
    }
    nearest = gain.estimate_nearest(buckets, plan.k, generator)
    estimate = gain.GainEstimate(plan, gains, nearest)
    figure = new_figure()
    noise_report.draw_gains(figure, gain.gain_curve(buckets, estimate), plan.k, nearest)
    return gain.describe_gain(buckets, estimate), to_image(figure)


def _report(
    settings: PairingSettings, latent: dict, model: ModelPatcher, pairing: Pairing
) -> tuple[str, str, torch.Tensor]:
    """Numbers of the noise samples, report and figure of a pairing."""
    from . import noise_report

    figure = new_figure()
    noise_report.draw_distances(figure, pairing, f"Noise paired by {settings.pairing}")
    report = noise_report.describe_pairing(settings, view(latent, model), pairing)
    return noise_report.list_numbers(pairing), report, to_image(figure)


NODES = [ImmiscibleNoise, ImmiscibleLatentBatch]
