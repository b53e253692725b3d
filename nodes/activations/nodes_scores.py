"""One number for each activation: how models differ there, how well it does on labels of one's own,
and the three properties that the paper's filter is based on.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from comfy_api.latest import io

from ..common.atomic_write import atomic_write
from ..host.folders import next_file, relative
from ..host.image_output import new_figure, to_image
from ..host.latent_shapes import split
from ..host.progress import nothing_to_show, with_progress
from ..host.schema import float_input, int_input, schema, seed
from ..host.sockets import Activations as ActivationsSocket
from . import select_ids
from .activations import Activations
from .tap_inputs import MEASURE, PAPER

if TYPE_CHECKING:
    from ..host.socket_types import ModelPatcher
    from .activation_spec import ActivationSpec
    from .label_scores import LabelScores

_HEIGHT = 500
_QUALITY_HEIGHT = 700
_PARTS = 4
_MODELS = 4
#: Of the pixel classifier for each ID. A score trains one classifier for each of hundreds of IDs;
#: Train Few-Shot Segmenter, which trains one, has epochs as an input.
_EPOCHS = 3


class Measure(enum.StrEnum):
    """Values of the ``measure`` input."""

    POINTS = "points"
    PARTS = "parts"
    DIFFERENCE = "difference"
    QUALITY = "quality"


class IdFilter(enum.StrEnum):
    """Values of the ``id_filter`` input."""

    MEASURED = "measured"
    PAPER_FILTER = "paper_filter"
    GENERAL_FILTER = "general_filter"


@dataclass(frozen=True, kw_only=True)
class _Scores:
    """What a measure found: a figure, a table, the IDs to keep with a name for their numbers, and
    the numbers to color the network's map with, one for each model.
    """

    figure: torch.Tensor
    report: str
    ids: list[str]
    name: str
    maps: list[dict[str, float]]


class ScoreActivations(io.ComfyNode):
    EVALUATES = False

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ScoreActivations",
            advanced=(
                "resolution",
                "seed",
                "id_filter",
                "max_noise_fraction",
                "max_locality",
                "filename_prefix",
            ),
            display_name="Score Activations",
            category=MEASURE,
            description=(
                "Gives every activation a number: the accuracy on your own labels (points or part "
                "masks), the difference between models, e.g. with and without a LoRA, or the "
                "remaining noise, granularity and locality that the paper's filter is based on. "
                f"{PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "which layer",
                "best layer",
                "PCK",
                "mIoU",
                "compare models",
                "where does this LoRA act",
                "CKA",
                "model diff",
                "layer quality",
                "feature filter",
            ],
            is_output_node=True,
            inputs=[
                io.Combo.Input(
                    "measure",
                    options=list(Measure),
                    tooltip=(
                        "points: fraction of corresponding points found (PCK). parts: mean IoU of "
                        "the paper's pixel classifier on part masks. difference: relative "
                        "difference from reference and linear CKA (arXiv 1905.00414). quality: "
                        "noise fraction, granularity and locality."
                    ),
                ),
                ActivationsSocket.Input(
                    "activations",
                    tooltip=(
                        "Tapped activations of the images, e.g. with preset all_features. For "
                        "quality: of a batch in which the images are repeated noise_samples times."
                    ),
                ),
                io.Image.Input(
                    "image", optional=True, tooltip="For points and parts: the tapped images."
                ),
                io.String.Input(
                    "points",
                    default="",
                    multiline=True,
                    tooltip=(
                        "For points: one block of 'x, y' lines per image, separated by blank "
                        "lines, in pixels or percent; the same points in the same order in each "
                        "block."
                    ),
                ),
                float_input(
                    "threshold",
                    0.1,
                    (0.001, 1.0, 0.01),
                    "For points: maximum error of a correct match, as a fraction of the image's "
                    "longer side. 0.1 is usual.",
                ),
                *(
                    io.Mask.Input(
                        f"part_{number}",
                        optional=True,
                        tooltip="For parts: masks of one part, one per image.",
                    )
                    for number in range(1, _PARTS + 1)
                ),
                int_input(
                    "train_images",
                    2,
                    (1, 4096),
                    "For parts: number of training images, taken from the start. The rest are "
                    "scored.",
                ),
                int_input(
                    "resolution",
                    64,
                    (8, 1024, 8),
                    "Positions per side in the search for points, or pixels per side of the parts.",
                ),
                seed("For parts: seed of the classifier."),
                ActivationsSocket.Input(
                    "reference",
                    optional=True,
                    tooltip=(
                        "For difference: activations of the first model, e.g. without the LoRA, "
                        "with the same images, preset, level and seed."
                    ),
                ),
                *(
                    ActivationsSocket.Input(
                        f"activations_{number}",
                        optional=True,
                        tooltip=(
                            "For difference: activations of a further model, e.g. the LoRA at "
                            "another strength."
                        ),
                    )
                    for number in range(2, _MODELS + 1)
                ),
                io.Latent.Input(
                    "latent",
                    optional=True,
                    tooltip="For quality: the clean latents of the images, at least two.",
                ),
                int_input(
                    "noise_samples",
                    4,
                    (2, 256),
                    "For quality: how often the tapped batch repeats the images (Repeat Image "
                    "Batch, Repeat Latent Batch). The noise fraction is the variance between the "
                    "repetitions.",
                ),
                io.Combo.Input(
                    "id_filter",
                    options=list(IdFilter),
                    tooltip=(
                        "For quality: IDs to keep. measured: by the two limits below. paper_filter "
                        "(the paper's list for SD1.5, SD2.1 and SDXL, else general_filter) and "
                        "general_filter (the paper's rules on any U-Net) need model; they keep all "
                        "IDs of a transformer, since no rule exists."
                    ),
                ),
                float_input(
                    "max_noise_fraction",
                    0.5,
                    (0.0, 1.0, 0.01),
                    "For measured: maximum fraction of variance due to the noise.",
                ),
                float_input(
                    "max_locality",
                    0.2,
                    (-2.0, 2.0, 0.01),
                    "For measured: maximum locality in excess of the latent's locality.",
                ),
                io.Model.Input(
                    "model", optional=True, tooltip="The tapped model, for the network map."
                ),
                int_input(
                    "keep",
                    5,
                    (1, 200),
                    "Number of IDs in the output ids, best first; not of quality.",
                ),
                io.String.Input(
                    "filename_prefix",
                    default="glassbox/scored_ids",
                    tooltip=(
                        "Text file inside ComfyUI's output folder for the IDs with their numbers. "
                        "Empty: no file."
                    ),
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="figure",
                    tooltip=(
                        "Number of each ID in forward order. Dashed: a baseline without a model."
                    ),
                ),
                io.String.Output(display_name="report", tooltip="One line per activation."),
                io.String.Output(
                    display_name="ids",
                    tooltip=(
                        "The best, most different or kept IDs, one per line, for a tap with preset "
                        "custom_ids."
                    ),
                ),
                io.String.Output(
                    display_name="file",
                    tooltip="Path of the saved IDs inside ComfyUI's output folder.",
                ),
                io.Image.Output(
                    display_name="network_map",
                    tooltip=(
                        "With model: the numbers as colors on the network map; for difference one "
                        "image per model, on one scale."
                    ),
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        measure: str,
        activations: Activations,
        points: str,
        threshold: float,
        train_images: int,
        resolution: int,
        seed: int,
        noise_samples: int,
        id_filter: str,
        max_noise_fraction: float,
        max_locality: float,
        keep: int,
        filename_prefix: str,
        image: torch.Tensor | None = None,
        reference: Activations | None = None,
        latent: dict | None = None,
        model: ModelPatcher | None = None,
        **sockets: Activations | torch.Tensor | None,
    ) -> io.NodeOutput:
        from .catalog_unet import catalog

        connected = {name: value for name, value in sorted(sockets.items()) if value is not None}
        specs = catalog(model.model.diffusion_model) if model is not None else []
        if measure == Measure.QUALITY:
            limits = (max_noise_fraction, max_locality)
            ids = None if id_filter == IdFilter.MEASURED else _filtered_ids(specs, id_filter)
            scores = _quality(activations, latent, noise_samples, limits=limits, ids=ids)
        elif measure == Measure.DIFFERENCE:
            further = {
                name: value for name, value in connected.items() if isinstance(value, Activations)
            }
            scores = _difference(reference, {"activations": activations, **further}, keep)
        else:
            image = _labeled_images(image, activations)
            masks = [value for value in connected.values() if isinstance(value, torch.Tensor)]
            if measure == Measure.POINTS:
                size = (image.shape[1], image.shape[2])
                scores = _points(
                    activations, points, size=size, side=resolution, threshold=threshold, keep=keep
                )
            else:
                scores = _parts(
                    activations,
                    masks,
                    trained=train_images,
                    side=resolution,
                    seed=seed,
                    keep=keep,
                )
        return io.NodeOutput(
            scores.figure,
            scores.report,
            "\n".join(scores.ids),
            _save(scores, filename_prefix),
            _network_maps(specs, scores.maps),
        )


def _labeled_images(image: torch.Tensor | None, activations: Activations) -> torch.Tensor:
    """The images, one for each row of the activations; raises ValueError for others."""
    rows = len(activations.rows)
    if image is None or len(image) != rows or rows < 2:
        count = "no images" if image is None else f"{len(image)} images"
        raise ValueError(
            f"The activations have {rows} rows, and image has {count}. Connect the images that are "
            "tapped and labeled, at least two."
        )
    return image


def _points(
    activations: Activations,
    points: str,
    size: tuple[int, int],
    side: int,
    threshold: float,
    keep: int,
) -> _Scores:
    from ..host.compute import on_device
    from . import label_scores

    if not points.strip():
        raise ValueError("Enter points, or choose another measure.")
    scored = label_scores.by_points(
        activations,
        points,
        size=size,
        side=side,
        threshold=threshold,
        watch=with_progress,
        run=on_device,
    )
    return _labeled(scored, len(activations.rows), keep)


def _parts(
    activations: Activations,
    masks: list[torch.Tensor],
    trained: int,
    side: int,
    seed: int,
    keep: int,
) -> _Scores:
    from ..host.compute import on_device
    from . import few_shot, label_scores

    if not masks:
        raise ValueError("Connect part_1 and other masks, or choose another measure.")
    scored = label_scores.by_parts(
        activations,
        few_shot.part_labels(masks, activations),
        trained=trained,
        side=side,
        seed=seed,
        epochs=_EPOCHS,
        watch=with_progress,
        run=on_device,
    )
    return _labeled(scored, len(activations.rows), keep)


def _labeled(scored: LabelScores, images: int, keep: int) -> _Scores:
    from . import id_chart

    best = id_chart.best(scored.scores, keep)
    figure = new_figure(id_chart.chart_width(len(scored.scores)), _HEIGHT)
    id_chart.draw_bars(figure, {scored.title(images): scored.scores}, best, scored.guess)
    return _Scores(
        figure=to_image(figure),
        report=scored.report(),
        ids=best,
        name=scored.name,
        maps=[scored.scores],
    )


def _difference(
    reference: Activations | None, models: dict[str, Activations], keep: int
) -> _Scores:
    from . import comparison, id_chart

    if reference is None:
        raise ValueError("Connect reference, the activations of the first model.")
    difference, cka = comparison.compare(reference, models, with_progress)
    largest = {
        id_: max(values[id_] for values in difference.values()) for id_ in reference.features
    }
    best = id_chart.best(largest, keep)
    figure = new_figure(id_chart.chart_width(len(largest)), 2 * _HEIGHT)
    if len(models) == 1:
        charts = {
            "Relative difference": difference["activations"],
            "Linear CKA": cka["activations"],
        }
        id_chart.draw_bars(figure, charts, best, None)
    else:
        id_chart.draw_lines(figure, {"Relative difference": difference, "Linear CKA": cka})
    columns = {}
    for name in models:
        suffix = name.removeprefix("activations")
        columns[f"difference{suffix}"] = difference[name]
        columns[f"CKA{suffix}"] = cka[name]
    return _Scores(
        figure=to_image(figure),
        report=id_chart.table(columns),
        ids=best,
        name="difference",
        maps=list(difference.values()),
    )


def _quality(
    activations: Activations,
    latent: dict | None,
    noise_samples: int,
    limits: tuple[float, float],
    ids: set[str] | None,
) -> _Scores:
    """``ids``: those that a filter keeps; None keeps those within the limits of noise and
    locality.
    """
    from . import id_chart, quality

    if latent is None:
        raise ValueError("Connect latent, the clean latents of the images.")
    images = quality.rows_of(split(latent["samples"])[0])
    rows = len(activations.rows)
    if rows != noise_samples * len(images):
        raise ValueError(
            f"The activations have {rows} rows, and {noise_samples} noise samples of {len(images)} "
            f"images are {noise_samples * len(images)}: repeat the images noise_samples times "
            "before the tap, and connect latent unrepeated."
        )
    starts = range(0, rows, len(images))
    samples = (
        {id_: value[start : start + len(images)] for id_, value in activations.features.items()}
        for start in with_progress(starts)
    )
    measured = quality.measure_samples(samples, images)
    kept = {id_ for id_, numbers in measured.items() if numbers.within(*limits)}
    kept = kept if ids is None else ids
    figure = new_figure(id_chart.chart_width(len(measured)), _QUALITY_HEIGHT)
    quality.draw_chart(figure, measured, kept, f"{len(measured)} activations")
    noise = {id_: numbers.noise for id_, numbers in measured.items()}
    return _Scores(
        figure=to_image(figure),
        report=quality.table(measured, kept),
        ids=[id_ for id_ in measured if id_ in kept],
        name="noise",
        maps=[noise],
    )


def _filtered_ids(specs: list[ActivationSpec], id_filter: str) -> set[str]:
    """The IDs that the paper's filter keeps, where the paper has one, or the general one; of a
    transformer all.
    """
    from . import paper_tables

    if not specs:
        raise ValueError(f"Connect model for id_filter {id_filter}, or choose measured.")
    if not select_ids.has_stages(specs):
        return {spec.id for spec in specs}
    by_paper = id_filter == IdFilter.PAPER_FILTER and paper_tables.architecture(specs)
    preset = select_ids.Preset.PAPER_FILTER if by_paper else select_ids.Preset.GENERAL_FILTER
    return {spec.id for spec in select_ids.select(specs, preset)}


def _save(scores: _Scores, prefix: str) -> str:
    """Write the IDs with their numbers as comments, as an ``ids`` input reads them; returns the
    file's path in the output folder, empty without a prefix.
    """
    if not prefix.strip():
        return ""
    path = next_file(prefix.strip(), ".txt")
    largest = {id_: max(values[id_] for values in scores.maps) for id_ in scores.ids}
    lines = [f"{id_}  # {scores.name} {number:.3f}\n" for id_, number in largest.items()]
    with atomic_write(path) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")
    return relative(path)


def _network_maps(specs: list[ActivationSpec], maps: list[dict[str, float]]) -> torch.Tensor:
    from . import catalog_table

    if not specs:
        return nothing_to_show()
    numbers = [number for values in maps for number in values.values()]
    bounds = (min(numbers), max(numbers))
    return torch.cat([catalog_table.value_map(specs, values, bounds) for values in maps])


NODES = [ScoreActivations]
