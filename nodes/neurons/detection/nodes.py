"""Is this prompt memorised, from which score on, and which layers carry it?"""

from __future__ import annotations

import functools

import torch
from comfy_api.latest import io

from ...host import output_files
from ...host.figures import new_figure, to_image
from ...host.first_step import at_first_step, latent_shape, refuse_flow
from ...host.found_files import find
from ...host.loops import tracked
from ...host.prompts import encode
from ...host.schema import schema
from ...host.sockets import NeuronStatistics as Socket
from ...host.value_answers import answers, embedding, fingerprint
from .. import ablation, calibration, drawing, inputs, memorization, prompts, statistics, statistics_files, words
from ..layers import choose, value_layers
from ..memorization import first_noise

CATEGORY, PAPER = inputs.CATEGORY, inputs.PAPER
_AT_ONCE = 32

_MODEL = io.Model.Input("model", tooltip="SD1.x, SD2.x, SDXL or the demo model, with its LoRAs.")
_CLIP = io.Clip.Input("clip", tooltip="Text encoder of that model.")
_PROMPTS, _FILE = io.String.Input(**inputs.PROMPTS), io.String.Input(**inputs.FILE)
_FIRST_STEP = (
    io.Int.Input(**inputs.SEEDS),
    io.Int.Input(**inputs.SEED),
    io.Combo.Input(**inputs.TIMESTEP),
    io.Int.Input(**inputs.WIDTH),
    io.Int.Input(**inputs.HEIGHT),
)
_SAVE_AS = io.String.Input(
    "save_as", default="",
    tooltip="Prefix of a file in ComfyUI's output folder, such as glassbox/neurons/statistics. Empty: no file.",
)  # fmt: skip


class NeuronStatistics(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NeuronStatistics",
            display_name="Neuron Statistics",
            category=CATEGORY,
            description="How active each value neuron is on ordinary prompts, which tells NeMo Localize what stands "
                        "out on "
            f"a memorised one. Read from the text embedding alone, so thousands of prompts take minutes. {PAPER}, "
            "section 3.2.",
            search_aliases=["nemo", "reference statistics", "activation statistics"],
            inputs=[
                _MODEL,
                _CLIP,
                _PROMPTS,
                _FILE,
                io.String.Input(**inputs.LAYERS),
                _SAVE_AS,
                Socket.Input("previous", optional=True,
                             tooltip="Statistics of other prompts of the same model, to which these are added."),
            ],
            outputs=[
                Socket.Output(display_name="statistics", tooltip="For NeMo Localize."),
                io.String.Output(display_name="report", tooltip="One line a layer, and where it was saved."),
                io.String.Output(display_name="file",
                                 tooltip="Its path, for Load Neuron Statistics; empty when not saved."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(cls, model, clip, prompts: str, file: str, layers: str, save_as: str, previous=None) -> io.NodeOutput:
        texts = _texts(prompts, file)
        if len(texts) < 2:
            raise ValueError("Statistics need two prompts or more: write ordinary prompts, one a line, or name a file.")
        known = value_layers(model.model.diffusion_model)
        paths = [layer.path for layer in choose(known, layers)]
        result = previous
        for first in tracked(range(0, len(texts), _AT_ONCE)):
            for batch in _by_length(clip, texts[first : first + _AT_ONCE]):
                part = _statistics(model, batch, paths)
                result = part if result is None else statistics.merge(result, part)
        report, file_saved = words.statistics_report(result, known), ""
        if save_as.strip():
            path = output_files.next_file(save_as.strip(), ".safetensors")
            statistics_files.write(result, path)
            file_saved = output_files.relative(path)
            report += f"\nSaved as {file_saved} in ComfyUI's output folder."
        return io.NodeOutput(result, report, file_saved)


class LoadNeuronStatistics(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_LoadNeuronStatistics",
            display_name="Load Neuron Statistics",
            category=CATEGORY,
            description="Reads statistics that Neuron Statistics saved, or the file of the official code for SD1.4 "
            f"(statistics_additional_laion_prompts_v1_4.pt; read safely, no pickle is executed). {PAPER}, section 3.2.",
            search_aliases=["nemo", "reference statistics"],
            inputs=[
                io.Model.Input("model", tooltip="The model that the statistics are of; they are checked against it."),
                io.String.Input("file", default="", tooltip="Path in ComfyUI's input or output folder: .safetensors of "
                                "Neuron Statistics, or the official .pt."),
            ],
            outputs=[
                Socket.Output(display_name="statistics", tooltip="For NeMo Localize."),
                io.String.Output(display_name="report", tooltip="One line a layer."),
            ],
        )  # fmt: skip

    @classmethod
    def fingerprint_inputs(cls, file: str = "", **_) -> str:
        return _stamp(file, "statistics file")

    @classmethod
    def execute(cls, model, file: str) -> io.NodeOutput:
        known = value_layers(model.model.diffusion_model)
        found = statistics_files.read(find(file, "statistics file"), known)
        found.check([layer for layer in known if layer.path in found.layers])
        report = words.statistics_report(found, known)
        if not statistics.same_model(found.fingerprint, fingerprint(model, list(found.fingerprint))):
            report = f"These statistics are of another checkpoint or LoRA: make new ones for this MODEL.\n{report}"
        return io.NodeOutput(found, report)


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
                _SAVE_AS,
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
    def execute(cls, model, clip, prompts, file, threshold, text_norm, save_as, **first_step) -> io.NodeOutput:
        texts = _texts(prompts, file, least=1)
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
    def execute(cls, model, clip, prompts, file, memorized, deviations, **first_step) -> io.NodeOutput:
        ordinary, known = _texts(prompts, file, least=3), _texts(memorized, "", least=0)
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
            search_aliases=["nemo", "layer importance", "block ablation"],
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
        texts = _texts(prompts, "", least=1)
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


def _texts(prompts_text: str, file: str, least: int = 0) -> list[str]:
    found = prompts.of_text(prompts_text)
    if file.strip():
        found += prompts.of_path(find(file, "list of prompts"))
    if len(found) < least:
        raise ValueError(
            f"{least} or more prompts are needed and there are {len(found)}: write one a line, or name a file."
        )
    return found


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


def _by_length(clip, texts: list[str]):
    """Text embeddings in batches of the same number of tokens, in which long prompts differ."""
    batches: dict[int, list] = {}
    for text in texts:
        one = embedding(encode(clip, text)[1])
        batches.setdefault(one.shape[1], []).append(one)
    return [torch.cat(batch) for batch in batches.values()]


def _statistics(model, contexts, paths: list[str]) -> statistics.Statistics:
    moments = statistics.measure(answers(model, contexts, paths))
    return statistics.Statistics(len(contexts), moments, fingerprint(model, paths), "Neuron Statistics")


def _stamp(file: str, what: str) -> str:
    try:
        path = find(file, what)
    except ValueError:
        return ""
    return f"{path.name} {path.stat().st_mtime_ns}"
