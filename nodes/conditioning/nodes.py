"""Size metadata on the canvas: what a model is told of a picture, when it acts, and how strongly it guides."""

from __future__ import annotations

from comfy_api.latest import io

from ..host import metadata as host_metadata
from ..host import metadata_gate, sampling
from ..host.figures import new_figure, to_image
from ..host.guiders import MetadataGuider as Guider
from ..host.sampling_range import sigmas_of
from ..host.schema import schema
from . import metadata, report
from .gates import CURVES
from .schedule import APPLIES, EMBEDDING, MODES, Schedule

CATEGORY = "glassbox/conditioning"
PAPER = "On Improved Conditioning Mechanisms and Pre-training Strategies for Diffusion Models (arXiv 2411.03177)"
_SIDE = 16384
_STEPS = 20

_FIELDS = io.Combo.Input(
    "fields", options=list(metadata.GROUPS),
    tooltip="Which metadata this acts on. The paper lets low-level metadata (size) act late, and crop, flip and "
    "aspect ratio from the start: its choice is the original size.",
)  # fmt: skip
_SIGMAS = io.Sigmas.Input(
    "sigmas", optional=True,
    tooltip=f"The steps to show, from a scheduler node. Without: {_STEPS} steps of the normal scheduler.",
)  # fmt: skip


def _side(name: str, tooltip: str):
    return io.Int.Input(name, default=0, min=0, max=_SIDE, tooltip=tooltip)


class MetadataConditioning(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_MetadataConditioning",
            display_name="Metadata Conditioning",
            category=CATEGORY,
            description=(
                "Tells the model, beside the text, what picture to imitate: its original size, crop, target size and "
                f"mirroring; refuses what this MODEL was not trained to be told. Control conditions of {PAPER}, first "
                "in SDXL (arXiv 2307.01952)."
            ),
            search_aliases=["improved conditioning", "size conditioning", "micro-conditioning", "sdxl size",
                            "crop conditioning"],
            inputs=[
                io.Model.Input("model", tooltip="The MODEL that will be sampled; it decides what can be told."),
                io.Conditioning.Input("conditioning", tooltip="An encoded prompt of that model."),
                _side("width", "Original width in pixels: how large the imitated picture was before it was scaled. "
                      "Small means blurred or full of artefacts. 0: the size of the picture to be made."),
                _side("height", "Original height in pixels. 0: the size of the picture to be made."),
                _side("crop_left", "Pixels cut off on the left of the imitated picture. 0: none."),
                _side("crop_top", "Pixels cut off at the top of the imitated picture. 0: none."),
                _side("target_width", "Width after scaling (SDXL, HunyuanDiT). 0: not said; ComfyUI then tells the "
                      "original width."),
                _side("target_height", "Height after scaling. 0: not said; ComfyUI then tells the original height."),
                io.Boolean.Input("mirror", default=False, tooltip="The imitated picture was mirrored. Only models "
                                 "trained to be told so take it, such as the demo model."),
            ],
            outputs=[
                io.Conditioning.Output(display_name="CONDITIONING", tooltip="The prompt with its metadata."),
                io.String.Output(display_name="report", tooltip="What the model will be told."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(cls, model, conditioning: list, **asked) -> io.NodeOutput:
        layout = host_metadata.layout_of(model)
        given = metadata.asked(**asked)
        metadata.check_known(given, layout.fields, layout.model)
        telling = host_metadata.tell(conditioning, given)
        told = metadata.described(host_metadata.said(layout, telling)) or "nothing but ComfyUI's defaults"
        return io.NodeOutput(telling, f"{layout.model} is told: {told}.")


class MetadataSchedule(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_MetadataSchedule",
            display_name="Metadata Schedule",
            category=CATEGORY,
            description=(
                "Lets size metadata act when it should: a cosine gate tells the model a neutral reference while the "
                "picture's content is decided, and the asked size only late, so that asking for another size changes "
                f"the content less. An adaptation of {PAPER} to models trained without the gate."
            ),
            search_aliases=["improved conditioning", "size conditioning schedule", "cosine gate",
                            "control conditioning", "timestep metadata"],
            inputs=[
                io.Model.Input("model", tooltip="A model that takes size metadata: SDXL, its refiner, PixArt-alpha, "
                               "HunyuanDiT up to 1.1, the demo model."),
                io.Combo.Input("curve", options=list(CURVES), tooltip="Shape of the gate over the timestep. Cosine "
                               "cos(πu/2)^exponent; raised cosine is the same with twice the exponent; warped cosine "
                               "opens earlier as the exponent grows; constant is the paper's baseline."),
                io.Float.Input("exponent", default=2.0, min=0.0, max=64.0, step=0.5, tooltip="How late the gate "
                               "opens. 0: always open, bit for bit stock. The paper's own value is not known to us; "
                               "cosine with 2 is half open in the middle, with 8 at a quarter."),
                _FIELDS,
                _side("reference_width", "What is told while the gate is closed. 0: the picture's own width."),
                _side("reference_height", "What is told while the gate is closed. 0: the picture's own height."),
                io.Combo.Input("mode", options=list(MODES), default=EMBEDDING, tooltip="Embedding moves the network's "
                               "embedding of the metadata (closest to the paper; not for PixArt and HunyuanDiT). "
                               "Value moves the numbers themselves, and reaches ControlNets too."),
                io.Combo.Input("apply_to", options=list(APPLIES), tooltip="Gate the metadata of both prompts, or of "
                               "one. With both, CFG does not amplify the size while the gate is closed."),
                _SIGMAS,
            ],
            outputs=[
                io.Model.Output(display_name="MODEL", tooltip="The model with the gate."),
                io.Image.Output(display_name="figure", tooltip="The gate, and where the steps stand on it."),
                io.String.Output(display_name="report", tooltip="The gate at each step."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(cls, model, sigmas=None, **settings) -> io.NodeOutput:
        schedule = Schedule(**settings)
        gated = metadata_gate.gated(model, schedule, inside=schedule.mode == EMBEDDING)
        steps, figure = _steps(model, sigmas), new_figure()
        report.draw_gate(figure, schedule, steps)
        return io.NodeOutput(gated, to_image(figure), report.describe_schedule(schedule, steps))


class MetadataReport(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_MetadataReport",
            display_name="Metadata Report",
            category=CATEGORY,
            description=(
                "What the model is told about size, crop, target and mirroring at each step, from the prompts and "
                f"every Metadata Schedule on the MODEL; as text and figure. For {PAPER}."
            ),
            search_aliases=["improved conditioning", "size conditioning", "inspect conditioning",
                            "what is the model told"],
            inputs=[
                io.Model.Input("model", tooltip="The MODEL as it goes into the sampler."),
                io.Conditioning.Input("positive", tooltip="The prompt as it goes into the sampler."),
                io.Latent.Input("latent_image", tooltip="The latent as it goes into the sampler: its size is told "
                                "where a prompt says none."),
                io.Conditioning.Input("negative", optional=True, tooltip="The negative prompt, if there is one."),
                _SIGMAS,
            ],
            outputs=[
                io.Image.Output(display_name="figure", tooltip="The told numbers and the gate over the steps."),
                io.String.Output(display_name="report", tooltip="The same in words."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(cls, model, positive: list, latent_image: dict, negative=None, sigmas=None) -> io.NodeOutput:
        layout, shape = host_metadata.layout_of(model), latent_image["samples"].shape
        prompts = []
        for role, conditioning in (("positive", positive), ("negative", negative or [])):
            for number, (_, entry) in enumerate(conditioning, 1):
                told = host_metadata.told(layout, {"prompt_type": role, **entry}, shape)
                between = sigmas_of(model, entry.get("start_percent", 0.0), entry.get("end_percent", 1.0))
                prompts.append(
                    report.Prompt(told.values, told.canvas, told.prompt, _name(role, number), told.unsaid, *between)
                )
        schedules, steps = metadata_gate.schedules_of(model), _steps(model, sigmas)
        figure = new_figure(900, 150 + 270 * len(prompts))
        report.draw_told(figure, prompts, schedules, steps)
        return io.NodeOutput(to_image(figure), report.describe_told(layout.model, prompts, schedules, steps))


class MetadataGuider(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_MetadataGuider",
            display_name="Metadata Guider",
            category=CATEGORY,
            description=(
                "Guidance with separate strengths for meaning and for metadata: λ(β e(text, asked) + (1 - β) e(text, "
                f"reference)) + (1 - λ) e(nothing, reference), as we recall it from {PAPER}. Two evaluations a step "
                "at β 0 or 1, three elsewhere."
            ),
            search_aliases=["improved conditioning", "dual cfg", "size guidance", "control guidance",
                            "separate guidance"],
            inputs=[
                io.Model.Input("model", tooltip="A model that takes size metadata."),
                io.Conditioning.Input("positive", tooltip="The prompt with the metadata asked for."),
                io.Conditioning.Input("negative", tooltip="What to steer away from; told the reference metadata."),
                io.Float.Input("cfg", default=7.0, min=0.0, max=100.0, step=0.1,
                               tooltip="λ: how strongly the text guides, as in KSampler."),
                io.Float.Input("metadata_strength", default=1.0, min=0.0, max=20.0, step=0.05, tooltip="β: how "
                               "strongly the metadata guides. 0: as if the reference were asked for. 1: as much as "
                               "the text. Above 1: exaggerated."),
                _FIELDS,
                _side("reference_width", "Width of the neutral picture. 0: the picture's own width."),
                _side("reference_height", "Height of the neutral picture. 0: the picture's own height."),
            ],
            outputs=[io.Guider.Output(display_name="GUIDER", tooltip="For SamplerCustomAdvanced.")],
        )  # fmt: skip

    @classmethod
    def execute(cls, model, positive, negative, cfg, metadata_strength, fields, reference_width, reference_height):
        layout = host_metadata.layout_of(model)
        acted = tuple(name for name in metadata.GROUPS[fields] if name in layout.fields)
        size = metadata.asked(reference_width, reference_height, 0, 0, 0, 0, False)
        guider = Guider(model)
        guider.set_conds(
            positive,
            host_metadata.tell(positive, size, forget=acted, prompt_type="positive"),
            host_metadata.tell(negative, size, forget=acted, prompt_type="negative"),
        )
        guider.set_strengths(cfg, metadata_strength)
        return io.NodeOutput(guider)


def _name(role: str, number: int) -> str:
    return role if number == 1 else f"{role}, part {number}"


def _steps(model, sigmas) -> list[report.Step]:
    """The noise levels of a sampling run, less the last one, at which nothing is evaluated."""
    sigmas = sampling.schedule_sigmas(model, "normal", _STEPS) if sigmas is None else sigmas
    table = model.get_model_object("model_sampling")
    return [report.Step(float(sigma), sampling.noise_fraction(table, float(sigma))) for sigma in sigmas[:-1]]
