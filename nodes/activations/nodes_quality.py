"""Activation Quality: measure the three properties of activations that the paper's filter is based on."""

from __future__ import annotations

from enum import StrEnum

import torch
from comfy_api.latest import io

from ..host.hooks import refuse_compiled
from ..host.image_output import new_figure, to_image
from ..host.schema import float_input, int_input, schema, seed
from . import select_ids
from .activation_spec import ActivationSpec
from .tap_inputs import IDS, LEVEL, NOISE_UNIT, PAPER, POOL_SIZE, PRESET, RESEARCH

_HEIGHT = 700


class IdFilter(StrEnum):
    """Values of the ``id_filter`` input."""

    PAPER_FILTER = "paper_filter"
    GENERAL_FILTER = "general_filter"
    MEASURED = "measured"


class ActivationQuality(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ActivationQuality",
            advanced=(
                "noise_unit",
                "noise_samples",
                "pool_size",
            ),
            display_name="Activation Quality",
            category=RESEARCH,
            description="Measures remaining diffusion noise, granularity and locality of each activation, which the "
            f"paper's filter is based on, and filters by a rule or by limits on the measurements. {PAPER}.",
            search_aliases=[
                "diffusion features",
                "layer quality",
                "feature filter",
                "layer selection",
                "compare layers",
            ],
            inputs=[
                io.Model.Input("model", tooltip="Model with a U-Net or a supported transformer, with its LoRAs."),
                io.Conditioning.Input("positive", tooltip="Text that describes the images."),
                io.Combo.Input(**{**PRESET, "default": select_ids.Preset.GENERAL_FILTER.value}),
                io.String.Input(**IDS),
                io.Combo.Input(**NOISE_UNIT),
                io.Float.Input(**LEVEL),
                seed("Seed of the first noise sample."),
                int_input(
                    "noise_samples",
                    4,
                    (2, 256),
                    "Noise samples per image, one evaluation each. The noise is what differs between them.",
                ),
                io.Int.Input(**POOL_SIZE),
                io.Combo.Input(
                    "id_filter",
                    options=[value.value for value in IdFilter],
                    tooltip="Which IDs are kept. paper_filter: the paper's list for SD1.5, SD2.1 and SDXL, "
                    "general_filter for other U-Nets. general_filter: its rules on any U-Net. Both keep all IDs of a "
                    "transformer, for which there is no rule. measured: the two limits below.",
                ),
                float_input(
                    "max_noise_fraction",
                    0.5,
                    (0.0, 1.0, 0.01),
                    "For measured: largest fraction of variance that may come from the noise.",
                ),
                float_input(
                    "max_locality", 0.2, (-2.0, 2.0, 0.01), "For measured: largest locality above that of the latent."
                ),
                io.Latent.Input(
                    "latent",
                    optional=True,
                    tooltip="At least two clean latents. Connect this, or image together with vae.",
                ),
                io.Image.Input("image", optional=True, tooltip="At least two images."),
                io.Vae.Input("vae", optional=True, tooltip="VAE that encodes image."),
            ],
            outputs=[
                io.Image.Output(display_name="figure", tooltip="The three properties in forward order."),
                io.String.Output(display_name="report", tooltip="One line per activation."),
                io.String.Output(
                    display_name="ids", tooltip="The IDs that are kept, one per line, for a tap with preset custom_ids."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model,
        positive: list,
        preset: str,
        ids: str,
        noise_unit: str,
        level: float,
        seed: int,
        noise_samples: int,
        pool_size: int,
        id_filter: str,
        max_noise_fraction: float,
        max_locality: float,
        latent: dict | None = None,
        image: torch.Tensor | None = None,
        vae=None,
    ) -> io.NodeOutput:
        from . import id_chart, quality
        from .catalog_unet import catalog
        from .tap import TapSettings
        from .tap_comfy import clean_latent, sigma_of, tap_noise_samples

        refuse_compiled(model)
        specs = catalog(model.model.diffusion_model)
        selected = [spec for spec in select_ids.select(specs, preset, ids) if spec.channels is not None]
        if not selected:
            raise ValueError("Only attention maps are selected. Select features, such as up-level1-*.")
        kept = None if id_filter == IdFilter.MEASURED else _filtered_ids(specs, id_filter)
        latent, sigma = clean_latent(latent, image, vae), sigma_of(model, specs, noise_unit, level)
        images, settings = quality.rows_of(latent["samples"]), TapSettings(pool_size=pool_size, dtype=torch.float32)
        tapped = tap_noise_samples(model, positive, latent, sigma, selected, settings, seed, noise_samples)
        measured = quality.measure_samples((one.tensors for one in tapped), images)
        if kept is None:
            kept = {id_ for id_, one in measured.items() if one.within(max_noise_fraction, max_locality)}
        figure = new_figure(id_chart.chart_width(len(measured)), _HEIGHT)
        quality.draw_chart(figure, measured, kept, f"{len(measured)} activations, filter: {id_filter}")
        names = "\n".join(id_ for id_ in measured if id_ in kept)
        return io.NodeOutput(to_image(figure), quality.table(measured, kept), names)


def _filtered_ids(specs: list[ActivationSpec], id_filter: str) -> set[str]:
    """The IDs that the paper's filter keeps, where the paper has one, or the general one; of a transformer all."""
    from . import paper_tables

    if not select_ids.has_stages(specs):
        return {spec.id for spec in specs}
    by_paper = id_filter == IdFilter.PAPER_FILTER and paper_tables.architecture(specs)
    preset = select_ids.Preset.PAPER_FILTER if by_paper else select_ids.Preset.GENERAL_FILTER
    return {spec.id for spec in select_ids.select(specs, preset)}


NODES = [ActivationQuality]
