"""Points of a space on the canvas: drawn, edited, mixed, swept, and found for a LoRA."""

from __future__ import annotations

from comfy_api.latest import io

from ...host import model_folders
from ...host.schema import schema
from ...host.sockets import LoraModel, W2WPoint, W2WSpace
from .. import directions, edits, lora_files, points, projection, sliders
from ..inputs import CATEGORY, KEEP, PAPER, POINT_TOOLTIP, SEED_MAX
from ..lora_files import NONE
from ..space import Point, Space

DRAWN, MEAN, MEMBER = KINDS = ("drawn", "the mean", "a member")
_COUNT_MAX = 256
_POINTS = "A list: what follows runs once for each, and Rebatch Images puts the pictures together."


class W2WSample(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WSample",
            display_name="W2W Sample",
            category=CATEGORY,
            description=f"Draws new models from a space: each coefficient from the normal distribution of the "
            f"members'. {PAPER}, section 3.2.",
            search_aliases=["weight space", "weights2weights", "random identity", "sample a lora"],
            inputs=[
                W2WSpace.Input("space", tooltip="Space to draw from."),
                io.Int.Input("seed", default=0, min=0, max=SEED_MAX, control_after_generate=True,
                             tooltip="Seed of this node's own draws. The first model of a seed has the coefficients of "
                             "the official code for it."),
                io.Int.Input("count", default=1, min=1, max=_COUNT_MAX, tooltip="How many models to draw, as a list."),
                io.Int.Input("components", default=1000, min=1, max=100_000,
                             tooltip="How many first coefficients to draw (paper: 1,000); the rest stay 0."),
                io.Float.Input("spread", default=1.0, min=0.0, max=10.0, step=0.05,
                               tooltip="Factor of the standard deviations: below 1 nearer to the mean, above 1 more "
                               "diverse."),
                io.Combo.Input("what", options=list(KINDS),
                               tooltip="A drawn model, the space's mean (0 everywhere), or the member named below."),
                io.String.Input("member", default="", tooltip="For 'a member': its name, as the space has it."),
            ],
            outputs=[
                W2WPoint.Output(display_name="point", is_output_list=True, tooltip=_POINTS),
                io.String.Output(display_name="name", is_output_list=True, tooltip="What each point is."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(cls, space: Space, seed, count, components, spread, what, member) -> io.NodeOutput:
        if what == MEMBER:
            drawn = [points.member(space, member.strip())]
        elif what == MEAN:
            drawn = [Point(space, space.padded(space.coefficients[0, :0]), "mean")]
        else:
            drawn = points.sample(space, seed, count, components, spread)
        return io.NodeOutput(drawn, [point.name for point in drawn])


class W2WEdit(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WEdit",
            display_name="W2W Edit",
            category=CATEGORY,
            description=f"Moves a model along directions of its space, any number at once. {PAPER}, section 3.3. Edits "
            "add up before the weights are rebuilt, so two nodes give what one gives.",
            search_aliases=["weight space", "weights2weights", "slider", "attribute edit"],
            inputs=[
                W2WPoint.Input("point", tooltip=POINT_TOOLTIP),
                io.String.Input("edits", default="", multiline=True,
                                tooltip=f"Names and strengths: {edits.EXAMPLE}. Negative is the other way; 1 is as far "
                                "as the member furthest out. Unknown names are answered with those there are."),
                io.String.Input(**KEEP),
                io.Combo.Input("units", options=list(edits.UNITS),
                               tooltip="A strength of 1 is the largest projection of a member onto the direction, as "
                               "in the paper. raw: the vector as fitted; the official notebooks use 500000 and more."),
                io.Combo.Input("debiasing", options=list(directions.DEBIASING),
                               tooltip="How keep works: exactly orthogonal to all, or one after another as in the "
                               "official code, which leaves only the last exact."),
            ],
            outputs=[W2WPoint.Output(display_name="point", tooltip="The edited model."),
                     io.String.Output(display_name="name", tooltip="What was done, in words.")],
        )  # fmt: skip

    @classmethod
    def execute(cls, point: Point, **given) -> io.NodeOutput:
        edited = edits.edit(point, given["edits"], given["keep"], given["units"], given["debiasing"])
        return io.NodeOutput(edited, edited.name, ui={"glassbox_space": [sliders.outline(point.space)]})


class W2WMix(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WMix",
            display_name="W2W Mix",
            category=CATEGORY,
            description=f"Models between two models of a space: a straight line of coefficients. {PAPER}: two "
            "identities of one space do not merge, they interpolate (appendix H).",
            search_aliases=["weight space", "weights2weights", "interpolate", "morph"],
            inputs=[
                W2WPoint.Input("first", tooltip="Share 0."),
                W2WPoint.Input("second", tooltip="Share 1. Of the same space."),
                io.Float.Input("start", default=0.5, min=-3.0, max=4.0, step=0.05,
                               tooltip="Share of the second in the first point of the list; beyond 0 to 1 goes on."),
                io.Float.Input("end", default=1.0, min=-3.0, max=4.0, step=0.05,
                               tooltip="Share of the second in the last point of the list."),
                io.Int.Input("steps", default=1, min=1, max=_COUNT_MAX, tooltip="How many points; 1 takes start."),
            ],
            outputs=[W2WPoint.Output(display_name="point", is_output_list=True, tooltip=_POINTS)],
        )  # fmt: skip

    @classmethod
    def execute(cls, first: Point, second: Point, start: float, end: float, steps: int) -> io.NodeOutput:
        return io.NodeOutput(points.mix(first, second, start, end, steps))


class W2WSweep(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WSweep",
            display_name="W2W Sweep",
            category=CATEGORY,
            description=f"A row of models along a direction or principal component, or a grid along two. {PAPER}.",
            search_aliases=["weight space", "weights2weights", "grid", "xy plot", "principal component"],
            inputs=[
                W2WPoint.Input("point", tooltip=POINT_TOOLTIP),
                io.String.Input("across", default="PC 1",
                                tooltip="Direction along a row: one of the space's (1 is the member furthest out), or "
                                "PC and a number (1 is a standard deviation)."),
                io.String.Input("down", default="", tooltip="Direction along a column; empty for a single row."),
                io.Float.Input("low", default=-1.0, min=-100.0, max=100.0, step=0.1, tooltip="First strength."),
                io.Float.Input("high", default=1.0, min=-100.0, max=100.0, step=0.1, tooltip="Last strength."),
                io.Int.Input("steps", default=5, min=1, max=64, tooltip="Strengths in a row, and in a column."),
                io.String.Input(**KEEP),
            ],
            outputs=[
                W2WPoint.Output(display_name="point", is_output_list=True, tooltip=f"Row by row. {_POINTS}"),
                io.String.Output(display_name="label", is_output_list=True, tooltip="The strengths of each."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(cls, point: Point, across, down, low, high, steps, keep) -> io.NodeOutput:
        width = (high - low) / max(steps - 1, 1)
        values = [low + number * width for number in range(steps)]
        return io.NodeOutput(*points.sweep(point, across.strip(), down.strip(), values, edits.names(keep)))


class W2WProjectLoRA(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WProjectLoRA",
            display_name="W2W Project LoRA",
            category=CATEGORY,
            description=f"The model of a space that is nearest to any LoRA, and how much of the LoRA the space can "
            f"hold. {PAPER}; other ranks and trainers by singular values as in ImageGem (arXiv 2510.18433).",
            search_aliases=["weight space", "weights2weights", "lora to point", "encode lora"],
            inputs=[
                W2WSpace.Input("space", tooltip="Space to project into."),
                io.Combo.Input("lora_name", options=[NONE, *model_folders.lora_names()],
                               tooltip="A file of models/loras, for the same base model as the space."),
                io.Int.Input("components", default=1000, min=1, max=100_000,
                             tooltip="How many first coefficients to take; the rest are 0."),
                LoraModel.Input("lora", optional=True, tooltip="A LoRA from a wire, instead of a file."),
            ],
            outputs=[W2WPoint.Output(display_name="point", tooltip="The nearest model of the space."),
                     io.String.Output(display_name="report", tooltip="What is kept, what is lost, who is near.")],
        )  # fmt: skip

    @classmethod
    def fingerprint_inputs(cls, lora_name: str | None, **_) -> str:
        """Changes with the file."""
        return model_folders.lora_stamp(lora_name)

    @classmethod
    def execute(cls, space: Space, lora_name: str, components: int, lora=None) -> io.NodeOutput:
        found, name = lora_files.chosen(lora_name, lora, model_folders.lora_path)
        return io.NodeOutput(*projection.project(space, found, components, name))
