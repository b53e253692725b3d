"""How well images match their prompt, measured by a judge or by CLIP.

A text model may bring a judge, as the demo model's does: ``measure_alignments(prompts, images)``
and ``embed_images(images)``. Else it is CLIP's: the cosine of the embeddings of image and prompt,
which Finding NeMo (arXiv 2406.02366, section 4) calls alignment.
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
    judge = _own_judge(clip)
    if judge is not None:
        found = judge(prompts, images)
        measured = [alignment for alignment in found if alignment is not None]
        if len(measured) < len(prompts):
            raise AbsentError("the prompt requests nothing that the demo world's judge can see")
        return measured
    if clip_vision is None:
        raise AbsentError(
            "there is no CLIP_VISION: connect the one that was trained with this CLIP"
        )
    seen = embed(images, clip_vision=clip_vision)
    return [_cosine(_of_text(clip, prompt), seen) for prompt in prompts]


def measure_words(
    words: Sequence[str], images: torch.Tensor, clip: Any, seen: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The agreement (B,) of images with each word that can be measured: a judge knows some words
    only. Without one it is the cosine of the text with ``seen``, a CLIP_VISION's embeddings (B, D).

    Raises AbsentError where it can measure none.
    """
    judge = _own_judge(clip)
    found: list[Alignment | None]
    if judge is None:
        found = [_cosine(_of_text(clip, word), seen) for word in words]
    else:
        found = judge(words, images)
    agreements = {
        word: each.values for word, each in zip(words, found, strict=True) if each is not None
    }
    if not agreements:
        raise AbsentError("the judge of this CLIP knows none of the words")
    return agreements


def _own_judge(clip: Any) -> Callable[..., list[Alignment | None]] | None:
    return getattr(clip.cond_stage_model, "measure_alignments", None)


def embed(images: torch.Tensor, clip: Any = None, clip_vision: Any = None) -> torch.Tensor:
    """Embeddings float32 (B, D) of images (B, H, W, 3) of 0..1: the CLIP_VISION's, else those of a
    CLIP's judge.

    Raises AbsentError where there is neither.
    """
    own = own_embedder(clip)
    if clip_vision is not None:
        parts = [
            clip_vision.encode_image(part)["image_embeds"].float().cpu()
            for part in images.split(_IMAGES_AT_ONCE)
        ]
        return torch.cat(parts)
    if own is not None:
        return own(images).float().cpu()
    raise AbsentError("there is no CLIP_VISION: connect one from Load CLIP Vision")


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
