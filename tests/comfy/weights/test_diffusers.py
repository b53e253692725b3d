"""diffusers reads the LoRA files of W2W To LoRA: through its own reader, on the official layout of
SD1.5.
"""

import ast
import csv

import pytest
import repository
import torch


def _official() -> dict[str, torch.Tensor]:
    """Numbers counted through, in the release's shapes."""
    with open(
        repository.ROOT / "tests" / "data" / "weights" / "layout_sd15.csv", newline=""
    ) as file:
        shapes = {row["key"]: ast.literal_eval(row["shape"]) for row in csv.DictReader(file)}
    generator = torch.Generator().manual_seed(0)
    return {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}


def test_all_layers_factors_and_alphas_are_found(app):
    loaders = pytest.importorskip("diffusers.loaders")
    from glassbox.nodes.common import lora_reader
    from glassbox.nodes.weights import lora_writer

    layers = lora_reader.parse_tensors(_official(), {"r": 1, "lora_alpha": 27}).layers
    state, alphas = loaders.StableDiffusionLoraLoaderMixin.lora_state_dict(
        lora_writer.to_tensors(layers)
    )[:2]
    assert len(state) == 2 * len(layers) == 128
    for name, factors in layers.items():
        attention, _, projection = name.rpartition(".")
        read = f"unet.{attention}.processor.{projection}_lora"
        assert torch.equal(state[f"{read}.down.weight"], factors.down)
        assert torch.equal(state[f"{read}.up.weight"], factors.up)
    assert list(alphas.values()) == [27.0] * len(layers)
