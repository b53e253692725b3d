"""Sampling at other sizes than the model was trained at: noise and positions."""

from __future__ import annotations

import functools

from comfy_api.latest import io

from ...host import latents, sampling
from ...host import positions as host_positions
from ...host.figures import new_figure, to_image
from ...host.schema import schema
from . import noise, positions, resample

CATEGORY = "glassbox/conditioning"
PAPER = "On Improved Conditioning Mechanisms and Pre-training Strategies for Diffusion Models (arXiv 2411.03177)"
_SIDE = 16384
_STEPS = 20


class ResolutionNoiseRescale(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ResolutionNoiseRescale",
            display_name="Resolution Noise Rescale",
            category=CATEGORY,
            description=(
                "Makes the noise as strong as a picture of this size needs: sigma' = s sigma with s the linear ratio "
                f"of the sizes, for eps, v and EDM models; the same law as a shift for flow models and Flux. {PAPER}. "
                "Put it after other sampling patches and before the scheduler."
            ),
            search_aliases=["improved conditioning", "sigma rescale", "resolution shift", "ModelSampling", "SNR shift",
                            "noise schedule"],
            inputs=[
                io.Model.Input("model", tooltip="Any model that samples from noise. Sampling patches already on it "
                               "(zero terminal SNR, shift, another rescale) are kept."),
                io.Int.Input("width", default=1024, min=16, max=_SIDE, step=8,
                             tooltip="Width of the picture to be made, where no latent is linked."),
                io.Int.Input("height", default=1024, min=16, max=_SIDE, step=8,
                             tooltip="Height of the picture to be made, where no latent is linked."),
                io.Int.Input("base_width", default=0, min=0, max=_SIDE, step=8,
                             tooltip="Width the model was trained at. 0: what is known of this kind of model."),
                io.Int.Input("base_height", default=0, min=0, max=_SIDE, step=8,
                             tooltip="Height the model was trained at. 0: as the width."),
                io.Combo.Input("mode", options=list(sampling.MODES), tooltip="Sampler only: steps move, and the model "
                               "is told the true noise level; safe for any checkpoint. Retimed: the model is told the "
                               "level it was trained with at that place, as in the paper's fine-tuning; only for "
                               "models fine-tuned so."),
                io.Latent.Input("latent_image", optional=True,
                                tooltip="Takes the size from here instead of from width and height."),
            ],
            outputs=[
                io.Model.Output(display_name="MODEL", tooltip="The model with its noise schedule moved."),
                io.Float.Output(display_name="s", tooltip="The factor s on noise over signal."),
                io.Image.Output(display_name="figure", tooltip="Noise levels before and after."),
                io.String.Output(display_name="report", tooltip="The same in words."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(cls, model, width, height, base_width, base_height, mode, latent_image=None) -> io.NodeOutput:
        size = (width, height) if latent_image is None else latents.pixels(latent_image, model)
        base = _base(model, base_width, base_height)
        factor = noise.scale(*size, *base)
        moved = sampling.rescaled(model, factor, mode)
        before, after = (sampling.schedule_sigmas(m, "normal", _STEPS)[:-1].tolist() for m in (model, moved))
        figure = new_figure()
        noise.draw(figure, before, after, factor)
        ends = [sampling.sigma_range(m) for m in (model, moved)]
        return io.NodeOutput(moved, factor, to_image(figure), noise.describe(factor, size, base, mode, *ends))


class PositionalResample(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_PositionalResample",
            display_name="Positional Resample",
            category=CATEGORY,
            description=(
                "SD3 and SD3.5 beyond their size: positions are sampled more finely inside the trained range, instead "
                f"of stepping on past its edge. {PAPER}. Up to the base size nothing changes, bit for bit; the "
                "model's ControlNets follow."
            ),
            search_aliases=["improved conditioning", "position embedding", "SD3 high resolution",
                            "interpolate positions"],
            inputs=[
                io.Model.Input("model", tooltip="SD3 or SD3.5. Other families need none of this and are refused."),
                io.Int.Input("base_size", default=1024, min=64, max=_SIDE, step=16,
                             tooltip="Pixels a side up to which the positions are trusted; sides up to it keep the "
                             "stock positions."),
                io.Combo.Input("alignment", options=list(positions.ALIGNMENTS), tooltip="How the finer grid lies on "
                               "the trained one. Corners: i * base / count, as PixArt. Centres: tokens cover the same "
                               "area. Ends: first and last position are kept."),
            ],
            outputs=[
                io.Model.Output(display_name="MODEL", tooltip="The model with its positions resampled."),
                io.String.Output(display_name="report", tooltip="Positions trained, and at 1.5 and 2 times the size."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(cls, model, base_size: int, alignment: str) -> io.NodeOutput:
        settings = resample.Settings(base_size // 16, alignment)
        moved = host_positions.resampled(model, functools.partial(resample.embedding, settings))
        return io.NodeOutput(moved, resample.describe(settings, host_positions.stored_table(model)))


def _base(model, width: int, height: int) -> tuple[int, int]:
    """The trained size, from the inputs or from what is known of the model."""
    known = sampling.trained_size(model)
    if not (width or height or known):
        raise ValueError(
            f"It is not known at what size {type(model.model).__name__} was trained: give base_width and base_height."
        )
    width = width or height or known
    return width, height or width
