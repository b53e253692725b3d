"""How active neurons are on ordinary prompts: the reference that a search compares with, measured or read."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from ...host import output_files
from ...host.found_files import find, find_if_named, stamp
from ...host.loops import tracked
from ...host.prompts import encode
from ...host.schema import schema
from ...host.sockets import NeuronStatistics as Socket
from ...host.value_answers import answers, embedding, fingerprint
from .. import inputs, statistics, statistics_files, words
from ..layers import choose, value_layers
from ..prompts import given

CATEGORY, PAPER = inputs.CATEGORY, inputs.PAPER
_AT_ONCE = 32


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
            search_aliases=["memorization", "nemo", "reference statistics", "activation statistics"],
            inputs=[
                io.Model.Input(**inputs.MODEL),
                io.Clip.Input(**inputs.CLIP),
                io.String.Input(**inputs.PROMPTS),
                io.String.Input(**inputs.FILE),
                io.String.Input(**inputs.LAYERS),
                io.String.Input(**inputs.SAVE_AS),
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
    def fingerprint_inputs(cls, file: str | None = "", **_) -> str:
        """Changes with the list of prompts."""
        return stamp(file, "list of prompts")

    @classmethod
    def execute(cls, model, clip, prompts: str, file: str, layers: str, save_as: str, previous=None) -> io.NodeOutput:
        texts = given(prompts, find_if_named(file, "list of prompts"))
        if len(texts) + (previous.count if previous else 0) < 2:
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
            search_aliases=["memorization", "nemo", "reference statistics"],
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
    def fingerprint_inputs(cls, file: str | None = "", **_) -> str:
        """Changes with the file."""
        return stamp(file, "statistics file")

    @classmethod
    def execute(cls, model, file: str) -> io.NodeOutput:
        known = value_layers(model.model.diffusion_model)
        found = statistics_files.read(find(file, "statistics file"), known)
        found.check([layer for layer in known if layer.path in found.layers])
        report = words.statistics_report(found, known)
        if not statistics.same_model(found.fingerprint, fingerprint(model, list(found.fingerprint))):
            report = f"{words.OTHER_STATISTICS}\n{report}"
        return io.NodeOutput(found, report)


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
