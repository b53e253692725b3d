"""Layer Activation Tap: read activations of a MODEL in a single evaluation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from comfy_api.latest import io

from ..host.hooks import refuse_compiled
from ..host.schema import int_input, schema, seed
from ..host.sockets import Activations as ActivationsSocket
from . import select_ids
from .activations import mean
from .tap_inputs import (
    IDS,
    LEVEL,
    NOISE_UNIT,
    PAPER,
    POOL_SIZE,
    PRECISION,
    PRECISIONS,
    PRESET,
    SEE,
)

if TYPE_CHECKING:
    from ..host.socket_types import VAE, ModelPatcher


class LayerActivationTap(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_LayerActivationTap",
            advanced=(
                "pool_size",
                "precision",
                "largest_size",
            ),
            display_name="Layer Activation Tap",
            category=SEE,
            description=(
                "Adds noise to images at a noise level, evaluates the MODEL once without CFG, "
                "and returns its intermediate activations as features, for Activation "
                "Visualizer, Similarity and Correspondence. LoRAs and ControlNets apply. "
                f"{PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "DIFT",
                "hyperfeatures",
                "feature extraction",
                "hidden states",
            ],
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip="Model with a U-Net or a supported transformer, with its LoRAs.",
                ),
                io.Conditioning.Input(
                    "positive",
                    tooltip=(
                        "Text that describes the images, e.g. 'a photo of a horse'. There is no "
                        "negative prompt."
                    ),
                ),
                io.Combo.Input(**PRESET),
                io.String.Input(**IDS),
                io.Combo.Input(**NOISE_UNIT),
                io.Float.Input(**LEVEL),
                seed("Seed of the noise, the same as a KSampler's."),
                int_input(
                    "noise_samples",
                    1,
                    (1, 256),
                    "Noise samples to average (seed, seed + 1, ...), one evaluation each. The "
                    "paper uses 1.",
                ),
                io.Int.Input(**POOL_SIZE),
                io.Combo.Input(**PRECISION),
                io.Latent.Input(
                    "latent",
                    optional=True,
                    tooltip="Clean latents. Connect either this, or image with vae.",
                ),
                io.Image.Input(
                    "image",
                    optional=True,
                    tooltip=(
                        "Images of any size. The paper uses 512 x 512 for SD1.5 and 1024 x 1024 "
                        "for SDXL."
                    ),
                ),
                io.Vae.Input("vae", optional=True, tooltip="VAE that encodes image."),
                int_input(
                    "largest_size",
                    1024,
                    (0, 16384),
                    "Maximum longer side in pixels: larger images are scaled down, since "
                    "attention time grows with the square of the number of positions. 0: no "
                    "limit.",
                    optional=True,
                ),
            ],
            outputs=[
                ActivationsSocket.Output(
                    display_name="activations", tooltip="Activations with one row per image."
                ),
                io.String.Output(
                    display_name="report",
                    tooltip="Noise level, then one line per activation: ID, shape, type.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        positive: list,
        preset: str,
        ids: str,
        noise_unit: str,
        level: float,
        seed: int,
        noise_samples: int,
        pool_size: int,
        precision: str,
        latent: dict | None = None,
        image: torch.Tensor | None = None,
        vae: VAE | None = None,
        largest_size: int = 1024,
    ) -> io.NodeOutput:
        from . import catalog_table
        from .catalog_unet import catalog
        from .tap import TapSettings
        from .tap_comfy import announce, clean_latent, sigma_of, tap_noise_samples

        refuse_compiled(model)
        specs = catalog(model.model.diffusion_model)
        selected = select_ids.select(specs, preset, ids)
        settings = TapSettings(pool_size=pool_size, dtype=PRECISIONS[precision])
        latent = clean_latent(latent, image, vae, largest_size)
        size = announce(
            model,
            positive,
            latent=latent,
            specs=selected,
            settings=settings,
            noise_samples=noise_samples,
        )
        sigma = sigma_of(model, specs, noise_unit, level)
        tapped = mean(
            tap_noise_samples(
                model,
                positive,
                latent=latent,
                sigma=sigma,
                specs=selected,
                settings=settings,
                seed=seed,
                noise_samples=noise_samples,
            )
        )
        about = {"seed": seed, "noise_samples": noise_samples, "preset": preset}
        tapped = replace(tapped, settings=about | tapped.settings)
        return io.NodeOutput(
            tapped,
            f"{tapped.report()}\n{size}",
            ui={"glassbox_network": [catalog_table.outline(specs)]},
        )


NODES = [LayerActivationTap]
