"""Draws from ComfyUI's global random generator that leave no trace in it."""

from __future__ import annotations

from contextlib import contextmanager

import torch


@contextmanager
def untouched():
    """Give the global generators back as they were, whatever is seeded or drawn inside."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=list(devices)):
        yield
