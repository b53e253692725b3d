"""Figures: of a space and of a point in it (W2W Report), and images on one sheet with their labels
(Labeled Sheet).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from comfy_api.latest import io

from ..host.image_output import new_figure, to_compare, to_image
from ..host.progress import check_stop, interruptible
from ..host.schema import IMAGES, int_input, schema
from ..host.sockets import W2WPoint, W2WSpace
from .point_inputs import CATEGORY, PAPER
from .space import Point, Space

_PANEL = 220  # pixels of an image on a sheet, by default


class W2WReport(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WReport",
            display_name="W2W Report",
            category=f"{CATEGORY}/Research",
            description=(
                "Reports the spectrum of a space and the position of a point among its members. "
                f"{PAPER}. Everything is computed from the space's file; no model runs."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "spectrum",
                "explained variance",
                "nearest lora",
            ],
            inputs=[
                W2WSpace.Input("space", tooltip="Space to analyze."),
                W2WPoint.Input(
                    "point",
                    optional=True,
                    tooltip="Point of this space, plotted among the members.",
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="spectrum_figure",
                    tooltip="Variance explained by each component, and cumulative.",
                ),
                io.Image.Output(
                    display_name="coefficient_figure",
                    tooltip="The point, or the mean, among the members.",
                ),
                io.String.Output(
                    display_name="report", tooltip="The same as text, with the nearest members."
                ),
                io.String.Output(display_name="labels", tooltip="The members' labels as CSV."),
            ],
        )

    @classmethod
    def execute(cls, space: Space, point: Point | None = None) -> io.NodeOutput:
        from . import labels, space_report
        from .points import check_same_space

        mean = Point(space, space.pad(space.coefficients[0, :0]), "mean")
        if point is not None:
            check_same_space(mean, point)
        spectrum = new_figure()
        histograms = new_figure(900, 620)
        space_report.draw_spectrum(spectrum, space)
        images = [to_image(spectrum)]
        check_stop()
        space_report.draw_point(histograms, point or mean)
        check_stop()
        images.append(to_image(histograms))
        lines = [space_report.describe_space(space), space_report.describe_members(space)]
        lines += [space_report.describe_point(point)] if point is not None else []
        return io.NodeOutput(
            *images, "\n".join(filter(None, lines)), labels.to_csv(space.members, space.labels)
        )


class W2WSheet(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WSheet",
            display_name="Labeled Sheet",
            category=IMAGES,
            description=(
                "Arranges images on one sheet with labels, enlarged: before and after, an XY "
                "grid with axis values after W2W Sweep, or an overview after W2W Sample "
                f"({PAPER}). Also returns them as a batch of frames."
            ),
            search_aliases=["before and after", "compare", "xy plot", "labeled grid", "W2W Sheet"],
            is_input_list=True,
            inputs=[
                io.Image.Input(
                    "images",
                    tooltip="The images, one per label: a list or a batch, all of the same size.",
                ),
                io.String.Input(
                    "labels",
                    force_input=True,
                    optional=True,
                    tooltip=(
                        "The label output of W2W Sweep, W2W Mix or W2W Sample. Not connected: "
                        "label_text is used."
                    ),
                ),
                int_input(
                    "columns",
                    0,
                    (0, 64),
                    "Images per row. 0: automatic: the grid of W2W Sweep, else one row of up to "
                    "six, else a square.",
                ),
                io.String.Input(
                    "title", default="", tooltip="Title over the sheet; empty for none."
                ),
                io.String.Input(
                    "label_text",
                    default="",
                    multiline=True,
                    optional=True,
                    tooltip="One label per line, in the order of the images. Empty: numbers.",
                ),
                int_input(
                    "image_width",
                    _PANEL,
                    (64, 1024),
                    "Width of each image on the sheet, in pixels; small images are enlarged.",
                    optional=True,
                ),
            ],
            outputs=[
                io.Image.Output(display_name="figure", tooltip="The labeled sheet as one image."),
                io.Image.Output(
                    display_name="frames",
                    tooltip="All images as one batch, in order, for an animation.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        images: list[torch.Tensor],
        columns: list[int],
        title: list[str],
        labels: Sequence[str] = (),
        label_text: Sequence[str] = ("",),
        image_width: Sequence[int] = (_PANEL,),
    ) -> io.NodeOutput:
        from . import contact_sheet

        if len({batch.shape[1:] for batch in images}) > 1:
            raise ValueError("The images have different sizes: give images of one size.")
        frames = torch.cat(images)
        labels = (
            list(labels)
            or label_text[0].splitlines()
            or [str(number + 1) for number in range(len(frames))]
        )
        count = contact_sheet.column_count(labels, columns[0])
        larger = max(image_width[0] / _PANEL, 1.0)
        text = 10 if contact_sheet.grid_labels(labels, count) else round(50 * larger)
        height = image_width[0] * frames.shape[1] // frames.shape[2] + text
        figure = new_figure(image_width[0] * count + 60, height * -(-len(labels) // count) + 60)

        def drawn() -> torch.Tensor:
            contact_sheet.draw_sheet(
                figure,
                list(frames),
                labels=labels,
                columns=count,
                title=title[0].strip(),
                larger=larger,
            )
            return to_image(figure)

        return io.NodeOutput(
            interruptible(drawn), frames, ui=to_compare(list(frames), labels, shown=(0, -1))
        )


NODES = [W2WSheet, W2WReport]
