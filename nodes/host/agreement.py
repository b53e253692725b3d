"""How far pictures show what their prompt asks for, where there is something that can tell.

A text model that comes with a judge of its own registers it in ``JUDGES``; other models are asked with CLIP: the cosine
of a picture's and the prompt's embedding, which Finding NeMo (arXiv 2406.02366, section 4) calls alignment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

#: Class of a text model -> (text model, prompt, pictures) to Agreement.
JUDGES: dict[type, Callable] = {}


class AbsentError(ValueError):
    """Agreement cannot be measured; says why and what to connect."""


@dataclass(frozen=True)
class Agreement:
    """A number for each picture, float32 (B,), higher for more agreement, and what it is."""

    values: torch.Tensor
    what: str


def measure(prompt: str, pictures: torch.Tensor, clip=None, clip_vision=None) -> Agreement:
    """Agreement of pictures (B, H, W, 3) of 0..1 with a prompt; raises AbsentError where nothing can tell."""
    if not prompt.strip():
        raise AbsentError("there is no prompt: write the one that the pictures were painted for")
    if clip is None:
        raise AbsentError("there is no CLIP: connect the one of the model")
    judge = JUDGES.get(type(clip.cond_stage_model))
    if judge is not None:
        return judge(clip.cond_stage_model, prompt, pictures)
    if clip_vision is None:
        raise AbsentError("there is no CLIP_VISION: connect the one that was trained with this CLIP")
    text, seen = _of_text(clip, prompt), clip_vision.encode_image(pictures)["image_embeds"].float().cpu()
    if seen.shape[-1] != text.shape[-1]:
        raise AbsentError(
            f"the CLIP_VISION's embeddings have {seen.shape[-1]} channels and the CLIP's {text.shape[-1]}: connect the "
            "CLIP_VISION that was trained with this CLIP (ViT-bigG for SDXL, ViT-H for SD2)"
        )
    return Agreement(torch.cosine_similarity(seen, text, dim=-1), "CLIP cosine")


def _of_text(clip, prompt: str) -> torch.Tensor:
    """The prompt's embedding (1, C) beside pictures; SD1.x checkpoints and Flux leave its projection out."""
    tokens = clip.tokenize(prompt)
    bare, projected = (clip.encode_from_tokens(tokens, return_pooled=how)[1] for how in ("unprojected", True))
    if projected is None or torch.equal(bare, projected):
        raise AbsentError(
            "this CLIP has no projection to pictures (SD1.x checkpoints and Flux leave it out): load a whole CLIP text "
            "model with Load CLIP and connect that"
        )
    return projected[:1].float().cpu()
