"""Neuron activation statistics over ordinary prompts: measure them or read them from a file."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from comfy_api.latest import io

from ..host import folders
from ..host.folders import input_stamp, resolve_input_file, resolve_optional_file
from ..host.progress import Stopped, with_progress
from ..host.schema import NeuronStatistics as Socket
from ..host.schema import schema
from . import nemo_inputs, neuron_statistics, neuron_statistics_comfy
from .first_step_comfy import latent_shape, probe_outputs
from .nemo_inputs import collect_prompts
from .neuron_layers import NeuronType, all_layers, neuron_layers, select_layers
from .neuron_statistics import Statistics
from .scan_file import Pace, ScanFile

CATEGORY, PAPER = nemo_inputs.CATEGORY, nemo_inputs.PAPER
_BATCH = 32
_LIST = "list of prompts"
_SIZE = "For feed_forward: image {} in pixels, as in NeMo Localize."


class NeuronStatistics(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NeuronStatistics",
            display_name="Neuron Statistics",
            category=CATEGORY,
            description="Measures mean and standard deviation of each neuron's activation over ordinary prompts, the "
            "reference of NeMo Localize. Value neurons need the text embedding alone, so thousands of prompts take "
            f"minutes. {PAPER}, section 3.2.",
            search_aliases=[
                "memorization",
                "nemo",
                "reference statistics",
                "activation statistics",
                "mean and deviation of neurons",
            ],
            inputs=[
                io.Model.Input(**nemo_inputs.MODEL),
                io.Clip.Input(**nemo_inputs.CLIP),
                io.String.Input(**nemo_inputs.PROMPTS),
                io.String.Input(**nemo_inputs.PROMPTS_FILE),
                io.String.Input(**nemo_inputs.LAYERS),
                io.String.Input(**nemo_inputs.FILENAME_PREFIX),
                Socket.Input(
                    "previous_statistics",
                    optional=True,
                    tooltip="Statistics of other prompts for the same model, to be merged with these.",
                ),
                io.Combo.Input(**nemo_inputs.NEURON_TYPE),
                io.Int.Input(**{**nemo_inputs.WIDTH, "tooltip": _SIZE.format("width")}, optional=True),
                io.Int.Input(**{**nemo_inputs.HEIGHT, "tooltip": _SIZE.format("height")}, optional=True),
                io.String.Input(**nemo_inputs.SCAN_FILE),
            ],
            outputs=[
                Socket.Output(display_name="statistics", tooltip="For NeMo Localize."),
                io.String.Output(display_name="report", tooltip="One line per layer, and the saved file."),
                io.String.Output(
                    display_name="file",
                    tooltip="Path of the saved file, for Load Neuron Statistics; empty if not saved.",
                ),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, prompts_file: str | None = "", **_) -> str:
        """Changes with the list of prompts."""
        return input_stamp(prompts_file, _LIST)

    @classmethod
    def execute(
        cls,
        model,
        clip,
        prompts,
        prompts_file,
        layers,
        filename_prefix,
        previous_statistics=None,
        neuron_type=NeuronType.VALUE,
        width=512,
        height=512,
        scan_file="",
    ) -> io.NodeOutput:
        from . import neuron_reports, statistics_file

        texts = collect_prompts(prompts, resolve_optional_file(prompts_file, _LIST))
        if len(texts) + (previous_statistics.count if previous_statistics else 0) < 2:
            raise ValueError("Statistics need two prompts or more: write one per line, or name a file.")
        known = neuron_layers(model.model.diffusion_model, neuron_type)
        chosen = select_layers(known, layers)
        identity = neuron_statistics.fingerprint(probe_outputs(model, [layer.path for layer in chosen]))
        settings: dict = {"neuron_type": str(neuron_type), "layers": [layer.path for layer in chosen]}
        if neuron_type == NeuronType.FEED_FORWARD:
            shape, size = latent_shape(model, width, height), 1
            settings["latent"] = list(shape)
            measure = functools.partial(
                neuron_statistics_comfy.prompt_moments_of_hidden_units, model, clip, chosen, shape
            )
        else:
            measure, size = (
                functools.partial(neuron_statistics_comfy.prompt_moments_of_values, model, clip, chosen),
                _BATCH,
            )
        scan = _StatisticsScan(scan_file, {**settings, "fingerprint": identity})
        missing = scan.missing(texts)
        pace = Pace(len(missing))
        rows = len(missing) if neuron_type == NeuronType.FEED_FORWARD else 0
        logging.info("%d prompts to measure: %d rows of the network.", len(missing), rows)
        for first in with_progress(range(0, len(missing), size)):
            batch = missing[first : first + size]
            scan.measure(batch, measure)
            logging.info("Neuron statistics: %s.", pace.step(len(batch)))
        measured = [part for part in (previous_statistics, scan.statistics) if part is not None]
        if not measured:
            raise ValueError(f"Every prompt failed. {scan.failures[0]}")
        result = functools.reduce(neuron_statistics.merge, measured)
        report, file = "\n".join([neuron_reports.statistics_report(result, known), *scan.failures]), ""
        if filename_prefix.strip():
            path = folders.next_file(filename_prefix.strip(), ".safetensors")
            statistics_file.write(result, path)
            file = folders.relative(path)
            report += f"\nSaved as {file} in ComfyUI's output folder."
        return io.NodeOutput(result, report, file)


class _StatisticsScan:
    """A scan of statistics: a row per prompt in NAME.csv, their moments in NAME.safetensors; no files without a name.

    The rows of a batch are written before its moments; rows that the moments do not hold are measured again.
    """

    def __init__(self, name: str, settings: dict):
        from . import statistics_file

        self._rows: ScanFile | None = None
        self._file, self._identity = Path(), settings["fingerprint"]
        self.statistics: Statistics | None = None
        self.failures: list[str] = []
        if name.strip():
            path = folders.named_file(name, ".csv")
            self._file, self._rows = path.with_suffix(".safetensors"), ScanFile(path, [], settings)
            if self._file.is_file():
                self.statistics = statistics_file.read(self._file, [])
            self._rows.keep(self.statistics.count if self.statistics else 0)

    def missing(self, prompts: list[str]) -> list[str]:
        """The prompts that are not measured yet."""
        rows = self._rows
        return prompts if rows is None else [text for text in dict.fromkeys(prompts) if rows.done(text) is None]

    def measure(self, prompts: list[str], measure: Callable[[list[str]], Iterator[tuple[int, dict]]]) -> None:
        """Add the moments of prompts; where that fails in a scan, of each alone, and name those that fail."""
        from . import statistics_file

        try:
            parts = [Statistics(*part, self._identity, "Neuron Statistics") for part in measure(prompts)]
        except Stopped:
            raise
        except Exception as error:
            if self._rows is None:
                raise
            if len(prompts) == 1:
                self._rows.add(prompts[0], None, error)
                self.failures.append(f"Failed and skipped: {prompts[0]} ({type(error).__name__}: {error})")
            else:
                for prompt in prompts:
                    self.measure([prompt], measure)
            return
        whole = parts if self.statistics is None else [self.statistics, *parts]
        self.statistics = functools.reduce(neuron_statistics.merge, whole)
        if self._rows is not None:
            for prompt in prompts:
                self._rows.add(prompt, {})
            statistics_file.write(self.statistics, self._file)


class LoadNeuronStatistics(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_LoadNeuronStatistics",
            display_name="Load Neuron Statistics",
            category=CATEGORY,
            description="Reads a file from Neuron Statistics, or the official code's file for SD1.4 "
            "(statistics_additional_laion_prompts_v1_4.pt; no pickle is executed). "
            f"{PAPER}, section 3.2.",
            search_aliases=[
                "memorization",
                "nemo",
                "reference statistics",
                "open statistics file",
                "mean and deviation of neurons",
            ],
            inputs=[
                io.Model.Input("model", tooltip="The model that was measured; the statistics are checked against it."),
                io.String.Input(
                    "file",
                    default="",
                    tooltip="Path in ComfyUI's input or output folder: a .safetensors from Neuron Statistics, or the "
                    "official .pt.",
                ),
            ],
            outputs=[
                Socket.Output(display_name="statistics", tooltip="For NeMo Localize."),
                io.String.Output(display_name="report", tooltip="One line per layer."),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, file: str | None = "", **_) -> str:
        """Changes with the file."""
        return input_stamp(file, "statistics file")

    @classmethod
    def execute(cls, model, file: str) -> io.NodeOutput:
        from . import neuron_reports, statistics_file

        known = all_layers(model.model.diffusion_model)
        found = statistics_file.read(resolve_input_file(file, "statistics file"), known)
        found.check([layer for layer in known if layer.path in found.layers])
        report = neuron_reports.statistics_report(found, known)
        if not neuron_statistics.same_model(
            found.fingerprint, neuron_statistics.fingerprint(probe_outputs(model, list(found.fingerprint)))
        ):
            report = f"{neuron_reports.OTHER_STATISTICS}\n{report}"
        return io.NodeOutput(found, report)


NODES = [NeuronStatistics, LoadNeuronStatistics]
