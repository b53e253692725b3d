"""Parts of pictures from activations: found without names, or learned from a few painted masks."""

from __future__ import annotations

import torch
from comfy_api.latest import io
from torch.nn import functional as F

from ...host.loops import tracked
from ...host.schema import schema
from ...host.sockets import Activations, FewShotSegmenter
from .. import clusters, drawing, segmentation
from ..ensemble import EPOCHS, MEMBERS
from ..features import Activations as Tapped
from ..inputs import CATEGORY, PAPER, pictures_of

_SEED = {"default": 0, "min": 0, "max": 0xFFFFFFFFFFFFFFFF, "control_after_generate": True}
_OPACITY = io.Float.Input(
    "opacity", default=0.6, min=0.0, max=1.0, step=0.05, tooltip="How much the colours hide the picture."
)
_PARTS = 8


class ActivationClusters(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ActivationClusters",
            display_name="Activation Clusters",
            category=CATEGORY,
            description="Splits pictures into parts without any training or text: k-means over the activations of all "
            f"positions of all pictures, so that a part is the same in each. {PAPER}.",
            search_aliases=["diffusion features", "k-means", "unsupervised segmentation", "segment", "masks"],
            inputs=[
                Activations.Input(
                    "activations", tooltip="Tapped activations, one row a picture; several are joined."
                ),
                io.Image.Input("image", tooltip="The pictures that were tapped: the masks get their size."),
                io.Int.Input("clusters", default=6, min=2, max=64, tooltip="How many parts there are."),
                io.Int.Input("seed", **_SEED, tooltip="Seed of the starts. The best of four is taken."),
                _OPACITY,
            ],
            outputs=[
                io.Image.Output(display_name="picture", tooltip="The pictures with a colour a cluster."),
                io.Mask.Output(
                    display_name="masks",
                    tooltip="One mask a cluster, largest first: all of the first picture, then all of the next.",
                ),
            ],
        )

    @classmethod
    def execute(cls, activations: Tapped, image: torch.Tensor, seed: int, opacity: float, **given) -> io.NodeOutput:
        count, pictures = given["clusters"], pictures_of(image, activations)
        found = clusters.clusters(activations.stacked(), count, seed, tracked)
        labels = clusters.ordered(clusters.enlarged(found, count, pictures.shape[1:3]), count)
        masks = F.one_hot(labels, count).movedim(-1, 1).flatten(0, 1).float()
        return io.NodeOutput(drawing.coloured(pictures, labels, opacity), masks)


class TrainFewShotSegmenter(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_TrainFewShotSegmenter",
            display_name="Train Few-Shot Segmenter",
            category=CATEGORY,
            description=f"Learns parts from a few pictures with painted masks: {MEMBERS} small networks vote on each "
            f"pixel's activations, as in the paper's experiments with 30 pictures. {PAPER}.",
            search_aliases=["diffusion features", "pixel classifier", "DatasetDDPM", "label-scarce segmentation",
                            "train segmentation"],
            inputs=[
                Activations.Input(
                    "activations", tooltip="Of the pictures that the masks belong to, one row a picture."
                ),
                io.Mask.Input("part_1", tooltip="Masks of the first part, one a picture in the same order."),
                io.String.Input(
                    "names", default="", tooltip="Names of the parts apart by commas, such as hair, skin. Optional."
                ),
                io.Int.Input(
                    "side",
                    default=segmentation.SIDE,
                    min=16,
                    max=1024,
                    step=8,
                    tooltip="Pixels a side that are learned from. The paper takes 256; less is faster.",
                ),
                io.Int.Input(
                    "epochs",
                    default=EPOCHS,
                    min=1,
                    max=1000,
                    tooltip="Rounds through all pixels at most. Each network stops by itself, from the fourth on, when "
                    "50 batches brought no lower loss. The paper takes 100.",
                ),
                io.Int.Input("seed", **_SEED, tooltip="Seed of the first weights and of the order of pixels."),
                *(
                    io.Mask.Input(f"part_{number}", optional=True, tooltip="Masks of one more part, one a picture.")
                    for number in range(2, _PARTS + 1)
                ),
            ],
            outputs=[
                FewShotSegmenter.Output(display_name="segmenter", tooltip="For Few-Shot Segmenter."),
                io.String.Output(
                    display_name="report", tooltip="Parts, and how well the training pictures themselves are found."
                ),
            ],
        )

    @classmethod
    def execute(cls, activations: Tapped, names: str, side: int, epochs: int, seed: int, **parts) -> io.NodeOutput:
        masks = [parts[f"part_{number}"] for number in range(1, _PARTS + 1) if parts.get(f"part_{number}") is not None]
        labels = _labels(masks, activations)
        named = _names(names, len(masks))
        segmenter = segmentation.train(activations, labels, named, side, seed, epochs, tracked)
        found = segmentation.segment(segmenter, activations, tracked).labels
        truth = F.interpolate(labels[:, None].float(), size=(side, side), mode="nearest")[:, 0].long()
        scores = segmentation.mean_iou(found, truth, len(masks) + 1).tolist()
        lines = [f"{name}: IoU {score:.3f}" for name, score in zip(("everything else", *named), scores, strict=True)]
        return io.NodeOutput(segmenter, "\n".join(["On the training pictures themselves:", *lines]))


class ApplyFewShotSegmenter(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_FewShotSegmenter",
            display_name="Few-Shot Segmenter",
            category=CATEGORY,
            description="Finds the learned parts in other pictures by the vote of the trained networks, and shows "
            f"where they disagree. {PAPER}.",
            search_aliases=["diffusion features", "apply segmenter", "part segmentation", "uncertainty"],
            inputs=[
                FewShotSegmenter.Input("segmenter", tooltip="Of Train Few-Shot Segmenter."),
                Activations.Input(
                    "activations", tooltip="The same activations of other pictures: same model, preset and noise level."
                ),
                io.Image.Input("image", tooltip="The pictures that were tapped: the masks get their size."),
                _OPACITY,
            ],
            outputs=[
                io.Image.Output(display_name="picture", tooltip="The pictures with a colour a part."),
                io.Mask.Output(
                    display_name="masks", tooltip="One mask a part: all of the first picture, then all of the next."
                ),
                io.Mask.Output(
                    display_name="uncertainty",
                    tooltip="Where the networks disagree: Jensen-Shannon divergence over its largest possible value.",
                ),
                io.String.Output(
                    display_name="report",
                    tooltip="The share of each part in each picture, and the picture's uncertainty as in the paper: "
                    "mean of the largest tenth.",
                ),
            ],
        )

    @classmethod
    def execute(cls, segmenter, activations: Tapped, image: torch.Tensor, opacity: float) -> io.NodeOutput:
        pictures, count = pictures_of(image, activations), len(segmenter.names) + 1
        side = max(segmenter.side, min(max(pictures.shape[1:3]), segmentation.SIDE))
        found = segmentation.segment(segmenter, activations, tracked, side)
        labels = clusters.enlarged(found.labels, count, pictures.shape[1:3])
        masks = F.one_hot(labels, count)[..., 1:].movedim(-1, 1).flatten(0, 1).float()
        doubt = found.divergence[:, None] / torch.log(torch.tensor(float(min(count, MEMBERS))))
        doubt = F.interpolate(doubt, size=pictures.shape[1:3], mode="bilinear")[:, 0].clamp(0, 1)
        drawn = drawing.coloured(pictures, labels - 1, opacity, segmenter.names)
        return io.NodeOutput(drawn, masks, doubt, _report(segmenter, found))


def _labels(masks: list[torch.Tensor], activations: Tapped) -> torch.Tensor:
    """Labels (rows, H, W) of part masks, brought to the size of the first."""
    size, sized = masks[0].shape[-2:], []
    for number, mask in enumerate(masks, 1):
        if len(mask) != len(masks[0]):
            raise ValueError(
                f"Part {number} has {len(mask)} masks and the first part {len(masks[0])}: give one a picture, black "
                "where a picture does not have the part."
            )
        same = mask.shape[-2:] == size
        sized.append(mask.float() if same else F.interpolate(mask[:, None].float(), size=size, mode="bilinear")[:, 0])
    images = [row.image for row in activations.rows]
    if max(images) >= len(masks[0]):
        raise ValueError(
            f"The activations are of {max(images) + 1} pictures or more and each part has {len(masks[0])} masks: give "
            "one a picture, in the same order."
        )
    return segmentation.labels_of(sized)[images]


def _names(text: str, count: int) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if len(names) > count:
        raise ValueError(f"There are {len(names)} names for {count} parts: connect a mask for each name.")
    return (*names, *(f"part {number}" for number in range(len(names) + 1, count + 1)))


def _report(segmenter, found: segmentation.Segmentation) -> str:
    lines = []
    for number, (labels, doubt) in enumerate(zip(found.labels, found.uncertainty.tolist(), strict=True)):
        shares = [f"{name} {(labels == part).float().mean():.1%}" for part, name in enumerate(segmenter.names, 1)]
        lines.append(f"picture {number}: {', '.join(shares)}; uncertainty {doubt:.4f}")
    return "\n".join(lines)
