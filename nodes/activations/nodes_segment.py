"""Parts of images from activations: by clustering, or learned from a few masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from comfy_api.latest import io
from torch.nn import functional as F

from ..host.progress import interruptible, with_progress
from ..host.schema import float_input, int_input, schema, seed
from ..host.sockets import Activations as ActivationsSocket
from ..host.sockets import FewShotSegmenter
from .activations import Activations, Weighting
from .pixel_classifier import EPOCHS, MEMBERS, SIDE
from .tap_inputs import PAPER, SEE, WEIGHTING, images_of

if TYPE_CHECKING:
    from .few_shot import Segmenter

_OPACITY = float_input("opacity", 0.6, (0.0, 1.0, 0.05), "Opacity of the colors.")
_PARTS = 8


class ActivationClusters(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ActivationClusters",
            display_name="Activation Clusters",
            category=SEE,
            description=(
                "Segments images without training or text: k-means over the activations of all "
                f"positions and images, so a cluster is the same part in every image. {PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "k-means",
                "unsupervised segmentation",
                "segment",
                "masks",
            ],
            inputs=[
                ActivationsSocket.Input(
                    "activations",
                    tooltip="Tapped activations, one row per image. Several IDs are concatenated.",
                ),
                io.Image.Input("image", tooltip="The tapped images; the masks have their size."),
                int_input("clusters", 6, (2, 64), "Number of clusters: more gives smaller parts."),
                seed("Seed of k-means. The best of four starts is used."),
                _OPACITY,
                io.Combo.Input(**WEIGHTING),
            ],
            outputs=[
                io.Image.Output(
                    display_name="figure", tooltip="The images with one color per cluster."
                ),
                io.Mask.Output(
                    display_name="masks",
                    tooltip=("One mask per cluster, largest first, grouped by image."),
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        activations: Activations,
        image: torch.Tensor,
        clusters: int,
        seed: int,
        opacity: float,
        weighting: str = Weighting.EQUAL,
    ) -> io.NodeOutput:
        from ..host.compute import compute_device, on_device
        from . import kmeans, overlays

        images = images_of(image, activations)
        joined = activations.joined(weighting)
        run = None if compute_device(joined).type == "cpu" else on_device
        labels = kmeans.cluster(
            joined, clusters, seed=seed, watch=with_progress, call=interruptible, run=run
        )
        labels = kmeans.sort_by_size(
            kmeans.resize_labels(labels, clusters, images.shape[1:3]), clusters
        )
        masks = F.one_hot(labels, clusters).movedim(-1, 1).flatten(0, 1).float()
        return io.NodeOutput(overlays.draw_labels(images, labels, opacity), masks)


class TrainFewShotSegmenter(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_TrainFewShotSegmenter",
            display_name="Train Few-Shot Segmenter",
            category=SEE,
            description=(
                f"Learns to segment parts from a few masked images: {MEMBERS} small networks "
                "classify each pixel's activations by vote, as in the paper's experiments with "
                f"30 images. {PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "pixel classifier",
                "DatasetDDPM",
                "label-scarce segmentation",
                "train segmentation",
            ],
            inputs=[
                ActivationsSocket.Input(
                    "activations", tooltip="Activations of the masked images, one row per image."
                ),
                io.Mask.Input(
                    "part_1", tooltip="Masks of the first part, one per image in the same order."
                ),
                io.String.Input(
                    "part_names",
                    default="",
                    tooltip="Names of the parts, comma-separated, such as hair, skin. Optional.",
                ),
                int_input(
                    "resolution",
                    SIDE,
                    (16, 1024, 8),
                    "Training resolution in pixels per side. The paper uses 256. Lower is faster.",
                ),
                int_input(
                    "epochs",
                    EPOCHS,
                    (1, 1000),
                    "Maximum epochs over all pixels. From the fourth on, each network stops "
                    "after 50 batches without a lower loss. The paper uses 100.",
                ),
                seed("Seed of the initial weights and of the pixel order."),
                *(
                    io.Mask.Input(
                        f"part_{number}",
                        optional=True,
                        tooltip="Masks of a further part, one per image.",
                    )
                    for number in range(2, _PARTS + 1)
                ),
            ],
            outputs=[
                FewShotSegmenter.Output(
                    display_name="segmenter", tooltip="For Few-Shot Segmenter."
                ),
                io.String.Output(
                    display_name="report", tooltip="IoU of each part on the training images."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        activations: Activations,
        part_names: str,
        resolution: int,
        epochs: int,
        seed: int,
        **parts: torch.Tensor,
    ) -> io.NodeOutput:
        from ..host.compute import on_device
        from . import few_shot

        masks = [
            parts[f"part_{number}"]
            for number in range(1, _PARTS + 1)
            if parts.get(f"part_{number}") is not None
        ]
        labels = few_shot.part_labels(masks, activations)
        names = _names(part_names, len(masks))
        segmenter = activations.computed(
            on_device,
            lambda given, known: few_shot.train(
                given,
                known,
                names=names,
                side=resolution,
                seed=seed,
                epochs=epochs,
                watch=with_progress,
            ),
            labels,
        )
        predicted = activations.computed(
            on_device, lambda given: few_shot.segment(segmenter, given, with_progress)
        )
        truth = F.interpolate(
            labels[:, None].float(), size=(resolution, resolution), mode="nearest"
        )[:, 0].long()
        scores = few_shot.mean_iou(predicted.labels, truth, len(masks) + 1).tolist()
        lines = [
            f"{name}: IoU {score:.3f}"
            if bool((truth == part).any())
            else f"{name}: no pixel at this resolution"
            for part, (name, score) in enumerate(zip(("background", *names), scores, strict=True))
        ]
        return io.NodeOutput(segmenter, "\n".join(["On the training images:", *lines]))


class ApplyFewShotSegmenter(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_FewShotSegmenter",
            display_name="Few-Shot Segmenter",
            category=SEE,
            description=(
                "Segments the learned parts in other images by majority vote of the trained "
                f"networks, and shows their disagreement. {PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "apply segmenter",
                "part segmentation",
                "uncertainty",
                "predict masks",
            ],
            inputs=[
                FewShotSegmenter.Input(
                    "segmenter", tooltip="Segmenter of Train Few-Shot Segmenter."
                ),
                ActivationsSocket.Input(
                    "activations",
                    tooltip=(
                        "Activations of other images, with the same model, preset and noise level."
                    ),
                ),
                io.Image.Input("image", tooltip="The tapped images; the masks have their size."),
                _OPACITY,
            ],
            outputs=[
                io.Image.Output(
                    display_name="figure", tooltip="The images with one color per part."
                ),
                io.Mask.Output(
                    display_name="masks",
                    tooltip="One mask per part, grouped by image.",
                ),
                io.Mask.Output(
                    display_name="uncertainty",
                    tooltip=(
                        "Disagreement of the networks: Jensen-Shannon divergence relative to its "
                        "maximum."
                    ),
                ),
                io.String.Output(
                    display_name="report",
                    tooltip=(
                        "Area fraction of each part in each image, and the paper's uncertainty "
                        "of the image: mean of the largest tenth."
                    ),
                ),
            ],
        )

    @classmethod
    def execute(
        cls, segmenter: Segmenter, activations: Activations, image: torch.Tensor, opacity: float
    ) -> io.NodeOutput:
        from ..host.compute import on_device
        from . import few_shot, kmeans, overlays

        images = images_of(image, activations)
        count = len(segmenter.names) + 1
        side = max(segmenter.side, min(max(images.shape[1:3]), SIDE))
        found = activations.computed(
            on_device, lambda one: few_shot.segment(segmenter, one, with_progress, side)
        )
        labels = kmeans.resize_labels(found.labels, count, images.shape[1:3])
        masks = F.one_hot(labels, count)[..., 1:].movedim(-1, 1).flatten(0, 1).float()
        uncertainty = found.divergence[:, None] / torch.log(
            torch.tensor(float(min(count, MEMBERS)))
        )
        uncertainty = F.interpolate(uncertainty, size=images.shape[1:3], mode="bilinear")[
            :, 0
        ].clamp(0, 1)
        figure = overlays.draw_labels(images, labels - 1, opacity, segmenter.names)
        lines = []
        for number, (row, value) in enumerate(
            zip(found.labels, found.uncertainty.tolist(), strict=True)
        ):
            fractions = [
                f"{name} {(row == part).float().mean():.1%}"
                for part, name in enumerate(segmenter.names, 1)
            ]
            lines.append(f"image {number}: {', '.join(fractions)}; uncertainty {value:.4f}")
        return io.NodeOutput(figure, masks, uncertainty, "\n".join(lines))


def _names(text: str, count: int) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if len(names) > count:
        raise ValueError(
            f"There are {len(names)} part names for {count} parts. Connect a mask for each name."
        )
    return (*names, *(f"part {number}" for number in range(len(names) + 1, count + 1)))


NODES = [ActivationClusters, TrainFewShotSegmenter, ApplyFewShotSegmenter]
