"""How well images match their prompt, measured by a judge or by CLIP.

A text model may bring a judge: ``measure_alignment(prompt, images)`` and ``embed_images(images)``,
as the demo model's does. Else it is CLIP's: the cosine of the embeddings of image and prompt, which
Finding NeMo (arXiv 2406.02366, section 4) calls alignment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_IMAGES_AT_ONCE = 16


class AbsentError(ValueError):
    """Alignment cannot be measured; says why and what to connect."""


@dataclass(frozen=True)
class Alignment:
    """A number for each image, float32 (B,), higher for better alignment, and what it is."""

    values: torch.Tensor
    what: str


def own_embedder(clip: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Images (B, H, W, 3) to embeddings (B, D) of what they show, by the judge of a CLIP; None
    without one.
    """
    return None if clip is None else getattr(clip.cond_stage_model, "embed_images", None)


def measure(
    prompt: str, images: torch.Tensor, clip: Any = None, clip_vision: Any = None
) -> Alignment:
    """Alignment of images (B, H, W, 3) of 0..1 with a prompt; raises AbsentError where nothing can
    measure it.
    """
    return measure_all([prompt], images, clip, clip_vision)[0]


def measure_all(
    prompts: Sequence[str], images: torch.Tensor, clip: Any = None, clip_vision: Any = None
) -> list[Alignment]:
    """``measure`` for each of several prompts: the images are embedded once."""
    if not all(prompt.strip() for prompt in prompts):
        raise AbsentError("there is no prompt: write the one that the images were generated from")
    if clip is None:
        raise AbsentError("there is no CLIP: connect the one of the model")
    judge = getattr(clip.cond_stage_model, "measure_alignment", None)
    if judge is not None:
        return [judge(prompt, images) for prompt in prompts]
    if clip_vision is None:
        raise AbsentError(
            "there is no CLIP_VISION: connect the one that was trained with this CLIP"
        )
    parts = [
        clip_vision.encode_image(part)["image_embeds"].float().cpu()
        for part in images.split(_IMAGES_AT_ONCE)
    ]
    seen = torch.cat(parts)
    return [_cosine(_of_text(clip, prompt), seen) for prompt in prompts]


def _cosine(text: torch.Tensor, seen: torch.Tensor) -> Alignment:
    if seen.shape[-1] != text.shape[-1]:
        raise AbsentError(
            f"the CLIP_VISION's embeddings have {seen.shape[-1]} channels and the CLIP's "
            f"{text.shape[-1]}: connect the CLIP_VISION that was trained with this CLIP (ViT-bigG "
            "for SDXL, ViT-H for SD2)"
        )
    return Alignment(torch.cosine_similarity(seen, text, dim=-1), "CLIP cosine")


def _of_text(clip: Any, prompt: str) -> torch.Tensor:
    """The prompt's embedding (1, C) in the space of images; SD1.x checkpoints and Flux leave its
    projection out.
    """
    tokens = clip.tokenize(prompt)
    bare, projected = (
        clip.encode_from_tokens(tokens, return_pooled=how)[1] for how in ("unprojected", True)
    )
    if projected is None or torch.equal(bare, projected):
        raise AbsentError(
            "this CLIP has no projection to images (SD1.x checkpoints and Flux leave it out): "
            "load a whole CLIP text model with Load CLIP and connect that"
        )
    return projected[:1].float().cpu()
