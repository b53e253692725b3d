"""Low-rank factors as the tensors of a LoRA file that stock loaders read, or as a PEFT adapter folder."""

from __future__ import annotations

from pathlib import Path

import torch

from ..common.atomic_write import atomic_write
from ..common.lora_keys import TEXT, base_of, keys
from ..common.lora_reader import Factors, peft_package
from .rank_reduction import reduce_rank


def reduce(layers: dict[str, Factors], rank: int) -> tuple[dict[str, Factors], str]:
    """The layers at no more than a rank (0: as they are), and a report of the energy that is lost."""
    reduced, kept, whole, worst = {}, 0.0, 0.0, (1.0, "")
    for layer, factors in layers.items():
        if 0 < rank < factors.rank:
            reduced[layer], part, total = reduce_rank(factors, rank)
        else:
            reduced[layer] = factors
            part = total = factors.squared_norm()
        kept, whole = kept + part, whole + total
        worst = min(worst, (part / total if total else 1.0, layer))
    ranks = [factors.rank for factors in reduced.values()]
    report = (
        f"{len(ranks)} layers of rank {min(ranks)} to {max(ranks)}: {100 * kept / max(whole, 1e-300):.2f} % of the "
    )
    report += "change is kept"
    return reduced, report + (f", least in {worst[1]}: {100 * worst[0]:.2f} %." if worst[1] else ".")


def to_tensors(layers: dict[str, Factors]) -> dict[str, torch.Tensor]:
    """Tensors by key, alpha written for every layer: without it a loader would take a scale of 1."""
    tensors = {}
    one_encoder = base_of({name: factors.down[0].numel() for name, factors in layers.items()}) in ("SD1.x", "SD2.x")
    for layer, factors in layers.items():
        if one_encoder and layer.startswith(f"{TEXT}1_"):  # kohya's name where there is no second one
            layer = layer.replace(f"{TEXT}1_", f"{TEXT}_", 1)
        down, up, alpha = keys(layer)
        tensors[down] = factors.down.contiguous().clone()
        shape = (*factors.up.shape[:2], *(1,) * (factors.down.ndim - 2))
        tensors[up] = factors.up.reshape(shape).contiguous().clone()
        tensors[alpha] = torch.tensor(float(factors.scale * factors.rank))
    return tensors


def write(tensors: dict[str, torch.Tensor], path: Path, about: str) -> None:
    """Write a LoRA file, whole or not at all."""
    from safetensors.torch import save_file

    with atomic_write(path) as temporary:
        save_file(tensors, temporary, {"format": "pt", "glassbox": about})


def write_peft(layers: dict[str, Factors], folder: Path) -> str:
    """Write the network's layers as an adapter folder of peft; returns a remark on what it leaves out.

    ``peft.PeftModel.from_pretrained(unet, folder)`` reads it. The weights are complete before the configuration is
    there.
    """
    from safetensors.torch import save_file

    network = {layer: factors for layer, factors in layers.items() if not layer.startswith(TEXT)}
    ranks = {layer: factors.rank for layer, factors in network.items()}
    config = peft_package().LoraConfig(
        r=max(ranks.values()),
        lora_alpha=max(ranks.values()),
        target_modules=list(network),
        rank_pattern=ranks,
        alpha_pattern={layer: factors.scale * factors.rank for layer, factors in network.items()},
    )
    tensors = {}
    for layer, factors in network.items():
        stem = f"base_model.model.{layer}"
        tensors[f"{stem}.lora_A.weight"] = factors.down.float().contiguous().clone()
        tensors[f"{stem}.lora_B.weight"] = (
            factors.up.float().reshape(*factors.up.shape[:2], *(1,) * (factors.down.ndim - 2)).contiguous().clone()
        )
    folder.mkdir(parents=True)
    with atomic_write(folder / "adapter_model.safetensors") as temporary:
        save_file(tensors, temporary, {"format": "pt"})
    config.save_pretrained(str(folder))
    left_out = len(layers) - len(network)
    return f" {left_out} layers of text encoders are left out of the PEFT folder." if left_out else ""
