"""Whether the image of a prompt is gone under a mask, by images that the masked MODEL samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..common.resume import file_digest
from ..host.evaluate import sample_images
from ..host.folders import resolve_input_file
from ..host.identity import model_digest, vae_digest
from ..host.schema import later_seed
from .image_similarity import Embed, Read, Remains, remains
from .image_similarity_comfy import image_judge, image_reader
from .nemo_search import Neurons
from .neuron_factors_comfy import with_scaled

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, VAE, ClipVisionModel, ModelPatcher

#: Images under a mask, and of the generic prompt; Euler steps. The noise is none of that of the
#: reference.
_IMAGES = 2
_GENERIC = 4
STEPS = 12


@dataclass(frozen=True, kw_only=True)
class ImageJudge:
    """What images are sampled and compared by; ``read`` reads labels and faces, None for no such
    judge.
    """

    vae: object
    embed: Embed | None
    read: Read | None
    cfg: float

    @property
    def rows(self) -> int:
        """Rows of the network for a mask."""
        return _IMAGES * STEPS * (2 if self.cfg != 1 else 1)


class ImageEvaluator:
    """Takes the place of ``nemo_search.Evaluator``: a set's score is how much more is left of the
    image than is gone.

    The image is what the untouched MODEL samples for the prompt; it is gone where no more is left
    of it than images of the anchor, a generic prompt, have of it (``Remains.excess``). A score is 0
    or less then.
    """

    def __init__(
        self,
        model: ModelPatcher,
        judge: ImageJudge,
        neurons: Neurons,
        conditions: tuple[list, list, list],
        shape: tuple[int, ...],
        seed: int,
    ):
        self._model = model
        self._judge = judge
        self.neurons = neurons
        self._shape = shape
        self._seed = seed
        self._positive, anchor, self._negative = conditions
        self.calls = self.rows = 0
        self.found: dict[bytes, Remains] = {}
        self._reference = self._sampled(model, self._positive, 1, later_seed(seed, 1))
        self.untouched = self._left(self._sampled(model, self._positive, _IMAGES, seed))
        self.generic = self._left(self._sampled(model, anchor, _GENERIC, seed))

    def score(self, mask: torch.Tensor) -> float:
        """The excess of a set (total,) of silenced neurons; kept, so that a repeated set costs
        nothing.
        """
        key = mask.numpy().tobytes()
        if key not in self.found:
            factors = {path: factor[0] for path, factor in self.neurons.factors(mask[None]).items()}
            masked = (
                with_scaled(self._model, factors, (float("inf"), 0.0), False)
                if factors
                else self._model
            )
            self.found[key] = self._left(self._sampled(masked, self._positive, _IMAGES, self._seed))
        return self.found[key].excess(self.generic)

    def end(self, chosen: Sequence[list[int]]) -> str:
        """What became of the image with chosen neurons silenced: see ``Remains.end``."""
        return self.found.get(self._key(chosen), self.untouched).end(self.generic)

    def _key(self, chosen: Sequence[list[int]]) -> bytes:
        return self.neurons.mask(list(chosen)).numpy().tobytes() if any(chosen) else b""

    def report(self, chosen: Sequence[list[int]]) -> list[str]:
        """What is left of the image: untouched, with the chosen neurons of each layer silenced,
        generic prompt.
        """
        key = self._key(chosen)
        lines = [
            f"  Left of the image, untouched: {self.untouched}; generic prompt: {self.generic}."
        ]
        if key in self.found:
            lines.append(
                f"  With the mask: {self.found[key]}. {self.found[key].verdict(self.generic)}"
            )
        return lines

    def _sampled(self, model: ModelPatcher, positive: list, count: int, seed: int) -> torch.Tensor:
        judge = self._judge
        self.calls += 1
        self.rows += count * judge.rows // _IMAGES
        return sample_images(
            model,
            judge.vae,
            positive=positive,
            negative=self._negative,
            shape=self._shape,
            count=count,
            seed=seed,
            steps=STEPS,
            cfg=judge.cfg,
        )

    def _left(self, images: torch.Tensor) -> Remains:
        return remains(images, self._reference, self._judge.embed, self._judge.read)


def image_judge_of(
    vae: VAE, similarity: str, sscd_file: str, clip_vision: ClipVisionModel, clip: CLIP, cfg: float
) -> ImageJudge | None:
    """The judge of what is connected; None without a VAE, which no other stopping rule needs."""
    if vae is None:
        return None
    _, embed = image_judge(similarity, sscd_file, clip_vision, clip)
    return ImageJudge(vae=vae, embed=embed, read=image_reader(clip), cfg=cfg)


def judge_identity(
    vae: VAE, cfg: float, similarity: str, sscd_file: str, clip_vision: ClipVisionModel
) -> dict:
    """What the judgement of images depends on."""
    eyes = None if clip_vision is None else model_digest(clip_vision.patcher)
    sscd = file_digest(resolve_input_file(sscd_file, "SSCD model")) if sscd_file.strip() else ""
    found = {"vae": vae_digest(vae), "cfg": cfg, "similarity": similarity, "clip_vision": eyes}
    return {**found, "sscd_file": sscd}
