"""A long run's progress bar with preview images of its own, and ComfyUI's Stop button."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import comfy.model_management
import comfy.utils
import torch
from comfy_execution.progress import get_progress_state
from comfy_execution.utils import get_executing_context
from torch.overrides import TorchFunctionMode

from .routes import running_server

#: What stops a run when the user presses Stop; code that catches it goes on, and ComfyUI with the nodes that follow.
Stopped = comfy.model_management.InterruptProcessingException

_PREVIEW_SIDE = 512


class Progress:
    """ComfyUI's progress bar over so many steps."""

    def __init__(self, total: int):
        self._bar, self._total = comfy.utils.ProgressBar(total), total

    def show(self, done: int, images: torch.Tensor | None = None) -> None:
        """Move the bar, and show an IMAGE (B, H, W, 3) under the node, its images side by side."""
        from ..common.pil_images import to_pil

        preview = None if images is None else ("JPEG", to_pil(torch.cat(list(images), dim=1)), _PREVIEW_SIDE)
        self._bar.update_absolute(done, self._total, preview)


def nothing_to_show():
    """An output that lets the nodes behind it rest, without an error."""
    from comfy_execution.graph import ExecutionBlocker

    return ExecutionBlocker(None)


Item = TypeVar("Item")
_POLL = 0.1  # seconds between two looks at the Stop button


def with_progress(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items while ComfyUI's progress bar follows; raises its interrupt before an item after Stop."""
    items = list(items)
    bar = comfy.utils.ProgressBar(len(items))
    for done, item in enumerate(items):
        comfy.model_management.throw_exception_if_processing_interrupted()
        yield item
        bar.update_absolute(done + 1)


def check_stop() -> None:
    """Raise ComfyUI's interrupt when the user has pressed Stop."""
    comfy.model_management.throw_exception_if_processing_interrupted()
    abandoned = getattr(_thread, "abandoned", None)
    if abandoned is not None and abandoned.is_set():
        raise Stopped


#: Operations that take seconds on large matrices, and from how many numbers on.
_LONG = {"linalg_eigh", "linalg_svd", "linalg_qr", "svd", "sort", "argsort", "unique", "matmul", "einsum", "cdist"}
_LONG |= {"interpolate"}
_MANY = 1 << 20


class stoppable(TorchFunctionMode):  # noqa: N801, used as a function
    """In a ``with`` block of this ComfyUI's interrupt is raised before the next operation of PyTorch after Stop.

    Operations that can take seconds by themselves run in a thread meanwhile; what is left of them is thrown away.
    """

    def __torch_function__(self, operation, types, args=(), kwargs=None):
        check_stop()
        work = functools.partial(operation, *args, **(kwargs or {}))
        many = getattr(operation, "__name__", "") in _LONG and any(
            isinstance(value, torch.Tensor) and value.numel() > _MANY for value in args
        )
        return _waited(work) if many else work()


_thread = threading.local()  # of a thread of ``interruptible``, abandoned: nobody waits for it any more


def interruptible(work: Callable[[], Item]) -> Item:
    """What ``work`` returns; raises ComfyUI's interrupt within a moment of Stop while it still runs in a thread.

    For long calls that release the GIL and cannot be divided; what is left of them is thrown away.
    """

    def stopping() -> Item:
        with stoppable():
            return work()

    return _waited(stopping)


def _waited(work: Callable[[], Item]) -> Item:
    """What ``work`` returns in a thread, with the gradients of this one."""
    abandoned, inference, gradients = threading.Event(), torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def begin() -> Item:
        _thread.abandoned = abandoned
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            return work()

    thread = ThreadPoolExecutor(1, "glassbox-interruptible")
    future = thread.submit(begin)
    try:
        while True:
            try:
                return future.result(timeout=_POLL)
            except TimeoutError:
                check_stop()
    finally:
        abandoned.set()
        thread.shutdown(wait=False, cancel_futures=True)


_CURVE = "glassbox.curve"
_PAUSE = 0.25  # seconds between two messages


class LiveCurve:
    """Sends the curve of the running node to the canvas that has queued it; where there is none, nothing is made."""

    def __init__(self):
        self._next = 0.0

    def show(self, curve: Callable[[], dict]) -> None:
        """Send what ``curve`` makes, a few times a second at most."""
        server, running = running_server(), get_executing_context()
        if time.monotonic() < self._next or running is None or getattr(server, "client_id", None) is None:
            return
        node = get_progress_state().dynprompt.get_display_node_id(running.node_id)
        server.send_sync(_CURVE, {"node": node, "prompt_id": running.prompt_id, "curve": curve()}, server.client_id)
        self._next = time.monotonic() + _PAUSE
