"""What images are compared by: SSCD, CLIP vision, the demo model's judge, or SSIM."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from ..host.folders import resolve_optional_file
from ..host.prompt_alignment import own_embedder

if TYPE_CHECKING:
    from .image_similarity import Embed


class Similarity(enum.StrEnum):
    """How images are compared."""

    AUTO = "auto"
    SSCD = "sscd"
    CLIP_VISION = "clip_vision"
    DEMO_JUDGE = "demo_judge"
    SSIM = "ssim"


def image_embedding(similarity: str, sscd_file: str, clip_vision, clip) -> tuple[str, Embed | None]:
    """The name of a similarity and its embedding, None for SSIM; raises ValueError where what it needs is absent."""
    choice, path = Similarity(similarity), resolve_optional_file(sscd_file, "SSCD file")
    judge = own_embedder(clip)
    if path is not None and choice in (Similarity.AUTO, Similarity.SSCD):
        from . import sscd

        return "SSCD", sscd.load_sscd(path)
    if clip_vision is not None and choice in (Similarity.AUTO, Similarity.CLIP_VISION):
        return "CLIP vision", lambda images: clip_vision.encode_image(images)["image_embeds"]
    if judge is not None and choice in (Similarity.AUTO, Similarity.DEMO_JUDGE):
        return "the demo world's judge", judge
    if choice in (Similarity.AUTO, Similarity.SSIM):
        return "SSIM", None
    needs = {
        Similarity.SSCD: "a file: set sscd_file",
        Similarity.CLIP_VISION: "a CLIP_VISION: connect it to clip_vision",
        Similarity.DEMO_JUDGE: "the demo model's CLIP: connect it to clip",
    }
    raise ValueError(f"The similarity {choice} needs {needs[choice]}.")
