"""Size metadata on the canvas: what a model is conditioned on, when it acts, and how strongly it
guides.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ..host.evaluate import sigmas_of
from ..host.image_output import new_figure, to_image
from ..host.schema import CONDITIONING, float_input, int_input, schema
from . import noise_rescale_comfy, size_metadata
from .metadata_schedule import GateCurve, GateMode, GateSchedule, PromptRole
from .size_metadata import FieldGroup

if TYPE_CHECKING:
    import torch

    from ..host.socket_types import ModelPatcher

PAPER = (
    "On Improved Conditioning Mechanisms and Pre-training Strategies for Diffusion Models (arXiv "
    "2411.03177)"
)
_SIDE = 16384
_STEPS = 20

_FIELDS = io.Combo.Input(
    "fields",
    options=list(FieldGroup),
    tooltip=(
        "Metadata fields that the node acts on; the others stay as set. In the paper low-level "
        "metadata (size) acts late, while crop, flip and aspect ratio act from the start; "
        "original_size is the paper's choice."
    ),
)
_SIGMAS = io.Sigmas.Input(
    "sigmas",
    optional=True,
    tooltip=(
        f"Steps to show, from a scheduler node; default: {_STEPS} steps of the normal scheduler."
    ),
)


def _side(name: str, tooltip: str) -> io.Int.Input:
    return int_input(name, 0, (0, _SIDE), tooltip)


class MetadataConditioning(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_MetadataConditioning",
            display_name="Metadata Conditioning",
            category=CONDITIONING,
            description=(
                "Sets SDXL-style micro-conditioning: original size, crop, target size and "
                "mirroring; fields without an input in this MODEL are refused. Control "
                f"conditions of {PAPER}, first in SDXL (arXiv 2307.01952)."
            ),
            search_aliases=[
                "improved conditioning",
                "size conditioning",
                "micro-conditioning",
                "sdxl size",
                "crop conditioning",
            ],
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip="The sampled MODEL; it determines the available fields.",
                ),
                io.Conditioning.Input("conditioning", tooltip="A prompt encoded for that model."),
                _side(
                    "original_width",
                    "Original width in pixels, before scaling. Small values mean blur or "
                    "artifacts. 0: the size of the generated image.",
                ),
                _side(
                    "original_height",
                    "Original height in pixels, before scaling. 0: the size of the generated "
                    "image.",
                ),
                _side("crop_left", "Pixels cropped on the left. 0: none."),
                _side("crop_top", "Pixels cropped at the top. 0: none."),
                _side(
                    "target_width",
                    "Width after scaling (SDXL, HunyuanDiT). 0: not set; ComfyUI then uses the "
                    "original width.",
                ),
                _side(
                    "target_height",
                    "Height after scaling. 0: not set; ComfyUI then uses the original height.",
                ),
                io.Boolean.Input(
                    "mirror",
                    default=False,
                    tooltip=(
                        "Mirrored image. Only for models trained with a flip flag, such as the "
                        "demo model."
                    ),
                ),
            ],
            outputs=[
                io.Conditioning.Output(
                    display_name="conditioning", tooltip="The prompt with its metadata."
                ),
                io.String.Output(display_name="report", tooltip="The metadata that is set."),
            ],
        )

    @classmethod
    def execute(cls, model: ModelPatcher, conditioning: list, **widgets: Any) -> io.NodeOutput:
        from . import size_metadata_comfy

        layout = size_metadata_comfy.layout_of(model)
        entries = size_metadata.metadata_entries(**widgets)
        size_metadata.check_fields(entries, layout.fields, layout.model)
        conditioned = size_metadata_comfy.write_metadata(conditioning, entries)
        explicit = size_metadata_comfy.explicit_fields(layout, conditioned)
        values = size_metadata.format_metadata(explicit) or "ComfyUI's defaults"
        remark = size_metadata.crop_remark(entries)
        report = f"{layout.model} is conditioned on: {values}. {remark}".strip()
        return io.NodeOutput(conditioned, report)


class MetadataSchedule(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_MetadataSchedule",
            display_name="Metadata Schedule",
            category=CONDITIONING,
            description=(
                "Schedules size conditioning over the timesteps: a cosine gate gives the model a "
                "neutral reference size while the content forms, and the requested size only "
                f"late, so changing the size changes the content less. An adaptation of {PAPER} "
                "to models trained without the gate."
            ),
            search_aliases=[
                "improved conditioning",
                "size conditioning schedule",
                "cosine gate",
                "control conditioning",
                "timestep metadata",
            ],
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip=(
                        "A model that takes size metadata: SDXL, its refiner, PixArt-alpha, "
                        "HunyuanDiT up to 1.1, the demo model."
                    ),
                ),
                io.Combo.Input(
                    "curve",
                    options=list(GateCurve),
                    tooltip=(
                        "Shape of the gate over the timestep. cosine: cos(πu/2)^exponent. "
                        "raised_cosine: the same with twice the exponent. warped_cosine: opens "
                        "earlier for larger exponents. constant: always open, the paper's "
                        "baseline."
                    ),
                ),
                float_input(
                    "exponent",
                    2.0,
                    (0.0, 64.0, 0.5),
                    "How late the gate opens. 0: disables the schedule (identical to the stock "
                    "model). cosine with 2 is half open at the middle timestep, with 8 at a "
                    "quarter.",
                ),
                _FIELDS,
                _side(
                    "reference_width",
                    "Reference width while the gate is closed. 0: the image's width.",
                ),
                _side(
                    "reference_height",
                    "Reference height while the gate is closed. 0: the image's height.",
                ),
                io.Combo.Input(
                    "mode",
                    options=list(GateMode),
                    default=GateMode.EMBEDDING,
                    tooltip=(
                        "embedding: interpolates the network's embedding of the metadata "
                        "(closest to the paper; not for PixArt and HunyuanDiT); n schedules of "
                        "this mode encode up to 2^n - 1 references in each evaluation. value: "
                        "interpolates the numbers themselves, which also reach ControlNets."
                    ),
                ),
                io.Combo.Input(
                    "apply_to",
                    options=list(PromptRole),
                    tooltip=(
                        "Gate the metadata of both prompts, or of one. With both, CFG does not "
                        "amplify the size while the gate is closed."
                    ),
                ),
                _SIGMAS,
            ],
            outputs=[
                io.Model.Output(display_name="model", tooltip="The model with the gate."),
                io.Image.Output(
                    display_name="figure",
                    tooltip=("The gate's settings and its value at each step."),
                ),
                io.String.Output(display_name="report", tooltip="The gate at each step."),
            ],
        )

    @classmethod
    def execute(
        cls, model: ModelPatcher, sigmas: torch.Tensor | None = None, **settings: Any
    ) -> io.NodeOutput:
        from . import metadata_report, metadata_schedule_comfy

        schedule = GateSchedule(**settings)
        gated = metadata_schedule_comfy.gated(
            model, schedule, inside=schedule.mode == GateMode.EMBEDDING
        )
        steps = _steps(model, sigmas)
        figure = new_figure()
        metadata_report.draw_gate(figure, schedule, steps)
        return io.NodeOutput(
            gated, to_image(figure), metadata_report.describe_schedule(schedule, steps)
        )


class MetadataReport(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_MetadataReport",
            display_name="Metadata Report",
            category=f"{CONDITIONING}/Research",
            description=(
                "Shows the size, crop, target size and mirroring the model receives at each "
                f"step, from the prompts and every Metadata Schedule on the MODEL. For {PAPER}."
            ),
            search_aliases=[
                "improved conditioning",
                "size conditioning",
                "inspect conditioning",
                "show size metadata",
                "width height crop",
            ],
            inputs=[
                io.Model.Input("model", tooltip="The sampler's MODEL input."),
                io.Conditioning.Input("positive", tooltip="The sampler's positive prompt."),
                io.Latent.Input(
                    "latent",
                    tooltip=("The sampler's latent: its size is the default of a prompt."),
                ),
                io.Conditioning.Input(
                    "negative", optional=True, tooltip="The sampler's negative prompt, if any."
                ),
                _SIGMAS,
            ],
            outputs=[
                io.Image.Output(display_name="figure", tooltip="Metadata and gate over the steps."),
                io.String.Output(display_name="report", tooltip="The same as text."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        positive: list,
        latent: dict,
        negative: list | None = None,
        sigmas: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        from . import metadata_report, metadata_schedule_comfy, size_metadata_comfy

        layout = size_metadata_comfy.layout_of(model)
        shape = latent["samples"].shape
        prompts = []
        for role, conditioning in (("positive", positive), ("negative", negative or [])):
            for number, (_, entry) in enumerate(conditioning, 1):
                metadata = size_metadata_comfy.read_metadata(
                    layout, {"prompt_type": role, **entry}, shape
                )
                name = role if number == 1 else f"{role}, part {number}"
                first, last = sigmas_of(
                    model, entry.get("start_percent", 0.0), entry.get("end_percent", 1.0)
                )
                prompts.append(
                    metadata_report.PromptMetadata(
                        values=metadata.values,
                        canvas=metadata.canvas,
                        role=metadata.prompt,
                        name=name,
                        implicit=metadata.implicit,
                        explicit=metadata.explicit,
                        first=first,
                        last=last,
                    )
                )
        schedules = metadata_schedule_comfy.schedules_of(model)
        steps = _steps(model, sigmas)
        figure = new_figure(900, 150 + 270 * len(prompts))
        metadata_report.draw_conditioning(figure, prompts, schedules, steps)
        report = metadata_report.describe_conditioning(layout.model, prompts, schedules, steps)
        return io.NodeOutput(to_image(figure), report)


class MetadataGuider(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_MetadataGuider",
            display_name="Metadata Guider",
            category=CONDITIONING,
            description=(
                "Guidance with separate strengths for text and for size metadata: λ(β e(text, "
                "metadata) + (1 - β) e(text, reference)) + (1 - λ) e(negative, reference). Two "
                f"evaluations per step at β 0 or 1, three elsewhere. {PAPER}."
            ),
            search_aliases=[
                "improved conditioning",
                "dual cfg",
                "size guidance",
                "control guidance",
                "separate guidance",
            ],
            inputs=[
                io.Model.Input("model", tooltip="A model that takes size metadata."),
                io.Conditioning.Input("positive", tooltip="The prompt with its metadata."),
                io.Conditioning.Input(
                    "negative",
                    tooltip="The negative prompt; its own metadata becomes the reference.",
                ),
                float_input(
                    "cfg",
                    7.0,
                    (0.0, 100.0, 0.1),
                    "λ: guidance scale of the text, as in KSampler.",
                ),
                float_input(
                    "metadata_strength",
                    1.0,
                    (0.0, 20.0, 0.05),
                    "β: guidance strength of the metadata. 0: the reference. 1: as strong as the "
                    "text. Above 1: exaggerated.",
                ),
                _FIELDS,
                _side("reference_width", "Reference width. 0: the image's width."),
                _side("reference_height", "Reference height. 0: the image's height."),
            ],
            outputs=[io.Guider.Output(display_name="guider", tooltip="For SamplerCustomAdvanced.")],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        positive: list,
        negative: list,
        cfg: float,
        metadata_strength: float,
        fields: str,
        reference_width: int,
        reference_height: int,
    ):
        from . import size_metadata_comfy

        layout = size_metadata_comfy.layout_of(model)
        names = tuple(name for name in FieldGroup(fields).names if name in layout.fields)
        reference = size_metadata.metadata_entries(reference_width, reference_height)
        guider = size_metadata_comfy.MetadataGuider(model)
        guider.set_conds(
            positive,
            size_metadata_comfy.write_metadata(
                positive, reference, forget=names, prompt_type="positive"
            ),
            _with_reference(negative, reference, names),
        )
        guider.set_strengths(cfg, metadata_strength)
        return io.NodeOutput(guider)


def _with_reference(negative: list, reference: dict, fields: tuple[str, ...]) -> list:
    """A negative prompt whose own metadata becomes the reference; parts without such metadata stay
    as stock.
    """
    from . import size_metadata_comfy

    return [
        *itertools.chain.from_iterable(
            size_metadata_comfy.write_metadata(
                [part], reference, forget=fields, prompt_type="negative"
            )
            if any(name in part[1] for name in fields)
            else [part]
            for part in negative
        )
    ]


def _steps(model: ModelPatcher, sigmas: torch.Tensor | None) -> list:
    """The noise levels of a sampling run, less the last one, at which nothing is evaluated."""
    from . import metadata_report

    sigmas = (
        noise_rescale_comfy.schedule_sigmas(model, "normal", _STEPS) if sigmas is None else sigmas
    )
    table = model.get_model_object("model_sampling")
    return [
        metadata_report.Step(float(sigma), noise_rescale_comfy.noise_fraction(table, float(sigma)))
        for sigma in sigmas[:-1]
    ]


NODES = [MetadataConditioning, MetadataSchedule, MetadataReport, MetadataGuider]
