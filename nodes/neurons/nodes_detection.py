"""Detect memorized prompts, calibrate the threshold, and find the layers that carry a prompt."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, ClassVar

import torch
from comfy_api.latest import io

from ..common.atomic_write import atomic_write
from ..host import folders
from ..host.evaluate import sample_images
from ..host.folders import input_stamp, resolve_optional_file
from ..host.image_output import new_figure, to_image
from ..host.progress import nothing_to_show, with_progress
from ..host.schema import NeuronMask as MaskSocket
from ..host.schema import float_input, int_input, schema, seed
from ..host.text_encoding import encode, literal
from . import nemo_inputs
from .first_step_comfy import at_first_step, latent_shape
from .image_similarity_comfy import Similarity, image_judge, image_reader
from .nemo_inputs import FirstStepInputs, PromptSyntax, collect_prompts
from .neuron_layers import NeuronType, neuron_layers

if TYPE_CHECKING:
    from .image_similarity import Remains

CATEGORY, PAPER = nemo_inputs.CATEGORY, nemo_inputs.PAPER
_LIST = "list of prompts"

_MODEL, _CLIP = io.Model.Input(**nemo_inputs.MODEL), io.Clip.Input(**nemo_inputs.CLIP)
_PROMPTS, _FILE = io.String.Input(**nemo_inputs.PROMPTS), io.String.Input(**nemo_inputs.PROMPTS_FILE)
_FIRST_STEP = (
    io.Int.Input(**nemo_inputs.NOISE_SAMPLES),
    seed(nemo_inputs.SEED_TOOLTIP, 1, control=False),
    io.Combo.Input(**nemo_inputs.TIMESTEP),
    io.Int.Input(**nemo_inputs.WIDTH),
    io.Int.Input(**nemo_inputs.HEIGHT),
)


class MemorizationScore(io.ComfyNode):
    READS: ClassVar = {"prompts_file": functools.partial(input_stamp, what=_LIST)}
    WRITES: ClassVar = {"scan_file": functools.partial(folders.named_file, suffix=".csv")}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_MemorizationScore",
            advanced=(
                "timestep",
                "width",
                "height",
                "text_norm",
                "sharpness",
                "anisotropy",
                "bright_ending_steps",
                "filename_prefix",
            ),
            display_name="Memorization Score",
            category=CATEGORY,
            description="Detects prompts that replicate a training image: measures how similar the first denoising "
            f"steps from different noise samples are. One prompt or a whole list. {PAPER}, section 3.1; beside it the "
            "text norm (arXiv 2407.21720), sharpness (2412.04140), anisotropy (2601.20642) and Bright Ending "
            "(2410.21665).",
            search_aliases=["nemo", "memorization detection", "training data", "sharpness", "anisotropy", "hessian"],
            inputs=[
                _MODEL,
                _CLIP,
                _PROMPTS,
                _FILE,
                io.Float.Input(**nemo_inputs.THRESHOLD),
                *_FIRST_STEP,
                io.Boolean.Input(
                    "text_norm",
                    default=True,
                    tooltip="Also measure how much the text changes the prediction (Wen et al.).",
                ),
                io.String.Input(**nemo_inputs.FILENAME_PREFIX),
                io.String.Input(**nemo_inputs.SCAN_FILE),
                io.Boolean.Input(
                    "sharpness",
                    default=False,
                    optional=True,
                    tooltip="Also measure how sharp the log-probability is along what the text adds (Jeon et al.). "
                    "Costs four more evaluations of the noise samples.",
                ),
                io.Boolean.Input(
                    "anisotropy",
                    default=False,
                    optional=True,
                    tooltip="Also measure whether what the text adds points along the unconditional prediction at a "
                    "low noise level (Asthana and Belagiannis). Costs one more evaluation of the noise samples.",
                ),
                int_input(
                    "bright_ending_steps",
                    0,
                    (0, 1000),
                    "Also sample images in that many steps and measure the attention to the end token in the "
                    "last one (Chen et al., Bright Ending). Costs two evaluations for each step. Paper: 50. 0: none.",
                    optional=True,
                ),
                io.Combo.Input(**nemo_inputs.PROMPT_SYNTAX),
            ],
            outputs=[
                io.Image.Output(
                    display_name="figure", tooltip="Similarity of all pairs of seeds; for a list, one bar per prompt."
                ),
                io.Float.Output(display_name="score", tooltip="The highest score of all prompts, 0 to 1."),
                io.Boolean.Output(display_name="is_memorized", tooltip="Whether that is over the threshold."),
                io.String.Output(
                    display_name="memorized_prompts", tooltip="The prompts over the threshold, one per line."
                ),
                io.String.Output(display_name="table", tooltip="CSV: one line per prompt."),
                io.String.Output(display_name="report", tooltip="The verdict on each prompt."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model,
        clip,
        prompts,
        prompts_file,
        threshold,
        noise_samples,
        seed,
        timestep,
        width,
        height,
        filename_prefix,
        scan_file="",
        prompt_syntax=PromptSyntax.LITERAL,
        **detectors,
    ) -> io.NodeOutput:
        from . import neuron_figures, neuron_reports
        from .detectors_comfy import score_prompts

        texts = collect_prompts(prompts, resolve_optional_file(prompts_file, _LIST), least=1)
        step = FirstStepInputs(latent_shape(model, width, height), noise_samples, seed, timestep)
        scores, failures = score_prompts(model, clip, texts, step, detectors, scan_file, prompt_syntax)
        figure = new_figure()
        if len(scores) == 1:
            neuron_figures.plot_score(figure, *next(iter(scores.items())), threshold)
        else:
            neuron_figures.plot_scores(figure, {prompt: score.value for prompt, score in scores.items()}, threshold)
        table = neuron_reports.score_table(scores, threshold)
        report = "\n".join([neuron_reports.score_report(scores, threshold, step.side), *failures])
        report += _saved(table, filename_prefix)
        highest = max(score.value for score in scores.values())
        memorized = "\n".join(prompt for prompt, score in scores.items() if score.value > threshold)
        return io.NodeOutput(to_image(figure), highest, highest > threshold, memorized, table, report)


class CalibrateThreshold(io.ComfyNode):
    READS: ClassVar = {"prompts_file": functools.partial(input_stamp, what=_LIST)}
    WRITES: ClassVar = {"scan_file": functools.partial(folders.named_file, suffix=".csv")}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_CalibrateThreshold",
            advanced=(
                "timestep",
                "width",
                "height",
            ),
            display_name="Calibrate Threshold",
            category=f"{CATEGORY}/Research",
            description="Calibrates the detection threshold on ordinary prompts: mean of their memorization scores "
            f"plus one standard deviation, with the expected false positives. {PAPER}, section 3.1. The paper's .428 "
            "is valid for SD1.4 only.",
            search_aliases=["nemo", "memorization threshold", "calibration", "false positive rate", "cut-off score"],
            inputs=[
                _MODEL,
                _CLIP,
                _PROMPTS,
                _FILE,
                io.String.Input(
                    "memorized_prompts",
                    default="",
                    multiline=True,
                    tooltip="Optional: known memorized prompts, one per line, to measure how well the score detects "
                    "them.",
                ),
                float_input(
                    "deviations",
                    1.0,
                    (-3.0, 6.0, 0.1),
                    "Standard deviations above the mean. Paper: 1, which about one ordinary prompt in six exceeds.",
                ),
                *_FIRST_STEP,
                io.String.Input(**nemo_inputs.SCAN_FILE),
                io.Combo.Input(**nemo_inputs.PROMPT_SYNTAX),
            ],
            outputs=[
                io.Float.Output(display_name="threshold", tooltip="For Memorization Score and NeMo Localize."),
                io.Image.Output(display_name="figure", tooltip="Histogram of the scores."),
                io.String.Output(display_name="report", tooltip="Threshold, expected false positives, AUROC."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model,
        clip,
        prompts,
        prompts_file,
        memorized_prompts,
        deviations,
        noise_samples,
        seed,
        timestep,
        width,
        height,
        scan_file="",
        prompt_syntax=PromptSyntax.LITERAL,
    ) -> io.NodeOutput:
        from . import neuron_figures, neuron_reports, score_threshold
        from .detectors_comfy import score_prompts

        ordinary = collect_prompts(prompts, resolve_optional_file(prompts_file, _LIST), least=3)
        memorized = collect_prompts(memorized_prompts)
        step = FirstStepInputs(latent_shape(model, width, height), noise_samples, seed, timestep)
        scores, failures = score_prompts(model, clip, ordinary + memorized, step, {}, scan_file, prompt_syntax)
        normal, known = ([scores[text].value for text in texts if text in scores] for texts in (ordinary, memorized))
        threshold = score_threshold.calibrate(normal, deviations, known)
        figure = new_figure()
        neuron_figures.plot_calibration(figure, threshold)
        report = "\n".join([neuron_reports.threshold_report(threshold, deviations, step.side), *failures])
        return io.NodeOutput(threshold.value, to_image(figure), report)


class LayerAblation(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_LayerAblation",
            display_name="Layer Ablation",
            category=f"{CATEGORY}/Research",
            description="Silences each layer in turn, and the down, middle and up blocks as a whole, to find "
            f"the layers that carry a memorized prompt: those that NeMo Localize should search. {PAPER}, appendix "
            "C.8.",
            search_aliases=["memorization", "nemo", "layer importance", "block ablation", "which layer matters"],
            inputs=[
                _MODEL,
                _CLIP,
                _PROMPTS,
                *_FIRST_STEP,
                io.Combo.Input(**nemo_inputs.NEURON_TYPE),
                io.Combo.Input(**nemo_inputs.PROMPT_SYNTAX),
            ],
            outputs=[
                io.Image.Output(display_name="figure", tooltip="The remaining score without each layer."),
                io.String.Output(display_name="layers", tooltip="The layers to search, for NeMo Localize."),
                io.String.Output(display_name="report", tooltip="One line per layer, averaged over the prompts."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model,
        clip,
        prompts,
        noise_samples,
        seed,
        timestep,
        width,
        height,
        neuron_type=NeuronType.VALUE,
        prompt_syntax=PromptSyntax.LITERAL,
    ) -> io.NodeOutput:
        from . import layer_ablation, neuron_figures, neuron_reports

        clip = literal(clip) if prompt_syntax == PromptSyntax.LITERAL else clip
        layers = neuron_layers(model.model.diffusion_model, neuron_type)
        step, results = FirstStepInputs(latent_shape(model, width, height), noise_samples, seed, timestep), []
        for number, text in enumerate(collect_prompts(prompts, least=1)):
            ablate = functools.partial(
                layer_ablation.ablate_layers,
                noise=step.noise(),
                layers=layers,
                with_progress=iter if number else with_progress,
            )
            results.append(
                at_first_step(model, encode(clip, text)[1], step.shape, step.timestep, ablate, noise_samples)
            )
        untouched, effects = layer_ablation.average_effects(results)
        suggested = layer_ablation.suggest_layers(effects)
        figure = new_figure(900, 120 + 24 * len(effects))
        neuron_figures.plot_ablation(figure, untouched, effects, {layer.path for layer in suggested})
        report = neuron_reports.ablation_report(untouched, effects, suggested)
        return io.NodeOutput(to_image(figure), ", ".join(layer.path for layer in suggested), report)


class ScanReport(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ScanReport",
            advanced=("width", "height"),
            display_name="Memorization Scan Report",
            category=CATEGORY,
            description="Reports a scan of many prompts: a histogram of their scores, the searches of those over the "
            "threshold, and a ranked sheet with the first image of each prompt, without and with the mask. "
            f"{PAPER}.",
            search_aliases=["memorization", "nemo", "scan report", "image sheet", "ranked prompts"],
            inputs=[
                io.Model.Input("model", tooltip="The model that was scanned."),
                io.Clip.Input(**nemo_inputs.CLIP),
                io.Vae.Input("vae", tooltip="VAE of the model."),
                io.String.Input("table", force_input=True, tooltip="The table of Memorization Score."),
                io.Float.Input(**nemo_inputs.THRESHOLD, force_input=True),
                int_input(
                    "image_count",
                    16,
                    (0, 200),
                    "How many prompts get images, those of the highest score first. 0: none.",
                ),
                int_input("steps", 20, (1, 200), "Sampling steps, with Euler."),
                float_input("cfg", 7.0, (1.0, 30.0, 0.1), "CFG of the images."),
                seed("Seed of the images, the same for every prompt.", 1, control=False),
                io.Int.Input(**nemo_inputs.WIDTH),
                io.Int.Input(**nemo_inputs.HEIGHT),
                io.String.Input(**nemo_inputs.FILENAME_PREFIX),
                MaskSocket.Input("mask", optional=True, tooltip="The mask of NeMo Localize, for the found neurons."),
                io.Model.Input(
                    "masked_model",
                    optional=True,
                    tooltip="The model with the mask: its image stands at the right of the untouched one.",
                ),
                io.String.Input(
                    "generic_prompt",
                    default="",
                    optional=True,
                    tooltip="With masked_model: a generic prompt of what the prompts are about, such as portrait. An "
                    "image is gone where no more is left of it than an image of this prompt has. Empty: not judged.",
                ),
            ],
            outputs=[
                io.Image.Output(display_name="figure", tooltip="Histogram of the scores, and the threshold."),
                io.Image.Output(
                    display_name="sheet", tooltip="The first image of each prompt, the highest score first."
                ),
                io.String.Output(
                    display_name="table",
                    tooltip="CSV: prompt, score, verdict, neurons, convergence, and what is left of the image.",
                ),
                io.String.Output(
                    display_name="report",
                    tooltip="How many prompts are memorized, what was found for them, and which images are gone.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model,
        clip,
        vae,
        table,
        threshold,
        image_count,
        steps,
        cfg,
        seed,
        width,
        height,
        filename_prefix,
        mask=None,
        masked_model=None,
        generic_prompt="",
    ) -> io.NodeOutput:
        from . import neuron_figures, neuron_reports

        scores = neuron_reports.read_scores(table)
        searches = {} if mask is None else {search.prompt: search for search in mask.searches}
        shown, shape = [*scores][:image_count], latent_shape(model, width, height)
        models = [model] if masked_model is None else [model, masked_model]
        judged = masked_model is not None and generic_prompt.strip()
        wanted = [(text, models) for text in shown] + ([(generic_prompt, [model])] if judged else [])
        sampled = _sample(wanted, clip, vae, shape, seed, steps=steps, cfg=cfg)
        left = _remains(shown, sampled[:-1], sampled[-1][0], clip) if judged else {}
        figure = new_figure()
        neuron_figures.plot_histogram(figure, [*scores.values()], threshold)
        titles = neuron_reports.sheet_titles(scores, threshold, searches, left)
        sheet = _draw_pages(sampled[: len(shown)], titles, len(models))
        found = neuron_reports.scan_table(scores, threshold, searches, left)
        report = neuron_reports.scan_report(scores, threshold, searches, left)
        report += _saved(found, filename_prefix)
        return io.NodeOutput(to_image(figure), sheet, found, report)


def _sample(wanted: list[tuple[str, list]], clip, vae, shape, seed: int, steps: int, cfg: float) -> list[list]:
    """An image (H, W, 3) of each text by each of its models, all from the same noise."""
    from .scan_file import Pace

    images, negative = sum(len(models) for _, models in wanted), encode(clip, "")[1]
    rows = images * steps * (1 if cfg == 1 else 2)
    logging.info("Scan report: %d images, %d rows of the network.", images, rows)
    pace, sampled = Pace(len(wanted)), []
    for text, models in with_progress(wanted):
        given = encode(clip, text)[1], negative, shape, 1, seed
        sampled.append([sample_images(one, vae, *given, steps=steps, cfg=cfg)[0] for one in models])
        logging.info("Scan report: %s.", pace.step())
    return sampled


def _remains(texts: list[str], images: list[list], generic, clip) -> dict[str, tuple[Remains, Remains]]:
    """What the masked image of each text, and the generic prompt's image, have of the untouched image."""
    from .image_similarity import remains

    judge, read = image_judge(Similarity.AUTO, "", None, clip)[1], image_reader(clip)
    return {
        text: (
            remains(masked[None], untouched[None], judge, read),
            remains(generic[None], untouched[None], judge, read),
        )
        for text, (untouched, masked) in zip(texts, images, strict=True)
    }


def _draw_pages(images: list[list[torch.Tensor]], titles: list[str], models: int) -> torch.Tensor:
    """The sheet of a scan as an IMAGE, a batch of pages of one size: each of as many prompts as a person can read."""
    from . import neuron_figures

    columns, pages = neuron_figures.SHEET_COLUMNS, []
    lines = min(-(-len(images) // columns), neuron_figures.SHEET_LINES)
    for first in range(0, len(images), max(columns * lines, 1)):
        part, page = slice(first, first + columns * lines), new_figure(300 * columns * models, 60 + 340 * lines)
        neuron_figures.plot_sheet(page, images[part], titles[part], lines)
        pages.append(to_image(page))
    return torch.cat(pages) if pages else nothing_to_show()


def _saved(table: str, prefix: str) -> str:
    """A line that names the .csv in the output folder to which a table was written; empty without a prefix."""
    if not prefix.strip():
        return ""
    path = folders.next_file(prefix.strip(), ".csv")
    with atomic_write(path) as temporary:
        temporary.write_text(table, encoding="utf-8")
    return f"\nSaved as {folders.relative(path)} in ComfyUI's output folder."


NODES = [MemorizationScore, CalibrateThreshold, LayerAblation, ScanReport]
