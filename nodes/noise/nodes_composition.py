"""Noise that carries the layout of a guide image, on the canvas."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from comfy_api.latest import io

from ..host.image_output import new_figure, to_image
from ..host.latent_shapes import join, matching_channels, split
from ..host.progress import nothing_to_show
from ..host.schema import NOISE, float_input, schema, seed

if TYPE_CHECKING:
    import torch

    from ..host.socket_types import VAE, ModelPatcher, NoiseSource

SHAPES = ("soft", "firm")  # of composition.SHAPES
FOREGROUND, BACKGROUND = "#edb98a", "#6b9eed"


_NO_LATENT = (
    "No latent for KSampler: it needs model, and no flow model. Use noise with "
    "SamplerCustomAdvanced."
)


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
                "Noise whose low frequencies follow a photo, or a two-color mask, so the layout "
                "follows at denoise 1 without a ControlNet. The noise values are reordered, "
                "never changed: the assignment of Immiscible Diffusion (arXiv 2406.12303) within "
                "one noise sample."
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
                io.Latent.Input(
                    "latent",
                    tooltip="The sampler's latent, e.g. Empty Latent Image.",
                ),
                io.Latent.Input(
                    "guide",
                    optional=True,
                    tooltip=(
                        "Layout guide: a VAE-encoded image. One for the whole batch, or one per "
                        "image; any size. With mask: images of this model, whose mean values "
                        "give the two colors."
                    ),
                ),
                seed("Seed of the noise, as in KSampler and Random Noise."),
                float_input(
                    "strength",
                    0.8,
                    (0.0, 1.0, 0.05),
                    "How strictly the layout follows the guide: start with 0.8, lower it if "
                    "images look alike. 0: the seed's noise, bit for bit. 1: the guide's order "
                    "only, identical for all seeds.",
                ),
                float_input(
                    "cutoff",
                    2.0,
                    (0.5, 64.0, 0.5),
                    "Highest frequency taken from the guide, in cycles per image side: 1 to 3 "
                    "for the layout, more for finer shapes.",
                ),
                float_input(
                    "low_cutoff",
                    0.0,
                    (0.0, 63.5, 0.5),
                    "Lowest frequency taken from the guide. 0: includes colors. 0.5: excludes "
                    "the mean color.",
                ),
                io.Model.Input(
                    "model",
                    optional=True,
                    tooltip=(
                        "Scales the guide to the model's latent range; required for the latent "
                        "output."
                    ),
                ),
                io.Combo.Input(
                    "shape",
                    options=["custom", *SHAPES],
                    default="custom",
                    optional=True,
                    tooltip=(
                        "soft: strength 0.8, cutoff 2. firm: strength 0.4, cutoff 4. custom: the "
                        "values above."
                    ),
                ),
                io.Mask.Input(
                    "mask",
                    optional=True,
                    tooltip=(
                        "Layout as a two-color mask; the colors come from guide or the color "
                        "inputs. One for the whole batch, or one per image."
                    ),
                ),
                _color(
                    "foreground",
                    FOREGROUND,
                    "Color of white mask areas, if no guide is connected.",
                ),
                _color(
                    "background",
                    BACKGROUND,
                    "Color of black mask areas, if no guide is connected.",
                ),
                io.Vae.Input(
                    "vae",
                    optional=True,
                    tooltip=(
                        "Encodes the two colors. Without it, they are estimated from the model's "
                        "latent preview."
                    ),
                ),
                io.Noise.Input(
                    "noise",
                    optional=True,
                    tooltip=("Noise to reorder, e.g. Random Noise; its own seed replaces seed."),
                ),
            ],
            outputs=[
                io.Noise.Output(
                    display_name="noise", tooltip="For SamplerCustomAdvanced; any model."
                ),
                io.Latent.Output(
                    display_name="latent",
                    tooltip=(
                        "For a stock KSampler with the same seed at denoise 1; needs model, but "
                        "no flow model."
                    ),
                ),
                io.Int.Output(display_name="seed", tooltip="The seed, for KSampler."),
                io.String.Output(
                    display_name="report",
                    tooltip="Frequency band, correlation with the guide, norm of the noise.",
                ),
                io.Image.Output(
                    display_name="figure",
                    tooltip="The frequency band of the guide, and of the noise before and after.",
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
        model: ModelPatcher | None = None,
        shape: str = "custom",
        mask: torch.Tensor | None = None,
        foreground: str = FOREGROUND,
        background: str = BACKGROUND,
        vae: VAE | None = None,
        noise: NoiseSource | None = None,
    ) -> io.NodeOutput:
        from . import composition
        from .composition_comfy import guide_latent
        from .noise_objects_comfy import TransformedNoise, latent_for_stock_noise

        unused = composition.describe_unused(shape, strength, cutoff)
        strength, cutoff = composition.SHAPES.get(shape, (strength, cutoff))
        settings = composition.CompositionSettings(strength=strength, cutoff=cutoff, low=low_cutoff)
        if model is not None and strength:
            first, *others = split(latent["samples"])
            parts = [split(matching_channels(first, model))[0], *others]
            latent = {**latent, "samples": join(parts, like=latent["samples"])}
        layout, source = guide_latent(
            split(latent["samples"])[0],
            guide,
            mask=mask,
            colors=(foreground, background),
            model=model,
            vae=vae,
        )
        made = TransformedNoise(
            seed, functools.partial(composition.compose_noise, settings, guide=layout), noise
        )
        before, after = made.look(latent)
        report = (
            composition.describe_composition(
                settings, before, after=after, guide=layout, source=source
            )
            + unused
        )
        for_ksampler = latent if strength == 0 and noise is None else None
        if model is not None:
            report += composition.describe_distance(layout)
            for_ksampler = for_ksampler or latent_for_stock_noise(model, latent, made.seed, after)
        figure = new_figure(900, 330)
        composition.draw_composition(figure, settings, before=before, after=after, guide=layout)
        if for_ksampler is None:
            return io.NodeOutput(
                made, nothing_to_show(), made.seed, f"{report}\n{_NO_LATENT}", to_image(figure)
            )
        return io.NodeOutput(made, for_ksampler, made.seed, report, to_image(figure))


NODES = [CompositionNoise]
