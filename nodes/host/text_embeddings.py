"""Replace the text embedding that a MODEL is given, while gradients run through it."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import torch
from comfy.patcher_extension import WrappersMP


def with_embedding(patcher, current: Callable[[], torch.Tensor]):
    """A clone of a MODEL that reads ``current()`` (1, tokens, D) instead of the text embedding it is handed."""
    clone = patcher.clone()

    def call(executor, x, t, c_concat=None, c_crossattn=None, *args, **kwargs):
        embedding = current().to(x.device).expand(len(x), -1, -1)
        return executor(x, t, c_concat, embedding, *args, **kwargs)

    clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, f"glassbox_embedding_{uuid.uuid4().hex}", call)
    return clone
