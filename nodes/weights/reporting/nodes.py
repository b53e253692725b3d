"""Figures of a space and of a point in it."""

from __future__ import annotations

from comfy_api.latest import io

from ...host.figures import new_figure, to_image
from ...host.schema import schema
from ...host.sockets import W2WPoint, W2WSpace
from .. import labels, report
from ..inputs import CATEGORY, PAPER
from ..points import same_space
from ..space import Point, Space


class W2WReport(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WReport",
            display_name="W2W Report",
            category=CATEGORY,
            description=f"Shows what a space is made of, and where a model lies among its members. {PAPER}. Everything "
            "follows from the space's file.",
            search_aliases=["weight space", "weights2weights", "spectrum", "explained variance", "nearest lora"],
            inputs=[
                W2WSpace.Input("space", tooltip="Space to look at."),
                W2WPoint.Input("point", optional=True, tooltip="A model of this space, to be shown among the members."),
            ],
            outputs=[
                io.Image.Output(display_name="spectrum", tooltip="Variance that each component explains, and in sum."),
                io.Image.Output(display_name="coefficients", tooltip="The point among the members; else the mean."),
                io.String.Output(display_name="report", tooltip="The same in words, and the nearest members."),
                io.String.Output(display_name="labels", tooltip="The members' labels as CSV."),
            ],
        )

    @classmethod
    def execute(cls, space: Space, point: Point | None = None) -> io.NodeOutput:
        mean = Point(space, space.padded(space.coefficients[0, :0]), "mean")
        if point is not None:
            same_space(mean, point)
        spectrum, places = new_figure(), new_figure(900, 620)
        report.draw_spectrum(spectrum, space)
        report.draw_point(places, point or mean)
        words = [report.describe_space(space), report.describe_members(space)]
        words += [report.describe_point(point)] if point is not None else []
        return io.NodeOutput(to_image(spectrum), to_image(places), "\n".join(filter(None, words)), labels.to_csv(space))
