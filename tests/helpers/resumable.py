"""Small prompts for the nodes that keep work: run in ComfyUI's executor, stopped in the middle, and
run again.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import ClassVar

import members
import newer
import repository
import torch
from PIL import Image
from trainer_inputs import DEFAULTS

_PEOPLE = ("mirella thrum", "bandor pyke", "zorvex quill", "sybil orcrane")
PROMPTS = "\n".join(f"portrait of {name}" for name in _PEOPLE)
_STEP = {"noise_samples": 2, "seed": 1, "timestep": "official_961", "width": 64, "height": 64}
_LAYERS = "output_blocks.5.1"
_WORLD = {"model": ["world", 0], "clip": ["world", 1]}
#: What stands before the nodes: class and inputs by id.
BEFORE = {
    "world": ("GBX_LoadDemoModel", {"weights": "avatars-v2"}),
    "positive": ("CLIPTextEncode", {"clip": ["world", 1], "text": "portrait"}),
    "image": ("GBX_DemoPicture", {"image_index": 1, "count": 2, "part": "face"}),
    "latent": ("VAEEncode", {"pixels": ["image", 0], "vae": ["world", 2]}),
    "empty": ("EmptyLatentImage", {"width": 64, "height": 64, "batch_size": 1}),
    "space": ("GBX_W2WLoadSpace", {"space_name": "avatars-v2-w2w.safetensors"}),
    "statistics": (
        "GBX_NeuronStatistics",
        {
            **_WORLD,
            "prompts": PROMPTS,
            "prompts_file": "",
            "layers": _LAYERS,
            "filename_prefix": "",
        },
    ),
}
#: For each node its inputs, the one that names its file, and the output by which two runs are
#: compared.
NODES: dict[str, tuple[dict, str, int]] = {
    "GBX_TrainLoraImmiscible": (
        {"model": ["world", 0], "latents": ["latent", 0], "positive": ["positive", 0], **DEFAULTS},
        "checkpoint_name",
        1,
    ),
    "GBX_W2WInvert": (
        {
            "model": ["world", 0],
            "space": ["space", 0],
            "latent": ["latent", 0],
            "positive": ["positive", 0],
            "steps": 5,
            "learning_rate": 0.1,
            "weight_decay": 1e-10,
            "components": 20,
            "seed": 4,
            "precision": "fp32",
            "gradient_checkpointing": False,
            "preview_interval": 0,
        },
        "checkpoint_name",
        0,
    ),
    "GBX_NemoLocalize": (
        {
            **_WORLD,
            "statistics": ["statistics", 0],
            "prompts": PROMPTS,
            "layers": _LAYERS,
            "threshold": 0.2,
            "target_score": 0.97,
            "criterion": "same_seed",
            "theta_start": 5.0,
            "time_budget": 0.0,
            **_STEP,
        },
        "scan_file",
        2,
    ),
    "GBX_OptimizeNeuronMask": (
        {
            **_WORLD,
            "prompts": PROMPTS.partition("\n")[0],
            "anchor": "portrait",
            "ordinary_prompts": "portrait, red hair\nportrait, sunglasses",
            "layers": _LAYERS,
            "steps": 6,
            "learning_rate": 0.08,
            "min_factor": -0.5,
            "removal": 10.0,
            "keep": 1.0,
            "sparsity": 0.01,
            "max_neurons": 0,
            "batch_size": 2,
            "precision": "fp32",
            **{name: value for name, value in _STEP.items() if name != "timestep"},
        },
        "checkpoint_name",
        0,
    ),
    "GBX_MemorizationScore": (
        {
            **_WORLD,
            "prompts": PROMPTS,
            "prompts_file": "",
            "threshold": 0.0,
            "text_norm": True,
            "filename_prefix": "",
        }
        | _STEP,
        "scan_file",
        4,
    ),
    "GBX_CalibrateThreshold": (
        {
            **_WORLD,
            "prompts": PROMPTS,
            "prompts_file": "",
            "memorized_prompts": "portrait",
            "deviations": 2.0,
        }
        | _STEP,
        "scan_file",
        0,
    ),
    "GBX_NeuronStatistics": (
        {**_WORLD, "prompts": PROMPTS, "prompts_file": "", "layers": _LAYERS, "filename_prefix": ""}
        | {"neuron_type": "feed_forward", "width": 64, "height": 64},
        "scan_file",
        0,
    ),
    "GBX_TrainSparseAutoencoder": (
        {
            **_WORLD,
            "latent": ["empty", 0],
            "activation_id": "mid-vit-out",
            "prompts": PROMPTS,
            "image_folder": "",
            "features": 16,
            "k": 4,
            "training_steps": 12,
            "batch_size": 8,
            "learning_rate": 0.001,
            "seed": 0,
            "steps": 2,
            "cfg": 1.0,
        },
        "name",
        0,
    ),
    "GBX_TrainSlider": (
        {
            **_WORLD,
            "increase": "majestic beard",
            "decrease": "shaven",
            "base_prompt": "portrait",
            "keep": "brown skin\npale skin",
            "rank": 2,
            "steps": 4,
            "learning_rate": 0.01,
            "guidance_scale": 2.0,
            "batch_size": 2,
            "images": 3,
            "sampling_steps": 2,
            "cfg": 2.0,
            "end_percent": 0.9,
            "seed": 3,
            "layers": "",
            "precision": "fp32",
            "gradient_checkpointing": False,
            "preview_interval": 0,
            "filename_prefix": "",
            "checkpoint_interval": 2,
            "latent": ["empty", 0],
        },
        "checkpoint_name",
        1,
    ),
    "GBX_W2WTrainSpace": (
        {
            **_WORLD,
            "vae": ["world", 2],
            "folder": "resumable people",
            "prompt": "portrait",
            "rank": 2,
            "components": 64,
            "steps": 4,
            "learning_rate": 0.01,
            "members_per_step": 2,
            "images_per_member": 2,
            "batch_size": 8,
            "resolution": 64,
            "seed": 3,
            "layers": "",
            "end_percent": 0.85,
            "caption_dropout": 0.5,
            "precision": "fp32",
            "gradient_checkpointing": False,
            "preview_interval": 0,
            "checkpoint_interval": 1,
        },
        "checkpoint_name",
        0,
    ),
    "GBX_W2WBuildSpace": (
        {
            "folder": "resumable",
            "rank": 8,
            "energy": 0.99,
            "components": 5,
            "form": "singular_values",
            "standardize": True,
            "on_mismatch": "error",
            "storage": "float32",
        },
        "filename",
        0,
    ),
}


#: Inputs that change nothing of what is kept: how often it is written or shown, and with how much
#: memory.
FREE = {
    "GBX_TrainLoraImmiscible": {
        *("checkpoint_interval", "validation_interval", "sample_interval", "on_stop"),
        *("gradient_checkpointing", "checkpoint_depth"),
    },
    "GBX_W2WInvert": {"gradient_checkpointing", "preview_interval"},
    "GBX_OptimizeNeuronMask": {"gradient_checkpointing", "noise_samples"},
    "GBX_MemorizationScore": {"filename_prefix", "layer_ablation"},
    "GBX_NeuronStatistics": {"filename_prefix"},
    "GBX_TrainSlider": {
        "gradient_checkpointing",
        "preview_interval",
        "checkpoint_interval",
        "filename_prefix",
    },
    "GBX_W2WTrainSpace": {
        "batch_size",
        "gradient_checkpointing",
        "preview_interval",
        "checkpoint_interval",
    },
}


def make_files(app, folder) -> None:
    """A place for spaces, and folders named "resumable": LoRAs, images of people, and images."""
    import folder_paths

    for kind in ("loras", "w2w"):
        (folder / kind).mkdir()
        folder_paths.add_model_folder_path(kind, str(folder / kind), is_default=True)
    members.write_folder(folder / "loras" / "resumable", 8, rank=2)
    app.module(
        "nodes.weights.learned_space_comfy"
    )._STEPS = 2  # of previews, which take most of the time
    people = Path(folder_paths.get_input_directory(), "resumable people")
    if not people.exists():
        for name, count in (("person_00", 2), ("person_01", 1), ("person_02", 1)):
            (people / name).mkdir(parents=True)
            for image in sorted(
                (repository.ROOT / "assets" / "avatars-v2-people" / name).glob("*.webp")
            )[:count]:
                shutil.copy(image, people / name)
        for number, color in enumerate(("red", "green", "blue")):
            images = people.with_name("resumable images")
            images.mkdir(exist_ok=True)
            Image.new("RGB", (64, 64), color).save(images / f"{number}.png")


def content(value):
    """What two runs have in common where they did the same: tensors or plain data."""
    if hasattr(value, "basis"):
        parts = (value.mean, value.deviation, value.basis, value.basis_scale, value.coefficients)
        return torch.cat([part.double().flatten() for part in parts if part is not None])
    if hasattr(value, "coefficients"):
        return value.coefficients
    if hasattr(value, "layers"):
        return torch.cat([moments.mean for moments in value.layers.values()])
    if hasattr(value, "decoder"):
        return value.decoder
    if hasattr(value, "scales"):
        return value.scales
    if isinstance(value, dict):
        return torch.cat([value[name].flatten() for name in sorted(value)])
    return value


def equal(one, other) -> bool:
    """Whether two outputs are the same, to the last bit."""
    one, other = content(one), content(other)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


class Kept:
    """A node of ComfyUI that keeps what it is given."""

    RETURN_TYPES, FUNCTION, OUTPUT_NODE, CATEGORY = (), "keep", True, "test"
    values: ClassVar[list] = []

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802
        return {"required": {"value": ("*", {})}}

    def keep(self, value):
        self.values.append(value)
        return {}


class Failed(Exception):  # noqa: N818
    """A prompt that ended with the error of a node."""


class Queue:
    """One executor of ComfyUI with a cache, which runs the prompt of a node again and again."""

    def __init__(self, app, node: str, cache: str = "CLASSIC", place: str = "12:7"):
        app.classes["TestKept"] = Kept
        self._executor, self._node, self.place = newer.executor(cache), node, place
        self.work = (
            0  # evaluations of the model in the last run, or looks at Stop of a node that has none
        )

    def run(
        self,
        name: str,
        monkeypatch,
        before: dict | None = None,
        /,
        stop_at: int | None = None,
        **changes,
    ):
        """Run the node under a name of its file; Stop is pressed at its n-th piece of work, if that
        is given.

        Returns what it gave, or None where the run was canceled; ``cached``: whether the node did
        not run.
        """
        import comfy.model_management as management
        from comfy.model_base import BaseModel
        from comfy_execution.utils import get_executing_context

        inputs, file, output = NODES[self._node]
        prompt = {
            id_: {"class_type": kind, "inputs": given}
            for id_, (kind, given) in (BEFORE | (before or {})).items()
        }
        prompt[self.place] = {"class_type": self._node, "inputs": {**inputs, file: name, **changes}}
        prompt["kept"] = {"class_type": "TestKept", "inputs": {"value": [self.place, output]}}
        self.work, main = 0, threading.get_ident()
        owner, counted = (BaseModel, "apply_model")
        if "model" not in inputs:
            owner, counted = management, "throw_exception_if_processing_interrupted"
        real = getattr(owner, counted)

        def counting(*args, **kwargs):
            running = get_executing_context()
            if (
                running is not None
                and running.node_id == self.place
                and threading.get_ident() == main
            ):
                self.work += 1
                if self.work == stop_at:
                    management.interrupt_current_processing()
            return real(*args, **kwargs)

        Kept.values.clear()
        with monkeypatch.context() as patched:
            patched.setattr(owner, counted, counting)
            self._executor.execute(prompt, "prompt", {}, ["kept"])
        messages = dict(self._executor.status_messages)
        self.cached = self.place in messages["execution_cached"]["nodes"]
        if "execution_error" in messages:
            raise Failed(messages["execution_error"]["exception_message"])
        return Kept.values[0] if Kept.values else None
