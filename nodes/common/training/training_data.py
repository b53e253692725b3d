"""The training set: latents in buckets of one size, each with its condition; some are held out for
validation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from ..resume import digest


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Images with a condition each, the last ones held out; conditions for samples follow those of
    the images.

    `weights`: for each image how much the error at each position counts, (1, 1, ..., H, W); None
    counts all alike. `captions`: the texts of conditions that a text encoder in training encodes
    again at each step, by row. `sounds`: for each video the other parts of its LATENT, each
    (1, ...), which are evaluated with it and are not trained on.
    """

    latents: list[torch.Tensor]  # each (1, C, ...), as the VAE gave it
    conditions: list[list]
    held_out: int
    sample_rows: list[int]
    negative_row: int | None
    empty_row: int | None = None  # the caption of images whose own is dropped
    weights: list[torch.Tensor] | None = None
    sounds: list[list[torch.Tensor]] = field(default_factory=list)
    captions: dict[int, str] = field(default_factory=dict)

    @property
    def trained(self) -> int:
        """How many images training sees."""
        return len(self.latents) - self.held_out

    @cached_property
    def labels(self) -> list[str]:
        """A label for each condition; equal tensors get equal ones."""
        return [digest([condition])[:16] for condition in self.conditions]


@dataclass(frozen=True)
class TrainingImages:
    """Latents as the model sees them, each (1, C, ...) on the CPU, and a label each, equal for
    equal captions.
    """

    latents: Sequence[torch.Tensor]
    labels: Sequence[str]

    @cached_property
    def buckets(self) -> list[list[int]]:
        """The images of each size, in the order in which the sizes appear."""
        found = defaultdict(list)
        for index, latent in enumerate(self.latents):
            found[latent.shape].append(index)
        return list(found.values())

    def batch(self, rows: Sequence[int]) -> torch.Tensor:
        """Some images of one size, (B, C, ...)."""
        return torch.cat([self.latents[row] for row in rows])


@dataclass(frozen=True)
class Draw:
    """One batch: its number, its images, the noise drawn for them, and their fractions of the
    sampling range.

    `dropped`: for each image whether its caption is dropped.
    """

    number: int
    images: list[int]
    noise: torch.Tensor
    percents: list[float]
    dropped: list[bool]


def collect_training_data(
    latents: list[dict],
    positive: list[list],
    held_out: int,
    samples: list[list],
    negative: list[list],
    empty: Sequence[list] = (),
    masks: Sequence[torch.Tensor] = (),
    texts: Sequence[str] = (),
) -> TrainingData:
    """The training data from the node's inputs; raises ValueError for counts that do not fit.

    `texts`: the captions as text, one for all images or one for each, where a text encoder is
    trained.
    """
    images, sounds = _parts_of(latents)
    captions = [[entry] for conditioning in positive for entry in conditioning]
    if len(captions) == 1:
        captions = captions * len(images)
    if len(captions) != len(images):
        raise ValueError(
            f"There are {len(images)} images and {len(captions)} captions: connect one "
            "CONDITIONING for all, or one per image."
        )
    if held_out >= len(images):
        raise ValueError(
            f"All {len(images)} images would be held out: leave at least one to train on."
        )
    prompts = [[entry] for conditioning in samples for entry in conditioning] or captions[:1]
    rows = list(range(len(captions), len(captions) + len(prompts)))
    others = [*negative[:1], *empty[:1]]
    empty_row = rows[-1] + len(others) if empty else None
    texts = list(texts)
    own_prompts = [] if samples else rows[:1]
    return TrainingData(
        latents=images,
        conditions=captions + prompts + others,
        held_out=held_out,
        sample_rows=rows,
        negative_row=rows[-1] + 1 if negative else None,
        empty_row=empty_row,
        weights=position_weights(images, masks) if masks else None,
        sounds=sounds,
        captions=_caption_texts(texts, len(images), own_prompts, empty_row) if texts else {},
    )


def _parts_of(latents: list[dict]) -> tuple[list[torch.Tensor], list[list[torch.Tensor]]]:
    """The images or videos of LATENTs, and the other parts of each; no such list where there are
    none.
    """
    images = []
    sounds = []
    for latent in latents:
        samples = latent["samples"]
        parts = samples.unbind() if getattr(samples, "is_nested", False) else [samples]
        for index in range(len(parts[0])):
            images.append(parts[0][index][None])
            sounds.append([part[index][None] for part in parts[1:]])
    if not any(sounds):
        return images, []
    if not all(sounds):
        raise ValueError(
            "Some latents are video with sound and some have none: connect latents of one kind."
        )
    return images, sounds


def _caption_texts(
    texts: list[str], images: int, first: list[int], empty: int | None
) -> dict[int, str]:
    """The texts by row: those of the images, that of the first once more for `first`, and none for
    `empty`.
    """
    if len(texts) == 1:
        texts = texts * images
    if len(texts) != images:
        raise ValueError(
            f"There are {images} images and {len(texts)} captions as text: connect one for all, or "
            "one per image."
        )
    return (
        dict(enumerate(texts))
        | dict.fromkeys(first, texts[0])
        | ({} if empty is None else {empty: ""})
    )


def position_weights(
    images: list[torch.Tensor], masks: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """MASKs (B, H, W), one for all images or one for each, averaged to the images' latents."""
    single = [mask for batch in masks for mask in batch.reshape(-1, 1, 1, *batch.shape[-2:])]
    if len(single) == 1:
        single = single * len(images)
    if len(single) != len(images):
        raise ValueError(
            f"There are {len(images)} images and {len(single)} masks: connect one mask for all, or "
            "one per image."
        )
    weights = []
    for number, (image, mask) in enumerate(zip(images, single, strict=True), 1):
        weight = torch.nn.functional.interpolate(mask.float(), image.shape[-2:], mode="area").clamp(
            min=0
        )
        if not weight.any():
            raise ValueError(f"Mask {number} is empty: leave something of every image to train on.")
        weights.append(weight.reshape(1, *[1] * (image.ndim - 3), *image.shape[-2:]))
    return weights
