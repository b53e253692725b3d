"""Seeds of one prompt that differ more, on the canvas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comfy_api.latest import io

from ..host.evaluate import sigmas_of
from ..host.schema import CONDITIONING, float_input, schema, seed
from .condition_annealing import VarietyMethod, VarietySettings, describe

if TYPE_CHECKING:
    from ..host.socket_types import ModelPatcher


class SeedVariety(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            advanced=("tau1", "tau2"),
            node_id="GBX_SeedVariety",
            display_name="Seed Variety",
            category=CONDITIONING,
            description=(
                "Seeds of one prompt that differ more: noise stands for the prompt while the "
                "composition forms, and the prompt comes back before the details do (condition "
                "annealing, CADS, arXiv 2310.17347). For models that give one face for every seed, "
                "distilled ones at CFG 1 too."
            ),
            search_aliases=[
                "CADS",
                "improved conditioning",
                "condition annealing",
                "diversity",
                "seed variance",
                "conditioning noise",
                "embedding noise",
                "same face",
                "variation",
            ],
            inputs=[
                io.Model.Input("model", tooltip="The model that will sample."),
                io.Combo.Input(
                    "method",
                    options=list(VarietyMethod),
                    tooltip=(
                        "annealed: new noise at each step, which fades (CADS). annealed_fixed: the "
                        "same noise at all steps, which fades. constant: noise added at one "
                        "strength until tau1, without a rescale."
                    ),
                ),
                float_input(
                    "noise_scale",
                    0.25,
                    (0.0, 10.0, 0.05),
                    "Strength of the noise, in standard deviations of each token. 0: off, "
                    "identical to the stock model.",
                ),
                float_input(
                    "tau1",
                    0.6,
                    (0.0, 1.0, 0.05),
                    "Time, from 1 at the start of sampling to 0 at its end, below which the prompt "
                    "is whole. Lower: more variety, less of the prompt.",
                ),
                float_input(
                    "tau2",
                    0.9,
                    (0.0, 1.0, 0.05),
                    "Time above which noise alone stands for the prompt. Not for constant.",
                ),
                seed(
                    "Seed of the noise on the prompt, beside the sampler's own seed: other images "
                    "at the same seed of the sampler."
                ),
            ],
            outputs=[
                io.Model.Output(
                    display_name="model", tooltip="The model with noise on its positive prompt."
                ),
                io.String.Output(
                    display_name="report", tooltip="How long the noise acts, in one sentence."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        method: str,
        noise_scale: float,
        tau1: float,
        tau2: float,
        seed: int,
    ) -> io.NodeOutput:
        from .condition_annealing_comfy import varied

        settings = VarietySettings(
            method=VarietyMethod(method),
            noise_scale=noise_scale,
            tau1=tau1,
            tau2=tau2,
            seed=seed,
        )
        sigmas = sigmas_of(model, 1 - tau2, 1 - tau1)
        return io.NodeOutput(varied(model, settings), describe(settings, sigmas))


NODES = [SeedVariety]
