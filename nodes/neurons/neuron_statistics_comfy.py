"""Measure the moments of a MODEL's neurons on prompts."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..common.failures import is_out_of_memory, skipped
from ..host import folders
from ..host.identity import clip_digest, embeddings_by_text, model_digest
from ..host.progress import Stopped, with_progress
from ..host.text_encoding import encode, literal
from . import neuron_statistics, statistics_file
from .first_step_comfy import activations, embedding, probe_outputs, value_outputs
from .memorization_score import OFFICIAL_TIMESTEP, seeded_noise
from .nemo_inputs import PromptSyntax
from .neuron_layers import NeuronLayer, NeuronType
from .neuron_statistics import LayerStatistics, Statistics
from .scan_file import Pace, ScanFile

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, ModelPatcher

_NOISE_SEED = 1
_BATCH = 32


def hidden_moments(
    model: ModelPatcher,
    conditioning: list,
    layers: Sequence[NeuronLayer],
    shape: tuple[int, ...],
    seed: int = _NOISE_SEED,
) -> dict[str, LayerStatistics]:
    """Moments of the neurons of layers on one prompt, by path: at the first step.

    In one noise sample, by default always the same, so that like those of a U-Net's values they
    depend on the text alone.
    """
    widths = {layer.path: layer.width for layer in layers}
    noise = seeded_noise(shape, 1, seed)
    return activations(
        model,
        conditioning,
        noise=noise,
        timestep=OFFICIAL_TIMESTEP,
        widths=widths,
        reduce=neuron_statistics.moments,
    )


def _value_moments(
    model: ModelPatcher, clip: CLIP, layers: Sequence[NeuronLayer], texts: list[str]
) -> Iterator[tuple[int, dict]]:
    """Numbers of prompts and the moments of their value neurons, in batches of one length."""
    paths = [layer.path for layer in layers]
    by_length: dict[int, list] = {}  # long prompts have more tokens
    for text in texts:
        encoded = embedding(encode(clip, text)[1])
        by_length.setdefault(encoded.shape[1], []).append(encoded)
    for batch in by_length.values():
        yield (
            len(batch),
            neuron_statistics.layer_moments(value_outputs(model, torch.cat(batch), paths)),
        )


def _hidden_moments(
    model: ModelPatcher,
    clip: CLIP,
    layers: Sequence[NeuronLayer],
    shape: tuple[int, ...],
    texts: list[str],
) -> Iterator[tuple[int, dict]]:
    """One, and the moments of the neurons on a prompt, for each prompt."""
    for text in texts:
        yield 1, hidden_moments(model, encode(clip, text)[1], layers, shape)


def scan_statistics(
    model: ModelPatcher,
    clip: CLIP,
    texts: list[str],
    neuron_type: NeuronType,
    layers: Sequence[NeuronLayer],
    shape: tuple[int, ...] | None,
    name: str,
    prompt_syntax: str = PromptSyntax.LITERAL,
) -> StatisticsScan:
    """The moments of layers on prompts, resuming the scan ``name``; an empty name is none.

    ``shape``: of the latents in which neurons are measured; None for those that depend on the text
    alone.
    """
    clip = literal(clip) if prompt_syntax == PromptSyntax.LITERAL else clip
    identity = neuron_statistics.fingerprint(probe_outputs(model, [layer.path for layer in layers]))
    settings: dict = {"neuron_type": str(neuron_type), "layers": [layer.path for layer in layers]}
    settings["prompt_syntax"] = prompt_syntax
    if shape is not None:
        settings["latent"] = list(shape)
        measure = functools.partial(_hidden_moments, model, clip, layers, shape)
        size = 1
    else:
        measure = functools.partial(_value_moments, model, clip, layers)
        size = _BATCH
    settings |= {"model": model_digest(model), "clip": clip_digest(clip)}
    embeddings = embeddings_by_text(clip, texts) if name.strip() else {}
    scan = StatisticsScan(name, settings, identity, embeddings)
    missing = scan.missing(texts)
    pace = Pace(len(missing))
    rows = 0 if shape is None else len(missing)
    logging.info("%d prompts to measure: %d rows of the network.", len(missing), rows)
    for first in with_progress(range(0, len(missing), size)):
        batch = missing[first : first + size]
        scan.measure(batch, measure)
        logging.info("Neuron statistics: %s.", pace.step(len(batch)))
    return scan


class StatisticsScan:
    """A scan of statistics: a row per prompt in NAME.csv, their moments in NAME.safetensors; no
    files without a name.

    The rows of a batch are written before its moments; rows that the moments do not hold are
    measured again.
    """

    def __init__(
        self,
        name: str,
        settings: dict,
        fingerprint: neuron_statistics.Fingerprint,
        embeddings: Mapping[str, str] | None = None,
    ):
        self._rows: ScanFile | None = None
        self._file = Path()
        self._fingerprint = fingerprint
        self.statistics: Statistics | None = None
        self.failures: list[str] = []
        if name.strip():
            path = folders.named_file(name, ".csv")
            self._file = path.with_suffix(".safetensors")
            self._rows = ScanFile(path, [], settings, embeddings)
            if self._file.is_file():
                self.statistics = statistics_file.read(self._file, [])
            self._rows.keep(self.statistics.count if self.statistics else 0)

    def missing(self, prompts: list[str]) -> list[str]:
        """The prompts that are not measured yet."""
        rows = self._rows
        if rows is None:
            return prompts
        if left := [
            text for text in rows.rows if text not in prompts and rows.done(text) is not None
        ]:
            raise ValueError(
                f"The scan file was made with another list: its statistics hold {len(left)} "
                f"prompts that are not in this one, the first {left[0][:60]!r}. Add them to go on, "
                "or choose another name."
            )
        return [text for text in dict.fromkeys(prompts) if rows.done(text) is None]

    def measure(
        self, prompts: list[str], measure: Callable[[list[str]], Iterator[tuple[int, dict]]]
    ) -> None:
        """Add the moments of prompts; where that fails in a scan, of each alone, and name those
        that fail.
        """
        try:
            parts = [
                Statistics(*part, self._fingerprint, "Neuron Statistics")
                for part in measure(prompts)
            ]
        except Stopped:
            raise
        except Exception as error:
            if self._rows is None or is_out_of_memory(error):
                raise
            if len(prompts) == 1:
                self._rows.add(prompts[0], None, error)
                self.failures.append(skipped(prompts[0], error))
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
