"""Runs workflows made for real checkpoints on random weights: validated and executed by ComfyUI's
own queue code.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import members
import newer
import published_autoencoder
import reduced
import release
import repository
import todays_networks
from PIL import Image
from safetensors.torch import save_file

# What each of ComfyUI's loaders asks for by file name: input, models folder; and its method and
# part of a checkpoint.
_FILES = {
    "CheckpointLoaderSimple": {"ckpt_name": "checkpoints"},
    "UNETLoader": {"unet_name": "diffusion_models"},
    "CLIPLoader": {"clip_name": "text_encoders"},
    "DualCLIPLoader": {"clip_name1": "text_encoders", "clip_name2": "text_encoders"},
    "VAELoader": {"vae_name": "vae"},
}
_PARTS = {
    "CheckpointLoaderSimple": ("load_checkpoint", slice(0, 3)),
    "UNETLoader": ("load_unet", slice(0, 1)),
    "CLIPLoader": ("load_clip", slice(1, 2)),
    "DualCLIPLoader": ("load_clip", slice(1, 2)),
    "VAELoader": ("load_vae", slice(2, 3)),
}
_UP_LEVEL0 = 128  # channels of up-level0 in the reduced SDXL
# What a run of random weights is cut down to.
_SMALL = {
    "steps": 2,
    "sample_steps": 1,
    "sampling_steps": 1,
    "width": 128,
    "height": 128,
    "resolution": 64,
    "time_budget": 2.0,
    "seeds": 2,
    "training_steps": 2,
    "features": 64,
    "megapixels": 0.02,
    "length": 5,
}


def architecture(workflow: Path) -> str:
    """The architecture that a workflow file is for, from its name."""
    return repository.name_of(workflow).split("_")[0]


def offer_files(prompt: dict, models: Path, architecture: str = "sd15") -> None:
    """Put an empty file for every checkpoint that the prompt names where ComfyUI looks for it, and
    LoRAs in folders.
    """
    import folder_paths

    for entry in prompt.values():
        for name, folder in _FILES.get(entry["class_type"], {}).items():
            file = models / folder / entry["inputs"][name]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            folder_paths.add_model_folder_path(folder, str(models / folder))
        if entry["class_type"] == "GBX_W2WLoadSpace" and entry["inputs"].get("release_folder"):
            _offer_release(models / "w2w", entry["inputs"]["release_folder"])
        if entry["class_type"] == "GBX_W2WBuildSpace":
            _offer_loras(models, entry["inputs"]["folder"], architecture)
        if entry["class_type"] == "GBX_W2WTrainSpace":
            for person in ("one", "another"):
                _offer_images(
                    Path(folder_paths.get_input_directory()) / entry["inputs"]["folder"] / person, 2
                )
            (models / "w2w").mkdir(exist_ok=True)
            folder_paths.add_model_folder_path("w2w", str(models / "w2w"), is_default=True)
        if entry["class_type"] == "GBX_LoadSparseAutoencoder":
            folder = Path(folder_paths.get_input_directory()) / entry["inputs"]["file"]
            published_autoencoder.write_random(folder, 64, _UP_LEVEL0, 4)
        if entry["class_type"] == "LoadImage":
            photo = Path(folder_paths.get_input_directory()) / entry["inputs"]["image"]
            Image.effect_noise((160, 140), 40).convert("RGB").save(photo)
        if entry["class_type"] in ("LoadImageDataSetFromFolder", "LoadImageTextDataSetFromFolder"):
            _offer_images(Path(folder_paths.get_input_directory()) / entry["inputs"]["folder"])
    folder_paths.filename_list_cache.clear()


def _offer_release(spaces: Path, folder: str) -> None:
    """The files of the official space of people, for the reduced SD1.5."""
    import folder_paths

    layers = release.attention_layers(reduced.checkpoint("sd15")[0])
    tensors = release.write(spaces / folder, layers, count=20, components=8, known=6)
    release.write_labels(
        spaces / folder, tensors["proj_1000pc"], ["Chubby", "Young", "Eyeglasses", "Male"]
    )
    folder_paths.add_model_folder_path("w2w", str(spaces), is_default=True)


def _offer_loras(models: Path, folder: str, architecture: str, count: int = 4) -> None:
    """A folder of LoRAs, and where a space of them goes: kohya's for a U-Net, with diffusers' names
    for Flux.
    """
    import folder_paths

    model = reduced.checkpoint(architecture)[0]
    if architecture == "flux":
        width = model.model.diffusion_model.hidden_size
        blocks = ("transformer_blocks.0.attn", "single_transformer_blocks.1.attn")
        layers = {
            f"{block}.{name}": (width, width) for block in blocks for name in ("to_q", "to_v")
        }
    else:
        layers = release.attention_layers(model)
    (models / "loras" / folder).mkdir(parents=True)
    for number in range(count):
        made = members.factors(number, rank=number + 1, layers=layers)
        tensors = members.flux(made) if architecture == "flux" else members.kohya(made)
        save_file(tensors, models / "loras" / folder / f"person_{number}.safetensors")
    for kind in ("loras", "w2w"):
        (models / kind).mkdir(exist_ok=True)
        folder_paths.add_model_folder_path(kind, str(models / kind), is_default=True)


def _offer_images(folder: Path, count: int = 4) -> None:
    """A folder of small images with a caption each."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.effect_noise((160, 140), 40 + number).convert("RGB").save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(f"image {number}", encoding="utf-8")


def swap_loaders(monkeypatch, architecture: str) -> None:
    """Let ComfyUI's loaders hand out random weights of the architecture instead of reading a
    file.
    """
    import nodes

    todays = architecture in todays_networks.ARCHITECTURES
    parts = (todays_networks if todays else reduced).checkpoint(architecture)
    for name, (method, which) in _PARTS.items():
        monkeypatch.setattr(
            nodes.NODE_CLASS_MAPPINGS[name],
            method,
            lambda self, *a, _which=which, **k: parts[_which],
        )


def cut(prompt: dict) -> dict:
    """The prompt with few steps and a small image; masks keep their sizes, of which one is a part
    of another.
    """
    small = {
        node: {
            k: v
            for k, v in _SMALL.items()
            if k in entry["inputs"] and entry["class_type"] != "SolidMask"
        }
        for node, entry in prompt.items()
    }
    return {
        node: {**entry, "inputs": {**entry["inputs"], **small[node]}}
        for node, entry in prompt.items()
    }


def validate(prompt: dict) -> list[str]:
    """Let ComfyUI's queue validate the prompt; returns the output nodes, fails with its reasons."""
    import execution

    valid, error, outputs, node_errors = asyncio.run(
        execution.validate_prompt("test", prompt, None)
    )
    assert valid and not node_errors, (error, node_errors)
    return outputs


def execute(prompt: dict) -> dict:
    """Validate and run the prompt with ComfyUI's executor; returns what its output nodes show, by
    node.
    """
    outputs = validate(prompt)
    executor = newer.executor("CLASSIC")
    executor.execute(prompt, "test", {}, outputs)
    assert executor.success, [
        data for kind, data in executor.status_messages if kind == "execution_error"
    ]
    return executor.history_result["outputs"]
