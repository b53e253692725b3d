"""The files of the official weights2weights release, made small and from a seed."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import members
import torch

ATTENTION = ("attn1.to_q", "attn1.to_v", "attn2.to_q", "attn2.to_v")


def write(
    folder: Path, layers: dict[str, tuple[int, int]], count: int, components: int, known: int
) -> dict:
    """Write the release as torch.save does; returns the tensors in it by their files' names.

    ``layers``: inputs and outputs by diffusers name. Deviations hold negative entries, as the real
    ones do.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator, made = (
        members.generator(0),
        members.factors(0, layers={name: layers[name] for name in sorted(layers)}),
    )
    keys = {
        key.replace(".weight", ".identity1.weight"): value
        for key, value in members.peft(made).items()
    }
    size = sum(value.numel() for value in keys.values())
    projections = torch.randn(count, known, generator=generator) * torch.arange(known, 0, -1)
    tensors = {
        "V": torch.linalg.qr(torch.randn(size, components, generator=generator))[0],
        "mean": 0.01 * torch.randn(size, generator=generator),
        "std": torch.rand(size, generator=generator) + 0.1,
        "proj_1000pc": projections - projections.mean(0),
    }
    tensors["std"][::7] *= -1
    for name, value in tensors.items():
        torch.save(value, folder / f"{name}.pt")
    dimensions = {key: (torch.Size([value.numel()]), value.shape) for key, value in keys.items()}
    torch.save(dimensions, folder / "weight_dimensions.pt")
    (folder / "adapter_config.json").write_text(
        json.dumps({"r": 1, "lora_alpha": 27, "use_rslora": False})
    )
    return tensors


def write_labels(folder: Path, projections: torch.Tensor, names: list[str]) -> None:
    """The labels as CSV, -1 and 1, each along a coefficient of its own."""
    with open(folder / "identity_df.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["file", *names])
        for row, values in enumerate(projections):
            table.writerow(
                [7000 + row, *(1 if values[column] > 0 else -1 for column in range(len(names)))]
            )


def attention_layers(model) -> dict[str, tuple[int, int]]:
    """The query and value projections of a MODEL with a U-Net, by diffusers name."""
    from glassbox.nodes.common.lora_keys import canonical

    found = {}
    for name, weight in model.model.diffusion_model.state_dict().items():
        layer = name.removesuffix(".weight")
        if layer.endswith(ATTENTION) and layer != name:
            found[canonical(layer)] = (weight.shape[1], weight.shape[0])
    return found
