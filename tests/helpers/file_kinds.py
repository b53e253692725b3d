"""The files that the pack reads and writes, by kind: a small valid one of each, and how the pack
reads it.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import members
import torch
from glassbox.nodes.activations import (
    activations_file,
    autoencoder_file,
    autoencoder_training,
    steering,
)
from glassbox.nodes.activations.activations import Activations, Row
from glassbox.nodes.activations.sparse_autoencoder import SparseAutoencoder
from glassbox.nodes.common import lora_reader
from glassbox.nodes.common.resume import Journal, damaged, load_state, save_state
from glassbox.nodes.common.training.training_checkpoint import CheckpointFile
from glassbox.nodes.common.training.training_loop import History, Plan, WeightAverage
from glassbox.nodes.neurons import (
    learned_factors,
    learning_checkpoint,
    mask_file,
    nemo_inputs,
    neuron_reports,
    statistics_file,
)
from glassbox.nodes.neurons.mask import NeuronMask, SearchRecord
from glassbox.nodes.neurons.nemo_search import Neurons
from glassbox.nodes.neurons.neuron_layers import BlockPart, NeuronLayer
from glassbox.nodes.neurons.neuron_statistics import LayerStatistics, Statistics
from glassbox.nodes.neurons.scan_file import ScanFile
from glassbox.nodes.weights import (
    inversion,
    inversion_checkpoint,
    labels,
    member_folders,
    member_labels,
    member_sources,
    official_release,
    space_builder,
    space_file,
    space_report,
)
from glassbox.nodes.weights.flat_layout import Layout
from glassbox.nodes.weights.learned_space import LearnedUpdates
from glassbox.nodes.weights.space import Space
from glassbox.nodes.weights.space_training import MemberImages, SpaceTraining, SpaceTrainingSettings
from PIL import Image
from PIL.PngImagePlugin import PngInfo

_LAYERS = [
    NeuronLayer(f"{block}.{n}.1", part, 3)
    for block, part in (("input_blocks", BlockPart.DOWN), ("middle_block", BlockPart.MIDDLE))
    for n in (1, 2)
]


def build_space(folder: Path) -> Space:
    """A space of five small LoRAs."""
    sources = member_sources.file_sources(members.write_folder(folder / "loras", 5, rank=2))
    return space_builder.build(
        sources, space_builder.BuildSettings(rank=2), folder / "space.safetensors"
    )


class FileKinds:
    """A valid file of each kind by name, and how the pack reads it: `write_KIND(path)`,
    `read_KIND(path)`.
    """

    def __init__(self, space):
        self._space = space

    def write_space(self, path):
        space_file.write(self._space, path, "float16")

    def read_space(self, path):
        space_file.build_key(path)
        space = space_file.read(path)
        space_report.describe_space(space)
        return space

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
        activations_file.write(
            Activations({"a": torch.ones(2, 1, 2, 2)}, rows, 0.25, 51.0, {"seed": 3}), path
        )

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
        record = SearchRecord(
            "a man", {_LAYERS[0].path: (1,)}, True, {"z": {_LAYERS[0].path: {"1": 2.5}}}
        )
        mask_file.write(NeuronMask(scales, (record,), {_LAYERS[0].path: (1.0,)}, ("test",)), path)

    def read_mask(self, path):
        mask = mask_file.read(path, _LAYERS)
        mask.largest_z()
        neuron_reports.mask_table(mask)
        neuron_reports.mask_chart(mask)
        return mask

    def write_mask_csv(self, path):
        rows = "a man;u;[[1], [], [], []];0.2;[[1], [], [], []];0.1\n"
        path.write_text(
            f"Caption;URL;Initial Neurons;Initial SSIM;Refined Neurons;Refined SSIM\n{rows}"
        )

    read_mask_csv = read_mask

    def write_prompts_csv(self, path):
        path.write_text("Caption,URL\na man,u\na woman,v\n")

    def read_prompts_csv(self, path):
        return nemo_inputs.read_prompts(path)

    def write_prompts_txt(self, path):
        path.write_text("a man\na woman\n")

    read_prompts_txt = read_prompts_csv

    def write_labels_csv(self, path):
        lines = [
            ["member", "beard"],
            *([name, str(n % 2)] for n, name in enumerate(self._space.members)),
        ]
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(lines)

    def read_labels_csv(self, path):
        return labels.read(path, self._space)

    def write_labels_json(self, path):
        path.write_text(
            json.dumps(
                {name: {"beard": n % 2, "age": 0.5} for n, name in enumerate(self._space.members)}
            )
        )

    read_labels_json = read_labels_csv

    def write_scan_csv(self, path):
        ScanFile(path, ["score"], {"threshold": 0.5}).add("a man", {"score": "0.5"})

    def read_scan_csv(self, path):
        beside = path.with_suffix(".settings.json")
        if not beside.exists():
            content = {
                "format": "glassbox scan",
                "format_version": "2",
                "identity": {"threshold": 0.5},
            }
            beside.write_text(json.dumps(content))
        return ScanFile(path, ["score"], {"threshold": 0.5})

    def write_lora_config(self, path):
        from safetensors.torch import save_file

        about = {"unet.r": 2, "unet.lora_alpha": 4, "unet.use_rslora": True, "unet.use_dora": False}
        about |= {
            "unet.alpha_pattern": {"attn1.to_q": 2, ".*to_v": 3},
            "unet.rank_pattern": {"^down_blocks": 2},
        }
        header = {"lora_adapter_metadata": json.dumps(about), "modelspec.tags": "a man, beard"}
        header["ss_tag_frequency"] = json.dumps({"1_ada": {"beard": 3, "glasses": 1}})
        save_file(members.diffusers(members.factors(0, rank=2)), path, header)

    def read_lora_config(self, path):
        lora_reader.read_header(path)
        member_labels.tags_of(lora_reader.read_metadata(path))
        for factors in lora_reader.read(path).layers.values():
            assert math.isfinite(factors.scale)

    def write_peft_json(self, path):
        content = {
            "peft_type": "LORA",
            "r": 2,
            "lora_alpha": 4,
            "use_rslora": False,
            "alpha_pattern": {"to_q": 2},
        }
        path.write_text(
            json.dumps(
                {**content, "rank_pattern": {}, "target_modules": ["to_q"], "layers_pattern": None}
            )
        )

    def read_peft_json(self, path):
        from safetensors.torch import save_file

        with _folder_beside(path) as folder:
            save_file(
                members.peft(members.factors(0, rank=2)), folder / "adapter_model.safetensors"
            )
            shutil.copy(path, folder / "adapter_config.json")
            for factors in lora_reader.read(folder).layers.values():
                assert math.isfinite(factors.scale)

    def write_release_json(self, path):
        path.write_text(json.dumps({"r": 1, "lora_alpha": 27, "use_rslora": False}))

    def read_release_json(self, path):
        with _folder_beside(path) as folder:
            shapes = {
                f"{layer}.lora_{side}.weight": (32, torch.Size((1, 32) if side == "A" else (32, 1)))
                for layer in sorted(members.LAYERS)
                for side in "AB"
            }
            torch.save(shapes, folder / "weight_dimensions.pt")
            shutil.copy(path, folder / "adapter_config.json")
            layout, _ = official_release._layout(folder)
            assert math.isfinite(layout.scale)

    def write_autoencoder(self, path):
        matrix = torch.ones(6, 4)
        about = {"batches": 7, "held-out explained variance": 0.8}
        autoencoder_file.write(
            SparseAutoencoder(
                "a",
                2,
                matrix,
                matrix.clone(),
                torch.ones(4),
                torch.ones(6),
                torch.ones(6),
                about=about,
            ),
            path,
        )

    def read_autoencoder(self, path):
        return autoencoder_file.read(path)

    def write_autoencoder_json(self, path):
        path.write_text(json.dumps({"k": 2, "n_dirs_local": 6, "d_model": 4, "auxk": 3}))

    def read_autoencoder_json(self, path):
        with _folder_beside(path, "unet.down_blocks.2.attentions.1_k2") as folder:
            weights = {"encoder.weight": torch.ones(6, 4), "decoder.weight": torch.ones(4, 6)}
            weights |= {"pre_bias": torch.ones(4), "latent_bias": torch.ones(6)}
            torch.save({"state_dict": weights}, folder / "state_dict.pth")
            torch.save(torch.ones(6), folder / "mean.pt")
            shutil.copy(path, folder / "config.json")
            return autoencoder_file.read(folder)

    def write_scan_json(self, path):
        ScanFile(path.with_name(f"{path.stem}.csv"), ["score"], {"threshold": 0.5})
        content = path.with_name(f"{path.stem}.settings.json").read_text("utf-8")
        path.write_text(content, encoding="utf-8")

    def read_scan_json(self, path):
        with _folder_beside(path) as folder:
            (folder / "scan.csv").write_text("prompt,score,error\na man,0.5,\n")
            shutil.copy(path, folder / "scan.settings.json")
            ScanFile(folder / "scan.csv", ["score"], {"threshold": 0.5})

    def write_journal_jsonl(self, path):
        path.unlink(missing_ok=True)
        Journal(path, "build", 1, {"rank": 2}).add({"name": "ada", "lost": {"rank": 0.5}})

    def read_journal_jsonl(self, path):
        assert all(
            isinstance(entry, dict) for entry in Journal(path, "build", 1, {"rank": 2}).entries
        )

    def write_space_training(self, path):
        run = _space_training()
        for value in run.updates.parameters.values():
            value.grad = torch.ones_like(value)
        run.optimizer.step()
        run.losses.append(0.5)
        save_state(path, "learned space", 1, {"seed": 5}, run.state())

    def read_space_training(self, path):
        tensors, _ = load_state(path, "learned space", 1, {"seed": 5})
        run = _space_training()
        try:
            run.restore(tensors)
        except (KeyError, TypeError, ValueError):
            raise damaged(path.name) from None
        _advance(path, run.optimizer)

    def write_person_png(self, path):
        info = PngInfo()
        info.add_text("parameters", "a portrait")
        exif = Image.Exif()
        exif[274] = 6  # a quarter turn
        Image.new("RGBA", (6, 4), "teal").save(path, pnginfo=info, exif=exif)

    def read_person_png(self, path):
        """A folder of two people, one of whom has the file as image and its bytes as caption."""
        with _folder_beside(path) as folder:
            for name in ("ada", "bob"):
                (folder / name).mkdir()
            Image.new("RGB", (6, 4)).save(folder / "ada" / "0.png")
            shutil.copy(path, folder / "bob" / "0.png")
            (folder / "bob" / "0.txt").write_bytes(path.read_bytes())
            found = member_folders.find_members(folder, "portrait")
            for images in found.members.values():
                pixels, opaque = images[0].read()
                assert pixels.isfinite().all() and "\n" not in images[0].caption
                if opaque is not None:
                    member_folders.opaque_at(opaque, (2, 3))

    def write_mask_learning(self, path):
        run = _mask_learning()
        run.factors.grad = torch.ones(12)
        run.optimizer.step()
        run.losses.append(0.5)
        learning_checkpoint.save(run, path, {"seed": 5})

    def read_mask_learning(self, path):
        run = _mask_learning()
        learning_checkpoint.restore(run, path, {"seed": 5}, "")
        run.factors.grad = torch.ones(12)
        run.optimizer.step()
        _require_finite(path, [run.factors])

    def write_autoencoder_training(self, path):
        trainer = autoencoder_training.Trainer.start(_AUTOENCODER, _positions())
        trainer.step(_positions())
        kept = {"chunks": torch.tensor(1), "curve": torch.tensor([[1.0, 0.5, 0.0]]).double()}
        autoencoder_training.save(path, {"seed": 5}, trainer.state() | kept)

    def read_autoencoder_training(self, path):
        state = autoencoder_training.read_state(path, {"seed": 5}, _AUTOENCODER, 3)
        trainer = autoencoder_training.Trainer(_AUTOENCODER, state)
        trainer.step(_positions())
        trainer.autoencoder("a", {})

    def write_training(self, path):
        training, noise, sampler = _training()
        training.parameters["a"].grad = torch.ones(3)
        training.optimizer.step()
        training.history.losses.append(0.5)
        CheckpointFile(path=path, identity={"rank": 2}).save(
            training, noise.visits, sampler.state()
        )

    def read_training(self, path):
        run = _training()
        CheckpointFile(path=path, identity={"rank": 2}).restore(*run)
        _advance(path, run[0].optimizer)

    def write_inversion(self, path):
        run = self._inversion()
        run.model.coefficients.grad = torch.ones_like(run.model.coefficients)
        run.optimizer.step()
        run.losses.append(0.5)
        inversion_checkpoint.save(run, path, {"seed": 5})

    def read_inversion(self, path):
        run = self._inversion()
        inversion_checkpoint.restore(run, path, {"seed": 5})
        _advance(path, run.optimizer)

    def _inversion(self):
        model = inversion.TrainablePoint(self._space, torch.zeros(0), components=3)
        return inversion.Inversion(
            model=model, settings=inversion.InversionSettings(steps=3, seed=5)
        )


def _advance(path: Path, optimizer: torch.optim.Optimizer) -> None:
    """One step of a restored training whose gradient is 1 everywhere, which no kept number may
    make impossible.
    """
    parameters = [value for group in optimizer.param_groups for value in group["params"]]
    for value in parameters:
        value.grad = torch.ones_like(value)
    optimizer.step()
    _require_finite(path, parameters)


def _require_finite(path: Path, values: list[torch.Tensor]) -> None:
    """What a training says whose loss is no longer finite: its numbers are too large, not wrong."""
    if not all(bool(value.isfinite().all()) for value in values):
        raise ValueError(f"The loss of {path.name} is no longer a finite number: train it again.")


#: Of the state of a sparse autoencoder's training.
_AUTOENCODER = autoencoder_training.TrainingSettings(
    features=6, k=2, learning_rate=0.01, dead_after=3, seed=5
)


def _positions() -> torch.Tensor:
    """Positions (N, C) of an activation."""
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(3))


def _mask_learning() -> learned_factors.FactorLearning:
    """A learning of the factors of twelve neurons without a network."""
    settings = learned_factors.LearningSettings(steps=3, learning_rate=0.01)
    start = torch.full((12,), 0.5)
    return learned_factors.FactorLearning(Neurons(_LAYERS), settings, start)


def _training():
    """What a checkpoint brings to another state, without a network."""
    parameters = {"a": torch.nn.Parameter(torch.zeros(3))}
    training = SimpleNamespace(
        parameters=parameters,
        optimizer=torch.optim.Adam(parameters.values()),
        history=History(),
        steps_done=1,
        plan=Plan(steps=4),
        average=WeightAverage(parameters, 0.9),
    )
    generator = torch.Generator()
    sampler = SimpleNamespace(
        state=lambda: (1, generator.get_state()),
        restore=lambda _, state: generator.set_state(state),
    )
    return training, SimpleNamespace(visits=[1, 0]), sampler


def _space_training() -> SpaceTraining:
    """A training of a learned space without a network."""
    shapes = {"mid_block.attentions.0.transformer_blocks.0.attn1.to_q": ((2, 8), (6, 2))}
    updates = LearnedUpdates(Layout.of(shapes, 2, 2.0), 4, 3, 5)
    data = MemberImages(images=[[0]] * 4, kinds=[0], conditions=[0], empty_row=0)
    return SpaceTraining(updates, data, SpaceTrainingSettings(steps=3))


@contextlib.contextmanager
def _folder_beside(path: Path, name: str = "folder"):
    """An empty folder beside a file, whose errors name that file."""
    folder = path.parent / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    except Exception as error:
        raise type(error)(f"{path.name}: {error}") from error


_SUFFIXES = {
    "_jsonl": ".jsonl",
    "_json": ".json",
    "_pt": ".pt",
    "_csv": ".csv",
    "_txt": ".txt",
    "_png": ".png",
    "mask": ".json",
}
KINDS = sorted(name.removeprefix("write_") for name in vars(FileKinds) if name.startswith("write_"))


def suffix_of(kind: str) -> str:
    return next((suffix for end, suffix in _SUFFIXES.items() if kind.endswith(end)), ".safetensors")


#: Kinds that the pack writes itself.
WRITTEN = [
    kind
    for kind in KINDS
    if kind
    not in (
        "lora",
        "lora_config",
        "peft_json",
        "release_json",
        "autoencoder_json",
        "scan_json",
        "labels_json",
    )
    and suffix_of(kind) in (".safetensors", ".json")
]
