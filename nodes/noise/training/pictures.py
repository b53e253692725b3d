"""The training set as the method sees it: pictures in buckets of one size, each with the group of its caption."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Pictures:
    """Latents as the model sees them, each (1, C, ...) on the CPU, and a label each, equal for equal captions."""

    latents: Sequence[torch.Tensor]
    labels: Sequence[str]

    def __len__(self) -> int:
        return len(self.latents)

    @property
    def buckets(self) -> list[list[int]]:
        """The pictures of each size, in the order in which the sizes appear."""
        found = defaultdict(list)
        for index, latent in enumerate(self.latents):
            found[latent.shape].append(index)
        return list(found.values())

    def batch(self, rows: Sequence[int]) -> torch.Tensor:
        """Some pictures of one size, (B, C, ...)."""
        return torch.cat([self.latents[row] for row in rows])

    def rows(self, rows: Sequence[int]) -> torch.Tensor:
        """The same as a matrix (B, D) in float32."""
        return self.batch(rows).flatten(1).float()


def labels_of(conditions: Sequence[list]) -> list[str]:
    """A label for each CONDITIONING; equal tensors get equal ones."""
    return [digest([condition])[:16] for condition in conditions]


def digest(values) -> str:
    """A fingerprint of nested lists and dicts of tensors and plain values."""
    state = hashlib.sha256()
    _feed(state, values)
    return state.hexdigest()


def _feed(state, value) -> None:
    if isinstance(value, torch.Tensor):
        state.update(f"{tuple(value.shape)}{value.dtype}".encode())
        state.update(value.detach().float().cpu().contiguous().numpy().tobytes())
    elif isinstance(value, dict):
        for name in sorted(value, key=str):
            state.update(f"{name}=".encode())
            _feed(state, value[name])
    elif isinstance(value, list | tuple):
        state.update(b"[")
        for item in value:
            _feed(state, item)
    elif isinstance(value, str | int | float | bool | None):
        state.update(f"{value!r},".encode())
