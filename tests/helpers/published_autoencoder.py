"""Sparse autoencoders in the layout of SDXL Unbox's releases (arXiv 2410.22366)."""

from __future__ import annotations

import json
from pathlib import Path

import torch


def write(folder: Path, k: int, encoder, decoder, pre_bias, latent_bias, usual) -> None:
    """The three files of a block; encoder and decoder (features, channels)."""
    folder.mkdir(parents=True)
    features, channels = encoder.shape
    config = {
        "n_dirs_local": features,
        "d_model": channels,
        "k": k,
        "auxk": 4,
        "dead_steps_threshold": 2441,
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = {"pre_bias": pre_bias, "latent_bias": latent_bias}
    weights |= {"stats_last_nonzero": torch.zeros(features, dtype=torch.long)}
    weights |= {"encoder.weight": encoder, "decoder.weight": decoder.T}
    torch.save({"state_dict": weights}, folder / "state_dict.pth")
    torch.save(usual, folder / "mean.pt")


def write_random(folder: Path, features: int, channels: int, k: int) -> None:
    """The same with random weights."""
    generator = torch.Generator().manual_seed(0)
    encoder, decoder = torch.randn(2, features, channels, generator=generator)
    usual = torch.rand(features, generator=generator)
    write(folder, k, encoder, decoder, torch.zeros(channels), torch.zeros(features), usual)
