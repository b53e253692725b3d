"""ComfyUI's caches that leave steps of a run out (EasyCache, LazyCache)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .socket_types import ModelPatcher

#: Keys of the wrappers that they put on a MODEL.
_KEYS = ("easycache", "lazycache")


def without_step_caches(patcher: ModelPatcher) -> ModelPatcher:
    """A clone without them, or the MODEL itself where there are none.

    They compare a call with the one before. That is right for a sampler's calls alone: those of a
    training, of two prompts in turn or of a corrected step follow no such sequence, and a call that
    is left out there gives a wrong answer.
    """
    if not any(key in by_key for by_key in patcher.wrappers.values() for key in _KEYS):
        return patcher
    clone = patcher.clone()
    for kind in list(clone.wrappers):
        for key in _KEYS:
            clone.remove_wrappers_with_key(kind, key)
    return clone
