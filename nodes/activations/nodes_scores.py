"""One number for each activation: how two models differ there, and how well it does on labels of one's own."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from ..common.atomic_write import atomic_write
from ..host.folders import next_file, relative
from ..host.image_output import new_figure, to_image
from ..host.progress import with_progress
from ..host.schema import Activations as ActivationsSocket
from ..host.schema import float_input, int_input, schema, seed
from .activations import Activations
from .tap_inputs import MEASURE, PAPER, RESEARCH

_HEIGHT, _PARTS, _MODELS = 500, 4, 4
_KEEP = int_input("keep", 5, (1, 200), "How many IDs the output ids lists, best first.")


class CompareActivations(io.ComfyNode):
    EVALUATES = False

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_CompareActivations",
            display_name="Compare Activations",
            category=MEASURE,
            description="Measures where models differ inside from a first one, such as a checkpoint with a LoRA at "
            "several strengths: relative difference and linear CKA (arXiv 1905.00414) of each activation on the same "
            f"images, as a chart and on the map of the network. IDs are those of {PAPER}.",
            search_aliases=[
                "diffusion features",
                "compare models",
                "where does this LoRA act",
                "CKA",
                "representational similarity",
                "model diff",
            ],
            inputs=[
                io.Model.Input("model", tooltip="One of the two models, for the map of the network."),
                ActivationsSocket.Input("reference", tooltip="Activations of the first model, such as without a LoRA."),
                ActivationsSocket.Input(
                    "activations",
                    tooltip="The same activations of the second model: same images, preset, level and seed.",
                ),
                _KEEP,
                *(
                    ActivationsSocket.Input(
                        f"activations_{number}",
                        optional=True,
                        tooltip="Those of another model, such as the LoRA at another strength.",
                    )
                    for number in range(2, _MODELS + 1)
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="figure",
                    tooltip="Relative difference and CKA in forward order: bars, or a line for each of several models.",
                ),
                io.Image.Output(
                    display_name="network_map",
                    tooltip="The relative difference as colors on the map of the network, one image per model.",
                ),
                io.String.Output(display_name="report", tooltip="One line per activation."),
                io.String.Output(
                    display_name="ids", tooltip="The IDs that differ most, one per line, for preset custom_ids."
                ),
            ],
        )

    @classmethod
    def execute(
        cls, model, reference: Activations, activations: Activations, keep: int, **others: Activations | None
    ) -> io.NodeOutput:
        from . import catalog_table, comparison, id_chart
        from .catalog_unet import catalog

        models = {"activations": activations} | {name: other for name, other in others.items() if other is not None}
        difference, cka = comparison.compare(reference, models, with_progress)
        largest = {id_: max(values[id_] for values in difference.values()) for id_ in reference.features}
        best = id_chart.best(largest, keep)
        figure = new_figure(id_chart.chart_width(len(largest)), 2 * _HEIGHT)
        if len(models) == 1:
            charts = {"Relative difference": difference["activations"], "Linear CKA": cka["activations"]}
            id_chart.draw_bars(figure, charts, best, None)
        else:
            id_chart.draw_lines(figure, {"Relative difference": difference, "Linear CKA": cka})
        every = [value for values in difference.values() for value in values.values()]
        specs, bounds = catalog(model.model.diffusion_model), (min(every), max(every))
        maps = [catalog_table.value_map(specs, values, bounds) for values in difference.values()]
        named = [
            (f"{what}{name.removeprefix('activations')}", values[name])
            for name in models
            for what, values in (("difference", difference), ("CKA", cka))
        ]
        return io.NodeOutput(to_image(figure), torch.cat(maps), id_chart.table(dict(named)), "\n".join(best))


class ScoreActivations(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ScoreActivations",
            advanced=("resolution", "epochs"),
            display_name="Score Activations",
            category=RESEARCH,
            description="Scores every activation on labels of your own, to find the best one for your task and model: "
            "points that correspond between images (PCK), or part masks (mean IoU of the paper's pixel classifier). "
            f"{PAPER}.",
            search_aliases=["diffusion features", "which layer", "best layer", "PCK", "mIoU", "evaluate features"],
            is_output_node=True,
            inputs=[
                ActivationsSocket.Input(
                    "activations", tooltip="Tapped activations of the labeled images, such as preset all_features."
                ),
                io.Image.Input("image", tooltip="The images that were tapped."),
                io.String.Input(
                    "points",
                    default="",
                    multiline=True,
                    tooltip="One block of 'x, y' lines per image, separated by blank lines, in pixels or percent. The "
                    "same points in the same order in each. Not needed with masks.",
                ),
                float_input(
                    "threshold",
                    0.1,
                    (0.001, 1.0, 0.01),
                    "For points: largest distance that counts as found, as a fraction of the image's longer "
                    "side. 0.1 is usual.",
                ),
                int_input(
                    "train_images",
                    2,
                    (1, 4096),
                    "For masks: the first images, which the classifier learns from. The others are scored.",
                ),
                int_input(
                    "resolution",
                    64,
                    (8, 1024, 8),
                    "Positions per side that points are searched in, or pixels per side of the masks.",
                ),
                int_input("epochs", 3, (1, 1000), "For masks: passes over all pixels for each ID."),
                seed("For masks: seed of the classifier."),
                _KEEP,
                io.String.Input(
                    "filename_prefix",
                    default="glassbox/scored_ids",
                    tooltip="Text file inside ComfyUI's output folder that keeps the best IDs with their scores.",
                ),
                *(
                    io.Mask.Input(f"part_{number}", optional=True, tooltip="Masks of a part, one per image.")
                    for number in range(1, _PARTS + 1)
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="figure", tooltip="Score of each ID in forward order. Dashed: a guess without a model."
                ),
                io.String.Output(display_name="report", tooltip="One line per activation: its score."),
                io.String.Output(
                    display_name="ids", tooltip="The best IDs, one per line, for a tap with preset custom_ids."
                ),
                io.String.Output(display_name="file", tooltip="Path of the saved IDs inside ComfyUI's output folder."),
            ],
        )

    @classmethod
    def execute(
        cls,
        activations: Activations,
        image: torch.Tensor,
        points: str,
        threshold: float,
        train_images: int,
        resolution: int,
        epochs: int,
        seed: int,
        keep: int,
        filename_prefix: str,
        **parts: torch.Tensor,
    ) -> io.NodeOutput:
        from ..host.compute import on_device
        from . import few_shot, id_chart, label_scores

        masks, rows = [mask for _, mask in sorted(parts.items()) if mask is not None], len(activations.rows)
        how = with_progress, on_device
        if bool(points.strip()) == bool(masks):
            raise ValueError("Enter points, or connect part_1 and other masks, one of both.")
        if len(image) != rows or rows < 2:
            raise ValueError(
                f"The activations have {rows} rows, and image has {len(image)} images. Tap the images that are "
                "labeled, at least two."
            )
        if masks:
            labels = few_shot.part_labels(masks, activations)
            found = label_scores.by_parts(activations, labels, train_images, resolution, seed, epochs, *how)
        else:
            size = (image.shape[1], image.shape[2])
            found = label_scores.by_points(activations, points, size, resolution, threshold, *how)
        best = id_chart.best(found.scores, keep)
        figure = new_figure(id_chart.chart_width(len(found.scores)), _HEIGHT)
        id_chart.draw_bars(figure, {found.title(rows): found.scores}, best, found.guess)
        path = next_file(filename_prefix, ".txt")
        with atomic_write(path) as temporary:
            temporary.write_text(found.lines(best), encoding="utf-8")
        return io.NodeOutput(to_image(figure), found.report(), "\n".join(best), relative(path))


NODES = [CompareActivations, ScoreActivations]
