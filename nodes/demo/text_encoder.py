"""The demo text model as an ordinary CLIP: ComfyUI's CLIP text model, small, with rows for the
world's words only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import comfy.sd
import comfy.sd1_clip
import torch

from ..common.prompt_alignment import Alignment
from . import architecture, assets, judge

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, ModelPatcher

CLIP_NAME = "l"
VOCABULARY_SIZE = 49408
_NAMED_WORDS = 12  # of those that it does not know, in the log


class DemoTokens(comfy.sd1_clip.SDTokenizer):
    """CLIP's tokenizer; a word that the world does not know is named in the log."""

    known: frozenset[int] = frozenset()

    def __init__(
        self,
        embedding_directory: str | None = None,
        tokenizer_data: dict | None = None,
        **kwargs: Any,
    ):
        super().__init__(
            embedding_directory=embedding_directory,
            embedding_key="clip_l",
            embedding_size=architecture.TEXT["hidden_size"],
            tokenizer_data=tokenizer_data or {},
            **kwargs,
        )

    def tokenize_with_weights(
        self, text: str, return_word_ids: bool = False, **kwargs: Any
    ) -> list:
        chunks = super().tokenize_with_weights(text, return_word_ids, **kwargs)
        tokens = (entry[0] for chunk in chunks for entry in chunk)
        unknown = [token for token in tokens if isinstance(token, int) and token not in self.known]
        if unknown:
            words = "".join(self.inv_vocab[token].replace("</w>", " ") for token in unknown).split()
            logging.warning(
                "The demo model does not know: %s. It was trained on captions such as 'portrait, "
                "brown skin, curly red hair, round glasses, smiling, blue hoodie'.",
                ", ".join(words[:_NAMED_WORDS])[:200]
                + (", ..." if len(words) > _NAMED_WORDS else ""),
            )
        return chunks


class DemoTextModel(comfy.sd1_clip.SDClipModel):
    """ComfyUI's text model in the demo's size; the last hidden state after the final norm
    conditions the U-Net.
    """

    def __init__(
        self,
        device: Any = "cpu",
        dtype: torch.dtype | None = None,
        model_options: dict | None = None,
    ):
        super().__init__(
            device=device,
            dtype=dtype,
            textmodel_json_config=dict(architecture.TEXT),
            model_options=model_options or {},
        )


class DemoClip(comfy.sd1_clip.SD1ClipModel):
    """The text model with the judge of its world, which says what images show."""

    world: str

    def __init__(
        self,
        device: Any = "cpu",
        dtype: torch.dtype | None = None,
        model_options: dict | None = None,
    ):
        super().__init__(
            device=device,
            dtype=dtype,
            model_options=model_options or {},
            clip_name=CLIP_NAME,
            clip_model=DemoTextModel,
        )

    def embed_images(self, images: torch.Tensor) -> torch.Tensor:
        """See `judge.embed`."""
        return judge.embed(self.world, images)

    def measure_alignments(
        self, prompts: Sequence[str], images: torch.Tensor
    ) -> list[Alignment | None]:
        """See `judge.measure_agreements`."""
        return judge.measure_agreements(self.world, prompts, images)

    def read_images(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `judge.read`."""
        return judge.read(self.world, images)


def load(world: str, **options: Any) -> CLIP:
    """The text model of a demo world as a CLIP; ``options`` go to ComfyUI's CLIP."""
    weights = assets.read(world, "text")
    vocabulary = weights.pop("vocabulary")
    rows = weights.pop("token_rows").float()
    table = rows[:1].repeat(VOCABULARY_SIZE, 1)
    table[vocabulary.long()] = rows[1:]
    weights["text_model.embeddings.token_embedding.weight"] = table
    tokens = type("DemoTokensOfWorld", (DemoTokens,), {"known": frozenset(vocabulary.tolist())})

    def tokenizer(
        embedding_directory: str | None = None, tokenizer_data: dict | None = None
    ) -> Any:
        return comfy.sd1_clip.SD1Tokenizer(
            embedding_directory=embedding_directory,
            tokenizer_data=tokenizer_data or {},
            clip_name=CLIP_NAME,
            tokenizer=tokens,
        )

    clip = comfy.sd.CLIP(
        SimpleNamespace(clip=DemoClip, tokenizer=tokenizer, params={}),
        parameters=sum(value.numel() for value in weights.values()),
        **options,
    )
    missing, unexpected = clip.load_sd({name: value.float() for name, value in weights.items()})
    if missing or unexpected:
        raise ValueError(
            f"The text model of {world} does not fit this version of the pack "
            f"({len(missing)} weights missing): restore assets/{world}."
        )
    clip.cond_stage_model.world = world
    clip.patcher.cached_patcher_init = (_patcher, (world,))
    return clip


def _patcher(world: str, disable_dynamic: bool = False) -> ModelPatcher:
    """The patcher of a freshly loaded CLIP: newer ComfyUI asks for it to copy the model to another
    device.
    """
    return load(world, **({"disable_dynamic": True} if disable_dynamic else {})).patcher
