"""Nodes for points of a space: sampling, editing, mixing, sweeping, and projecting a LoRA."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from comfy_api.latest import io

from ..common import lora_reader, named_strengths
from ..common.lora_reader import NONE
from ..host import folders
from ..host.schema import float_input, int_input, schema, seed
from ..host.sockets import LoraModel, W2WPoint, W2WSpace
from . import directions
from .point_inputs import CATEGORY, COMPONENTS_MAX, PAPER, POINT_TOOLTIP, PRESERVED
from .space import Point, Space

_COUNT_MAX = 256
_POINTS = (
    "A list: downstream nodes run once per point. Rebatch Images turns the images into one batch."
)


class PointSource(StrEnum):
    """Which points W2W Sample gives."""

    RECOMMENDED = "recommended"
    COMPOSED = "composed"
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
            description=(
                "Samples new people of a space: composed of the attributes that its members "
                "have, near members, or as in the paper, each coefficient from a normal "
                f"distribution with the members' mean and standard deviation. {PAPER}, section 3.2."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "random identity",
                "sample a lora",
                "new person",
            ],
            inputs=[
                W2WSpace.Input("space", tooltip="Space to sample from."),
                seed(
                    "Seed of the sampled points. With the source random the first point has the "
                    "same coefficients as in the official code with this seed."
                ),
                int_input(
                    "count",
                    1,
                    (1, _COUNT_MAX),
                    "Number of points, returned as a list; mean and member give one.",
                ),
                int_input(
                    "components",
                    1000,
                    (1, COMPONENTS_MAX),
                    "Number of leading coefficients to sample (paper: 1,000); the rest are 0.",
                ),
                float_input(
                    "spread",
                    1.0,
                    (0.0, 10.0, 0.05),
                    "Multiplies the standard deviations. Below 1: closer to the mean "
                    "(near_members: to the member; composed: to the typical person of these "
                    "attributes). Above 1: more diverse.",
                ),
                io.Combo.Input(
                    "source",
                    options=list(PointSource),
                    tooltip=(
                        "recommended: composed where the space names its members' attributes, "
                        "else near_members. composed: each attribute from another random member. "
                        "random: the paper's normal distribution. mean: the members' mean. "
                        "member: the member named in member_name. members: randomly chosen "
                        "members, for W2W Label Members. near_members: random members shifted by "
                        "half a standard deviation; less novel than random, more consistent."
                    ),
                ),
                io.String.Input(
                    "member_name", default="", tooltip="Name of the member, for the source member."
                ),
                io.String.Input(
                    "person",
                    default="",
                    tooltip=(
                        "Comma-separated attributes that every composed person gets, such as black "
                        "skin, afro, no glasses. The seed draws the others."
                    ),
                ),
            ],
            outputs=[
                W2WPoint.Output(display_name="point", is_output_list=True, tooltip=_POINTS),
                io.String.Output(
                    display_name="name", is_output_list=True, tooltip="Name of each point."
                ),
                io.String.Output(
                    display_name="label",
                    is_output_list=True,
                    tooltip="Name and nearest members of each point, for Labeled Sheet.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        space: Space,
        seed: int,
        count: int,
        components: int,
        spread: float,
        source: str,
        member_name: str,
        person: str = "",
    ) -> io.NodeOutput:
        from . import composition, points, projection

        if source == PointSource.RECOMMENDED:
            composable = bool(person.strip()) or composition.can_compose(space)
            source = PointSource.COMPOSED if composable else PointSource.NEAR_MEMBERS
        if person.strip() and source != PointSource.COMPOSED:
            raise ValueError(
                f"person describes composed people and source is {source}: set source to "
                "recommended or composed, or empty person."
            )
        described: dict[str, str] = {}
        if source == PointSource.COMPOSED:
            composed = composition.compose(
                composition.fit(space),
                seed,
                count=count,
                components=components,
                spread=spread,
                person=person,
            )
            sampled = [each.point for each in composed]
            described = {each.point.name: ", ".join(each.values.values()) for each in composed}
        elif source == PointSource.MEMBER:
            sampled = [points.member_point(space, member_name.strip())]
        elif source == PointSource.MEMBERS:
            sampled = points.random_members(space, seed, count)
        elif source == PointSource.NEAR_MEMBERS:
            sampled = points.near_members(
                space, seed, count=count, components=components, spread=spread
            )
        elif source == PointSource.MEAN:
            sampled = [Point(space, space.pad(space.coefficients[0, :0]), "mean")]
        else:
            sampled = points.sample(space, seed, count=count, components=components, spread=spread)
        labels = [
            projection.label_point(point, description=described.get(point.name, ""))
            for point in sampled
        ]
        return io.NodeOutput(sampled, [point.name for point in sampled], labels)


class W2WEdit(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WEdit",
            advanced=("preserved_directions", "units", "debiasing"),
            display_name="W2W Edit (Identity Sliders)",
            category=CATEGORY,
            description=(
                "Moves a point along attribute directions of its space, any number at once. "
                f"{PAPER}, section 3.3. Edits add up before the weights are rebuilt, so two "
                "nodes in a row equal one."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "slider",
                "attribute edit",
                "age beard glasses",
            ],
            inputs=[
                W2WPoint.Input("point", tooltip=POINT_TOOLTIP),
                io.String.Input(
                    "edits",
                    default="",
                    multiline=True,
                    tooltip=(
                        f"Directions and strengths: {named_strengths.EXAMPLE}. Start with 0.5; 1 "
                        "matches the most extreme member (e.g. the fullest beard), and negative "
                        "values reverse the direction. PC 1 is the first principal component."
                    ),
                ),
                io.String.Input(**PRESERVED),
                io.Combo.Input(
                    "units",
                    options=list(directions.Units),
                    tooltip=(
                        "max_projection: strength 1 is the largest projection of any member onto "
                        "the direction, as in the paper. raw: multiples of the fitted vector; "
                        "the official notebooks use 500000 and more."
                    ),
                ),
                io.Combo.Input(
                    "debiasing",
                    options=list(directions.Debiasing),
                    tooltip=(
                        "joint: edits are exactly orthogonal to all preserved directions. "
                        "sequential: orthogonalized one direction after another, as in the "
                        "official code; only the last is exact."
                    ),
                ),
            ],
            outputs=[
                W2WPoint.Output(display_name="point", tooltip="The edited point."),
                io.String.Output(display_name="name", tooltip="The point's name with its edits."),
            ],
        )

    @classmethod
    def execute(
        cls, point: Point, edits: str, preserved_directions: str, units: str, debiasing: str
    ) -> io.NodeOutput:
        from . import edit_text

        edited = edit_text.edit(
            point, edits, preserved=preserved_directions, units=units, debiasing=debiasing
        )
        return io.NodeOutput(
            edited, edited.name, ui={"glassbox_space": [directions.slider_ranges(point.space)]}
        )


class W2WMix(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WMix",
            display_name="W2W Mix",
            category=CATEGORY,
            description=(
                "Interpolates between two points of a space: a straight line of coefficients. "
                f"{PAPER}: two identities of one space do not merge, they interpolate (appendix H)."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "interpolate",
                "morph",
                "blend two people",
            ],
            inputs=[
                W2WPoint.Input("first_point", tooltip="First endpoint (fraction 0)."),
                W2WPoint.Input(
                    "second_point", tooltip="Second endpoint (fraction 1), of the same space."
                ),
                float_input(
                    "start_fraction",
                    0.5,
                    (-3.0, 4.0, 0.05),
                    "Position of the first point of the list on the line; values outside 0 to 1 "
                    "extrapolate.",
                ),
                float_input(
                    "end_fraction",
                    1.0,
                    (-3.0, 4.0, 0.05),
                    "Position of the last point of the list on the line.",
                ),
                int_input("count", 1, (1, _COUNT_MAX), "Number of points; 1 uses start_fraction."),
            ],
            outputs=[
                W2WPoint.Output(display_name="point", is_output_list=True, tooltip=_POINTS),
                io.String.Output(
                    display_name="label", is_output_list=True, tooltip="Name of each point."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        first_point: Point,
        second_point: Point,
        start_fraction: float,
        end_fraction: float,
        count: int,
    ) -> io.NodeOutput:
        from . import points

        mixed = points.mix(
            first_point, second_point, start=start_fraction, end=end_fraction, count=count
        )
        return io.NodeOutput(mixed, [point.name for point in mixed])


class W2WSweep(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WSweep",
            display_name="W2W Sweep",
            category=CATEGORY,
            description=(
                "A row of points along one direction or principal component, or a grid over two. "
                f"{PAPER}."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "grid",
                "xy plot",
                "principal component",
            ],
            inputs=[
                W2WPoint.Input("point", tooltip=POINT_TOOLTIP),
                io.String.Input(
                    "direction",
                    default="PC 1",
                    tooltip=(
                        "Direction along a row: one of the space (strength 1 is the largest "
                        "projection of a member), or PC and a number, e.g. PC 1 (strength 1 is "
                        "one standard deviation)."
                    ),
                ),
                io.String.Input(
                    "second_direction",
                    default="",
                    tooltip="Direction along a column; empty for one row.",
                ),
                float_input("min_strength", -1.0, (-100.0, 100.0, 0.1), "First strength."),
                float_input("max_strength", 1.0, (-100.0, 100.0, 0.1), "Last strength."),
                int_input("count", 5, (1, 64), "Number of strengths per row and per column."),
                io.String.Input(**PRESERVED),
            ],
            outputs=[
                W2WPoint.Output(
                    display_name="point", is_output_list=True, tooltip=f"Row by row. {_POINTS}"
                ),
                io.String.Output(
                    display_name="label",
                    is_output_list=True,
                    tooltip="Directions and strengths of each point.",
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
        return io.NodeOutput(
            *points.sweep(
                point,
                direction.strip(),
                second=second_direction.strip(),
                values=values,
                preserved=preserved,
            )
        )


class W2WProjectLoRA(io.ComfyNode):
    READS: ClassVar = {"lora_name": folders.lora_stamp}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WProjectLoRA",
            display_name="W2W Project LoRA",
            category=CATEGORY,
            description=(
                "Projects a LoRA into a space: returns the nearest point and reports the loss. "
                f"{PAPER}; other ranks and trainers by singular values as in ImageGem (arXiv "
                "2510.18433)."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "lora to point",
                "encode lora",
                "lora coefficients",
            ],
            inputs=[
                W2WSpace.Input("space", tooltip="Space to project into."),
                io.Combo.Input(
                    "lora_name",
                    options=[NONE, *folders.lora_names()],
                    tooltip="File in models/loras, trained on the base model of the space.",
                ),
                int_input(
                    "components",
                    1000,
                    (1, COMPONENTS_MAX),
                    "Number of leading coefficients to use; the rest are 0.",
                ),
                LoraModel.Input(
                    "lora", optional=True, tooltip="LoRA from another node; replaces the file."
                ),
            ],
            outputs=[
                W2WPoint.Output(display_name="point", tooltip="The nearest point of the space."),
                io.String.Output(
                    display_name="report",
                    tooltip="Fraction kept, fraction lost, and the nearest members.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls, space: Space, lora_name: str, components: int, lora: dict | None = None
    ) -> io.NodeOutput:
        from ..host.adapter_updates import ComfyAdapters
        from . import projection

        found, name = lora_reader.resolve_lora(lora_name, lora, folders.lora_path, ComfyAdapters())
        return io.NodeOutput(*projection.project(space, found, components, name))


NODES = [W2WSample, W2WEdit, W2WMix, W2WSweep, W2WProjectLoRA]
