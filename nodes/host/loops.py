"""Loops that show their progress and stop when the user presses Stop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import comfy.model_management
import comfy.utils

Item = TypeVar("Item")


def tracked(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items while ComfyUI's progress bar follows; raises its interrupt before an item when asked to stop."""
    items = list(items)
    bar = comfy.utils.ProgressBar(len(items))
    for done, item in enumerate(items):
        comfy.model_management.throw_exception_if_processing_interrupted()
        yield item
        bar.update_absolute(done + 1)
