"""Edit an image by two prompts, without inversion, on the canvas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comfy_api.latest import io

from ..host.schema import NOISE, float_input, int_input, scheduler_input, schema, seed

if TYPE_CHECKING:
    import torch

    from ..host.socket_types import ModelPatcher


class FlowEdit(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            advanced=("sigmas",),
            node_id="GBX_FlowEdit",
            display_name="Edit Image by Prompts (FlowEdit)",
            category=NOISE,
            description=(
                "Changes an image from its own prompt to another one, without inversion "
                "(FlowEdit, arXiv 2412.08629). Works like a KSampler with two positive prompts; a "
                "noise mask limits the edit."
            ),
            search_aliases=[
                "flowedit",
                "edit image",
                "image to image",
                "real image editing",
                "prompt to prompt",
                "inversion free",
                "immiscible diffusion",
            ],
            inputs=[
                io.Model.Input("model", tooltip="The model that samples."),
                io.Conditioning.Input(
                    "source", tooltip="A prompt that describes the image as it is."
                ),
                io.Conditioning.Input("target", tooltip="The same prompt with other words."),
                io.Conditioning.Input("negative", tooltip="The negative prompt of both."),
                io.Latent.Input("latent", tooltip="The image through VAE Encode."),
                int_input("steps", 20, (1, 1000), "Each evaluates the model with both prompts."),
                float_input(
                    "target_cfg",
                    3.0,
                    (0.0, 100.0, 0.1),
                    "CFG of the target. The paper has 5.5 for Flux.1 and 13.5 for SD3; 1 for "
                    "distilled models.",
                ),
                float_input(
                    "source_cfg",
                    1.5,
                    (0.0, 100.0, 0.1),
                    "CFG of the source. The paper has 1.5 for Flux.1 and 3.5 for SD3; 1 for "
                    "distilled models.",
                ),
                scheduler_input("Scheduler of the noise levels."),
                float_input(
                    "denoise",
                    0.8,
                    (0.0, 1.0, 0.01),
                    "Noise level at which the edit begins: higher changes more, lower keeps more. "
                    "0: the latent unchanged.",
                ),
                seed("Seed of the noise, which is new in each step."),
                io.Sigmas.Input(
                    "sigmas",
                    optional=True,
                    tooltip="Noise levels instead of steps, scheduler and denoise.",
                ),
            ],
            outputs=[
                io.Latent.Output(display_name="latent", tooltip="The edited image."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        source: list,
        target: list,
        negative: list,
        latent: dict,
        steps: int,
        target_cfg: float,
        source_cfg: float,
        scheduler: str,
        denoise: float,
        seed: int,
        sigmas: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        from .flow_edit_comfy import edit
        from .image_to_noise_comfy import sigmas_of_ksampler

        levels = sigmas_of_ksampler(model, steps, scheduler, denoise) if sigmas is None else sigmas
        if len(levels) < 2:
            return io.NodeOutput(latent)
        samples = edit(
            model,
            {"source": source, "target": target, "negative": negative},
            latent,
            sigmas=levels,
            cfg=(source_cfg, target_cfg),
            seed=seed,
        )
        return io.NodeOutput({**latent, "samples": samples})


NODES = [FlowEdit]
