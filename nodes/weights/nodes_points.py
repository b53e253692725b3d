"""Nodes for points of a space: sampling, editing, mixing, sweeping, and projecting a LoRA."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from comfy_api.latest import io

from ..common import lora_reader, named_strengths
from ..common.lora_reader import NONE
from ..host import folders
from ..host.schema import LoraModel, W2WPoint, W2WSpace, float_input, int_input, schema, seed
from . import directions
from .point_inputs import CATEGORY, COMPONENTS_MAX, PAPER, POINT_TOOLTIP, PRESERVED
from .space import Point, Space

_COUNT_MAX = 256
_POINTS = "A list: the nodes that follow run once for each point. Rebatch Images makes one batch of the images."


class PointSource(StrEnum):
    """Which points W2W Sample gives."""

    RANDOM = "random"
    MEAN = "mean"
    MEMBER = "member"
    MEMBERS = "members"
    NEAR_MEMBERS = "near_members"


class W2WSample(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WSample",
            display_name="W2W Sample",
            category=CATEGORY,
            description="Samples new points of a space: each coefficient from a normal distribution with the members' "
            f"mean and deviation. {PAPER}, section 3.2.",
            search_aliases=["weight space", "weights2weights", "random identity", "sample a lora", "new person"],
            inputs=[
                W2WSpace.Input("space", tooltip="Space to sample from."),
                seed(
                    "Seed of the sampled coefficients. The first point of a seed has the coefficients that the "
                    "official code samples with it."
                ),
                int_input(
                    "count",
                    1,
                    (1, _COUNT_MAX),
                    "Number of points, returned as a list, for random, members and near_members.",
                ),
                int_input(
                    "components",
                    1000,
                    (1, COMPONENTS_MAX),
                    "Number of first coefficients to sample (paper: 1,000); the others are 0.",
                ),
                float_input(
                    "spread",
                    1.0,
                    (0.0, 10.0, 0.05),
                    "Factor of the standard deviations. Below 1: nearer to the mean, or with near_members to the "
                    "member; above 1: more diverse.",
                ),
                io.Combo.Input(
                    "source",
                    options=list(PointSource),
                    tooltip="random: sampled points. mean: the mean of the members. member: the member of member_name. "
                    "members: count members drawn at random, for W2W Label Members. near_members: random members, each "
                    "moved by half a standard deviation; less new than random, and more consistent.",
                ),
                io.String.Input("member_name", default="", tooltip="Name of the member, for the source member."),
            ],
            outputs=[
                W2WPoint.Output(display_name="point", is_output_list=True, tooltip=_POINTS),
                io.String.Output(display_name="name", is_output_list=True, tooltip="Name of each point."),
                io.String.Output(
                    display_name="label",
                    is_output_list=True,
                    tooltip="Name and nearest members of each point, for Labeled Sheet.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls, space: Space, seed: int, count: int, components: int, spread: float, source: str, member_name: str
    ) -> io.NodeOutput:
        from . import points, projection

        if source == PointSource.MEMBER:
            sampled = [points.member_point(space, member_name.strip())]
        elif source == PointSource.MEMBERS:
            sampled = points.random_members(space, seed, count)
        elif source == PointSource.NEAR_MEMBERS:
            sampled = points.near_members(space, seed, count, components, spread)
        elif source == PointSource.MEAN:
            sampled = [Point(space, space.pad(space.coefficients[0, :0]), "mean")]
        else:
            sampled = points.sample(space, seed, count, components, spread)
        labels = [projection.label_point(point) for point in sampled]
        return io.NodeOutput(sampled, [point.name for point in sampled], labels)


class W2WEdit(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WEdit",
            display_name="W2W Edit (Identity Sliders)",
            category=CATEGORY,
            description=f"Moves a point along attribute directions of its space, any number at once. {PAPER}, section "
            "3.3. Edits add up before the weights are rebuilt, so two nodes give the same as one.",
            search_aliases=["weight space", "weights2weights", "slider", "attribute edit", "age beard glasses"],
            inputs=[
                W2WPoint.Input("point", tooltip=POINT_TOOLTIP),
                io.String.Input(
                    "edits",
                    default="",
                    multiline=True,
                    tooltip=f"Names and strengths: {named_strengths.EXAMPLE}. Begin with 0.5: 1 is as strong as the "
                    "member furthest out, such as the one with the most beard; negative strengths reverse the "
                    "direction. PC 1 is the first principal component.",
                ),
                io.String.Input(**PRESERVED),
                io.Combo.Input(
                    "units",
                    options=list(directions.Units),
                    tooltip="max_projection: a strength of 1 is the largest projection of a member onto the "
                    "direction, as in the paper. raw: the vector as fitted; the official notebooks use 500000 and "
                    "more.",
                ),
                io.Combo.Input(
                    "debiasing",
                    options=list(directions.Debiasing),
                    tooltip="joint: edits are exactly orthogonal to all preserved directions. sequential: to one after "
                    "another, as in the official code; only the last is exact.",
                ),
            ],
            outputs=[
                W2WPoint.Output(display_name="point", tooltip="The edited point."),
                io.String.Output(display_name="name", tooltip="The point's name with its edits."),
            ],
        )

    @classmethod
    def execute(cls, point: Point, edits: str, preserved_directions: str, units: str, debiasing: str) -> io.NodeOutput:
        from . import edit_text

        edited = edit_text.edit(point, edits, preserved_directions, units, debiasing)
        return io.NodeOutput(edited, edited.name, ui={"glassbox_space": [directions.slider_ranges(point.space)]})


class W2WMix(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WMix",
            display_name="W2W Mix",
            category=CATEGORY,
            description=f"Interpolates between two points of a space: a straight line of coefficients. {PAPER}: two "
            "identities of one space do not merge, they interpolate (appendix H).",
            search_aliases=["weight space", "weights2weights", "interpolate", "morph", "blend two people"],
            inputs=[
                W2WPoint.Input("first_point", tooltip="First endpoint (fraction 0)."),
                W2WPoint.Input("second_point", tooltip="Second endpoint (fraction 1), of the same space."),
                float_input(
                    "start_fraction",
                    0.5,
                    (-3.0, 4.0, 0.05),
                    "Position of the first point of the list on the line; values outside 0 to 1 extrapolate.",
                ),
                float_input(
                    "end_fraction", 1.0, (-3.0, 4.0, 0.05), "Position of the last point of the list on the line."
                ),
                int_input("count", 1, (1, _COUNT_MAX), "Number of points; 1 uses start_fraction."),
            ],
            outputs=[
                W2WPoint.Output(display_name="point", is_output_list=True, tooltip=_POINTS),
                io.String.Output(display_name="label", is_output_list=True, tooltip="Name of each point."),
            ],
        )

    @classmethod
    def execute(
        cls, first_point: Point, second_point: Point, start_fraction: float, end_fraction: float, count: int
    ) -> io.NodeOutput:
        from . import points

        mixed = points.mix(first_point, second_point, start_fraction, end_fraction, count)
        return io.NodeOutput(mixed, [point.name for point in mixed])


class W2WSweep(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WSweep",
            display_name="W2W Sweep",
            category=CATEGORY,
            description=f"A row of points along a direction or principal component, or a grid along two. {PAPER}.",
            search_aliases=["weight space", "weights2weights", "grid", "xy plot", "principal component"],
            inputs=[
                W2WPoint.Input("point", tooltip=POINT_TOOLTIP),
                io.String.Input(
                    "direction",
                    default="PC 1",
                    tooltip="Direction along a row: one of the space (strength 1 is the largest projection of a "
                    "member), or PC and a number (strength 1 is a standard deviation).",
                ),
                io.String.Input("second_direction", default="", tooltip="Direction along a column; empty for one row."),
                float_input("min_strength", -1.0, (-100.0, 100.0, 0.1), "First strength."),
                float_input("max_strength", 1.0, (-100.0, 100.0, 0.1), "Last strength."),
                int_input("count", 5, (1, 64), "Number of strengths in a row, and in a column."),
                io.String.Input(**PRESERVED),
            ],
            outputs=[
                W2WPoint.Output(display_name="point", is_output_list=True, tooltip=f"Row by row. {_POINTS}"),
                io.String.Output(
                    display_name="label", is_output_list=True, tooltip="Directions and strengths of each point."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        point: Point,
        direction: str,
        second_direction: str,
        min_strength: float,
        max_strength: float,
        count: int,
        preserved_directions: str,
    ) -> io.NodeOutput:
        from . import points

        width = (max_strength - min_strength) / max(count - 1, 1)
        values = [min_strength + number * width for number in range(count)]
        preserved = named_strengths.parse_names(preserved_directions)
        return io.NodeOutput(*points.sweep(point, direction.strip(), second_direction.strip(), values, preserved))


class W2WProjectLoRA(io.ComfyNode):
    READS: ClassVar = {"lora_name": folders.lora_stamp}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WProjectLoRA",
            display_name="W2W Project LoRA",
            category=CATEGORY,
            description="Projects a LoRA into a space: the nearest point, and how much of the LoRA is lost. "
            f"{PAPER}; other ranks and trainers by singular values as in ImageGem (arXiv 2510.18433).",
            search_aliases=["weight space", "weights2weights", "lora to point", "encode lora", "lora coefficients"],
            inputs=[
                W2WSpace.Input("space", tooltip="Space to project into."),
                io.Combo.Input(
                    "lora_name",
                    options=[NONE, *folders.lora_names()],
                    tooltip="File in models/loras, for the base model of the space.",
                ),
                int_input(
                    "components", 1000, (1, COMPONENTS_MAX), "Number of first coefficients to use; the others are 0."
                ),
                LoraModel.Input("lora", optional=True, tooltip="LoRA from another node, used instead of a file."),
            ],
            outputs=[
                W2WPoint.Output(display_name="point", tooltip="The nearest point of the space."),
                io.String.Output(display_name="report", tooltip="What is kept, what is lost, and the nearest members."),
            ],
        )

    @classmethod
    def execute(cls, space: Space, lora_name: str, components: int, lora=None) -> io.NodeOutput:
        from ..host.adapter_updates import ComfyAdapters
        from . import projection

        found, name = lora_reader.resolve_lora(lora_name, lora, folders.lora_path, ComfyAdapters())
        return io.NodeOutput(*projection.project(space, found, components, name))


NODES = [W2WSample, W2WEdit, W2WMix, W2WSweep, W2WProjectLoRA]
