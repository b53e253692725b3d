"""What was found and what a mask does: the report of a scan, and of a mask beside images."""

from __future__ import annotations

import functools
import itertools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from comfy_api.latest import io

from ..host import folders
from ..host.evaluate import sample_images
from ..host.folders import input_stamp
from ..host.image_output import new_figure, to_compare, to_image
from ..host.progress import interruptible, nothing_to_show, with_progress
from ..host.schema import float_input, int_input, schema, seed
from ..host.sockets import NeuronMask as MaskSocket
from ..host.text_encoding import encode
from . import nemo_inputs
from .first_step_comfy import latent_shape
from .image_similarity_comfy import Similarity, image_judge, image_reader
from .mask import CAVEATS
from .memorization_score import PAPER_THRESHOLD

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, VAE, ClipVisionModel, ModelPatcher
    from .image_similarity import Embed, ImageSimilarity, Remains
    from .mask import NeuronMask

PAPER = nemo_inputs.PAPER


@dataclass(frozen=True, kw_only=True)
class _Sampling:
    """How the images of a scan's report are sampled."""

    seed: int
    steps: int
    cfg: float


class MemorizationReport(io.ComfyNode):
    READS: ClassVar = {"sscd_file": functools.partial(input_stamp, what="SSCD model")}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_MemorizationReport",
            advanced=("width", "height", "similarity", "sscd_file"),
            display_name="Memorization Report",
            category=nemo_inputs.CATEGORY,
            description=(
                "Reports a mask or a scan. With mask and images: neurons by layer, z-scores, and "
                "similarities of images before and after, to each other and to the memorized "
                "image. With table: histogram of the scores, search results, and a ranked sheet "
                f"with the first image of each prompt, without and with the mask. {PAPER}, section "
                f"4. {CAVEATS[0]}"
            ),
            search_aliases=[
                "nemo",
                "neuron report",
                "scan report",
                "replication",
                "diversity",
                "clip score",
                "ranked prompts",
            ],
            inputs=[
                MaskSocket.Input(**nemo_inputs.MASK, optional=True),
                io.Image.Input(
                    "images_before",
                    optional=True,
                    tooltip="Images without the mask, for several seeds.",
                ),
                io.Image.Input(
                    "images_after", optional=True, tooltip="Images of the same seeds with the mask."
                ),
                io.Image.Input(
                    "reference_image",
                    optional=True,
                    tooltip="The memorized image.",
                ),
                io.String.Input(
                    "prompt",
                    default="",
                    multiline=True,
                    optional=True,
                    tooltip="Prompt of the images; measures prompt alignment before and after.",
                ),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    tooltip=(
                        "Text encoder of the model, for table and for prompt alignment. The demo "
                        "model's CLIP is sufficient for alignment; others also need clip_vision."
                    ),
                ),
                io.ClipVision.Input(
                    "clip_vision",
                    optional=True,
                    tooltip=(
                        "For image similarity. For prompt alignment, use the image encoder "
                        "trained with the CLIP (ViT-bigG for SDXL, ViT-H for SD2)."
                    ),
                ),
                io.Combo.Input(options=Similarity, **nemo_inputs.SIMILARITY),
                io.String.Input(**nemo_inputs.SSCD_FILE),
                io.Image.Input(**nemo_inputs.GENERIC_IMAGES),
                io.String.Input(
                    "table",
                    force_input=True,
                    optional=True,
                    tooltip=(
                        "The table output of Memorization Score: reports that scan, with images of "
                        "its own. Needs model, clip and vae."
                    ),
                ),
                io.Float.Input(**nemo_inputs.THRESHOLD, force_input=True, optional=True),
                io.Model.Input("model", optional=True, tooltip="For table: the scanned model."),
                io.Vae.Input("vae", optional=True, tooltip="For table: VAE of the model."),
                io.Model.Input(
                    "masked_model",
                    optional=True,
                    tooltip=(
                        "For table: the masked model; its images stand to the right of the "
                        "unmasked ones."
                    ),
                ),
                int_input(
                    "image_count",
                    16,
                    (0, 200),
                    "For table: number of prompts to generate images for, highest scores first. "
                    "0: none.",
                    optional=True,
                ),
                int_input(
                    "steps", 20, (1, 200), "For table: sampling steps (Euler).", optional=True
                ),
                float_input("cfg", 7.0, (1.0, 30.0, 0.1), "For table: CFG scale.", optional=True),
                seed("For table: seed of the images, the same for every prompt.", 1, control=False),
                io.Int.Input(**nemo_inputs.WIDTH),
                io.Int.Input(**nemo_inputs.HEIGHT),
                io.String.Input(
                    "generic_prompt",
                    default="",
                    optional=True,
                    tooltip=(
                        'For table: generic prompt used as baseline (e.g. "portrait"); needs '
                        "masked_model. The memorized image counts as removed when outputs are no "
                        "more similar to it than this prompt's outputs. Empty: skip the check."
                    ),
                ),
                io.String.Input(**nemo_inputs.FILENAME_PREFIX),
            ],
            outputs=[
                io.Image.Output(
                    display_name="figure",
                    tooltip=(
                        "Neurons by layer, z-scores, and similarities of all image pairs; with "
                        "table the histogram of the scores and the threshold."
                    ),
                ),
                io.String.Output(
                    display_name="report",
                    tooltip="Numbers and caveats; with table the verdicts and search results.",
                ),
                io.String.Output(
                    display_name="table",
                    tooltip=(
                        "CSV, one row per neuron; with table one per prompt: score, verdict, "
                        "neurons, convergence, and remaining similarity to the memorized image."
                    ),
                ),
                io.Image.Output(
                    display_name="sheet",
                    tooltip=(
                        "Labeled rows of images: reference, without the mask, with it, generic "
                        "prompt; with table the first image of each prompt, highest scores first."
                    ),
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        mask: NeuronMask | None = None,
        images_before: torch.Tensor | None = None,
        images_after: torch.Tensor | None = None,
        reference_image: torch.Tensor | None = None,
        prompt: str = "",
        clip: CLIP | None = None,
        clip_vision: ClipVisionModel | None = None,
        similarity: str = Similarity.AUTO,
        sscd_file: str = "",
        generic_images: torch.Tensor | None = None,
        table: str | None = None,
        threshold: float = PAPER_THRESHOLD,
        model: ModelPatcher | None = None,
        vae: VAE | None = None,
        masked_model: ModelPatcher | None = None,
        image_count: int = 16,
        steps: int = 20,
        cfg: float = 7.0,
        seed: int = 1,
        width: int = 512,
        height: int = 512,
        generic_prompt: str = "",
        filename_prefix: str = "",
    ) -> io.NodeOutput:
        judge, embed = image_judge(similarity, sscd_file, clip_vision, clip)
        images = {"before": images_before, "after": images_after}
        batches = {name: batch for name, batch in images.items() if batch is not None}
        if table is None:
            if mask is None:
                raise ValueError(
                    "There is nothing to report: connect a mask, or the table of Memorization "
                    "Score."
                )
            return _report_mask(
                mask,
                batches,
                reference=reference_image,
                generic=generic_images,
                prompt=prompt,
                clip=clip,
                clip_vision=clip_vision,
                judge_name=judge.name,
                embed=embed,
                filename_prefix=filename_prefix,
            )
        if batches or generic_images is not None or reference_image is not None:
            raise ValueError(
                "The report of a scan generates its own images: disconnect table, or "
                "images_before, images_after, reference_image and generic_images."
            )
        if model is None or clip is None or vae is None:
            raise ValueError("The report of a scan generates images: connect model, clip and vae.")
        return _report_scan(
            table,
            threshold,
            mask=mask,
            models=[model] if masked_model is None else [model, masked_model],
            clip=clip,
            vae=vae,
            embed=embed,
            generic_prompt=generic_prompt,
            image_count=image_count,
            shape=latent_shape(model, width, height),
            sampling=_Sampling(seed=seed, steps=steps, cfg=cfg),
            filename_prefix=filename_prefix,
        )


def _report_mask(
    mask: NeuronMask,
    batches: dict[str, torch.Tensor],
    reference: torch.Tensor | None,
    generic: torch.Tensor | None,
    prompt: str,
    clip: CLIP | None,
    clip_vision: ClipVisionModel | None,
    judge_name: str,
    embed: Embed | None,
    filename_prefix: str,
) -> io.NodeOutput:
    """A mask, and what it does to images."""
    from . import image_similarity, neuron_figures, neuron_reports

    measured = {
        name: image_similarity.compare_images(images, reference, embed, with_progress)
        for name, images in batches.items()
    }
    lines = [f"{mask.count} neurons in {len(mask.scales)} layers.", *mask.history]
    lines += [f"Similarity of images: {judge_name}."] if measured else []
    lines += [_similarity_line(name, similarity) for name, similarity in measured.items()]
    if len(measured) == 2:
        same = image_similarity.compare_pairs(batches["before"], batches["after"], embed).median()
        lines.append(f"Median similarity of the two images of a seed: {float(same):.3f}.")
    if batches:
        lines.append(_alignment_line(batches, prompt, clip, clip_vision))
    shown = batches if generic is None else {**batches, "generic prompt": generic}
    left, sheet = _sheet(shown, reference, embed, clip)
    lines += neuron_reports.remains_lines(left, mask)
    lines.append(neuron_reports.caveats())
    figure = new_figure(1200, 420)
    neuron_figures.plot_report(figure, mask, measured)
    compared = _compared(batches["before"], batches["after"]) if len(batches) == 2 else None
    table = interruptible(lambda: neuron_reports.mask_table(mask))
    report = "\n".join(lines) + folders.save_table(table, filename_prefix)
    return io.NodeOutput(to_image(figure), report, table, sheet, ui=compared)


def _report_scan(
    table: str,
    threshold: float,
    mask: NeuronMask | None,
    models: list[ModelPatcher],
    clip: CLIP,
    vae: VAE,
    embed: Embed | None,
    generic_prompt: str,
    image_count: int,
    shape: tuple[int, ...],
    sampling: _Sampling,
    filename_prefix: str,
) -> io.NodeOutput:
    """The scores of a scan, and the first images of its prompts, highest scores first."""
    from . import neuron_figures, neuron_reports

    scores = neuron_reports.read_scores(table)
    searches = {} if mask is None else {search.prompt: search for search in mask.searches}
    prompts = [*scores][:image_count]
    judged = len(models) > 1 and bool(generic_prompt.strip())
    requested = [(text, models) for text in prompts]
    if judged:
        requested.append((generic_prompt, models[:1]))
    sampled = _sample(requested, clip, vae=vae, shape=shape, sampling=sampling)
    left = {}
    if judged:
        left = _remains(prompts, sampled[:-1], generic=sampled[-1][0], embed=embed, clip=clip)
    figure = new_figure()
    neuron_figures.plot_histogram(figure, [*scores.values()], threshold)
    titles = neuron_reports.sheet_titles(scores, threshold, searches, left)
    sheet = _draw_pages(sampled[: len(prompts)], titles, len(models))
    verdicts = neuron_reports.scan_table(scores, threshold, searches, left)
    report = neuron_reports.scan_report(scores, threshold, searches, left)
    report += folders.save_table(verdicts, filename_prefix)
    return io.NodeOutput(to_image(figure), report, verdicts, sheet)


def _sample(
    requested: list[tuple[str, list[ModelPatcher]]],
    clip: CLIP,
    vae: VAE,
    shape: tuple[int, ...],
    sampling: _Sampling,
) -> list[list[torch.Tensor]]:
    """An image (H, W, 3) of each text by each of its models, all from the same noise."""
    from .scan_file import Pace

    images = sum(len(models) for _, models in requested)
    negative = encode(clip, "")[1]
    rows = images * sampling.steps * (1 if sampling.cfg == 1 else 2)
    logging.info("Scan report: %d images, %d rows of the network.", images, rows)
    pace = Pace(len(requested))
    sampled = []
    for text, models in with_progress(requested):
        positive = encode(clip, text)[1]
        images_of_text = [
            sample_images(
                model,
                vae,
                positive=positive,
                negative=negative,
                shape=shape,
                count=1,
                seed=sampling.seed,
                steps=sampling.steps,
                cfg=sampling.cfg,
            )[0]
            for model in models
        ]
        sampled.append(images_of_text)
        logging.info("Scan report: %s.", pace.step())
    return sampled


def _remains(
    texts: list[str],
    images: list[list[torch.Tensor]],
    generic: torch.Tensor,
    embed: Embed | None,
    clip: CLIP,
) -> dict[str, tuple[Remains, Remains]]:
    """What the masked image of each text, and the generic prompt's image, have of the untouched
    image.
    """
    from .image_similarity import remains

    read = image_reader(clip)
    return {
        text: (
            remains(masked[None], untouched[None], embed, read),
            remains(generic[None], untouched[None], embed, read),
        )
        for text, (untouched, masked) in zip(texts, images, strict=True)
    }


def _draw_pages(images: list[list[torch.Tensor]], titles: list[str], models: int) -> torch.Tensor:
    """The sheet of a scan as an IMAGE, a batch of pages of one size: each of as many prompts as a
    person can read.
    """
    from . import neuron_figures

    columns = neuron_figures.SHEET_COLUMNS
    pages = []
    lines = min(-(-len(images) // columns), neuron_figures.SHEET_LINES)
    for first in range(0, len(images), max(columns * lines, 1)):
        shown = slice(first, first + columns * lines)
        page = new_figure(300 * columns * models, 60 + 340 * lines)
        neuron_figures.plot_sheet(page, images[shown], titles[shown], lines)
        pages.append(to_image(page))
    return torch.cat(pages) if pages else nothing_to_show()


def _sheet(
    shown: dict, reference: torch.Tensor | None, embed: Embed | None, clip: CLIP | None
) -> tuple[dict[str, Remains], object]:
    """What each batch of images has of the reference, by name, and all of them in rows; nothing
    without images.
    """
    from . import image_similarity, neuron_figures

    if not shown:
        return {}, nothing_to_show()
    left = {}
    if reference is not None:
        read = image_reader(clip)
        left = {
            name: image_similarity.remains(one, reference, embed, read)
            for name, one in shown.items()
        }
    figure = new_figure(*neuron_figures.sheet_size(shown, reference))
    neuron_figures.plot_batches(figure, shown, left, reference)
    return left, to_image(figure)


def _compared(before: torch.Tensor, after: torch.Tensor) -> dict:
    """The images of each seed without and with the mask, for ComfyUI's slider."""
    pairs = list(itertools.chain(*zip(before, after, strict=True)))
    labels = [
        f"{name} {number + 1}" for number in range(len(before)) for name in ("before", "after")
    ]
    return to_compare(pairs, labels, shown=(0, 1))


def _similarity_line(name: str, similarity: ImageSimilarity) -> str:
    parts = []
    if similarity.sameness is not None:
        parts.append(f"median similarity between seeds {similarity.sameness:.3f}")
    if similarity.replication is not None:
        parts.append(f"median similarity to the reference {similarity.replication:.3f}")
    return (
        f"{name.capitalize()}: "
        f"{', '.join(parts) or 'a single image and no reference, nothing to compare'}."
    )


def _alignment_line(
    batches: dict, prompt: str, clip: CLIP | None, clip_vision: ClipVisionModel | None
) -> str:
    from ..common import prompt_alignment

    try:
        found = {
            name: prompt_alignment.measure(prompt, images, clip, clip_vision)
            for name, images in batches.items()
        }
    except prompt_alignment.AbsentError as error:
        return f"Prompt alignment: not measured, because {error}."
    means = ", ".join(f"{name} {float(one.values.mean()):.3f}" for name, one in found.items())
    return f"Prompt alignment ({next(iter(found.values())).what}): {means}, mean over the images."


NODES = [MemorizationReport]
