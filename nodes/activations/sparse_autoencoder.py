"""A TopK sparse autoencoder of activations: features of a model, where they act, and steering by
them.

Gao et al., Scaling and evaluating sparse autoencoders (arXiv 2406.04093, section 2.3): ``z =
TopK(W_enc (x - b_pre) + b_lat)`` with negative values set to 0, and ``x' = W_dec z + b_pre`` with
columns of ``W_dec`` of unit length. In diffusion models: Surkov et al. (arXiv 2410.22366), whose
autoencoders are of what a transformer adds to its input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Any

import torch
from torch.nn import functional as F

from ..common.network_call import WHOLE, Part, for_autograd
from .activation_edit import Edit, mask_at
from .activation_spec import ActivationSpec
from .activations import Activations

_NUMBERS = 1 << 25  # features of all positions that are encoded at a time
#: The largest number of a feature in a list of strengths, and the longest such list.
_STRENGTHS_MAX = 256


class SteeringMode(StrEnum):
    """Values of the ``mode`` input: how the strength of a feature changes an activation."""

    ADD = "add"  # strength times the feature's usual value, everywhere
    SCALE = "scale"  # strength times the value that the feature has there


@dataclass(frozen=True)
class SparseAutoencoder:
    """A trained autoencoder of one activation with F features, all tensors in float32 on the CPU.

    ``encoder`` and ``decoder``: (F, C), one row per feature, those of the decoder of unit length;
    ``pre_bias`` (C,); ``latent_bias`` (F,); ``k``: how many features a position has at most.
    ``usual`` (F,): mean value of a feature where it is active, 0 where it never was. ``id``: the
    activation. With ``input_id`` the autoencoder is of the difference of the two, what a
    transformer adds to its input. ``about``: how it was made, as plain numbers and texts.
    """

    id: str
    k: int
    encoder: torch.Tensor
    decoder: torch.Tensor
    pre_bias: torch.Tensor
    latent_bias: torch.Tensor
    usual: torch.Tensor
    input_id: str = ""
    about: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        features, channels = self.encoder.shape
        return (
            f"SPARSE_AUTOENCODER: {features} features, {self.k} at a position\n{channels} channels "
            f"at {self.id}"
        )

    @property
    def ids(self) -> list[str]:
        """The IDs to tap or record for it."""
        return [self.id, self.input_id] if self.input_id else [self.id]

    def to(self, device: torch.device) -> SparseAutoencoder:
        """The same with its tensors on a device."""
        tensors: dict[str, Any] = {
            name: value.to(device)
            for name, value in vars(self).items()
            if isinstance(value, torch.Tensor)
        }
        return replace(self, **tensors)

    def report(self) -> str:
        """What it is, one fact per line."""
        features, channels = self.encoder.shape
        lines = [
            f"{features} features of {channels} channels at {self.id}, {self.k} active at a "
            "position",
            f"{int((self.usual == 0).sum())} features were never active",
            *(f"{name}: {value}" for name, value in self.about.items()),
        ]
        if self.input_id:
            lines.insert(1, f"of the difference to {self.input_id}")
        return "\n".join(lines)

    def encode(self, points: torch.Tensor) -> torch.Tensor:
        """Features (N, F) of positions (N, C), in float32 on their device: at most ``k`` of a row
        are not 0.
        """
        parts = [active.dense(len(self.encoder)) for active in self._encode(points)]
        return torch.cat(parts)

    def decode(self, features: torch.Tensor) -> torch.Tensor:
        """Positions (N, C) of features (N, F)."""
        return torch.addmm(
            self.pre_bias.to(features.device), features, self.decoder.to(features.device)
        )

    def reconstruct(self, points: torch.Tensor) -> torch.Tensor:
        """Positions x' (N, C) of positions (N, C): encoded, and decoded from the active features
        alone.
        """
        decoder = self.decoder.to(points.device)
        center = self.pre_bias.to(points.device)
        return torch.cat([center + active.decode(decoder) for active in self._encode(points)])

    def _encode(self, points: torch.Tensor) -> Iterator[ActiveFeatures]:
        """The active features of positions (N, C), a part of them at a time."""
        encoder, bias, center = (
            for_autograd(value.to(points.device))
            for value in (self.encoder, self.latent_bias, self.pre_bias)
        )
        for part in points.float().split(max(_NUMBERS // len(encoder), 1)):
            yield ActiveFeatures.of(torch.addmm(bias, part - center, encoder.T), self.k)

    def maps(self, activations: Activations) -> torch.Tensor:
        """Features (rows, F, H, W) of tapped or recorded activations.

        Raises ValueError when these do not hold its IDs with its channels.
        """
        tensors = [
            activations.tensors[id_].float() for id_ in self.ids if id_ in activations.tensors
        ]
        if len(tensors) < len(self.ids) or any(
            value.shape[1] != len(self.pre_bias) for value in tensors
        ):
            raise ValueError(
                f"The autoencoder is of {len(self.pre_bias)} channels at {' and '.join(self.ids)}, "
                "which the activations do not hold. Tap or record the IDs that the autoencoder's "
                "node returns, on its model."
            )
        value = tensors[0] - tensors[1] if self.input_id else tensors[0]
        rows, _, height, width = value.shape
        features = self.encode(value.movedim(1, -1).flatten(0, -2))
        return features.view(rows, height, width, -1).movedim(-1, 1)


@dataclass(frozen=True)
class ActiveFeatures:
    """Of each position ``values`` (N, k), 0 or more, and ``places`` int64 (N, k) of the features
    that may be active.
    """

    values: torch.Tensor
    places: torch.Tensor

    @classmethod
    def of(cls, values: torch.Tensor, k: int) -> ActiveFeatures:
        """The ``k`` largest of each row (N, F), negative ones as 0 (TopK and ReLU of equation
        3).
        """
        largest, places = values.topk(min(k, values.shape[-1]), dim=-1)
        return cls(largest.relu(), places)

    def dense(self, features: int) -> torch.Tensor:
        """All features (N, F)."""
        return self.values.new_zeros(len(self.values), features).scatter(
            -1, self.places, self.values
        )

    def decode(self, decoder: torch.Tensor) -> torch.Tensor:
        """The sum (N, C) of each position's features times their rows of ``decoder`` (F, C); k of F
        rows are read.
        """
        return F.embedding_bag(self.places, decoder, per_sample_weights=self.values, mode="sum")


def parse_strengths(text: str, features: int) -> dict[int, float]:
    """Strengths by feature from lines or a comma-separated list of ``number = strength``;
    ValueError otherwise.
    """
    strengths: dict[int, float] = {}
    for line in (part.split("#", 1)[0].strip() for part in text.replace(",", "\n").splitlines()):
        if not line:
            continue
        name, _, value = line.partition("=")
        try:
            number = int(name)
            strength = float(value)
        except ValueError:
            raise ValueError(
                f"strengths has the line '{line[:60]}'. Write a feature as in 12 = 1.5."
            ) from None
        if not 0 <= number < features or not abs(strength) <= 1e4:
            raise ValueError(
                f"strengths has '{line[:60]}'. Features are 0 to {features - 1}, strengths to "
                "10000."
            )
        strengths[number] = strength
    if len(strengths) > _STRENGTHS_MAX:
        raise ValueError(
            f"strengths has {len(strengths)} features. Enter at most {_STRENGTHS_MAX}."
        )
    return strengths


def steer_features(
    autoencoder: SparseAutoencoder,
    strengths: dict[int, float],
    mode: str,
    mask: torch.Tensor | None,
) -> Edit:
    """The edit that changes features of an activation, inside of ``mask`` (M, H, W) in 0..1 if
    there is one.

    ``h' = h + mask * sum_f strength_f * v_f * d_f`` with the decoder's row ``d_f``, where ``v_f``
    is the feature's usual value (``add``) or its value at the position (``scale``: -1 removes the
    feature, 1 doubles it).
    """
    numbers = torch.tensor(list(strengths))
    factors = torch.tensor(list(strengths.values()))
    rows = autoencoder.decoder[numbers]
    placed = cache(autoencoder.to)  # moved once, not at every evaluation

    def edit(_spec: ActivationSpec, part: Part, feature: torch.Tensor, frames: int) -> torch.Tensor:
        on = feature.device
        if mode == SteeringMode.ADD:
            delta = (
                for_autograd((factors * autoencoder.usual[numbers]) @ rows).to(on).view(1, -1, 1, 1)
            )
        else:
            values = placed(on).encode(feature.movedim(1, -1).flatten(0, -2))[
                :, for_autograd(numbers.to(on))
            ]
            delta = (values * for_autograd(factors.to(on))) @ for_autograd(rows.to(on))
            delta = delta.view(len(feature), *feature.shape[2:], -1).movedim(-1, 1)
        if mask is not None:
            delta = delta * mask_at(mask, feature, frames, part.area)
        return feature + delta

    return edit


def feature_scores(maps: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The mean of each feature's map (F, H, W); with a mask (M, H, W), inside of it minus
    outside.
    """
    if mask is None:
        return maps.mean((1, 2))
    weight = mask_at(mask[:1], maps[None], 1, WHOLE)[0, 0]
    inside, outside = (one / one.sum().clamp_min(1e-12) for one in (weight, 1 - weight))
    return (maps * (inside - outside)).sum((1, 2))


def feature_table(maps: torch.Tensor, row: int, scores: torch.Tensor, features: list[int]) -> str:
    """A line for each of some features in an image of maps (rows, F, H, W): score, peak, and how
    common it is.
    """
    lines = ["feature     score      peak  of the image  of the images"]
    for number in features:
        here = maps[row, number]
        peaks = maps[:, number].amax((1, 2))
        lines.append(
            f"{number:6}  {float(scores[number]):8.3f}  {float(here.max()):8.3f}  "
            f"{float((here > 0).float().mean()):6.1%}  {float((peaks > 0).float().mean()):6.1%}"
        )
    return "\n".join(lines)
