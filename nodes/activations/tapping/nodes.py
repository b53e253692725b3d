"""Layer Activation Tap: look into a MODEL while it is evaluated once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from comfy_api.latest import io

from ...host import evaluate as host
from ...host.hooks import observe, refuse_compiled
from ...host.loops import tracked
from ...host.schema import schema
from ...host.sockets import Activations
from .. import levels, listing, moments, outline, selection
from ..catalog import catalog
from ..entries import Entry
from ..features import FRAMES, Mean
from ..features import Activations as Tapped
from ..inputs import CATEGORY, IDS, LEVEL, NOISE_LEVEL, PAPER, POOL, PRECISION, PRECISIONS, PRESET
from ..recorder import Recorder
from ..tap import Keep

_SEED_MAX = 0xFFFFFFFFFFFFFFFF


class LayerActivationTap(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_LayerActivationTap",
            display_name="Layer Activation Tap",
            category=CATEGORY,
            description="Noises pictures a little, evaluates the MODEL once (no CFG), and hands out the activations "
            "inside it as features: what Activation Picture, Similarity and Correspondence work on. "
            f"LoRAs and ControlNets take part. {PAPER}.",
            search_aliases=["diffusion features", "DIFT", "hyperfeatures", "feature extraction", "hidden states"],
            inputs=[
                io.Model.Input("model", tooltip="Model with a U-Net or a readable transformer, with its LoRAs."),
                io.Conditioning.Input(
                    "positive",
                    tooltip="Text that describes the pictures, such as 'a photo of a horse'; no negative is used.",
                ),
                io.Combo.Input(**PRESET),
                io.String.Input(**IDS),
                io.Combo.Input(**NOISE_LEVEL),
                io.Float.Input(**LEVEL),
                io.Int.Input(
                    "seed",
                    default=0,
                    min=0,
                    max=_SEED_MAX,
                    control_after_generate=True,
                    tooltip="Seed of the noise: the same as a KSampler's.",
                ),
                io.Int.Input(
                    "draws",
                    default=1,
                    min=1,
                    max=256,
                    tooltip="Noise draws to average (seed, seed + 1, ...), one evaluation each. The paper takes 1.",
                ),
                io.Int.Input(**POOL),
                io.Combo.Input(**PRECISION),
                io.Latent.Input(
                    "latent", optional=True, tooltip="Pictures as clean latents. Connect this, or image and vae."
                ),
                io.Image.Input(
                    "image",
                    optional=True,
                    tooltip="Pictures of any size that the VAE takes; the paper uses 512 x 512 for SD1.5 and 1024 x "
                    "1024 for SDXL.",
                ),
                io.Vae.Input("vae", optional=True, tooltip="Encodes image."),
            ],
            outputs=[
                Activations.Output(display_name="activations", tooltip="One row a picture."),
                io.String.Output(
                    display_name="report", tooltip="Noise level, and one line an activation: ID, shape, type."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model,
        positive,
        preset: str,
        ids: str,
        noise_level: str,
        level: float,
        seed: int,
        draws: int,
        pool: int,
        precision: str,
        latent=None,
        image=None,
        vae=None,
    ) -> io.NodeOutput:
        refuse_compiled(model)
        entries = catalog(model.model.diffusion_model)
        chosen = selection.select(entries, preset, ids)
        samples, keep = clean_latent(latent, image, vae), Keep(pool=pool, dtype=PRECISIONS[precision])
        sigma, mean = sigma_of(model, entries, noise_level, level), Mean()
        for activations in tap_draws(model, positive, samples, sigma, chosen, keep, seed, draws):
            mean.add(activations)
        frames = mean.result().settings[FRAMES]
        settings = {"seed": seed, "draws": draws, "preset": preset, FRAMES: frames}
        activations = replace(mean.result(), settings=settings)
        return io.NodeOutput(activations, activations.report(), ui={"glassbox_network": [outline.outline(entries)]})


def tap_draws(
    model, positive, samples: dict, sigma: float, chosen: list[Entry], keep: Keep, seed: int, draws: int
) -> Iterator[Tapped]:
    """The activations of one evaluation for each draw of the noise, from seeds ``seed``, ``seed`` + 1, ..."""
    for draw in tracked(range(draws)):
        recorder = Recorder(chosen, keep, moments.chooser("all"), lambda level: host.timestep_of(model, level))
        host.evaluate(observe(model, recorder), positive, samples, sigma, (seed + draw) % (_SEED_MAX + 1))
        yield recorder.last.snapshots[0].activations


def clean_latent(latent: dict | None, image: torch.Tensor | None, vae) -> dict:
    """The pictures as a LATENT; raises ValueError unless they come in just one way."""
    if latent is not None and image is None:
        return latent
    if latent is None and image is not None and vae is not None:
        return {"samples": vae.encode(image[..., :3])}
    raise ValueError("Connect the pictures in one way: either latent, or image together with vae.")


def sigma_of(model, entries: list[Entry], unit: str, level: float) -> float:
    """The sigma of a noise level in one of ``levels.UNITS``."""
    if unit != levels.PAPER_T:
        return host.sigma_at(model, level, host.PERCENT if unit == levels.PERCENT else host.SIGMA)
    context = model.model.model_config.unet_config.get("context_dim")
    timestep = levels.timestep_for(level, listing.architecture(entries), context)
    return host.sigma_at(model, timestep, host.TIMESTEP)
