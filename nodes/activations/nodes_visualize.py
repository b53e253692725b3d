"""Show activations: as colors, as similarity heat maps, as correspondences between images."""

from __future__ import annotations

from enum import StrEnum
from functools import partial

import torch
from comfy_api.latest import io
from torch.nn import functional as F

from ..host.image_output import save_preview_images
from ..host.progress import with_progress
from ..host.schema import float_input, int_input, schema
from ..host.sockets import Activations as ActivationsSocket
from .activations import MAP_SIZES, Activations, Weighting, resize, values_at
from .tap_inputs import PAPER, SEE, WEIGHTING, image_of, images_of


class Mode(StrEnum):
    """Values of the ``mode`` input of Activation Visualizer."""

    PCA_RGB = "pca_rgb"
    CHANNEL = "channel"
    CONTACT_SHEET = "contact_sheet"


_POINTS = io.String.Input(
    "points",
    default="64, 48",
    multiline=True,
    tooltip=(
        "One 'x, y' per line, in image pixels or percent (50%, 30%), or the JSON of a point editor."
    ),
)
_IMAGE_INDEX = int_input(
    "image_index", 0, (0, 4095), "Index of the image with the points or the mask, from 0."
)


class ActivationVisualizer(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ActivationPicture",
            display_name="Activation Visualizer (PCA)",
            category=SEE,
            description=(
                "Shows activations as images: the first three principal components as red, green "
                f"and blue, a single channel, or a contact sheet of all IDs. {PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "PCA",
                "feature visualization",
                "show activations",
                "see what a layer sees",
            ],
            inputs=[
                ActivationsSocket.Input(
                    "activations",
                    tooltip=(
                        "Tapped activations. Several IDs are concatenated, except on a contact "
                        "sheet."
                    ),
                ),
                io.Combo.Input(
                    "mode",
                    options=[mode.value for mode in Mode],
                    tooltip=(
                        "pca_rgb: principal components as colors. channel: one channel. "
                        "contact_sheet: all IDs."
                    ),
                ),
                io.Boolean.Input(
                    "joint_fit",
                    default=True,
                    tooltip=(
                        "Fit components and ranges to all images together, so a color means the "
                        "same in each. Off: fit each image separately, with more contrast."
                    ),
                ),
                int_input(
                    "channel",
                    0,
                    (0, 65535),
                    "For mode channel: index among all concatenated channels, from 0.",
                ),
                int_input(
                    "size",
                    512,
                    (16, 8192),
                    "Longer side of each image in pixels; a quarter of it on a contact sheet.",
                ),
                io.Combo.Input(**WEIGHTING),
            ],
            outputs=[
                io.Image.Output(
                    display_name="images", tooltip="One image per row, or one contact sheet."
                )
            ],
        )

    @classmethod
    def execute(
        cls,
        activations: Activations,
        mode: str,
        joint_fit: bool,
        channel: int,
        size: int,
        weighting: str = Weighting.EQUAL,
    ) -> io.NodeOutput:
        from ..host.compute import on_device
        from . import overlays, pca

        def colors(feature: torch.Tensor) -> torch.Tensor:
            return on_device(lambda one: pca.pca_colors(one, joint_fit), feature)

        if mode == Mode.CONTACT_SHEET:
            tiles = [
                (id_, colors(value)) for id_, value in with_progress(activations.features.items())
            ]
            columns = max(1, 8 // len(activations.rows))
            return io.NodeOutput(overlays.contact_sheet(tiles, max(size // 4, 16), columns))
        feature = activations.joined(weighting)
        if mode == Mode.PCA_RGB:
            return io.NodeOutput(overlays.resize_nearest(colors(feature), size, with_progress))
        groups = [feature] if joint_fit else feature.split(1)
        values = torch.cat([pca.channel_image(group, channel) for group in groups])
        return io.NodeOutput(overlays.resize_nearest(overlays.viridis(values), size, with_progress))


class ActivationSimilarity(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ActivationSimilarity",
            display_name="Activation Similarity",
            category=SEE,
            description=(
                "Heat map of the cosine similarity between selected points, or a masked part, of "
                "one image and every position of every image. With self-attention maps: where "
                f"the points attend. {PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "heat map",
                "cosine similarity",
                "click a point",
                "self-attention",
            ],
            inputs=[
                ActivationsSocket.Input(
                    "activations",
                    tooltip=(
                        "Tapped activations of the images, one row per image. Several IDs are "
                        "concatenated. With IDs ending in self-map only: the attention within "
                        "the image of image_index."
                    ),
                ),
                io.Image.Input("image", tooltip="The tapped images, to draw on."),
                _IMAGE_INDEX,
                _POINTS,
                float_input("opacity", 0.65, (0.0, 1.0, 0.05), "Opacity of the heat map."),
                io.Combo.Input(**WEIGHTING),
                io.Mask.Input(
                    "mask", optional=True, tooltip="Part to compare with; replaces points."
                ),
                io.Boolean.Input(
                    "per_head",
                    default=False,
                    optional=True,
                    tooltip="With self-attention maps: one image per head, instead of their mean.",
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="figure",
                    tooltip=(
                        "The images under their heat maps, with one range for the batch. For "
                        "attention, each map has its own maximum."
                    ),
                ),
                io.Mask.Output(
                    display_name="similarity",
                    tooltip=(
                        "Cosine similarity, or attention, at the size of the images; negative "
                        "values are clipped to 0."
                    ),
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        activations: Activations,
        image: torch.Tensor,
        image_index: int,
        points: str,
        opacity: float,
        weighting: str = Weighting.EQUAL,
        mask: torch.Tensor | None = None,
        per_head: bool = False,
    ) -> io.NodeOutput:
        from ..host.compute import on_device
        from . import correspondence, overlays, point_list

        size = (image.shape[1], image.shape[2])
        row = _first_row(activations, image_index, image)
        ui = {"glassbox_images": save_preview_images(image, image_index)}
        if all(id_.endswith("self-map") for id_ in activations.tensors):
            return io.NodeOutput(
                *_attention_figure(
                    activations, image, row=row, points=points, opacity=opacity, per_head=per_head
                ),
                ui=ui,
            )
        feature = activations.joined(weighting)
        if mask is None:
            marks = point_list.parse(points, size)
            columns, rows = marks.round().long().unbind(1)
            references = values_at(feature[row], rows, columns, size)
        else:
            marks = None
            references = correspondence.mask_direction(
                feature[row], mask[min(image_index, len(mask) - 1)]
            )
        values = on_device(correspondence.similarity, feature, references)
        low = values.amin()
        high = values.amax()
        images, factor = overlays.magnify(images_of(image, activations))
        figure = overlays.overlay(images, (values - low) / (high - low).clamp_min(1e-6), opacity)
        if marks is not None:
            figure[row] = overlays.draw_points(figure[row], (marks + 0.5) * factor)
        similar = F.interpolate(values[:, None].clamp(0, 1), size=size, mode="bilinear")[:, 0]
        return io.NodeOutput(figure, similar, ui=ui)


def _attention_figure(
    activations: Activations,
    image: torch.Tensor,
    row: int,
    points: str,
    opacity: float,
    per_head: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the points of a row attend: figures (heads or 1, H, W, 3), and the maps (heads or 1, H,
    W).
    """
    from . import overlays, point_list

    size = (image.shape[1], image.shape[2])
    spots = point_list.parse(points, size) + 0.5
    maps = _self_attention(activations, row, spots / torch.tensor([size[1], size[0]]))
    maps = maps if per_head else maps.mean(0, keepdim=True)
    maps = maps / maps.amax((1, 2), keepdim=True).clamp_min(1e-12)
    shown, factor = overlays.magnify(image_of(image, activations, row)[None])
    figure = overlays.overlay(shown.expand(len(maps), -1, -1, -1), maps, opacity)
    figure = torch.stack([overlays.draw_points(one, spots * factor) for one in figure])
    return figure, F.interpolate(maps[:, None], size=size, mode="bilinear")[:, 0]


def _self_attention(activations: Activations, row: int, points: torch.Tensor) -> torch.Tensor:
    """Where one row's points (P, 2), as fractions, attend: (heads of all IDs, H, W) at the largest
    map's size.
    """
    from . import attention_maps

    sizes = activations.settings[MAP_SIZES]
    size = max(
        (tuple(sizes[id_]) for id_ in activations.tensors), key=lambda size: size[0] * size[1]
    )
    maps = [
        attention_maps.attention_from(one[row], sizes[id_], points)
        for id_, one in activations.tensors.items()
    ]
    return torch.cat([resize(one[None], size)[0] for one in maps])


class ActivationCorrespondence(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ActivationCorrespondence",
            display_name="Activation Correspondence",
            category=SEE,
            description=(
                "Finds points or a masked part of one image in other images by nearest "
                f"activation, without training. {PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "semantic correspondence",
                "point matching",
                "DIFT",
                "mask transfer",
            ],
            inputs=[
                ActivationsSocket.Input(
                    "source", tooltip="Activations of the image with the points."
                ),
                io.Image.Input("source_image", tooltip="The tapped source images."),
                ActivationsSocket.Input(
                    "target", tooltip="Activations of the target images, with the same IDs."
                ),
                io.Image.Input("target_image", tooltip="The tapped target images."),
                _IMAGE_INDEX,
                _POINTS,
                int_input(
                    "resolution",
                    512,
                    (8, 2048, 8),
                    "Positions per side in the search; activations are resized to it. The paper "
                    "uses 512.",
                ),
                io.Boolean.Input(
                    "mutual",
                    default=False,
                    tooltip=(
                        "Require mutual nearest neighbors. Points that fail are drawn hollow, "
                        "and the mask omits them."
                    ),
                ),
                io.Combo.Input(**WEIGHTING),
                io.Mask.Input(
                    "source_mask",
                    optional=True,
                    tooltip="Part of the source image to transfer to each target.",
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="figure",
                    tooltip="Source and target side by side with the points, one per target.",
                ),
                io.String.Output(
                    display_name="points",
                    tooltip=(
                        "Matches, one 'x, y' per line in target pixels. A blank line separates "
                        "targets."
                    ),
                ),
                io.Mask.Output(
                    display_name="mask",
                    tooltip=(
                        "The source mask transferred to each target; black if no mask is connected."
                    ),
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        source: Activations,
        source_image: torch.Tensor,
        target: Activations,
        target_image: torch.Tensor,
        image_index: int,
        points: str,
        resolution: int,
        mutual: bool,
        weighting: str = Weighting.EQUAL,
        source_mask: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        from . import overlays, point_list

        channels = [
            {id_: value.shape[1] for id_, value in one.features.items()} for one in (source, target)
        ]
        if channels[0] != channels[1]:
            raise ValueError(
                "Source and target hold different activations. Tap both with the same preset or "
                "IDs on the same model."
            )
        row = _first_row(source, image_index, source_image)
        feature = source.select_rows([row]).joined(weighting)[0]
        shown = image_of(source_image, source, row)
        marks = point_list.parse(points, _size(shown))
        part = None if source_mask is None else source_mask[min(image_index, len(source_mask) - 1)]
        left, factor = overlays.magnify(shown[None], max(target_image.shape[1:3]))
        figures = []
        texts = []
        masks = []
        for number in range(len(target.rows)):
            other = target.select_rows([number]).joined(weighting)[0]
            other_image = image_of(target_image, target, number)
            right, times = overlays.magnify(other_image[None], max(left.shape[1:3]))
            sizes = _size(shown), _size(other_image)
            matches, holds = _matched(
                feature, other, marks=marks, sizes=sizes, resolution=resolution, mutual=mutual
            )
            figure = overlays.draw_matches(
                left[0],
                right[0],
                from_=(marks + 0.5) * factor,
                to=(matches + 0.5) * times,
                mutual=holds,
            )
            figures.append(figure)
            texts.append(point_list.to_text(matches))
            masks.append(_transferred(feature, other, mask=part, size=sizes[1], mutual=mutual))
        ui = {"glassbox_images": save_preview_images(source_image, image_index)}
        return io.NodeOutput(torch.stack(figures), "\n\n".join(texts), torch.stack(masks), ui=ui)


def _size(image: torch.Tensor) -> tuple[int, int]:
    return image.shape[0], image.shape[1]


def _matched(
    feature: torch.Tensor,
    other: torch.Tensor,
    marks: torch.Tensor,
    sizes: tuple,
    resolution: int,
    mutual: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where points (P, 2) of an image are in another one, in its pixels, and which hold: also lead
    back.

    ``sizes``: (height, width) of both images. All hold where ``mutual`` is off.
    """
    from ..host.compute import on_device
    from . import correspondence

    (height, width), (other_height, other_width) = sizes
    queries = marks * torch.tensor([resolution / width, resolution / height])

    def match(
        feature: torch.Tensor, other: torch.Tensor, points: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        matches, _ = correspondence.nearest_points(
            feature, other, points=points, side=resolution, watch=with_progress
        )
        if not mutual:
            return matches, matches.new_ones(len(matches), dtype=torch.bool)
        return matches, correspondence.mutual_points(
            feature, other, points=points, matches=matches, side=resolution, watch=with_progress
        )

    matches, holds = on_device(match, feature, other, queries)
    return matches * torch.tensor([other_width / resolution, other_height / resolution]), holds


def _transferred(
    feature: torch.Tensor,
    other: torch.Tensor,
    mask: torch.Tensor | None,
    size: tuple[int, int],
    mutual: bool,
) -> torch.Tensor:
    """A mask of one image on another one of ``size``; black without one."""
    from ..host.compute import on_device
    from . import correspondence

    if mask is None:
        return torch.zeros(size)
    transfer = partial(correspondence.transfer_mask, mutual=mutual, watch=with_progress)
    found = on_device(transfer, feature, other, mask)
    return F.interpolate(found[None, None], size=size, mode="bilinear")[0, 0]


def _first_row(activations: Activations, image_index: int, images: torch.Tensor) -> int:
    """The first row of an image; raises ValueError when there is no such image."""
    rows = [number for number, row in enumerate(activations.rows) if row.image == image_index]
    if not rows or image_index >= len(images):
        count = min(max(row.image for row in activations.rows) + 1, len(images))
        raise ValueError(
            f"There is no image {image_index}: activations and images have {count}, counted from 0."
        )
    return rows[0]


NODES = [ActivationVisualizer, ActivationSimilarity, ActivationCorrespondence]
