"""Noise that carries the layout of a guide image, on the canvas."""

from __future__ import annotations

import functools

from comfy_api.latest import io

from ..host.image_output import new_figure, to_image
from ..host.latent_shapes import matching_channels
from ..host.progress import nothing_to_show
from ..host.schema import NOISE, float_input, schema, seed

SHAPES = ("soft", "firm")  # of composition.SHAPES
FOREGROUND, BACKGROUND = "#edb98a", "#6b9eed"


_NO_LATENT = "No latent for KSampler: it needs model, and no flow model. Use noise with SamplerCustomAdvanced."


def _color(name: str, default: str, tooltip: str) -> io.String.Input:
    return io.String.Input(name, default=default, optional=True, tooltip=tooltip)


class CompositionNoise(io.ComfyNode):
    EVALUATES = False

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_CompositionNoise",
            display_name="Composition Noise (Layout)",
            category=NOISE,
            description=(
                "Noise whose low frequencies follow a photo, or a mask in two colors, so that the layout follows "
                "at denoise 1 without a ControlNet. Reorders the values of the noise without changing any: the "
                "assignment of Immiscible Diffusion (arXiv 2406.12303) within one noise sample."
            ),
            search_aliases=[
                "immiscible diffusion",
                "layout control",
                "composition",
                "structured noise",
                "noise from image",
                "regional colors",
                "mask to image",
            ],
            inputs=[
                io.Latent.Input("latent", tooltip="The latent that the sampler gets, such as Empty Latent Image."),
                io.Latent.Input(
                    "guide",
                    optional=True,
                    tooltip="The layout: an image through VAE Encode. One for the whole batch, or one per image; its "
                    "size may differ. With mask: images of this model, whose mean values are the two colors.",
                ),
                seed("Seed of the noise, as in KSampler and Random Noise."),
                float_input(
                    "strength",
                    0.8,
                    (0.0, 1.0, 0.05),
                    "How strictly the layout follows the guide: begin with 0.8, and lower it where images look alike. "
                    "0: the noise of the seed, bit for bit. 1: the order "
                    "of the guide alone, the same for all seeds.",
                ),
                float_input(
                    "cutoff",
                    2.0,
                    (0.5, 64.0, 0.5),
                    "Highest frequency that follows the guide, in cycles per side of the image: 1 to 3 for the "
                    "layout, more for finer shapes.",
                ),
                float_input(
                    "low_cutoff",
                    0.0,
                    (0.0, 63.5, 0.5),
                    "Lowest frequency that follows the guide. 0: colors too. 0.5: not the mean color.",
                ),
                io.Model.Input(
                    "model",
                    optional=True,
                    tooltip="Scales the guide as the model sees it, and is needed for the latent output.",
                ),
                io.Combo.Input(
                    "shape",
                    options=["custom", *SHAPES],
                    default="custom",
                    optional=True,
                    tooltip="soft: strength 0.8, cutoff 2. firm: strength 0.4, cutoff 4. custom: as entered above.",
                ),
                io.Mask.Input(
                    "mask",
                    optional=True,
                    tooltip="The layout as an area in two colors: those entered here, or those of guide. One for the "
                    "whole batch, or one per image.",
                ),
                _color("foreground", FOREGROUND, "Color where the mask is white, when no guide is connected."),
                _color("background", BACKGROUND, "Color where the mask is black, when no guide is connected."),
                io.Vae.Input(
                    "vae",
                    optional=True,
                    tooltip="Encodes the two colors. Without it they come from the model's preview of colors.",
                ),
                io.Noise.Input(
                    "noise",
                    optional=True,
                    tooltip="Noise to reorder, such as Random Noise, with its own seed instead of seed.",
                ),
            ],
            outputs=[
                io.Noise.Output(display_name="noise", tooltip="For SamplerCustomAdvanced; any model."),
                io.Latent.Output(
                    display_name="latent",
                    tooltip="For a stock KSampler with the same seed at denoise 1; needs model, but no flow model.",
                ),
                io.Int.Output(display_name="seed", tooltip="The seed, for KSampler."),
                io.String.Output(display_name="report", tooltip="Band, correlation with the guide, norm of the noise."),
                io.Image.Output(
                    display_name="figure", tooltip="The band of the guide and of the noise before and after."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        latent: dict,
        seed: int,
        strength: float,
        cutoff: float,
        low_cutoff: float,
        guide: dict | None = None,
        model=None,
        shape: str = "custom",
        mask=None,
        foreground: str = FOREGROUND,
        background: str = BACKGROUND,
        vae=None,
        noise=None,
    ) -> io.NodeOutput:
        from . import composition
        from .composition_comfy import guide_latent
        from .noise_objects_comfy import TransformedNoise, latent_for_stock_noise

        unused = composition.describe_unused(shape, strength, cutoff)
        strength, cutoff = composition.SHAPES.get(shape, (strength, cutoff))
        settings = composition.CompositionSettings(strength, cutoff, low_cutoff)
        if model is not None and strength:
            latent = {**latent, "samples": matching_channels(latent["samples"], model)}
        layout, source = guide_latent(latent["samples"], guide, mask, (foreground, background), model, vae)
        made = TransformedNoise(seed, functools.partial(composition.compose_noise, settings, guide=layout), noise)
        before, after = made.look(latent)
        report = composition.describe_composition(settings, before, after, layout, source) + unused
        for_ksampler = latent if strength == 0 and noise is None else None
        if model is not None:
            report += composition.describe_distance(layout)
            for_ksampler = for_ksampler or latent_for_stock_noise(model, latent, made.seed, after)
        figure = new_figure(900, 330)
        composition.draw_composition(figure, settings, before, after, layout)
        if for_ksampler is None:
            return io.NodeOutput(made, nothing_to_show(), made.seed, f"{report}\n{_NO_LATENT}", to_image(figure))
        return io.NodeOutput(made, for_ksampler, made.seed, report, to_image(figure))


NODES = [CompositionNoise]
