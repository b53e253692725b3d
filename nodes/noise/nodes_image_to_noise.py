"""The noise behind an image, on the canvas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comfy_api.latest import io

from ..host.progress import nothing_to_show
from ..host.schema import NOISE, float_input, int_input, scheduler_input, schema, seed

if TYPE_CHECKING:
    import torch

    from ..host.socket_types import ModelPatcher

_FOR_NOISE_ONLY = (
    "No latent for KSampler: {reason}. Use noise with SamplerCustomAdvanced and the same latent."
)


class ImageToNoise(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            advanced=("corrections", "sigmas"),
            node_id="GBX_ImageToNoise",
            display_name="Image to Noise (Inversion)",
            category=NOISE,
            description=(
                "The noise that the model itself would have made this image from (DDIM "
                "inversion, arXiv 2010.02502). Sampling starts from it instead of random noise: "
                "edits keep more of the image."
            ),
            search_aliases=[
                "ddim inversion",
                "immiscible diffusion",
                "unsample",
                "unsampler",
                "invert image",
                "edit image",
                "real image editing",
            ],
            inputs=[
                io.Model.Input("model", tooltip="The model that will sample, without edits."),
                io.Conditioning.Input(
                    "positive", tooltip="A prompt that describes the image as it is."
                ),
                io.Latent.Input("latent", tooltip="The image through VAE Encode."),
                int_input("steps", 20, (1, 1000), "Steps of the KSampler that follows."),
                scheduler_input("Scheduler of the KSampler that follows."),
                float_input(
                    "denoise",
                    0.6,
                    (0.0, 1.0, 0.01),
                    "Denoise of the KSampler that follows: how far up the image is followed. 0: "
                    "the latent unchanged.",
                ),
                seed("Seed of the KSampler that follows."),
                int_input(
                    "corrections",
                    0,
                    (0, 10),
                    "Corrections of each step. Every one costs another evaluation and brings the "
                    "round trip closer to the image.",
                ),
                io.Sigmas.Input(
                    "sigmas",
                    optional=True,
                    tooltip=(
                        "Noise levels of SamplerCustomAdvanced, instead of steps, scheduler and "
                        "denoise."
                    ),
                ),
            ],
            outputs=[
                io.Latent.Output(
                    display_name="latent",
                    tooltip=(
                        "For a stock KSampler with the same seed, steps, scheduler and denoise."
                    ),
                ),
                io.Int.Output(display_name="seed", tooltip="The seed, for KSampler."),
                io.Noise.Output(
                    display_name="noise",
                    tooltip=(
                        "For SamplerCustomAdvanced with the same latent and sigmas; also with a "
                        "noise mask."
                    ),
                ),
                io.String.Output(
                    display_name="report", tooltip="Noise levels, evaluations, and the error."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        positive: list,
        latent: dict,
        steps: int,
        scheduler: str,
        denoise: float,
        seed: int,
        corrections: int,
        sigmas: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        from .image_to_noise_comfy import FoundNoise, find, sigmas_of_ksampler
        from .noise_objects_comfy import SeededNoise

        levels = sigmas_of_ksampler(model, steps, scheduler, denoise) if sigmas is None else sigmas
        if len(levels) < 2:
            report = "Nothing to follow: denoise 0 leaves the image as it is."
            return io.NodeOutput(latent, seed, SeededNoise(seed), report)
        found = find(
            model,
            positive,
            latent,
            sigmas=levels,
            seed=seed,
            corrections=corrections,
        )
        noise = FoundNoise(found.noise, seed)
        lines = [_describe(levels, corrections, found.errors)]
        reason = ""
        if found.samples is None:
            reason = "this model starts from noise alone at denoise 1"
        elif latent.get("noise_mask") is not None:
            reason = "outside of a noise mask it would keep a latent that is no image"
        if reason:
            lines.append(_FOR_NOISE_ONLY.format(reason=reason))
            return io.NodeOutput(nothing_to_show(), seed, noise, "\n".join(lines))
        return io.NodeOutput({**latent, "samples": found.samples}, seed, noise, "\n".join(lines))


def _describe(levels: torch.Tensor, corrections: int, errors: list[float]) -> str:
    steps = len(levels) - 1
    evaluations = steps * (1 + corrections)
    return (
        f"Followed from sigma {float(levels[-1]):.3g} to {float(levels[0]):.3g} in {steps} steps, "
        f"{evaluations} evaluations.\nSampled back with Euler at CFG 1 and the same prompt, the "
        f"latent differs by {max(errors):.3f} of its standard deviation"
        + (" at most." if len(errors) > 1 else ".")
    )


NODES = [ImageToNoise]
