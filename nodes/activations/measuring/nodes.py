"""Measure the three properties of activations that the paper's filter is about."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from ...host.figures import new_figure, to_image
from ...host.hooks import refuse_compiled
from ...host.schema import schema
from .. import published, quality, quality_chart, selection
from ..catalog import catalog
from ..inputs import CATEGORY, IDS, LEVEL, NOISE_LEVEL, PAPER, POOL, PRESET
from ..tap import Keep
from ..tapping.nodes import clean_latent, sigma_of, tap_draws

_PAPERS, _GENERAL, _MEASURED = "the paper's, else the general one", "general filter (ours)", "measured (ours)"
_HEIGHT = 700


class ActivationQuality(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ActivationQuality",
            display_name="Activation Quality",
            category=CATEGORY,
            description="Measures what the paper's filter is about, for each activation: diffusion noise that is left "
            "in it, granularity, and locality; draws them, and filters by the paper's published rule or by ours. "
            f"{PAPER}.",
            search_aliases=["diffusion features", "layer quality", "feature filter", "layer selection",
                            "compare layers"],
            inputs=[
                io.Model.Input("model", tooltip="Model that a tap can read, with its LoRAs."),
                io.Conditioning.Input("positive", tooltip="Text that describes the pictures."),
                io.Combo.Input(**{**PRESET, "default": selection.RULE}),
                io.String.Input(**IDS),
                io.Combo.Input(**NOISE_LEVEL),
                io.Float.Input(**LEVEL),
                io.Int.Input(
                    "seed", default=0, min=0, max=0xFFFFFFFFFFFFFFFF, control_after_generate=True,
                    tooltip="Seed of the first noise draw.",
                ),
                io.Int.Input(
                    "draws", default=4, min=2, max=256,
                    tooltip="Noise draws, one evaluation each: noise is what differs between them.",
                ),
                io.Int.Input(**POOL),
                io.Combo.Input(
                    "filter", options=[_PAPERS, _GENERAL, _MEASURED],
                    tooltip="Which IDs are kept: the paper's published rule (SD1.5, SD2.1, SDXL; elsewhere the general "
                    "one), the general rule, which is ours, or the two limits below on what was measured, also ours.",
                ),
                io.Float.Input(
                    "most_noise", default=0.5, min=0.0, max=1.0, step=0.01,
                    tooltip="For 'measured': the largest share of variance that may come from the noise.",
                ),
                io.Float.Input(
                    "most_locality", default=0.2, min=-2.0, max=2.0, step=0.01,
                    tooltip="For 'measured': the largest locality beyond that of the latent.",
                ),
                io.Latent.Input(
                    "latent", optional=True, tooltip="Two pictures or more as clean latents; or image and vae."
                ),
                io.Image.Input("image", optional=True, tooltip="Two pictures or more."),
                io.Vae.Input("vae", optional=True, tooltip="Encodes image."),
            ],
            outputs=[
                io.Image.Output(display_name="figure", tooltip="The three properties in forward order."),
                io.String.Output(display_name="table", tooltip="One line an activation."),
                io.String.Output(display_name="ids", tooltip="The IDs that are kept, one a line, for a tap's list."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(
        cls, model, positive, preset: str, ids: str, noise_level: str, level: float, seed: int, draws: int, pool: int,
        most_noise: float, most_locality: float, latent=None, image=None, vae=None, **given,
    ) -> io.NodeOutput:  # fmt: skip
        refuse_compiled(model)
        entries = catalog(model.model.diffusion_model)
        chosen = [entry for entry in selection.select(entries, preset, ids) if entry.channels is not None]
        if not chosen:
            raise ValueError("Only attention maps were chosen: choose activations, such as up-level1-*.")
        samples, sums = clean_latent(latent, image, vae), {entry.id: quality.Draws() for entry in chosen}
        if len(samples["samples"]) < 2:
            raise ValueError("One picture says nothing about what differs between pictures: give two or more.")
        sigma, keep = sigma_of(model, entries, noise_level, level), Keep(pool=pool, dtype=torch.float32)
        for activations in tap_draws(model, positive, samples, sigma, chosen, keep, seed, draws):
            for id_, value in activations.tensors.items():
                sums[id_].add(value)
        found = {id_: quality.measured(one, samples["samples"]) for id_, one in sums.items()}
        kept = _kept(entries, found, given["filter"], most_noise, most_locality)
        figure = new_figure(quality_chart.width(len(found)), _HEIGHT)
        quality_chart.draw(figure, found, kept, f"{len(found)} activations, filter: {given['filter']}")
        names = "\n".join(id_ for id_ in found if id_ in kept)
        return io.NodeOutput(to_image(figure), quality_chart.table(found, kept), names)


def _kept(entries: list, found: dict[str, quality.Quality], rule: str, noise: float, locality: float) -> set[str]:
    if rule == _MEASURED:
        return {id_ for id_, one in found.items() if one.noise <= noise and one.locality <= locality}
    by_paper = rule == _PAPERS and published.architecture(entries)
    return {entry.id for entry in selection.select(entries, selection.FILTER if by_paper else selection.RULE)}
