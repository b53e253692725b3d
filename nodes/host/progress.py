"""A long run's progress bar with preview images of its own, and ComfyUI's Stop button."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import comfy.model_management
import comfy.utils
import torch
from comfy_execution.progress import get_progress_state
from comfy_execution.utils import get_executing_context
from torch.overrides import TorchFunctionMode

from ..common.resume import FinishedEarly
from .routes import running_server

if TYPE_CHECKING:
    from types import TracebackType

    from comfy_execution.graph import ExecutionBlocker

#: ComfyUI's interrupt exception. Never swallow it: the rest of the prompt would keep running.
Stopped = comfy.model_management.InterruptProcessingException

_PREVIEW_SIDE = 512


class Progress:
    """ComfyUI's progress bar over so many steps."""

    def __init__(self, total: int):
        self._bar = comfy.utils.ProgressBar(total)
        self._total = total

    def show(self, done: int, images: torch.Tensor | None = None) -> None:
        """Move the bar, and show an IMAGE (B, H, W, 3) under the node, its images side by side."""
        from ..common.pil_images import to_pil

        preview = (
            None
            if images is None
            else ("JPEG", to_pil(torch.cat(list(images), dim=1)), _PREVIEW_SIDE)
        )
        self._bar.update_absolute(done, self._total, preview)


def nothing_to_show() -> ExecutionBlocker:
    """An output that lets the nodes behind it rest, without an error."""
    from comfy_execution.graph import ExecutionBlocker

    return ExecutionBlocker(None)


Item = TypeVar("Item")
_POLL = 0.1  # seconds between two looks at the Stop button


def with_progress(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items while ComfyUI's progress bar follows; raises its interrupt before an item
    after Stop.
    """
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


#: Names of PyTorch's operations that may take seconds on large tensors.
_LONG_OPERATIONS = {
    "linalg_eigh",
    "linalg_svd",
    "linalg_qr",
    "svd",
    "sort",
    "argsort",
    "unique",
    "matmul",
    "einsum",
    "cdist",
    "interpolate",
}
#: Elements of a tensor above which such an operation runs in a thread.
_LARGE = 1 << 20


class _StoppedAtOperation(BaseException):
    """Stop at any operation of PyTorch. Not an Exception, so that no handler of the interrupted
    work's errors catches it.
    """


class stoppable(TorchFunctionMode):  # noqa: N801, used as a function
    """A ``with`` block that raises ComfyUI's interrupt at the first PyTorch operation after Stop.

    Operations that may take seconds run in a thread, which is abandoned on Stop.
    """

    def __torch_function__(
        self, operation: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ):
        work = functools.partial(operation, *args, **(kwargs or {}))
        is_long = getattr(operation, "__name__", "") in _LONG_OPERATIONS and any(
            isinstance(value, torch.Tensor) and value.numel() > _LARGE for value in args
        )
        try:
            check_stop()
            return _in_thread(work) if is_long else work()
        except Stopped as stop:
            raise _StoppedAtOperation from stop

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ):
        super().__exit__(kind, error, trace)
        if isinstance(error, _StoppedAtOperation):
            raise Stopped from None


#: ``abandoned`` in a thread of ``interruptible``: the event that is set once its caller has stopped
#: waiting.
_thread = threading.local()


def interruptible(work: Callable[[], Item]) -> Item:
    """What ``work`` returns, evaluated in a thread; raises ComfyUI's interrupt soon after Stop.

    For long calls that release the GIL and cannot be divided; the thread is abandoned on Stop.
    """

    def stopping() -> Item:
        with stoppable():
            return work()

    return _in_thread(stopping)


def _in_thread(work: Callable[[], Item]) -> Item:
    """What ``work`` returns in a thread with this one's gradient and inference modes."""
    abandoned = threading.Event()
    inference = torch.is_inference_mode_enabled()
    gradients = torch.is_grad_enabled()

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


#: The client that queued the prompt, and the event that tells the node to finish: by prompt id and
#: node id of every running node with Finish now.
_finishable: dict[tuple[str, str], tuple[str, threading.Event]] = {}
_FINISH = "glassbox.finish"


def _place() -> tuple[str, str] | None:
    """The running prompt, and its node as the canvas names it."""
    running = get_executing_context()
    if running is None:
        return None
    return running.prompt_id, get_progress_state().dynprompt.get_display_node_id(running.node_id)


class FinishNow:
    """While its ``with`` block runs, the canvas offers Finish now for the running node: see
    ``finish``.
    """

    def __init__(self):
        self._pressed = threading.Event()
        self._place: tuple[str, str] | None = None

    def __enter__(self) -> FinishNow:
        self._place = _place()
        client = getattr(running_server(), "client_id", None)
        if self._place is not None and client is not None:
            _finishable[self._place] = client, self._pressed
            self._tell(True)
        return self

    def __exit__(self, *error: BaseException | None) -> None:
        offered = None if self._place is None else _finishable.pop(self._place, None)
        if offered:
            self._tell(False)

    def _tell(self, offered: bool) -> None:
        assert self._place is not None  # inside of the with block of a server's prompt
        prompt, node = self._place
        server = running_server()
        server.send_sync(
            _FINISH, {"node": node, "prompt_id": prompt, "offered": offered}, server.client_id
        )

    @property
    def pressed(self) -> bool:
        """Whether Finish now was pressed."""
        return self._pressed.is_set()

    def check(self) -> None:
        """Raise FinishedEarly once Finish now was pressed; to be called where a result exists."""
        if self.pressed:
            raise FinishedEarly


def finish(prompt_id: str, node: str, client_id: str) -> dict[str, str]:
    """Have a running node end with its result so far; only for the client that queued it.

    ``node``: its id in the prompt, or of the node on the canvas that it stands in. Raises
    ValueError otherwise.
    """
    client, pressed = _finishable.get((prompt_id, node), (None, None))
    if pressed is None:
        raise ValueError(
            f"Node {node[:60]!r} of this prompt is not at work: it has not begun, or it has ended."
        )
    if client != client_id:
        raise ValueError("This prompt was queued by another client: only that one may finish it.")
    pressed.set()
    return {"finishing": node}


_CURVE = "glassbox.curve"
_PAUSE = 0.25  # seconds between two messages


class LiveCurve:
    """Sends the running node's curve to the canvas that queued it; without one no curve is made."""

    def __init__(self):
        self._next = 0.0

    def show(self, curve: Callable[[], dict]) -> None:
        """Send what ``curve`` makes, a few times a second at most."""
        server = running_server()
        place = _place()
        if (
            time.monotonic() < self._next
            or place is None
            or getattr(server, "client_id", None) is None
        ):
            return
        about = {"node": place[1], "prompt_id": place[0], "curve": curve()}
        server.send_sync(_CURVE, about, server.client_id)
        self._next = time.monotonic() + _PAUSE
