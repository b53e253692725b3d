"""Activations as something to look at: pictures, similarity, correspondence."""

from __future__ import annotations

import torch
from comfy_api.latest import io
from torch.nn import functional as F

from ...host.loops import tracked
from ...host.schema import schema
from ...host.shown_pictures import shown_pictures
from ...host.sockets import Activations
from .. import correspondence, drawing, similarity
from ..features import Activations as Tapped
from ..features import values_at
from ..inputs import CATEGORY, PAPER, picture_of, pictures_of
from ..picture import channel_picture, pca_picture
from ..points import parse, to_text

_PCA, _CHANNEL, _SHEET = "main directions as colours", "one channel", "contact sheet"

_POINTS = io.String.Input(
    "points",
    default="64, 48",
    multiline=True,
    tooltip="One 'x, y' a line, in pixels of the picture, or shares (50%, 30%), or the JSON of point editors.",
)
_ROW = io.Int.Input(
    "picture", default=0, min=0, max=4095, tooltip="Which picture of the batch the points or the mask are on, from 0."
)


class ActivationPicture(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ActivationPicture",
            display_name="Activation Picture",
            category=CATEGORY,
            description="Shows activations: their three main directions as red, green and blue (fitted to the whole "
            "batch, so that a colour means the same in each picture), one channel, or a contact sheet "
            f"of many by name. {PAPER}.",
            search_aliases=["diffusion features", "PCA", "feature visualization", "show activations"],
            inputs=[
                Activations.Input(
                    "activations", tooltip="Tapped activations; several are joined, except on a contact sheet."
                ),
                io.Combo.Input("show", options=[_PCA, _CHANNEL, _SHEET], tooltip="How to show them."),
                io.Boolean.Input(
                    "together",
                    default=True,
                    tooltip="Fit directions and ranges to all pictures at once. Off: to each alone, with more "
                    "contrast.",
                ),
                io.Int.Input(
                    "channel",
                    default=0,
                    min=0,
                    max=65535,
                    tooltip="For one channel: its number among all that are joined, from 0.",
                ),
                io.Int.Input(
                    "size",
                    default=512,
                    min=16,
                    max=8192,
                    tooltip="Longer side of each picture in pixels; on a contact sheet, a quarter of it.",
                ),
            ],
            outputs=[io.Image.Output(display_name="picture", tooltip="One picture a row, or the one contact sheet.")],
        )

    @classmethod
    def execute(cls, activations: Tapped, show: str, together: bool, channel: int, size: int) -> io.NodeOutput:
        if show == _SHEET:
            tiles = [(id_, pca_picture(value, together)) for id_, value in tracked(activations.features.items())]
            return io.NodeOutput(drawing.sheet(tiles, max(size // 4, 16), columns=max(1, 8 // len(activations.rows))))
        if show == _CHANNEL:
            return io.NodeOutput(drawing.enlarged(drawing.heat(_channel(activations, channel, together)), size))
        return io.NodeOutput(drawing.enlarged(pca_picture(activations.stacked(), together), size))


class ActivationSimilarity(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ActivationSimilarity",
            display_name="Activation Similarity",
            category=CATEGORY,
            description="How similar every place of every picture is to chosen points, or to a masked part, of one "
            f"of them: cosine similarity of activations as a heat map. {PAPER}.",
            search_aliases=["diffusion features", "heat map", "cosine similarity", "click a point"],
            inputs=[
                Activations.Input(
                    "activations", tooltip="Tapped activations of the pictures, one row a picture; several are joined."
                ),
                io.Image.Input("image", tooltip="The pictures that were tapped, to draw on."),
                _ROW,
                _POINTS,
                io.Float.Input(
                    "opacity",
                    default=0.65,
                    min=0.0,
                    max=1.0,
                    step=0.05,
                    tooltip="How much the heat map hides the picture.",
                ),
                io.Mask.Input(
                    "mask", optional=True, tooltip="Instead of points: the part that everything is compared with."
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="heat_map",
                    tooltip="The pictures under their heat maps, from the least to the most similar place of the "
                    "batch.",
                ),
                io.Mask.Output(
                    display_name="similarity", tooltip="Cosine similarity at the size of the pictures, below 0 as 0."
                ),
            ],
        )

    @classmethod
    def execute(
        cls, activations: Tapped, image: torch.Tensor, picture: int, points: str, opacity: float, mask=None
    ) -> io.NodeOutput:
        feature, size = activations.stacked(), image.shape[1:3]
        row = _row(activations, picture, image)
        if mask is None:
            marks = parse(points, tuple(size))
            references = values_at(feature[row], *_pixels(marks), tuple(size))
        else:
            marks, references = None, similarity.of_mask(feature[row], mask[min(picture, len(mask) - 1)])
        values = similarity.similarity(feature, references)
        low, high = values.amin(), values.amax()
        pictures, factor = drawing.magnified(pictures_of(image, activations))
        shown = drawing.overlay(pictures, (values - low) / (high - low).clamp_min(1e-6), opacity)
        if marks is not None:
            shown[row] = drawing.marked(shown[row], (marks + 0.5) * factor)
        similar = F.interpolate(values[:, None].clamp(0, 1), size=tuple(size), mode="bilinear")[:, 0]
        return io.NodeOutput(shown, similar, ui={"glassbox_pictures": shown_pictures(image, picture)})


class ActivationCorrespondence(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ActivationCorrespondence",
            display_name="Activation Correspondence",
            category=CATEGORY,
            description="Finds the points or the masked part of one picture in others: each goes to the most "
            f"similar activation, without any training. {PAPER}.",
            search_aliases=["diffusion features", "semantic correspondence", "point matching", "DIFT", "mask transfer"],
            inputs=[
                Activations.Input("source", tooltip="Activations of the picture that has the points."),
                io.Image.Input("source_image", tooltip="That picture (the batch that was tapped)."),
                Activations.Input(
                    "target", tooltip="The same activations of the pictures in which the points are sought."
                ),
                io.Image.Input("target_image", tooltip="Those pictures."),
                _ROW,
                _POINTS,
                io.Int.Input(
                    "resolution",
                    default=512,
                    min=8,
                    max=2048,
                    step=8,
                    tooltip="Places a side that are searched; activations are enlarged to it. The paper takes 512.",
                ),
                io.Boolean.Input(
                    "mutual",
                    default=False,
                    tooltip="Trust a match only when it also leads back. Points that do not are drawn hollow and the "
                    "mask leaves them out.",
                ),
                io.Mask.Input(
                    "source_mask", optional=True, tooltip="A part of the source picture, carried over to each target."
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="picture", tooltip="Source and target side by side with the points, one a target."
                ),
                io.String.Output(
                    display_name="points",
                    tooltip="Points found, one 'x, y' a line in pixels of the target; targets apart by a blank line.",
                ),
                io.Mask.Output(display_name="mask", tooltip="The source mask on each target; without one, black."),
            ],
        )

    @classmethod
    def execute(
        cls,
        source: Tapped,
        source_image,
        target: Tapped,
        target_image,
        picture: int,
        points: str,
        resolution: int,
        mutual: bool,
        source_mask=None,
    ) -> io.NodeOutput:
        _same_ids(source, target)
        row = _row(source, picture, source_image)
        feature, marks = source.only_rows([row]).stacked()[0], parse(points, tuple(source_image.shape[1:3]))
        drawn, texts, masks = [], [], []
        for number in tracked(range(len(target.rows))):
            other = target.only_rows([number]).stacked()[0]
            shown = picture_of(target_image, target, number)
            found, sure = _find(feature, other, marks, source_image.shape[1:3], shown.shape[:2], resolution, mutual)
            drawn.append(_matched(picture_of(source_image, source, row), shown, marks, found, sure))
            texts.append(to_text(found))
            masks.append(_carry(feature, other, source_mask, picture, shown.shape[:2], mutual))
        return io.NodeOutput(
            torch.stack(drawn),
            "\n\n".join(texts),
            torch.stack(masks),
            ui={"glassbox_pictures": shown_pictures(source_image, picture)},
        )


def _find(feature, other, marks, from_size, to_size, side: int, mutual: bool):
    """Points in pixels of the target, and which of them hold in both directions (all, when that is not asked for)."""
    enlarged = marks * torch.tensor([side / from_size[1], side / from_size[0]])
    found, _ = correspondence.nearest_points(feature, other, enlarged, side)
    sure = torch.ones(len(found), dtype=torch.bool)
    if mutual:
        sure = correspondence.mutual_points(feature, other, enlarged, found, side)
    return found * torch.tensor([to_size[1] / side, to_size[0] / side]), sure


def _matched(source, target, marks, found, sure) -> torch.Tensor:
    (left, by), (right, times) = drawing.magnified(source[None]), drawing.magnified(target[None])
    return drawing.matched(left[0], right[0], (marks + 0.5) * by, (found + 0.5) * times, sure)


def _carry(feature, other, mask, picture: int, size, mutual: bool) -> torch.Tensor:
    if mask is None:
        return torch.zeros(tuple(size))
    carried = correspondence.carried_mask(feature, other, mask[min(picture, len(mask) - 1)], mutual)
    return F.interpolate(carried[None, None], size=tuple(size), mode="bilinear")[0, 0]


def _channel(activations: Tapped, channel: int, together: bool) -> torch.Tensor:
    stacked = activations.stacked()
    if together:
        return channel_picture(stacked, channel)
    return torch.cat([channel_picture(row, channel) for row in stacked.split(1)])


def _pixels(marks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns of the pixels that points lie on."""
    columns, rows = marks.round().long().unbind(1)
    return rows, columns


def _row(activations: Tapped, picture: int, image: torch.Tensor) -> int:
    """The first row of a picture; raises ValueError when there is no such picture."""
    rows = [number for number, row in enumerate(activations.rows) if row.image == picture]
    if not rows or picture >= len(image):
        count = min(max(row.image for row in activations.rows) + 1, len(image))
        raise ValueError(f"There is no picture {picture}: activations and images have {count}, counted from 0.")
    return rows[0]


def _same_ids(source: Tapped, target: Tapped) -> None:
    channels = [{id_: value.shape[1] for id_, value in one.features.items()} for one in (source, target)]
    if channels[0] != channels[1]:
        raise ValueError(
            "Source and target hold different activations: tap both with the same preset or list, on the same model."
        )
