"""Sampling at other sizes than the model was trained at: noise and positions."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from comfy_api.latest import io

from ..host import latent_shapes
from ..host.evaluate import name_of, sigmas_of
from ..host.image_output import new_figure, to_image
from ..host.progress import nothing_to_show
from ..host.schema import CONDITIONING, float_input, int_input, scheduler_input, schema
from . import noise_rescale_comfy
from .noise_rescale_comfy import SAMPLER_ONLY
from .position_resample import Alignment, PositionSettings, describe_positions, resample_table
from .rotary_scaling import RotaryMethod, RotarySettings, describe_rotary, lowered

if TYPE_CHECKING:
    import torch

    from ..host.socket_types import ModelPatcher

PAPER = (
    "On Improved Conditioning Mechanisms and Pre-training Strategies for Diffusion Models (arXiv "
    "2411.03177)"
)
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
                "Scales the noise schedule to the image size: sigma' = s sigma, with s the "
                "linear ratio of the sizes, for eps, v and EDM models; the equivalent shift for "
                f"flow models and Flux. {PAPER}. Place it after other sampling patches and "
                "before the scheduler."
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
                    tooltip=(
                        "Any model that samples from noise. Existing sampling patches (zero "
                        "terminal SNR, shift, another rescale) are kept."
                    ),
                ),
                int_input(
                    "width",
                    1024,
                    (16, _SIDE, 8),
                    "Width of the generated image, if no latent is connected.",
                ),
                int_input(
                    "height",
                    1024,
                    (16, _SIDE, 8),
                    "Height of the generated image, if no latent is connected.",
                ),
                int_input(
                    "base_width",
                    0,
                    (0, _SIDE, 8),
                    "Training width of the model. 0: the default of this model family.",
                ),
                int_input(
                    "base_height",
                    0,
                    (0, _SIDE, 8),
                    "Training height of the model. 0: the same as the width.",
                ),
                io.Combo.Input(
                    "mode",
                    options=list(noise_rescale_comfy.MODES),
                    tooltip=(
                        "sampler_only: changes the sigmas; the model gets the true noise level; "
                        "safe for any checkpoint. retimed: the model gets the original "
                        "schedule's timestep, as in the paper's fine-tuning; only for models "
                        "fine-tuned that way."
                    ),
                ),
                scheduler_input(
                    "Scheduler shown in the figure. The report lists the schedulers that follow "
                    "the scaling on this model."
                ),
                io.Sigmas.Input(
                    "sigmas",
                    optional=True,
                    tooltip=(
                        "Sigmas of any scheduler, made from the unpatched model; the output "
                        "sigmas are scaled exactly."
                    ),
                ),
                io.Latent.Input(
                    "latent",
                    optional=True,
                    tooltip="Takes the size from this latent instead of width and height.",
                ),
            ],
            outputs=[
                io.Model.Output(
                    display_name="model", tooltip="The model with its noise schedule scaled."
                ),
                io.Float.Output(
                    display_name="sigma_scale", tooltip="The factor s on noise over signal."
                ),
                io.Image.Output(display_name="figure", tooltip="Noise levels before and after."),
                io.String.Output(display_name="report", tooltip="The same as text."),
                io.Sigmas.Output(
                    display_name="sigmas",
                    tooltip="The connected sigmas, scaled, for SamplerCustomAdvanced.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        width: int,
        height: int,
        base_width: int,
        base_height: int,
        mode: str,
        scheduler: str,
        sigmas: torch.Tensor | None = None,
        latent: dict | None = None,
    ) -> io.NodeOutput:
        from . import noise_rescale

        size = (width, height) if latent is None else latent_shapes.pixels(latent, model)
        base = _base(model, base_width, base_height)
        factor = noise_rescale.sigma_scale(size[0], size[1], base[0], base[1])
        moved = noise_rescale_comfy.rescaled(model, factor, mode)
        shown = (
            noise_rescale_comfy.schedule_sigmas(model, scheduler, _STEPS)
            if sigmas is None
            else sigmas
        )
        schedules = noise_rescale_comfy.schedules_and_law(model, moved, _STEPS)
        after = (
            schedules[scheduler][0]
            if sigmas is None
            else noise_rescale_comfy.rescaled_sigmas(moved, shown)
        )
        figure = new_figure()
        title = f"{scheduler} scheduler" if sigmas is None else "connected sigmas"
        noise_rescale.draw_sigmas(
            figure, shown[:-1].tolist(), after=after[:-1].tolist(), factor=factor, title=title
        )
        shift = noise_rescale_comfy.shift_of(model)
        report = [
            noise_rescale.describe_rescale(
                factor,
                size,
                base=base,
                mode=mode,
                before=noise_rescale_comfy.sigma_range(model),
                after=noise_rescale_comfy.sigma_range(moved),
            )
        ]
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
            advanced=[
                "alignment",
                "rotary_method",
                "rotary_strength",
                "rotary_exponent",
                "downscale_end_percent",
            ],
            display_name="Higher Resolution (Upscale)",
            category=CONDITIONING,
            description=(
                "Avoids repeated objects in images larger than the training size. SD1.5, SDXL "
                "and other U-Nets: inner features stay at their training size in the early steps "
                "(Deep Shrink). Flux, Qwen-Image, Z-Image and other models with rotary "
                "positions: frequencies scaled by the timestep (DyPE, arXiv 2510.20766). SD3: "
                f"positions interpolated inside the training range ({PAPER}). Up to the base "
                "size the output is identical."
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
                    tooltip=(
                        "A U-Net (SD1.5, SD2, SDXL), a model with rotary positions (Flux, FLUX.2, "
                        "Qwen-Image, Z-Image, Krea 2, Wan, LTX, Anima and others), SD3 or SD3.5. "
                        "PixArt, HunyuanDiT, AuraFlow and MiniMax H3 adapt their positions to the "
                        "size themselves and are not supported."
                    ),
                ),
                int_input(
                    "base_size",
                    0,
                    (0, _SIDE, 16),
                    "Training size of the model in pixels per side; images up to it are "
                    "unchanged. 0: the default of this model family.",
                ),
                io.Combo.Input(
                    "alignment",
                    options=list(Alignment),
                    tooltip=(
                        "SD3: alignment of the finer position grid with the trained one. "
                        "corners: i * base / count, as in PixArt. centers: tokens cover the same "
                        "area. ends: keeps the first and the last position."
                    ),
                ),
                io.Combo.Input(
                    "rotary_method",
                    options=list(RotaryMethod),
                    tooltip=(
                        "Rotary positions: ntk lowers slow frequencies and keeps fast ones; "
                        "by_parts is the ramp of YaRN; interpolation lowers all of them."
                    ),
                ),
                float_input(
                    "rotary_strength",
                    2.0,
                    (0.0, 8.0, 0.1),
                    "Rotary positions: strength of the scaling at pure noise, the paper's "
                    "lambda_s. 0 changes nothing.",
                ),
                float_input(
                    "rotary_exponent",
                    2.0,
                    (0.0, 16.0, 0.1),
                    "Rotary positions: how fast the scaling decays as noise falls, the paper's "
                    "lambda_t. 0: constant over the run.",
                ),
                float_input(
                    "downscale_end_percent",
                    0.5,
                    (0.0, 1.0, 0.01),
                    "U-Nets: inner features stay at their training size up to this fraction of "
                    "the model's own schedule; a connected latent raises the noise, so that it is "
                    "later in the run. 0 changes nothing; higher leaves fewer repeated objects "
                    "and less detail.",
                ),
                io.Latent.Input(
                    "latent",
                    optional=True,
                    tooltip=(
                        "If connected, the noise schedule is also scaled to this latent's size, "
                        "as in Resolution Noise Rescale (sampler_only)."
                    ),
                ),
            ],
            outputs=[
                io.Model.Output(
                    display_name="model", tooltip="The model, changed for larger images."
                ),
                io.String.Output(
                    display_name="report", tooltip="The changes at 1.5 and 2 times the size."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        base_size: int,
        alignment: str,
        rotary_method: str,
        rotary_strength: float,
        rotary_exponent: float,
        downscale_end_percent: float,
        latent: dict | None = None,
    ) -> io.NodeOutput:
        from . import noise_rescale, position_resample_comfy

        base = base_size or noise_rescale_comfy.trained_size(model)
        if base is None:
            raise ValueError(
                f"It is not known at what size {name_of(model.model)} was trained: set base_size "
                "to its pixels per side."
            )
        match position_resample_comfy.kind_of(model):
            case position_resample_comfy.Kind.TABLE:
                moved, report = _with_table(
                    model, PositionSettings(base=base // 16, alignment=Alignment(alignment))
                )
            case position_resample_comfy.Kind.ROTARY:
                settings = RotarySettings(
                    method=RotaryMethod(rotary_method),
                    strength=rotary_strength,
                    exponent=rotary_exponent,
                    base=base,
                )
                moved, report = _with_rotary(model, settings)
            case _:
                moved, report = _with_features(model, base, downscale_end_percent)
        if latent is not None:
            size = latent_shapes.pixels(latent, model)
            factor = noise_rescale.sigma_scale(*size, base, base)
            mode = SAMPLER_ONLY
            moved = noise_rescale_comfy.rescaled(moved, factor, SAMPLER_ONLY)
            report += "\n" + noise_rescale.describe_rescale(
                factor,
                size,
                base=(base, base),
                mode=mode,
                before=noise_rescale_comfy.sigma_range(model),
                after=noise_rescale_comfy.sigma_range(moved),
            )
        known = noise_rescale_comfy.trained_size(model)
        return io.NodeOutput(moved, "\n".join([report, *noise_rescale.describe_base(base, known)]))


def _with_table(model: ModelPatcher, settings: PositionSettings) -> tuple[ModelPatcher, str]:
    """A MODEL with a stored table of positions resampled, and what is changed."""
    from . import position_resample_comfy

    moved = position_resample_comfy.resampled(model, functools.partial(resample_table, settings))
    return moved, describe_positions(settings, position_resample_comfy.stored_table(model))


def _with_rotary(model: ModelPatcher, settings: RotarySettings) -> tuple[ModelPatcher, str]:
    """A MODEL with rotary positions scaled, and what is changed."""
    from . import rotary_positions_comfy

    moved = rotary_positions_comfy.rotated(model, functools.partial(lowered, settings))
    return moved, describe_rotary(settings)


def _with_features(model: ModelPatcher, base: int, end_percent: float) -> tuple[ModelPatcher, str]:
    """A MODEL whose inner features have at most the size of ``base`` pixels at first, and what is
    changed.
    """
    from . import feature_downscale_comfy

    end = sigmas_of(model, 0, end_percent)[1]
    report = (
        f"Inner features at the size of {base} pixels per side for the first {100 * end_percent:g} "
        f"% of the model's own schedule (sigma {end:.4g} and more): divided by 1.5 at "
        f"{base * 3 // 2} pixels, by 2 at {base * 2}."
    )
    return feature_downscale_comfy.with_downscaled_features(model, base, end), report


def _base(model: ModelPatcher, width: int, height: int) -> tuple[int, int]:
    """The trained size, from the inputs or from what is known of the model."""
    known = noise_rescale_comfy.trained_size(model)
    if not (width or height or known):
        raise ValueError(
            f"It is not known at what size {name_of(model.model)} was trained: set base_width and "
            "base_height."
        )
    known_width = width or height or known or 0
    return known_width, height or known_width


NODES = [ResolutionNoiseRescale, PositionalResample]
