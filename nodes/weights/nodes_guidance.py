"""Identity guidance (``identity_guidance.py``) as a MODEL and as a GUIDER."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comfy_api.latest import io

from ..host.schema import float_input, schema
from ..host.sockets import W2WPoint
from .point_inputs import CATEGORY, END, PAPER
from .space import Point

if TYPE_CHECKING:
    from ..host.socket_types import ModelPatcher

_STRENGTH = {"default": 1.0, "min": -10.0, "max": 10.0, "step": 0.05}
_INPUTS = (
    W2WPoint.Input(
        "point", tooltip="The identity, from W2W Sample, W2W Invert or another W2W node."
    ),
    io.Float.Input(
        "identity_strength",
        **_STRENGTH,
        tooltip=(
            "Strength of the identity. 0: off. 1: the point's own weights. Other values need one "
            "more model evaluation per step."
        ),
    ),
    io.Float.Input(
        "edit_strength",
        **_STRENGTH,
        tooltip=(
            "Strength of the edit from point to edited_point. With both strengths at 1 a step "
            "costs as much as plain CFG. Without edited_point it has no effect."
        ),
    ),
)
_EDITED = W2WPoint.Input("edited_point", optional=True, tooltip="The same point after W2W Edit.")
_END = io.Float.Input(
    **END
    | {
        "optional": True,
        "tooltip": (
            "End of the guidance; after it the point acts on both sides of CFG, as in W2W Apply. "
            "0.6 gives more natural colors, and eyes and mouths that follow the prompt, for the "
            "same identity on the demo model."
        ),
    }
)
_REPORT = io.String.Output(
    display_name="report",
    tooltip="Terms of the guidance, evaluations per step, and layers missing from the model.",
)


class W2WGuidance(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WGuidance",
            display_name="W2W Identity Guidance",
            category=CATEGORY,
            description=(
                "Applies a point to the positive side of CFG only, so CFG amplifies the identity "
                f"and the edit. {PAPER}; the guidance is this pack's addition. Strengths 0 return "
                "the model unchanged."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "guidance",
                "identity strength",
                "edit guidance",
            ],
            inputs=[
                io.Model.Input("model", tooltip="The base model of the space."),
                *_INPUTS,
                _EDITED,
                _END,
            ],
            outputs=[
                io.Model.Output(
                    display_name="model", tooltip="For any sampler or guider; set cfg there."
                ),
                _REPORT,
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        point: Point,
        identity_strength: float,
        edit_strength: float,
        edited_point: Point | None = None,
        end_percent: float = 1.0,
    ) -> io.NodeOutput:
        from .weight_guidance_comfy import guided

        return io.NodeOutput(
            *guided(
                model,
                point,
                edited_point=edited_point,
                identity_strength=identity_strength,
                edit_strength=edit_strength,
                end_percent=end_percent,
            )
        )


class W2WGuider(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WGuider",
            display_name="W2W Guider",
            category=CATEGORY,
            description=(
                "CFG guider with a point on the positive side only: strengths of prompt, "
                f"identity and edit in one node, for SamplerCustomAdvanced. {PAPER}; the "
                "guidance is this pack's addition."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "guider",
                "identity strength",
                "edit guidance",
            ],
            inputs=[
                io.Model.Input("model", tooltip="The base model of the space."),
                io.Conditioning.Input(
                    "positive", tooltip="The prompt, without a description of the identity."
                ),
                io.Conditioning.Input("negative", tooltip="The negative prompt."),
                float_input("cfg", 3.0, (0.0, 100.0, 0.1), "Guidance scale of the positive side."),
                *_INPUTS,
                _EDITED,
                _END,
            ],
            outputs=[
                io.Guider.Output(display_name="guider", tooltip="For SamplerCustomAdvanced."),
                _REPORT,
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
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

        patched, report = weight_guidance_comfy.guided(
            model,
            point,
            edited_point=edited_point,
            identity_strength=identity_strength,
            edit_strength=edit_strength,
            end_percent=end_percent,
        )
        return io.NodeOutput(weight_guidance_comfy.guider(patched, positive, negative, cfg), report)


NODES = [W2WGuidance, W2WGuider]
