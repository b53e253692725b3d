"""Activations on the canvas: list them, tap them, and choose among them."""

from __future__ import annotations

from dataclasses import replace

import torch
from comfy_api.latest import io

from ..host import evaluate as host
from ..host.hooks import observe, refuse_compiled
from ..host.loops import tracked
from ..host.schema import schema
from ..host.sockets import Activations
from . import levels, listing, moments, selection
from .catalog import catalog
from .features import Activations as Tapped
from .features import Mean
from .inputs import CATEGORY, IDS, PAPER, POOL, PRECISION, PRECISIONS, PRESET
from .recorder import Recorder
from .tap import Keep

_SEED_MAX = 0xFFFFFFFFFFFFFFFF


class ActivationCatalog(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ActivationCatalog",
            display_name="Activation Catalog",
            category=CATEGORY,
            description="Every activation of the MODEL by its ID, with module, channels, side, and whether it is in "
            f"the paper's pool, filter and sets; as a table and as a drawn map of the network. {PAPER}.",
            search_aliases=["list layers", "list blocks", "layer names", "network map"],
            inputs=[
                io.Model.Input(
                    "model", tooltip="Model with a U-Net: SD1.5, SD2.1, SDXL, Playground v2, the demo model."
                ),
                io.Combo.Input(**PRESET),
                io.String.Input(**IDS),
                io.Int.Input(
                    "width",
                    default=1024,
                    min=64,
                    max=16384,
                    step=8,
                    tooltip="Picture width in pixels, for the sides in the table.",
                ),
                io.Int.Input(
                    "height",
                    default=1024,
                    min=64,
                    max=16384,
                    step=8,
                    tooltip="Picture height in pixels, for the sides in the table.",
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="map",
                    tooltip="The network as a U, each activation a small box; the chosen ones stand out.",
                ),
                io.String.Output(
                    display_name="table", tooltip="One line an activation: ID, module, size, marks, published scores."
                ),
                io.String.Output(display_name="ids", tooltip="The chosen IDs, one a line, to paste into a tap's list."),
            ],
        )

    @classmethod
    def execute(cls, model, preset: str, ids: str, width: int, height: int) -> io.NodeOutput:
        entries = catalog(model.model.diffusion_model)
        chosen = {entry.id for entry in selection.select(entries, preset, ids)}
        factor = _pixels_a_latent(model)
        size = (height // factor, width // factor)
        names = "\n".join(entry.id for entry in entries if entry.id in chosen)
        return io.NodeOutput(listing.network_map(entries, chosen), listing.table(entries, chosen, size), names)


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
                io.Model.Input("model", tooltip="Model with a U-Net, with its LoRAs."),
                io.Conditioning.Input(
                    "positive",
                    tooltip="Text that describes the pictures, such as 'a photo of a horse'; no negative is used.",
                ),
                io.Combo.Input(**PRESET),
                io.String.Input(**IDS),
                io.Combo.Input(
                    "noise_level",
                    options=list(levels.UNITS),
                    tooltip="How level is meant: the paper's t (0 to 999), ComfyUI's percent of a run (0 is noise, 1 "
                    "is clean), or sigma.",
                ),
                io.Float.Input(
                    "level",
                    default=50.0,
                    min=0.0,
                    max=100000.0,
                    step=0.01,
                    tooltip="Amount of noise. The paper's recipe is t 50.",
                ),
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
        samples = _clean_latent(latent, image, vae)
        sigma = _sigma(model, entries, noise_level, level)
        mean = Mean()
        for draw in tracked(range(draws)):
            recorder = _recorder(model, chosen, Keep(pool=pool, dtype=PRECISIONS[precision]), "all")
            host.evaluate(observe(model, recorder), positive, samples, sigma, (seed + draw) % (_SEED_MAX + 1))
            mean.add(recorder.last.snapshots[0].activations)
        activations = replace(mean.result(), settings={"seed": seed, "draws": draws, "preset": preset})
        return io.NodeOutput(activations, activations.report())


class SelectActivations(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_SelectActivations",
            display_name="Select Activations",
            category=CATEGORY,
            description=f"Some of the tapped activations, by ID or wildcard, and some of their pictures. {PAPER}.",
            search_aliases=["filter features"],
            inputs=[
                Activations.Input("activations", tooltip="Tapped, recorded or loaded activations."),
                io.String.Input(
                    "ids", default="*", multiline=True, tooltip="IDs or wildcards apart by commas or lines; * is all."
                ),
                io.String.Input(
                    "pictures", default="all", tooltip="Numbers of the pictures, from 0: all, or such as 0, 2-4, last."
                ),
                io.Combo.Input(
                    "rows",
                    options=["all", "conditional", "unconditional"],
                    tooltip="Which rows of a recording to keep; a tap has conditional ones alone.",
                ),
            ],
            outputs=[
                Activations.Output(display_name="activations", tooltip="What is left, in forward order."),
                io.String.Output(display_name="report", tooltip="One line an activation: ID, shape, type."),
            ],
        )

    @classmethod
    def execute(cls, activations: Tapped, ids: str, pictures: str, rows: str) -> io.NodeOutput:
        choose, count = moments.chooser(pictures), max(row.image for row in activations.rows) + 1
        kept = [
            index
            for index, row in enumerate(activations.rows)
            if choose(row.image, count) and rows in ("all", "conditional" if row.conditional else "unconditional")
        ]
        if not kept:
            raise ValueError(
                f"No row is left: there are pictures 0 to {count - 1}, and '{pictures}' with {rows} rows chooses none."
            )
        chosen = activations.chosen(selection.match_ids(list(activations.tensors), ids)).only_rows(kept)
        return io.NodeOutput(chosen, chosen.report())


def _recorder(model, chosen: list, keep: Keep, steps: str) -> Recorder:
    return Recorder(chosen, keep, moments.chooser(steps), lambda sigma: host.timestep_of(model, sigma))


def _clean_latent(latent: dict | None, image: torch.Tensor | None, vae) -> dict:
    if latent is not None and image is None:
        return latent
    if latent is None and image is not None and vae is not None:
        return {"samples": vae.encode(image[..., :3])}
    raise ValueError("Connect the pictures in one way: either latent, or image together with vae.")


def _sigma(model, entries: list, unit: str, level: float) -> float:
    if unit != levels.PAPER_T:
        return host.sigma_at(model, level, host.PERCENT if unit == levels.PERCENT else host.SIGMA)
    context = model.model.model_config.unet_config.get("context_dim")
    timestep = levels.timestep_for(level, listing.architecture(entries), context)
    return host.sigma_at(model, timestep, host.TIMESTEP)


def _pixels_a_latent(model) -> int:
    return getattr(model.get_model_object("latent_format"), "spacial_downscale_ratio", 8)
