"""Identity guidance: a point and an edit on the positive side of CFG only, as a MODEL and as a GUIDER.

With a LoRA on both sides, CFG amplifies the prompt by its scale w and the identity by 1. Here the negative side keeps
the base model, and the positive side is

    e_base + s_identity (e_point - e_base) + s_edit (e_edited - e_point),

so that CFG amplifies the identity by w s_identity and the edit by w s_edit. Both strengths at 0 are the base model's
CFG; both at 1 evaluate the edited point against the base model, at the cost of plain CFG. CFG amplifies an identity in
the late steps too, where colors saturate; it may end before (a limited interval, arXiv 2404.07724).
"""

from __future__ import annotations

from comfy_api.latest import io

from ..host.schema import W2WPoint, schema
from .point_inputs import CATEGORY, END, PAPER
from .points import check_same_space
from .space import Point

_STRENGTH = {"default": 1.0, "min": -10.0, "max": 10.0, "step": 0.05}
_INPUTS = (
    W2WPoint.Input("point", tooltip="The identity, from W2W Sample, W2W Invert or another W2W node."),
    io.Float.Input(
        "identity_strength",
        **_STRENGTH,
        tooltip="Strength of the identity. 0 leaves it out, 1 uses the point's weights; other values cost one more "
        "evaluation per step.",
    ),
    io.Float.Input(
        "edit_strength",
        **_STRENGTH,
        tooltip="Strength of the edit from point to edited_point. With both strengths at 1 a step costs as much as "
        "plain CFG. Without edited_point it has no effect.",
    ),
)
_EDITED = W2WPoint.Input("edited_point", optional=True, tooltip="The same point after W2W Edit.")
_END = io.Float.Input(
    **END
    | {
        "optional": True,
        "tooltip": "End of the guidance. After it the positive side counts alone, as at cfg 1, in one evaluation fewer "
        "per step. 0.6 gives more natural colors for the same identity on the demo model.",
    }
)
_REPORT = io.String.Output(display_name="report", tooltip="Terms of the guidance and evaluations per step.")


class W2WGuidance(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WGuidance",
            display_name="W2W Identity Guidance",
            category=CATEGORY,
            description="Applies a point to the positive side of CFG only, so that CFG amplifies the identity and the "
            f"edit. {PAPER}; the guidance is this pack's addition. Strengths 0 with end_percent 1 "
            "return the model unchanged.",
            search_aliases=["weight space", "weights2weights", "guidance", "identity strength", "edit guidance"],
            inputs=[io.Model.Input("model", tooltip="The base model of the space."), *_INPUTS, _EDITED, _END],
            outputs=[
                io.Model.Output(display_name="model", tooltip="For any sampler or guider, with its own cfg."),
                _REPORT,
            ],
        )

    @classmethod
    def execute(
        cls,
        model,
        point: Point,
        identity_strength: float,
        edit_strength: float,
        edited_point: Point | None = None,
        end_percent: float = 1.0,
    ) -> io.NodeOutput:
        return io.NodeOutput(*guided(model, point, edited_point, identity_strength, edit_strength, end_percent))


class W2WGuider(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WGuider",
            display_name="W2W Guider",
            category=CATEGORY,
            description="A CFG guider with a point on the positive side only: strengths of prompt, identity and edit "
            f"in one node, for SamplerCustomAdvanced. {PAPER}; the guidance is this pack's addition.",
            search_aliases=["weight space", "weights2weights", "guider", "identity strength", "edit guidance"],
            inputs=[
                io.Model.Input("model", tooltip="The base model of the space."),
                io.Conditioning.Input("positive", tooltip="The prompt, without a description of the identity."),
                io.Conditioning.Input("negative", tooltip="The negative prompt."),
                io.Float.Input(
                    "cfg",
                    default=3.0,
                    min=0.0,
                    max=100.0,
                    step=0.1,
                    tooltip="Guidance scale of the positive side.",
                ),
                *_INPUTS,
                _EDITED,
                _END,
            ],
            outputs=[io.Guider.Output(display_name="guider", tooltip="For SamplerCustomAdvanced."), _REPORT],
        )

    @classmethod
    def execute(
        cls,
        model,
        positive: list,
        negative: list,
        cfg: float,
        point: Point,
        identity_strength: float,
        edit_strength: float,
        edited_point: Point | None = None,
        end_percent: float = 1.0,
    ) -> io.NodeOutput:
        from . import weight_guidance_comfy

        patched, report = guided(model, point, edited_point, identity_strength, edit_strength, end_percent)
        return io.NodeOutput(weight_guidance_comfy.guider(patched, positive, negative, cfg), report)


def guided(
    model,
    point: Point,
    edited_point: Point | None,
    identity_strength: float,
    edit_strength: float,
    end_percent: float,
):
    """The MODEL with identity guidance, and a report."""
    from . import lora_writer, weight_guidance_comfy

    if edited_point is not None:
        check_same_space(point, edited_point)
    base, terms = guidance_terms(point, edited_point, identity_strength, edit_strength)
    variants = [(weight, lora_writer.to_tensors(one.layers())) for weight, one in terms]
    return weight_guidance_comfy.guide(model, base, variants, end_percent), describe(base, terms, end_percent)


def guidance_terms(
    point: Point, edited: Point | None, identity: float, edit: float
) -> tuple[float, list[tuple[float, Point]]]:
    """Weights of the predictions that the positive side adds up: of the base model, and of each point.

    They add up to 1; without an edited point only the identity strength counts. Points of weight 0 are left out.
    """
    terms = [(identity, point)] if edited is None else [(identity - edit, point), (edit, edited)]
    return 1.0 - identity, [(weight, one) for weight, one in terms if weight]


def describe(base: float, terms: list[tuple[float, Point]], end_percent: float) -> str:
    """The predictions of the positive side with their weights, and the model evaluations of a step."""
    parts = [("base model", base)] if base or not terms else []
    parts += [(point.name, weight) for weight, point in terms]
    count = len(parts) + 1
    return (
        f"Positive side: {', '.join(f'{weight:+g} x {name}' for name, weight in parts)}. Negative side: base model. "
        f"{count} model evaluations per step and image (plain CFG: 2); one fewer at cfg 1, where the negative side is "
        "skipped." + ("" if end_percent >= 1 else f" After {end_percent:.0%} of sampling: as at cfg 1.")
    )


NODES = [W2WGuidance, W2WGuider]
