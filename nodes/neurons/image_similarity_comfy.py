"""What images are compared by, one row of ``JUDGES`` each: SSCD, CLIP vision, the demo model's
judge, or SSIM.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..host.folders import resolve_optional_file

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, ClipVisionModel
    from .image_similarity import Embed, Read


class Similarity(enum.StrEnum):
    """How images are compared."""

    AUTO = "auto"
    SSCD = "sscd"
    CLIP_VISION = "clip_vision"
    DEMO_JUDGE = "demo_judge"
    SSIM = "ssim"


@dataclass(frozen=True)
class Connected:
    """What is connected to a node: a file of SSCD, a CLIP_VISION, the embedding of a text model's
    own judge.
    """

    sscd_file: Path | None
    clip_vision: object
    own: Embed | None


@dataclass(frozen=True, kw_only=True)
class Judge:
    """A similarity: its name, what it ``needs``, and its embedding of what is connected; None for
    SSIM, without one.

    ``threshold``: above which an image counts as replicated where nothing is calibrated; None where
    there is no such.
    """

    name: str
    needs: str
    given: Callable[[Connected], object]
    embed: Callable[[Connected], Embed | None]
    threshold: float | None = None


def _sscd(connected: Connected) -> Embed:
    from . import sscd

    assert connected.sscd_file is not None
    return sscd.load_sscd(connected.sscd_file)


def _clip_vision(connected: Connected) -> Embed:
    encoder: Any = connected.clip_vision
    return lambda images: encoder.encode_image(images)["image_embeds"]


#: In the order in which ``auto`` tries them. The thresholds: the paper's for SSCD, and for SSIM the
#: similarity that .5 % of new demo renders reach.
JUDGES = {
    Similarity.SSCD: Judge(
        name="SSCD",
        needs="a file: set sscd_file",
        given=lambda of: of.sscd_file,
        embed=_sscd,
        threshold=0.7,
    ),
    Similarity.CLIP_VISION: Judge(
        name="CLIP vision",
        needs="a CLIP_VISION: connect it to clip_vision",
        given=lambda of: of.clip_vision,
        embed=_clip_vision,
    ),
    Similarity.DEMO_JUDGE: Judge(
        name="the demo world's judge",
        needs="the demo model's CLIP: connect it to clip",
        given=lambda of: of.own,
        embed=lambda of: of.own,
    ),
    Similarity.SSIM: Judge(
        name="SSIM", needs="nothing", given=lambda of: True, embed=lambda of: None, threshold=0.73
    ),
}


def image_judge(
    similarity: str, sscd_file: str, clip_vision: ClipVisionModel | None, clip: CLIP | None
) -> tuple[Judge, Embed | None]:
    """The judge of a similarity and its embedding; raises ValueError where what it needs is
    absent.
    """
    from ..common.prompt_alignment import own_embedder

    choice = Similarity(similarity)
    connected = Connected(
        resolve_optional_file(sscd_file, "SSCD file"), clip_vision, own_embedder(clip)
    )
    for kind, judge in JUDGES.items():
        if choice in (Similarity.AUTO, kind) and judge.given(connected) is not None:
            return judge, judge.embed(connected)
    raise ValueError(f"The similarity {choice} needs {JUDGES[choice].needs}.")


def image_reader(clip: CLIP | None) -> Read | None:
    """What the judge of a text model reads in images, labels and faces; None without one."""
    return None if clip is None else getattr(clip.cond_stage_model, "read_images", None)
