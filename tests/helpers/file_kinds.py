"""The files that the pack reads and writes, by kind: a small valid one of each, and how the pack reads it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import members
import torch
from glassbox.nodes.activations import activations_file, steering
from glassbox.nodes.activations.activations import Activations, Row
from glassbox.nodes.common import lora_reader
from glassbox.nodes.common.training.training_checkpoint import CheckpointFile
from glassbox.nodes.common.training.training_loop import History, Plan, WeightAverage
from glassbox.nodes.neurons import mask_file, nemo_inputs, statistics_file
from glassbox.nodes.neurons.mask import NeuronMask, SearchRecord
from glassbox.nodes.neurons.neuron_layers import BlockPart, NeuronLayer
from glassbox.nodes.neurons.neuron_statistics import LayerStatistics, Statistics
from glassbox.nodes.neurons.scan_file import ScanFile
from glassbox.nodes.weights import (
    inversion,
    inversion_checkpoint,
    labels,
    member_sources,
    space_builder,
    space_file,
)
from glassbox.nodes.weights.space import Space

_LAYERS = [
    NeuronLayer(f"{block}.{n}.1", part, 3)
    for block, part in (("input_blocks", BlockPart.DOWN), ("middle_block", BlockPart.MIDDLE))
    for n in (1, 2)
]


def build_space(folder: Path) -> Space:
    """A space of five small LoRAs."""
    sources = member_sources.file_sources(members.write_folder(folder / "loras", 5, rank=2))
    return space_builder.build(sources, space_builder.BuildSettings(rank=2), folder / "space.safetensors")


class FileKinds:
    """A valid file of each kind by name, and how the pack reads it: `write_KIND(path)`, `read_KIND(path)`."""

    def __init__(self, space):
        self._space = space

    def write_space(self, path):
        space_file.write(self._space, path, "float16")

    def read_space(self, path):
        space_file.build_key(path)
        return space_file.read(path)

    def write_lora(self, path):
        from safetensors.torch import save_file

        save_file(members.kohya(members.factors(0)), path)

    def read_lora(self, path):
        lora_reader.read_header(path)
        return lora_reader.read(path)

    def write_lora_pt(self, path):
        torch.save(members.peft(members.factors(0)), path)

    read_lora_pt = read_lora

    def write_activations(self, path):
        rows = (Row(0), Row(0, False))
        activations_file.write(Activations({"a": torch.ones(2, 1, 2, 2)}, rows, 0.25, 51.0, {"seed": 3}), path)

    def read_activations(self, path):
        return activations_file.read(path)

    def write_direction(self, path):
        steering.write(steering.SteeringDirection({"a": torch.ones(4)}, "test"), path)

    def read_direction(self, path):
        return steering.read(path)

    def write_statistics(self, path):
        layers = {layer.path: LayerStatistics(*torch.ones(5, 3).double()) for layer in _LAYERS}
        statistics_file.write(Statistics(4, layers, {_LAYERS[0].path: (1.0, 2.0)}, "test"), path)

    def read_statistics(self, path):
        return statistics_file.read(path, _LAYERS)

    def write_statistics_pt(self, path):
        torch.save(([torch.ones(3)] * 4, [torch.ones(3)] * 4), path)

    read_statistics_pt = read_statistics

    def write_mask(self, path):
        scales = {_LAYERS[0].path: {1: 0.0}}
        record = SearchRecord("a man", {_LAYERS[0].path: (1,)}, True, {"z": {_LAYERS[0].path: {"1": 2.5}}})
        mask_file.write(NeuronMask(scales, (record,), {_LAYERS[0].path: (1.0,)}, ("test",)), path)

    def read_mask(self, path):
        return mask_file.read(path, _LAYERS)

    def write_mask_csv(self, path):
        rows = "a man;u;[[1], [], [], []];0.2;[[1], [], [], []];0.1\n"
        path.write_text(f"Caption;URL;Initial Neurons;Initial SSIM;Refined Neurons;Refined SSIM\n{rows}")

    read_mask_csv = read_mask

    def write_prompts_csv(self, path):
        path.write_text("Caption,URL\na man,u\na woman,v\n")

    def read_prompts_csv(self, path):
        return nemo_inputs.read_prompts(path)

    def write_prompts_txt(self, path):
        path.write_text("a man\na woman\n")

    read_prompts_txt = read_prompts_csv

    def write_labels_csv(self, path):
        lines = [["member", "beard"], *([name, str(n % 2)] for n, name in enumerate(self._space.members))]
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(lines)

    def read_labels_csv(self, path):
        return labels.read(path, self._space)

    def write_scan_csv(self, path):
        ScanFile(path, ["score"], {"threshold": 0.5}).add("a man", {"score": "0.5"})

    def read_scan_csv(self, path):
        beside = path.with_suffix(".settings.json")
        if not beside.exists():
            content = {"format": "glassbox scan", "format_version": "2", "identity": {"threshold": 0.5}}
            beside.write_text(json.dumps(content))
        return ScanFile(path, ["score"], {"threshold": 0.5})

    def write_training(self, path):
        training, noise, sampler = _training()
        training.parameters["a"].grad = torch.ones(3)
        training.optimizer.step()
        training.history.losses.append(0.5)
        CheckpointFile(path, {"rank": 2}).save(training, noise.visits, sampler.state())

    def read_training(self, path):
        CheckpointFile(path, {"rank": 2}).restore(*_training())

    def write_inversion(self, path):
        run = self._inversion()
        run.model.coefficients.grad = torch.ones_like(run.model.coefficients)
        run.optimizer.step()
        inversion_checkpoint.save(run, path, {"seed": 5})

    def read_inversion(self, path):
        inversion_checkpoint.restore(self._inversion(), path, {"seed": 5})

    def _inversion(self):
        model = inversion.TrainablePoint(self._space, torch.zeros(0), components=3)
        return inversion.Inversion(model, inversion.InversionSettings(steps=3, seed=5))


def _training():
    """What a checkpoint brings to another state, without a network."""
    parameters = {"a": torch.nn.Parameter(torch.zeros(3))}
    training = SimpleNamespace(
        parameters=parameters,
        optimizer=torch.optim.Adam(parameters.values()),
        history=History(),
        steps_done=1,
        plan=Plan(4),
        average=WeightAverage(parameters, 0.9),
    )
    generator = torch.Generator()
    sampler = SimpleNamespace(
        state=lambda: (1, generator.get_state()), restore=lambda _, state: generator.set_state(state)
    )
    return training, SimpleNamespace(visits=[1, 0]), sampler


_SUFFIXES = {"_pt": ".pt", "_csv": ".csv", "_txt": ".txt", "mask": ".json"}
KINDS = sorted(name.removeprefix("write_") for name in vars(FileKinds) if name.startswith("write_"))


def suffix_of(kind: str) -> str:
    return next((suffix for end, suffix in _SUFFIXES.items() if kind.endswith(end)), ".safetensors")


#: Kinds that the pack writes itself.
WRITTEN = [
    kind for kind in KINDS if kind not in ("lora", "labels_csv") and suffix_of(kind) in (".safetensors", ".json")
]
