"""Digests of MODEL, CLIP and VAE by content, for the identity of kept work (common/resume.py).

ComfyUI numbers patches again at every start, so these read numbers: of every weight, as it is
without patches, and of every tensor of a patch 4,096, spread over the whole, and whatever else was
put on the MODEL. A change within a few hundred numbers of a large weight may stay unseen; loaders,
LoRAs, merges and trainings change whole rows and are seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from comfy.weight_adapter import WeightAdapterBase

from ..common.resume import digest
from .folders import EMBEDDING_MARK

if TYPE_CHECKING:
    from .socket_types import CLIP, VAE, ModelPatcher

_NUMBERS = 4096
# What a patcher holds beside its network; not what it remembers of loading it.
_PARTS: tuple[str, ...] = (
    "patches",
    "weight_wrapper_patches",
    "object_patches",
    "model_options",
    "wrappers",
    "callbacks",
)
_PARTS += ("injections", "hook_patches", "forced_hooks", "additional_models", "attachments")


def model_digest(model: ModelPatcher) -> str:
    """Changes with a MODEL: its weights, patches and options; not with where they lie or what was
    sampled.
    """
    modules = {module: name for name, module in model.model.named_modules()}

    def known(value: Any) -> Any:
        """What stands for a value that leads back to the MODEL, or to another one."""
        if value is model or value is model.model:
            return "this MODEL"
        if isinstance(value, torch.nn.Module):
            return modules.get(value)
        if isinstance(value, WeightAdapterBase):
            return [type(value), value.weights]  # some make their tensors at first use
        other = hasattr(value, "model_options") and hasattr(value, "patches_uuid")
        return model_digest(value) if other else None

    return digest(_parts(model), known, _NUMBERS)


def clip_digest(clip: CLIP | None) -> str | None:
    """Changes with a CLIP; None for none."""
    if clip is None:
        return None
    options = (
        clip.layer_idx,
        clip.tokenizer_options,
        clip.use_clip_schedule,
        type(clip.tokenizer).__qualname__,
    )
    return digest([model_digest(clip.patcher), options])


def vae_digest(vae: VAE | None) -> str | None:
    """Changes with a VAE; None for none."""
    return None if vae is None else model_digest(vae.patcher)


def embeddings_by_text(clip: CLIP, texts: Iterable[str]) -> dict[str, str]:
    """A digest of the embeddings in each text that names any, by text, as this CLIP reads it now.

    A name without a file, which ComfyUI ignores, counts as no embedding, so that the digest
    changes when the file comes.
    """
    named = dict.fromkeys(text for text in texts if EMBEDDING_MARK in text)
    return {text: digest(_tensors(clip.tokenize(text))) for text in named}


def embedding_digest(clip: CLIP, texts: Iterable[str]) -> str | None:
    """One digest of the embeddings in all texts; None where no text names one."""
    by_text = embeddings_by_text(clip, texts)
    return digest(by_text) if by_text else None


def _tensors(tokens: dict) -> list:
    """By encoder, the entries of a tokenized prompt that are no numbers of tokens: what was read
    from files."""
    found = []
    for encoder in sorted(tokens):
        entries = [entry[0] for chunk in tokens[encoder] for entry in chunk]
        found.append([encoder, [entry for entry in entries if not isinstance(entry, int)]])
    return found


def _parts(patcher: ModelPatcher) -> list:
    """All that a patcher's samples depend on."""
    network = patcher.model
    replaced = patcher.object_patches_backup
    sampling = replaced.get("model_sampling") or getattr(network, "model_sampling", None)
    weights = {
        name: value
        for name, value in patcher.model_state_dict().items()
        if not name.startswith("model_sampling.")
    }
    weights |= {name: backup[0] for name, backup in patcher.hook_backup.items()}
    weights |= {name: backup[0] for name, backup in patcher.backup.items()}
    parts = {name: getattr(patcher, name, None) for name in _PARTS}
    return [type(network), type(sampling), sampling, weights, parts]
