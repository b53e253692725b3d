"""A learned space on a MODEL: the members' images encoded, the layers that are changed, and samples
on the way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from ..common.lora_keys import canonical
from ..common.training.aspect_buckets import (
    LARGEST_RATIO,
    bucket_sizes,
    describe_buckets,
    nearest_bucket,
    resize_and_crop,
)
from ..host.attention.attention_modules import attention_layers
from ..host.attention.projections import attention_projections
from ..host.lora_targets import base_name, targets
from ..host.text_encoding import encode
from ..host.training.trainer import prepares_conditions, trainable_layers
from .flat_layout import Layout
from .learned_space import LearnedUpdates
from .member_folders import MemberFolders, opaque_at
from .space_training import MemberImages

if TYPE_CHECKING:
    from ..common.training.session import Session
    from ..host.socket_types import CLIP, VAE, ModelPatcher
    from .flat_layout import Slot
    from .space import Space

#: Queries and values of attention, as the paper; whole projections where a network has them in one.
_QUERIES_AND_VALUES = re.compile(
    r"attn[12]\.to_[qv]$|x_block\.attn2?\.qkv$|img_attn\.qkv$|single_blocks\.\d+\.linear1$"
)
_NAMED = 24  # endings of layers' names in a message
_BUCKET_STEP = 64
# of previews
_STEPS = 12
_CFG = 3.0


def layers_of(patcher: ModelPatcher, words: str, people: People) -> dict[str, nn.Linear]:
    """The linear layers that are changed, by their names in LoRA files.

    ``words``: comma-separated; every layer with one of them in its name. Empty: queries and values
    of attention, where these have names of their own; else what makes queries, keys and values,
    found by evaluating the MODEL on the first of the people's images, or all of its attention
    modules' where it hands no attention over. Raises ValueError where a MODEL has none.
    """
    linear = {
        name: layer
        for name, layer in trainable_layers(patcher).items()
        if isinstance(layer, nn.Linear) and name.startswith("diffusion_model.")
    }
    requested = [word.strip() for word in words.split(",") if word.strip()]
    if requested:
        names = [name for name in linear if any(word in name for word in requested)]
        if not names:
            raise ValueError(
                f"No linear layer of this MODEL has a name with one of {', '.join(requested)}: "
                f"their names end in {_endings(linear)}."
            )
    else:
        names = [name for name in linear if _QUERIES_AND_VALUES.search(name)]
        names = names or _of_attention(patcher, linear, people)
    return {canonical(name): linear[name] for name in names}


def _of_attention(
    patcher: ModelPatcher, linear: Mapping[str, nn.Linear], people: People
) -> list[str]:
    first = people.latents[0]
    found = attention_projections(patcher, people.conditions[0], {"samples": first})
    if not found:
        paths = attention_layers(patcher.model.diffusion_model)
        found = [name for name in linear if name.removeprefix("diffusion_model.") in paths]
    known = targets(patcher.model, {canonical(name): "" for name in found if name in linear})
    names = [name for name in found if name in linear and canonical(name) in known]
    if not names:
        raise ValueError(
            "The attention of this MODEL cannot be read: name its layers in layers. Names of "
            f"linear layers end in {_endings(linear)}."
        )
    return names


def _endings(linear: Iterable[str]) -> str:
    """The last words of layers' names, each once; numbers with the word before."""
    endings = dict.fromkeys(
        ".".join(name.split(".")[-2:]) if name.split(".")[-1].isdigit() else name.split(".")[-1]
        for name in linear
    )
    return ", ".join(list(endings)[:_NAMED]) + (" and others" if len(endings) > _NAMED else "")


def layout_of(patcher: ModelPatcher, layers: dict[str, nn.Linear], rank: int) -> tuple[Layout, str]:
    """The layout of LoRAs on these layers, scaled by 1, and the name of the base model's family.

    Raises ValueError where a loader would not find a layer by its name.
    """
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
    shapes = {
        name: ((rank, one.in_features), (one.out_features, rank)) for name, one in layers.items()
    }
    layout = Layout.of(shapes, rank, float(rank))
    found = targets(patcher.model, dict.fromkeys(layers, ""))
    names = {id(layer): name for name, layer in trainable_layers(patcher).items()}
    for name, layer in layers.items():
        if name not in found or (found[name].key, found[name].part) != (
            f"{names[id(layer)]}.weight",
            None,
        ):
            raise ValueError(
                f"LoRA files have no name for the layer {name} of this MODEL: choose other layers."
            )
    return layout, base_name(patcher)


def layers_of_space(patcher: ModelPatcher, space: Space) -> dict[str, nn.Linear]:
    """The layers of a MODEL that a learned space changes, by their names in LoRA files.

    Raises ValueError where the MODEL has not all of them, with these sizes.
    """
    names = dict.fromkeys((slot.layer for slot in space.layout.slots), "")
    found = targets(patcher.model, {name: space.stems.get(name, "") for name in names})
    linear = trainable_layers(patcher)
    layers = {}
    for slot in space.layout.slots:
        layer = None
        if slot.layer in found and found[slot.layer].part is None:
            layer = linear.get(found[slot.layer].key.removesuffix(".weight"))
        sizes = slot.down_shape[1], slot.up_shape[0]
        if not isinstance(layer, nn.Linear) or (layer.in_features, layer.out_features) != sizes:
            raise ValueError(
                f"This MODEL has no layer {slot.layer} of these sizes: the space {space.name} is "
                "made for another base model."
            )
        layers[slot.layer] = layer
    return layers


@dataclass(frozen=True, kw_only=True)
class People:
    """Members' images as the VAE encodes them, and the CONDITIONING of each caption, the last of an
    empty one.
    """

    names: tuple[str, ...]
    latents: list[torch.Tensor]
    conditions: list[list]
    data: MemberImages
    remarks: list[str]

    @property
    def empty(self) -> int:
        """The condition of an empty caption."""
        return len(self.conditions) - 1


def gather(
    found: MemberFolders,
    clip: CLIP,
    vae: VAE,
    resolution: int,
    track: Callable[[Iterable], Iterable] = iter,
) -> People:
    """Read, resize, crop and encode the images of members, and their captions.

    What cannot be read is left out and named in the remarks. Raises ValueError where fewer than two
    members are left.
    """
    sizes = bucket_sizes(resolution, min(max(resolution // 64 * 8, 8), _BUCKET_STEP), LARGEST_RATIO)
    latents = list[torch.Tensor]()
    weights = list[torch.Tensor]()
    captions = list[str]()
    before = list[tuple[int, int]]()
    after = list[tuple[int, int]]()
    images: dict[str, list[int]] = {}
    skipped = dict(found.skipped)
    listed = [(name, one) for name, own in found.members.items() for one in own]
    for name, one in track(listed):
        try:
            pixels, opaque = one.read()
            height, width = pixels.shape[:2]
            size = nearest_bucket(width, height, sizes)
            with torch.inference_mode():
                latent = vae.encode(resize_and_crop(pixels, size)[None])
            weight = torch.ones(1, 1, *[1] * (latent.ndim - 4), *latent.shape[-2:])
            if opaque is not None:
                cut = resize_and_crop(opaque[..., None], size)[..., 0]
                weight = opaque_at(cut, latent.shape[-2:]).view_as(weight)
        except ValueError as error:
            skipped[f"{name}/{one.path.name}"] = str(error)
            continue
        images.setdefault(name, []).append(len(latents))
        latents.append(latent)
        weights.append(weight)
        captions.append(one.caption)
        before.append((width, height))
        after.append(size)
    if len(images) < 2:
        reasons = "; ".join(f"{name} {why}" for name, why in list(skipped.items())[:5])
        raise ValueError(
            f"Images of {len(images)} people are left, and a space needs two at least: {reasons}."
        )
    texts = list(dict.fromkeys(captions))
    conditions = [encode(clip, text)[1] for text in track([*texts, ""])]
    rows = [texts.index(caption) for caption in captions]
    kinds = [(tuple(latents[at].shape), kind_of(conditions[row])) for at, row in enumerate(rows)]
    masked = any(bool((weight != 1).any()) for weight in weights)
    data = MemberImages(
        images=list(images.values()),
        kinds=kinds,
        conditions=rows,
        empty_row=len(texts),
        weights=weights if masked else None,
    )
    remarks = [
        describe_buckets(before, after),
        *(f"Skipped: {name}: {why}." for name, why in skipped.items()),
    ]
    return People(
        names=tuple(images), latents=latents, conditions=conditions, data=data, remarks=remarks
    )


def kind_of(conditioning: list) -> tuple:
    """What is equal where two CONDITIONINGs can share an evaluation."""
    return tuple(
        (
            tuple(embedding.shape),
            *sorted((name, getattr(value, "shape", None)) for name, value in more.items()),
        )
        for embedding, more in conditioning
    )


class RowUpdates(Protocol):
    """What changes layers in each row of a batch by itself."""

    layout: Layout

    def change(self, slot: Slot, x: torch.Tensor) -> torch.Tensor | None:
        """What a layer adds to its output (B, ..., out) for inputs (B, ..., in); None: nothing."""


@contextmanager
def changed(layers: dict[str, nn.Linear], updates: RowUpdates) -> Iterator[None]:
    """The layers with the change of each row while the block runs; say first whose the rows are.

    A condition is prepared by the layers as they are.
    """
    slots = {slot.layer: slot for slot in updates.layout.slots}

    def adding(slot: Slot) -> Callable:
        def add(
            _layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
        ) -> torch.Tensor:
            change = None if prepares_conditions() else updates.change(slot, inputs[0])
            return output if change is None else output + change.to(output.dtype)

        return add

    hooks = [layer.register_forward_hook(adding(slots[name])) for name, layer in layers.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def sample(
    session: Session,
    updates: LearnedUpdates,
    codes: torch.Tensor,
    rows: Sequence[int],
    empty: int,
    seed: int,
) -> torch.Tensor:
    """Latents (B, C, ...) of codes (B, K) with the session's conditions ``rows``, by Euler steps
    with CFG; as many at a time as the session takes.
    """
    like = session.latents[0]
    noise = torch.randn(
        len(codes), *like.shape[1:], generator=torch.Generator().manual_seed(seed % 2**63)
    )
    noise = noise.to(like.dtype).to(session.device)
    sigmas = torch.tensor(
        [*(session.sigma(step / _STEPS) for step in range(_STEPS)), 0.0], device=session.device
    )
    together = session.rows_at_once(len(codes), like.shape[1:], gradients=False)
    latents = []
    for places in torch.arange(len(codes)).split(together):
        x = noise[places]
        x = session.noised(torch.zeros_like(x), x, sigmas[:1].expand(len(x)))
        updates.use(codes[places], torch.arange(len(places)))
        for now, then in pairwise(sigmas):
            denoised = session.denoised(
                x,
                now.expand(len(x)),
                rows=[rows[place] for place in places],
                against=[empty] * len(x),
                cfg=_CFG,
            )
            x = x + (x - denoised.float()) / now * (then - now)
        latents.append(x.cpu())
    return torch.cat(latents)
