"""W2W Report: figures of a space and of a point in it."""

from __future__ import annotations

from comfy_api.latest import io

from ..host.image_output import new_figure, to_image
from ..host.progress import check_stop
from ..host.schema import W2WPoint, W2WSpace, schema
from . import labels
from .point_inputs import CATEGORY, PAPER
from .points import check_same_space
from .space import Point, Space


class W2WReport(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WReport",
            display_name="W2W Report",
            category=CATEGORY,
            description=f"Reports the spectrum of a space and the position of a point among its members. {PAPER}. "
            "All numbers are computed from the space's file.",
            search_aliases=["weight space", "weights2weights", "spectrum", "explained variance", "nearest lora"],
            inputs=[
                W2WSpace.Input("space", tooltip="Space to report on."),
                W2WPoint.Input("point", optional=True, tooltip="Point of this space, shown among the members."),
            ],
            outputs=[
                io.Image.Output(
                    display_name="spectrum_figure", tooltip="Variance explained by each component, and cumulative."
                ),
                io.Image.Output(
                    display_name="coefficient_figure", tooltip="The point, or the mean, among the members."
                ),
                io.String.Output(display_name="report", tooltip="The same as text, with the nearest members."),
                io.String.Output(display_name="labels", tooltip="The members' labels as CSV."),
            ],
        )

    @classmethod
    def execute(cls, space: Space, point: Point | None = None) -> io.NodeOutput:
        from . import space_report

        mean = Point(space, space.pad(space.coefficients[0, :0]), "mean")
        if point is not None:
            check_same_space(mean, point)
        spectrum, histograms = new_figure(), new_figure(900, 620)
        space_report.draw_spectrum(spectrum, space)
        images = [to_image(spectrum)]
        check_stop()
        space_report.draw_point(histograms, point or mean)
        check_stop()
        images.append(to_image(histograms))
        lines = [space_report.describe_space(space), space_report.describe_members(space)]
        lines += [space_report.describe_point(point)] if point is not None else []
        return io.NodeOutput(*images, "\n".join(filter(None, lines)), labels.to_csv(space))
