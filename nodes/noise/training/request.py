"""What the node is asked to do, as plain data: which pictures, captions, prompts for samples, and settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .draws import EPOCHS, Draws
from .pictures import Pictures, digest, labels_of

#: Settings that change what a run computes; those of a checkpoint must be the same.
_DECISIVE = (
    "mode", "pool_size", "k", "form", "grouping", "penalty", "batch_size", "grad_accumulation_steps", "unit",
    "learning_rate", "schedule", "warmup_steps", "rank", "optimizer", "loss_function", "weighting", "snr_gamma",
    "seed", "training_dtype", "lora_dtype", "algorithm", "existing_lora", "held_out",
)  # fmt: skip


@dataclass(frozen=True)
class Material:
    """Pictures with a condition each, the last ones held out; conditions for samples follow those of the pictures."""

    latents: list[torch.Tensor]  # each (1, C, ...), as the VAE gave it
    conditions: list[list]
    held_out: int
    sample_rows: list[int]
    negative_row: int | None

    @property
    def trained(self) -> int:
        """How many pictures training sees."""
        return len(self.latents) - self.held_out

    def pictures(self, latents: Sequence[torch.Tensor]) -> Pictures:
        """The training pictures, with latents in the model's scale."""
        return Pictures(latents[: self.trained], labels_of(self.conditions[: self.trained]))

    def settings(self, choices: dict) -> dict:
        """What a checkpoint must share: the decisive choices, and a fingerprint of pictures and captions."""
        kept = {name: choices[name] for name in _DECISIVE}
        if choices["schedule"] != "constant":
            kept["steps"] = choices["steps"]
        return {**kept, "pictures": digest([self.latents, self.conditions[: len(self.latents)]])}


def material(latents: list[dict], positive: list[list], held_out: int, samples: list[list], negative: list[list]):
    """The training material from the node's inputs; raises ValueError for counts that do not fit."""
    pictures = [picture[None] for latent in latents for picture in _plain(latent["samples"])]
    captions = [[entry] for conditioning in positive for entry in conditioning]
    if len(captions) == 1:
        captions = captions * len(pictures)
    if len(captions) != len(pictures):
        raise ValueError(f"There are {len(pictures)} pictures and {len(captions)} captions: give one CONDITIONING for "
                         "all, or one a picture.")  # fmt: skip
    if held_out >= len(pictures):
        raise ValueError(f"All {len(pictures)} pictures would be held out: leave at least one to train on.")
    wanted = [[entry] for conditioning in samples for entry in conditioning] or captions[:1]
    extra = wanted + negative[:1]
    rows = list(range(len(captions), len(captions) + len(wanted)))
    return Material(pictures, captions + extra, held_out, rows, rows[-1] + 1 if negative else None)


def optimizer_steps(choices: dict, draws: Draws) -> int:
    """How many optimizer steps the run has; the last epoch is filled up to a whole one."""
    if choices["unit"] != EPOCHS:
        return choices["steps"]
    return -(-choices["steps"] * draws.batches_an_epoch // choices["grad_accumulation_steps"])


def _plain(samples) -> torch.Tensor:
    if getattr(samples, "is_nested", False):
        raise ValueError("Latents of several parts (video with sound) cannot be trained on: give pictures or video.")
    return samples
