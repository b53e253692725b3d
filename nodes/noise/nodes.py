"""Noise paired with pictures on the canvas: Immiscible Diffusion."""

from __future__ import annotations

import functools

import torch
from comfy_api.latest import io

from ..host.figures import new_figure, to_image
from ..host.latents import view
from ..host.loops import tracked
from ..host.noise import PairedNoise, SeededNoise
from ..host.schema import schema
from . import preview, report
from .assignment import COSTS
from .groups import GROUPINGS
from .nearest import FORMS, OFFICIAL
from .pairing import pair
from .settings import MODES, Settings
from .solvers import SOLVERS

CATEGORY = "glassbox/noise"
_PAPERS = "Immiscible Diffusion (arXiv 2406.12303, NeurIPS 2024), Improved Immiscible Diffusion (arXiv 2505.18521)"
_SEED_MAX = 0xFFFFFFFFFFFFFFFF
_POOL_MAX = 4096
_K_MAX = 256

_COST = io.Combo.Input(
    "cost", options=list(COSTS),
    tooltip="What assignment minimises. Dot product: squared L2, exact and fast. L2 in half precision: as in the "
    "paper's code, nearly the same result, slow above 256 pictures.",
)  # fmt: skip
_SOLVER = io.Combo.Input(
    "solver", options=list(SOLVERS),
    tooltip="All are exact. Auto takes lapx where it is installed (pip install lapx, three to five times as fast) and "
    "agrees with SciPy, else SciPy, which takes a few milliseconds up to 256 pictures.",
)  # fmt: skip
_POOL_SIZE = io.Int.Input(
    "pool_size", default=256, min=1, max=_POOL_MAX,
    tooltip="Mode pool: how many noises are shared out to the pictures at once, the same number to each (rounded up). "
    "Larger gains more and takes that many times the memory of one noise.",
)  # fmt: skip
_TURN = io.Int.Input(
    "turn", default=0, min=0, max=_POOL_MAX - 1,
    tooltip="Mode pool: which of its noises each picture gets, in the order in which they were drawn; goes round. "
    "Over all turns every noise of the pool is used once.",
)  # fmt: skip
_GROUPING = io.Combo.Input(
    "grouping", options=list(GROUPINGS),
    tooltip="How assignment treats pictures of different conditions (captions, classes): ignore (as the paper), swap "
    "only within groups, or with a penalty (C2OT, arXiv 2503.10636). Nearest has no use for it.",
)  # fmt: skip
_LABELS = io.String.Input(
    "labels", default="", multiline=True,
    tooltip="For grouping: one line a picture, the same line for pictures of one group. Captions will do.",
)  # fmt: skip
_PENALTY = io.Float.Input(
    "penalty", default=1.0, min=0.0, max=100.0, step=0.1,
    tooltip="For grouping by penalty: the cost of a noise from another group, in standard deviations of the cost. "
    "0 ignores groups; from about 5 on, noise stays within them.",
)  # fmt: skip
_MODEL = io.Model.Input(
    "model", optional=True,
    tooltip="Brings the latents to the scale in which this model works, which decides how near is near. Wanted for "
    "nearest, and for models whose channels have scales of their own (Wan, Qwen).",
)  # fmt: skip


class ImmiscibleNoise(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ImmiscibleNoise",
            display_name="Immiscible Noise",
            category=CATEGORY,
            description=(
                f"Gives each picture of a batch the noise that lies nearest to it. {_PAPERS}. Made for training; in "
                "picture to picture it keeps a little more of each picture. Nothing changes at batch 1 (but with "
                "nearest) or from empty latents."
            ),
            search_aliases=["immiscible diffusion", "optimal transport noise", "noise assignment", "knn noise"],
            inputs=[
                io.Noise.Input("noise", tooltip="Any NOISE, such as Random Noise: it draws, this node pairs."),
                io.Latent.Input(
                    "latent_image",
                    tooltip="The batch that the sampler gets. Its noise_mask weighs the pixels, and its batch_index "
                    "numbers the noises.",
                ),
                io.Combo.Input(
                    "mode", options=list(MODES), default="assign",
                    tooltip="Off: the noise as it comes, bit for bit. Assign: swap noises within the batch, which "
                    "leaves their set as drawn. Pool: share out more noises than pictures, and serve one each. "
                    "Nearest: for each picture alone the nearest of k noises.",
                ),
                _COST,
                _SOLVER,
                _POOL_SIZE,
                _TURN,
                io.Float.Input(
                    "k", default=4.0, min=1.0, max=_K_MAX, step=0.5,
                    tooltip="Mode nearest: how many noises to choose from. The papers use 4 (flow matching) to 64 "
                    "(Stable Diffusion from scratch); 1 changes nothing. Fractions need the form dot product.",
                ),
                io.Combo.Input(
                    "form", options=list(FORMS),
                    tooltip="Mode nearest: the closed form has the official law at the cost of one noise whatever k; "
                    "dot product moves the noise along the picture only and keeps its strength; official draws k "
                    "noises and compares them in half precision (slow, for reference).",
                ),
                _GROUPING,
                _LABELS,
                _PENALTY,
                _MODEL,
            ],
            outputs=[
                io.Noise.Output(display_name="NOISE", tooltip="For SamplerCustomAdvanced; pairs anew for each LATENT."),
                io.String.Output(display_name="permutation", tooltip="Number of the noise that each picture gets."),
                io.String.Output(display_name="report", tooltip="L2 before and after, percent gained, solver, time."),
                io.Image.Output(display_name="figure", tooltip="Distance of each picture from its noise."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(cls, noise, latent_image: dict, model=None, **choices) -> io.NodeOutput:
        settings = Settings(**choices)
        paired = PairedNoise(noise, functools.partial(pair, settings), model)
        return io.NodeOutput(noise if settings.mode == "off" else paired, *_told(settings, paired, latent_image))


class ImmiscibleLatentBatch(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ImmiscibleLatentBatch",
            display_name="Immiscible Latent Batch",
            category=CATEGORY,
            description=(
                f"Immiscible noise for any stock KSampler: writes the batch_index by which it draws, from the same "
                f"seed, for each picture the noise nearest to it. {_PAPERS}. Latent From Batch then makes a single "
                "picture again from its seed."
            ),
            search_aliases=["immiscible diffusion", "batch_index", "optimal transport noise", "noise assignment"],
            inputs=[
                io.Latent.Input(
                    "samples",
                    tooltip="The batch that KSampler gets; a noise_mask weighs the pixels, a batch_index numbers "
                    "the noises.",
                ),
                io.Int.Input(
                    "seed", default=0, min=0, max=_SEED_MAX, control_after_generate=True,
                    tooltip="The seed of the noise: link the output seed to KSampler, so that both have the same.",
                ),
                io.Combo.Input(
                    "mode", options=list(MODES), default="assign",
                    tooltip="Off: the latent as it comes. Assign: swap noises within the batch. Pool: share out more "
                    "noises of the seed than there are pictures, and serve one each. Nearest: for each picture alone "
                    "the nearest of k noises of the seed (the official form).",
                ),
                _COST,
                _SOLVER,
                _POOL_SIZE,
                _TURN,
                io.Int.Input(
                    "k", default=4, min=1, max=_K_MAX,
                    tooltip="Mode nearest: how many noises of the seed each picture chooses from; 1 changes nothing.",
                ),
                _GROUPING,
                _LABELS,
                _PENALTY,
                _MODEL,
            ],
            outputs=[
                io.Latent.Output(display_name="LATENT", tooltip="The same batch with its batch_index."),
                io.Int.Output(display_name="seed", tooltip="The seed, for KSampler."),
                io.String.Output(display_name="permutation", tooltip="Number of the noise that each picture gets."),
                io.String.Output(display_name="report", tooltip="L2 before and after, percent gained, solver, time."),
                io.Image.Output(display_name="figure", tooltip="Distance of each picture from its noise."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(cls, samples: dict, seed: int, model=None, **choices) -> io.NodeOutput:
        settings = Settings(form=OFFICIAL, **choices)
        paired = PairedNoise(SeededNoise(seed), functools.partial(pair, settings), model)
        pairing = paired.look(samples)
        latent = {**samples, "batch_index": pairing.numbers} if pairing.moved else samples
        return io.NodeOutput(latent, seed, *_words(settings, view(samples, model), pairing))


class NoiseGainPreview(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NoiseGainPreview",
            display_name="Noise Gain Preview",
            category=CATEGORY,
            description=(
                f"Measures what pairing noise with these pictures would gain, before anyone trains: by assignment in "
                f"a batch, in a pool, and by the nearest of k. {_PAPERS}. Nearer noise is not yet a better model; see "
                "the help page."
            ),
            search_aliases=["immiscible diffusion", "noise statistics", "assignment gain"],
            inputs=[
                io.Latent.Input(
                    "samples",
                    tooltip="The pictures: a batch, or a list of batches of several sizes. Only pictures of one size "
                    "swap noise with each other.",
                ),
                io.Int.Input("batch_size", default=4, min=1, max=_POOL_MAX,
                             tooltip="How many pictures one training step or one sampling run has."),
                io.Int.Input("pool_size", default=256, min=1, max=_POOL_MAX,
                             tooltip="How many noises a pool would share out at once."),
                io.Float.Input("k", default=4.0, min=1.0, max=_K_MAX, step=0.5,
                               tooltip="How many noises nearest would choose from; fractions by the dot product."),
                io.Int.Input("seed", default=0, min=0, max=_SEED_MAX, control_after_generate=True,
                             tooltip="Seed of the noises that are drawn for measuring, apart from any other."),
                _MODEL,
            ],
            outputs=[
                io.Image.Output(display_name="figure", tooltip="Gain over the number of pictures assigned at once."),
                io.String.Output(display_name="report", tooltip="The three gains in words, and why one is nothing."),
                io.Float.Output(display_name="batch_gain", tooltip="Percent of L2 by assignment in a batch."),
                io.Float.Output(display_name="pool_gain", tooltip="Percent of L2 by assignment in a pool."),
                io.Float.Output(display_name="nearest_gain", tooltip="Percent of L2 by the nearest of k."),
            ],
            is_input_list=True,
        )  # fmt: skip

    @classmethod
    def execute(cls, samples: list[dict], batch_size, pool_size, k, seed, model=(None,)) -> io.NodeOutput:
        buckets = preview.buckets([view(latent, model[0]) for latent in samples])
        plan = preview.Plan(batch_size[0], pool_size[0], k[0])
        generator = torch.Generator().manual_seed(seed[0])
        gains = {size: preview.assignment(buckets, size, generator) for size in tracked(plan.sizes)}
        result = preview.Result(plan, gains, preview.nearest_of(buckets, plan.k, generator))
        figure = new_figure()
        report.draw_gains(figure, *preview.curves(buckets, result))
        text = preview.describe(buckets, result)
        return io.NodeOutput(to_image(figure), text, result.batch, result.pool, result.nearest)


def _told(settings: Settings, paired: PairedNoise, latent: dict) -> tuple[str, str, torch.Tensor]:
    return _words(settings, view(latent, paired.model), paired.look(latent))


def _words(settings: Settings, seen, pairing) -> tuple[str, str, torch.Tensor]:
    """Permutation, report and figure of a pairing."""
    figure = new_figure()
    report.draw_distances(figure, pairing, f"Noise paired by {settings.mode}")
    return report.permutation(pairing), report.describe(settings, seen, pairing), to_image(figure)
