"""Is this prompt memorised, from which score on, and which layers carry it?"""

from __future__ import annotations

import functools

from comfy_api.latest import io

from ...host import output_files
from ...host.figures import new_figure, to_image
from ...host.first_step import at_first_step, latent_shape, refuse_flow
from ...host.found_files import find_if_named, stamp
from ...host.loops import tracked
from ...host.prompts import encode
from ...host.schema import schema
from .. import ablation, calibration, drawing, inputs, memorization, words
from ..layers import value_layers
from ..memorization import first_noise
from ..prompts import given

CATEGORY, PAPER = inputs.CATEGORY, inputs.PAPER
_LIST = "list of prompts"

_MODEL, _CLIP = io.Model.Input(**inputs.MODEL), io.Clip.Input(**inputs.CLIP)
_PROMPTS, _FILE = io.String.Input(**inputs.PROMPTS), io.String.Input(**inputs.FILE)
_FIRST_STEP = (
    io.Int.Input(**inputs.SEEDS),
    io.Int.Input(**inputs.SEED),
    io.Combo.Input(**inputs.TIMESTEP),
    io.Int.Input(**inputs.WIDTH),
    io.Int.Input(**inputs.HEIGHT),
)


class MemorizationScore(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_MemorizationScore",
            display_name="Memorization Score",
            category=CATEGORY,
            description="Tells whether a prompt makes the model replay a training picture: how alike the first "
                        "denoising "
            f"steps from different noises are. One prompt or a whole list. {PAPER}, section 3.1; the text norm "
            "beside it "
            "is Wen et al.'s (arXiv 2407.21720).",
            search_aliases=["nemo", "memorisation", "memorization detection", "training data"],
            inputs=[
                _MODEL,
                _CLIP,
                _PROMPTS,
                _FILE,
                io.Float.Input(**inputs.THRESHOLD),
                *_FIRST_STEP,
                io.Boolean.Input("text_norm", default=True,
                                 tooltip="Also measure how much the text changes the prediction; one more evaluation a "
                                 "prompt."),
                io.String.Input(**inputs.SAVE_AS),
            ],
            outputs=[
                io.Image.Output(display_name="figure", tooltip="Similarity of all pairs of seeds; bars for a list."),
                io.Float.Output(display_name="score", tooltip="The highest score of all prompts, 0 to 1."),
                io.Boolean.Output(display_name="memorised", tooltip="Whether that is over the threshold."),
                io.String.Output(display_name="over", tooltip="The prompts over the threshold, one a line."),
                io.String.Output(display_name="table", tooltip="CSV: one line a prompt."),
                io.String.Output(display_name="report", tooltip="The verdicts in words."),
            ],
        )  # fmt: skip

    @classmethod
    def fingerprint_inputs(cls, file: str | None = "", **_) -> str:
        """Changes with the list of prompts."""
        return stamp(file, _LIST)

    @classmethod
    def execute(cls, model, clip, prompts, file, threshold, text_norm, save_as, **first_step) -> io.NodeOutput:
        texts = given(prompts, find_if_named(file, _LIST), least=1)
        scores = _scores(model, clip, texts, text_norm, **first_step)
        figure = new_figure()
        if len(scores) == 1:
            drawing.score(figure, *next(iter(scores.items())), threshold)
        else:
            drawing.scores(figure, {prompt: found.value for prompt, found in scores.items()}, threshold)
        table = words.score_table(scores, threshold)
        report = words.score_report(scores, threshold, _side(model, first_step))
        if save_as.strip():
            path = output_files.next_file(save_as.strip(), ".csv")
            path.write_text(table, encoding="utf-8")
            report += f"\nSaved as {output_files.relative(path)} in ComfyUI's output folder."
        best = max(found.value for found in scores.values())
        over = "\n".join(prompt for prompt, found in scores.items() if found.value > threshold)
        return io.NodeOutput(to_image(figure), best, best > threshold, over, table, report)


class CalibrateThreshold(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_CalibrateThreshold",
            display_name="Calibrate Threshold",
            category=CATEGORY,
            description="Learns from ordinary prompts from which memorisation score on a prompt stands out: mean "
                        "plus one "
            f"standard deviation, with the false positives to expect. {PAPER}, section 3.1. The paper's .428 holds for "
            "SD1.4 alone.",
            search_aliases=["nemo", "memorization threshold", "calibration"],
            inputs=[
                _MODEL,
                _CLIP,
                _PROMPTS,
                _FILE,
                io.String.Input("memorized", default="", multiline=True,
                                tooltip="Optional: prompts known to be memorised, one a line, to see how well the "
                                        "score "
                                "tells them apart."),
                io.Float.Input("deviations", default=1.0, min=-3.0, max=6.0, step=0.1,
                               tooltip="How many standard deviations over the mean. The paper takes 1, which lets "
                                       "about "
                               "one ordinary prompt in six through."),
                *_FIRST_STEP,
            ],
            outputs=[
                io.Float.Output(display_name="threshold", tooltip="For Memorization Score and NeMo Localize."),
                io.Image.Output(display_name="figure", tooltip="Histogram of the scores."),
                io.String.Output(display_name="report", tooltip="Threshold, expected false positives, AUROC."),
            ],
        )  # fmt: skip

    @classmethod
    def fingerprint_inputs(cls, file: str | None = "", **_) -> str:
        """Changes with the list of prompts."""
        return stamp(file, _LIST)

    @classmethod
    def execute(cls, model, clip, prompts, file, memorized, deviations, **first_step) -> io.NodeOutput:
        ordinary, known = given(prompts, find_if_named(file, _LIST), least=3), given(memorized)
        scores = _scores(model, clip, list(dict.fromkeys(ordinary + known)), False, **first_step)
        normal, bad = ([scores[text].value for text in group] for group in (ordinary, known))
        found = calibration.threshold(normal, deviations, bad)
        figure = new_figure()
        drawing.histogram(figure, found)
        report = words.threshold_report(found, deviations, _side(model, first_step))
        return io.NodeOutput(found.value, to_image(figure), report)


class LayerAblation(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_LayerAblation",
            display_name="Layer Ablation",
            category=CATEGORY,
            description="Which value layers carry a memorised prompt: each is silenced in turn, and down, middle and "
            "up "
            f"blocks whole. Says which layers NeMo Localize should search. {PAPER}, appendix C.8.",
            search_aliases=["memorization", "nemo", "layer importance", "block ablation"],
            inputs=[_MODEL, _CLIP, _PROMPTS, *_FIRST_STEP],
            outputs=[
                io.Image.Output(display_name="figure", tooltip="What is left of the score without each layer."),
                io.String.Output(display_name="layers", tooltip="The layers to search, for NeMo Localize."),
                io.String.Output(display_name="report", tooltip="One line a layer, averaged over the prompts."),
            ],
        )

    @classmethod
    def execute(cls, model, clip, prompts, seeds, seed, timestep, width, height) -> io.NodeOutput:
        known, shape = value_layers(model.model.diffusion_model), latent_shape(model, width, height)
        noise, results = first_noise(shape, seeds, seed), []
        texts = given(prompts, least=1)
        for number, text in enumerate(texts):
            measure = functools.partial(
                ablation.measure, noise=noise, layers=known, tracked=iter if number else tracked
            )
            results.append(at_first_step(model, encode(clip, text)[1], shape, inputs.STEPS[timestep], measure))
        untouched, effects = ablation.mean(results)
        suggested = ablation.suggestion(effects)
        figure = new_figure(900, 120 + 24 * len(effects))
        drawing.ablation(figure, untouched, effects, {layer.path for layer in suggested})
        report = words.ablation_report(untouched, effects, suggested)
        return io.NodeOutput(to_image(figure), ", ".join(layer.path for layer in suggested), report)


def _scores(model, clip, texts, norm: bool, seeds, seed, timestep, width, height) -> dict[str, memorization.Score]:
    shape, step = latent_shape(model, width, height), inputs.STEPS[timestep]
    refuse_flow(model)
    noise = first_noise(shape, seeds, seed)
    empty = None
    if norm:
        predicted = at_first_step(model, encode(clip, "")[1], shape, step, lambda predict: predict(noise))
        empty = lambda _noise: predicted  # noqa: E731
    return {
        text: at_first_step(model, encode(clip, text)[1], shape, step, lambda p: memorization.score(p, noise, empty))
        for text in tracked(list(dict.fromkeys(texts)))
    }


def _side(model, first_step: dict) -> int:
    return min(latent_shape(model, first_step["width"], first_step["height"])[1:])
