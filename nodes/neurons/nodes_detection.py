"""Detect memorized prompts and the layers that carry them, and calibrate the threshold."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from comfy_api.latest import io

from ..host import folders
from ..host.folders import resolve_optional_file, texts_stamp
from ..host.image_output import new_figure, to_image
from ..host.progress import nothing_to_show, with_progress
from ..host.schema import float_input, int_input, schema, seed
from ..host.text_encoding import encode, literal
from . import nemo_inputs
from .first_step_comfy import at_first_step, latent_shape, layers_of_type
from .nemo_inputs import FirstStepInputs, PromptSyntax, collect_prompts
from .neuron_layers import NeuronType

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, ModelPatcher

CATEGORY = nemo_inputs.CATEGORY
PAPER = nemo_inputs.PAPER
_LIST = "list of prompts"

_NO_ABLATION = "off"

_MODEL = io.Model.Input(**nemo_inputs.MODEL)
_CLIP = io.Clip.Input(**nemo_inputs.CLIP)
_PROMPTS = io.String.Input(**nemo_inputs.PROMPTS)
_FILE = io.String.Input(**nemo_inputs.PROMPTS_FILE)
_FIRST_STEP = (
    io.Int.Input(**nemo_inputs.NOISE_SAMPLES),
    seed(nemo_inputs.SEED_TOOLTIP, 1, control=False),
    io.Combo.Input(**nemo_inputs.TIMESTEP),
    io.Int.Input(**nemo_inputs.WIDTH),
    io.Int.Input(**nemo_inputs.HEIGHT),
)


class MemorizationScore(io.ComfyNode):
    READS: ClassVar = {"prompts_file": functools.partial(texts_stamp, what=_LIST)}
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
                "layer_ablation",
                "filename_prefix",
            ),
            display_name="Memorization Score",
            category=CATEGORY,
            description=(
                "Detects prompts that replicate a training image, by the similarity of first "
                f"denoising steps from different noise samples. One prompt or a list. {PAPER}, "
                "section 3.1; optionally also the text norm (arXiv 2407.21720), sharpness "
                "(2412.04140), anisotropy (2601.20642) and Bright Ending (2410.21665), and the "
                "layers that carry the prompt (appendix C.8)."
            ),
            search_aliases=[
                "nemo",
                "memorization detection",
                "training data",
                "sharpness",
                "anisotropy",
                "hessian",
                "layer ablation",
                "which layer matters",
            ],
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
                    tooltip=(
                        "Also compute the norm of the text-conditional noise difference (Wen et "
                        "al.)."
                    ),
                ),
                io.String.Input(**nemo_inputs.FILENAME_PREFIX),
                io.String.Input(**nemo_inputs.SCAN_FILE),
                io.Boolean.Input(
                    "sharpness",
                    default=False,
                    optional=True,
                    tooltip=(
                        "Also compute the sharpness of the log-density along the "
                        "text-conditional score difference (Jeon et al.). Four more evaluations "
                        "of the noise samples."
                    ),
                ),
                io.Boolean.Input(
                    "anisotropy",
                    default=False,
                    optional=True,
                    tooltip=(
                        "Also compute the alignment of the text-conditional difference with the "
                        "unconditional prediction at a low noise level (Asthana and "
                        "Belagiannis). One more evaluation of the noise samples."
                    ),
                ),
                int_input(
                    "bright_ending_steps",
                    0,
                    (0, 1000),
                    "Sampling steps for Bright Ending (Chen et al.): samples images and measures "
                    "the attention to the end token in the last step. Two evaluations per step. "
                    "Paper: 50. 0: off.",
                    optional=True,
                ),
                io.Combo.Input(
                    "layer_ablation",
                    options=[_NO_ABLATION, *NeuronType],
                    default=_NO_ABLATION,
                    optional=True,
                    tooltip=(
                        "Also silence each layer in turn, and the down, middle and up blocks as a "
                        "whole, for the prompts over the threshold (for all if there is none), to "
                        "find the layers for NeMo Localize. value: cross-attention values; in a "
                        "transformer, values at the positions of the text. feed_forward: hidden "
                        "units. One evaluation of the noise samples per layer and prompt."
                    ),
                ),
                io.Combo.Input(**nemo_inputs.PROMPT_SYNTAX),
            ],
            outputs=[
                io.Image.Output(
                    display_name="figure",
                    tooltip="Similarity of all seed pairs; for a list, one bar per prompt.",
                ),
                io.Float.Output(
                    display_name="score", tooltip="The highest score over all prompts, 0 to 1."
                ),
                io.Boolean.Output(
                    display_name="is_memorized",
                    tooltip="True if the highest score is over the threshold.",
                ),
                io.String.Output(
                    display_name="memorized_prompts",
                    tooltip="Prompts over the threshold, one per line.",
                ),
                io.String.Output(display_name="table", tooltip="CSV, one row per prompt."),
                io.String.Output(
                    display_name="report",
                    tooltip="Verdict for each prompt, and one line per silenced layer.",
                ),
                io.String.Output(
                    display_name="layers",
                    tooltip="With layer_ablation: layers to search, for NeMo Localize.",
                ),
                io.Image.Output(
                    display_name="layer_effects",
                    tooltip="With layer_ablation: the score that remains without each layer.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        clip: CLIP,
        prompts: str,
        prompts_file: str,
        threshold: float,
        noise_samples: int,
        seed: int,
        timestep: str,
        width: int,
        height: int,
        filename_prefix: str,
        scan_file: str = "",
        layer_ablation: str = _NO_ABLATION,
        prompt_syntax: str = PromptSyntax.LITERAL,
        **detectors: Any,
    ) -> io.NodeOutput:
        from . import neuron_figures, neuron_reports
        from .detectors_comfy import score_prompts

        texts = collect_prompts(prompts, resolve_optional_file(prompts_file, _LIST), least=1)
        step = FirstStepInputs(
            shape=latent_shape(model, width, height),
            noise_samples=noise_samples,
            seed=seed,
            timestep_name=timestep,
        )
        scores, failures = score_prompts(
            model,
            clip,
            texts=texts,
            step=step,
            requested=detectors,
            scan_name=scan_file,
            prompt_syntax=prompt_syntax,
        )
        figure = new_figure()
        if len(scores) == 1:
            neuron_figures.plot_score(figure, *next(iter(scores.items())), threshold)
        else:
            neuron_figures.plot_scores(
                figure, {prompt: score.value for prompt, score in scores.items()}, threshold
            )
        table = neuron_reports.score_table(scores, threshold)
        report = "\n".join([neuron_reports.score_report(scores, threshold, step.side), *failures])
        report += folders.save_table(table, filename_prefix)
        highest = max(score.value for score in scores.values())
        memorized = [prompt for prompt, score in scores.items() if score.value > threshold]
        layers = ""
        layer_effects = nothing_to_show()
        if layer_ablation != _NO_ABLATION:
            layers, effects_report, layer_effects = _ablate_layers(
                model,
                literal(clip) if prompt_syntax == PromptSyntax.LITERAL else clip,
                texts=memorized or [*scores],
                step=step,
                neuron_type=layer_ablation,
            )
            report += f"\n\n{effects_report}"
        return io.NodeOutput(
            to_image(figure),
            highest,
            highest > threshold,
            "\n".join(memorized),
            table,
            report,
            layers,
            layer_effects,
        )


class CalibrateThreshold(io.ComfyNode):
    READS: ClassVar = {"prompts_file": functools.partial(texts_stamp, what=_LIST)}
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
            description=(
                "Calibrates the detection threshold on ordinary prompts: mean memorization score "
                f"plus one standard deviation, with the expected false-positive rate. {PAPER}, "
                "section 3.1. The paper's .428 is valid for SD1.4 only."
            ),
            search_aliases=[
                "nemo",
                "memorization threshold",
                "calibration",
                "false positive rate",
                "cut-off score",
            ],
            inputs=[
                _MODEL,
                _CLIP,
                _PROMPTS,
                _FILE,
                io.String.Input(
                    "memorized_prompts",
                    default="",
                    multiline=True,
                    tooltip=(
                        "Optional: known memorized prompts, one per line, to measure the "
                        "detection rate."
                    ),
                ),
                float_input(
                    "deviations",
                    1.0,
                    (-3.0, 6.0, 0.1),
                    "Standard deviations above the mean. Paper: 1; about one ordinary prompt in "
                    "six exceeds it.",
                ),
                *_FIRST_STEP,
                io.String.Input(**nemo_inputs.SCAN_FILE),
                io.Combo.Input(**nemo_inputs.PROMPT_SYNTAX),
            ],
            outputs=[
                io.Float.Output(
                    display_name="threshold", tooltip="For Memorization Score and NeMo Localize."
                ),
                io.Image.Output(display_name="figure", tooltip="Histogram of the scores."),
                io.String.Output(
                    display_name="report", tooltip="Threshold, expected false positives, AUROC."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        clip: CLIP,
        prompts: str,
        prompts_file: str,
        memorized_prompts: str,
        deviations: float,
        noise_samples: int,
        seed: int,
        timestep: str,
        width: int,
        height: int,
        scan_file: str = "",
        prompt_syntax: str = PromptSyntax.LITERAL,
    ) -> io.NodeOutput:
        from . import neuron_figures, neuron_reports, score_threshold
        from .detectors_comfy import score_prompts

        ordinary = collect_prompts(prompts, resolve_optional_file(prompts_file, _LIST), least=3)
        memorized = collect_prompts(memorized_prompts)
        step = FirstStepInputs(
            shape=latent_shape(model, width, height),
            noise_samples=noise_samples,
            seed=seed,
            timestep_name=timestep,
        )
        scores, failures = score_prompts(
            model,
            clip,
            texts=ordinary + memorized,
            step=step,
            requested={},
            scan_name=scan_file,
            prompt_syntax=prompt_syntax,
        )
        normal, known = (
            [scores[text].value for text in texts if text in scores]
            for texts in (ordinary, memorized)
        )
        threshold = score_threshold.calibrate(normal, deviations, known)
        figure = new_figure()
        neuron_figures.plot_calibration(figure, threshold)
        report = "\n".join(
            [neuron_reports.threshold_report(threshold, deviations, step.side), *failures]
        )
        return io.NodeOutput(threshold.value, to_image(figure), report)


def _ablate_layers(
    model: ModelPatcher, clip: CLIP, texts: list[str], step: FirstStepInputs, neuron_type: str
) -> tuple[str, str, torch.Tensor]:
    """The layers that carry the prompts, the report and the figure of their effects, averaged over
    the prompts.
    """
    from . import layer_ablation, neuron_figures, neuron_reports

    layers = layers_of_type(
        model, neuron_type, conditioning=lambda: encode(clip, texts[0])[1], shape=step.shape
    )
    results = []
    for number, text in enumerate(texts):
        ablate = functools.partial(
            layer_ablation.ablate_layers,
            noise=step.noise(),
            layers=layers,
            with_progress=iter if number else with_progress,
        )
        results.append(
            at_first_step(
                model,
                encode(clip, text)[1],
                shape=step.shape,
                timestep=step.timestep,
                work=ablate,
                rows=step.noise_samples,
            )
        )
    untouched, effects = layer_ablation.average_effects(results)
    suggested = layer_ablation.suggest_layers(effects)
    paths = [layer.path for layer in suggested]
    figure = new_figure(900, 120 + 24 * len(effects))
    neuron_figures.plot_ablation(figure, untouched, effects, set(paths))
    report = neuron_reports.ablation_report(untouched, effects, suggested)
    return ", ".join(paths), report, to_image(figure)


NODES = [MemorizationScore, CalibrateThreshold]
