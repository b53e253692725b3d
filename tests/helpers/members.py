"""Small LoRAs, made from a seed, in the forms in which people find them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

#: Layers by diffusers name: inputs and outputs.
LAYERS = {
    "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q": (32, 24),
    "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_v": (20, 24),
    "up_blocks.1.attentions.1.transformer_blocks.0.attn1.to_v": (32, 16),
}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def factors(
    seed: int, rank: int = 1, layers: dict | None = None
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """down (rank, in) and up (out, rank) by layer, around a common center so that members are
    alike.
    """
    made = {}
    for number, (layer, (inputs, outputs)) in enumerate((layers or LAYERS).items()):
        center, own = generator(1000 + number), generator(seed * 101 + number)
        down = torch.randn(rank, inputs, generator=center) + 0.4 * torch.randn(
            rank, inputs, generator=own
        )
        up = torch.randn(outputs, rank, generator=center) + 0.4 * torch.randn(
            outputs, rank, generator=own
        )
        made[layer] = (down, 0.1 * up)
    return made


def kohya(made: dict, alpha: float | None = 1.0) -> dict[str, torch.Tensor]:
    tensors = {}
    for layer, (down, up) in made.items():
        stem = f"lora_unet_{layer.replace('.', '_')}"
        tensors |= {f"{stem}.lora_down.weight": down.clone(), f"{stem}.lora_up.weight": up.clone()}
        if alpha is not None:
            tensors[f"{stem}.alpha"] = torch.tensor(alpha)
    return tensors


def peft(made: dict, adapter: str = "") -> dict[str, torch.Tensor]:
    name = f".{adapter}" if adapter else ""
    return {
        key: value.clone()
        for layer, (down, up) in made.items()
        for key, value in (
            (f"base_model.model.{layer}.lora_A{name}.weight", down),
            (f"base_model.model.{layer}.lora_B{name}.weight", up),
        )
    }


def diffusers(made: dict) -> dict[str, torch.Tensor]:
    return {
        f"unet.{key.removeprefix('base_model.model.')}": value for key, value in peft(made).items()
    }


def flux(made: dict) -> dict[str, torch.Tensor]:
    """As diffusers and AI Toolkit write them for Flux."""
    return {
        f"transformer.{key.removeprefix('base_model.model.')}": value
        for key, value in peft(made).items()
    }


def old_diffusers(made: dict) -> dict[str, torch.Tensor]:
    tensors = {}
    for layer, (down, up) in made.items():
        head, _, last = layer.rpartition(".")
        stem = f"unet.{head}.processor.{last}_lora"
        tensors |= {f"{stem}.down.weight": down.clone(), f"{stem}.up.weight": up.clone()}
    return tensors


def comfyui(made: dict, extra: bool = True) -> dict[str, torch.Tensor]:
    """As ComfyUI's own trainer writes them, by the names of the original code."""
    blocks = {
        "down_blocks.0.attentions.0": "input_blocks.1.1",
        "up_blocks.1.attentions.1": "output_blocks.4.1",
    }
    tensors = {}
    for layer, (down, up) in made.items():
        block = next(block for block in blocks if layer.startswith(block))
        stem = f"diffusion_model.{blocks[block]}{layer.removeprefix(block)}"
        tensors |= {f"{stem}.lora_down.weight": down.clone(), f"{stem}.lora_up.weight": up.clone()}
        tensors[f"{stem}.alpha"] = torch.tensor(float(len(down)))
    if extra:
        tensors["diffusion_model.out.0.diff"] = torch.full((8,), 0.5)
        tensors["diffusion_model.out.2.diff_b"] = torch.full((4,), 0.5)
    return tensors


def write_peft_folder(folder: Path, made: dict, alpha: float, **config) -> Path:
    folder.mkdir(parents=True)
    rank = len(next(iter(made.values()))[0])
    save_file(peft(made), folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": alpha, **config})
    )
    return folder


def write_folder(folder: Path, count: int, rank: int = 1) -> Path:
    """A folder of LoRAs in kohya's form, named member_00 and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(count):
        save_file(kohya(factors(seed, rank), float(rank)), folder / f"member_{seed:02}.safetensors")
    return folder
