"""Sampling at other sizes than the model was trained at: noise and positions."""

from __future__ import annotations

import functools

from comfy_api.latest import io

from ..host import latent_shapes
from ..host.evaluate import name_of, sigmas_of
from ..host.image_output import new_figure, to_image
from ..host.progress import nothing_to_show
from ..host.schema import CONDITIONING, float_input, int_input, schema
from . import noise_rescale_comfy
from .noise_rescale_comfy import SAMPLER_ONLY
from .position_resample import Alignment, PositionSettings, describe_positions, resample_table
from .rotary_scaling import RotaryMethod, RotarySettings, describe_rotary, rotate

PAPER = "On Improved Conditioning Mechanisms and Pre-training Strategies for Diffusion Models (arXiv 2411.03177)"
_SIDE = 16384
_STEPS = 20


class ResolutionNoiseRescale(io.ComfyNode):
    EVALUATES = False

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ResolutionNoiseRescale",
            display_name="Resolution Noise Rescale",
            category=CONDITIONING,
            description=(
                "Scales the noise schedule to the size of the image: sigma' = s sigma with s the linear ratio of the "
                "sizes, for eps, v and EDM models; the same law as a shift for flow models and Flux. "
                f"{PAPER}. Place it after other sampling patches and before the scheduler."
            ),
            search_aliases=[
                "improved conditioning",
                "sigma rescale",
                "resolution shift",
                "ModelSampling",
                "SNR shift",
                "noise schedule",
            ],
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip="Any model that samples from noise. Sampling patches already on it (zero terminal SNR, "
                    "shift, another rescale) are kept.",
                ),
                int_input("width", 1024, (16, _SIDE, 8), "Width of the generated image, when no latent is connected."),
                int_input(
                    "height", 1024, (16, _SIDE, 8), "Height of the generated image, when no latent is connected."
                ),
                int_input(
                    "base_width",
                    0,
                    (0, _SIDE, 8),
                    "Width the model was trained at. 0: the known size of this model family.",
                ),
                int_input(
                    "base_height", 0, (0, _SIDE, 8), "Height the model was trained at. 0: the same as the width."
                ),
                io.Combo.Input(
                    "mode",
                    options=list(noise_rescale_comfy.MODES),
                    tooltip="sampler_only: the sigmas change, and the model gets the true noise level; safe for any "
                    "checkpoint. retimed: the model gets the timestep of the original schedule, as in the paper's "
                    "fine-tuning; only for models fine-tuned that way.",
                ),
                io.Combo.Input(
                    "scheduler",
                    options=noise_rescale_comfy.schedulers(),
                    default="normal",
                    tooltip="The scheduler of the figure. The report lists which ones follow the law on this model.",
                ),
                io.Sigmas.Input(
                    "sigmas",
                    optional=True,
                    tooltip="The sigmas of any scheduler for the model without this node; the output sigmas follow "
                    "the law exactly.",
                ),
                io.Latent.Input(
                    "latent", optional=True, tooltip="Takes the size from this latent instead of width and height."
                ),
            ],
            outputs=[
                io.Model.Output(display_name="model", tooltip="The model with its noise schedule scaled."),
                io.Float.Output(display_name="sigma_scale", tooltip="The factor s on noise over signal."),
                io.Image.Output(display_name="figure", tooltip="Noise levels before and after."),
                io.String.Output(display_name="report", tooltip="The same as text."),
                io.Sigmas.Output(
                    display_name="sigmas", tooltip="The connected sigmas moved by the law, for SamplerCustomAdvanced."
                ),
            ],
        )

    @classmethod
    def execute(
        cls, model, width, height, base_width, base_height, mode, scheduler, sigmas=None, latent=None
    ) -> io.NodeOutput:
        from . import noise_rescale

        size = (width, height) if latent is None else latent_shapes.pixels(latent, model)
        base = _base(model, base_width, base_height)
        factor = noise_rescale.sigma_scale(size[0], size[1], base[0], base[1])
        moved = noise_rescale_comfy.rescaled(model, factor, mode)
        shown = noise_rescale_comfy.schedule_sigmas(model, scheduler, _STEPS) if sigmas is None else sigmas
        schedules = noise_rescale_comfy.schedules_and_law(model, moved, _STEPS)
        after = schedules[scheduler][0] if sigmas is None else noise_rescale_comfy.rescaled_sigmas(moved, shown)
        figure, title = new_figure(), f"{scheduler} scheduler" if sigmas is None else "connected sigmas"
        noise_rescale.draw_sigmas(figure, shown[:-1].tolist(), after[:-1].tolist(), factor, title)
        ends, shift = [noise_rescale_comfy.sigma_range(m) for m in (model, moved)], noise_rescale_comfy.shift_of(model)
        report = [noise_rescale.describe_rescale(factor, size, base, mode, *ends)]
        if shift is not None and shift[0] != shift[1]:
            report.append(noise_rescale.describe_shift(*shift))
        report.append(noise_rescale.describe_schedulers(noise_rescale.law_errors(schedules)))
        report += noise_rescale.describe_base(
            round((base[0] * base[1]) ** 0.5), noise_rescale_comfy.trained_size(model)
        )
        given = nothing_to_show() if sigmas is None else after
        return io.NodeOutput(moved, factor, to_image(figure), "\n".join(report), given)


class PositionalResample(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_PositionalResample",
            advanced=["alignment", "rotary_method", "rotary_strength", "rotary_exponent", "downscale_end_percent"],
            display_name="Higher Resolution",
            category=CONDITIONING,
            description=(
                "Fewer repeated parts in images larger than the model was trained at. SD1.5, SDXL and other U-Nets: "
                "inner features at their trained size while the layout settles (Deep Shrink). Flux, Qwen-Image, "
                "Z-Image and other models with rotary positions: frequencies scaled by the timestep (DyPE, arXiv "
                f"2510.20766). SD3: positions interpolated inside the trained range ({PAPER}). Up to the base size the "
                "output is identical."
            ),
            search_aliases=[
                "improved conditioning",
                "position embedding",
                "SD3 Position Interpolation",
                "high resolution",
                "DyPE",
                "Deep Shrink",
                "HiDiffusion",
                "NTK",
                "RoPE scale",
                "hires fix",
                "double heads",
            ],
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip="A U-Net (SD1.5, SD2, SDXL), a model with rotary positions on three axes (Flux, Chroma, "
                    "Qwen-Image, Lumina 2, Z-Image), SD3 or SD3.5. PixArt, HunyuanDiT and AuraFlow fit their positions "
                    "to the size by themselves and are refused.",
                ),
                int_input(
                    "base_size",
                    0,
                    (0, _SIDE, 16),
                    "Pixels per side that the model was trained at; images up to it stay as they are. 0: the "
                    "known size of this model family.",
                ),
                io.Combo.Input(
                    "alignment",
                    options=list(Alignment),
                    tooltip="SD3: how the finer grid lies on the trained one. corners: i * base / count, as PixArt. "
                    "centers: tokens cover the same area. ends: keeps the first and the last position.",
                ),
                io.Combo.Input(
                    "rotary_method",
                    options=list(RotaryMethod),
                    tooltip="Rotary positions: ntk lowers slow frequencies and keeps fast ones; by_parts is the ramp "
                    "of YaRN; interpolation lowers all of them.",
                ),
                float_input(
                    "rotary_strength",
                    2.0,
                    (0.0, 8.0, 0.1),
                    "Rotary positions: how much they are scaled at pure noise, the paper's lambda_s. 0 changes "
                    "nothing.",
                ),
                float_input(
                    "rotary_exponent",
                    2.0,
                    (0.0, 16.0, 0.1),
                    "Rotary positions: how fast the scaling ends as noise falls, the paper's lambda_t. 0 keeps "
                    "it for the whole run.",
                ),
                float_input(
                    "downscale_end_percent",
                    0.5,
                    (0.0, 1.0, 0.01),
                    "U-Nets: up to which part of sampling inner features have their trained size. 0 changes "
                    "nothing; more leaves fewer repeated parts and fewer details.",
                ),
                io.Latent.Input(
                    "latent",
                    optional=True,
                    tooltip="With the latent that is sampled, the noise schedule is scaled to its size too, as by "
                    "Resolution Noise Rescale (sampler_only).",
                ),
            ],
            outputs=[
                io.Model.Output(display_name="model", tooltip="The model, changed for larger images."),
                io.String.Output(display_name="report", tooltip="What is changed, at 1.5 and 2 times the size."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model,
        base_size: int,
        alignment: str,
        rotary_method: str,
        rotary_strength: float,
        rotary_exponent: float,
        downscale_end_percent: float,
        latent=None,
    ) -> io.NodeOutput:
        from . import noise_rescale, position_resample_comfy

        base = base_size or noise_rescale_comfy.trained_size(model)
        if base is None:
            raise ValueError(
                f"It is not known at what size {name_of(model.model)} was trained: set base_size to its pixels "
                "per side."
            )
        match position_resample_comfy.kind_of(model):
            case position_resample_comfy.Kind.TABLE:
                moved, report = _with_table(model, PositionSettings(base // 16, Alignment(alignment)))
            case position_resample_comfy.Kind.ROTARY:
                settings = RotarySettings(RotaryMethod(rotary_method), rotary_strength, rotary_exponent, base)
                moved, report = _with_rotary(model, settings)
            case _:
                moved, report = _with_features(model, base, downscale_end_percent)
        if latent is not None:
            size = latent_shapes.pixels(latent, model)
            factor = noise_rescale.sigma_scale(*size, base, base)
            mode, moved = SAMPLER_ONLY, noise_rescale_comfy.rescaled(moved, factor, SAMPLER_ONLY)
            ends = [noise_rescale_comfy.sigma_range(one) for one in (model, moved)]
            report += "\n" + noise_rescale.describe_rescale(factor, size, (base, base), mode, *ends)
        known = noise_rescale_comfy.trained_size(model)
        return io.NodeOutput(moved, "\n".join([report, *noise_rescale.describe_base(base, known)]))


def _with_table(model, settings: PositionSettings):
    """A MODEL with a stored table of positions resampled, and what is changed."""
    from . import position_resample_comfy

    moved = position_resample_comfy.resampled(model, functools.partial(resample_table, settings))
    return moved, describe_positions(settings, position_resample_comfy.stored_table(model))


def _with_rotary(model, settings: RotarySettings):
    """A MODEL with rotary positions scaled, and what is changed."""
    from . import position_resample_comfy

    return position_resample_comfy.rotated(model, functools.partial(rotate, settings)), describe_rotary(settings)


def _with_features(model, base: int, end_percent: float):
    """A MODEL whose inner features have at most the size of ``base`` pixels at first, and what is changed."""
    from . import feature_downscale_comfy

    end = sigmas_of(model, 0, end_percent)[1]
    report = (
        f"Inner features at the size of {base} pixels per side for the first {100 * end_percent:g} % of sampling "
        f"(sigma {end:.4g} and more): divided by 1.5 at {base * 3 // 2} pixels, by 2 at {base * 2}."
    )
    return feature_downscale_comfy.with_downscaled_features(model, base, end), report


def _base(model, width: int, height: int) -> tuple[int, int]:
    """The trained size, from the inputs or from what is known of the model."""
    known = noise_rescale_comfy.trained_size(model)
    if not (width or height or known):
        raise ValueError(
            f"It is not known at what size {name_of(model.model)} was trained: set base_width and base_height."
        )
    known_width = width or height or known or 0
    return known_width, height or known_width


NODES = [ResolutionNoiseRescale, PositionalResample]
