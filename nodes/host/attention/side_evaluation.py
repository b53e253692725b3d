"""A second evaluation of a network beside the call under way, stepped from attention to attention.

It runs on a thread of its own, and only ever while the thread that called the network waits for
it. So a text of any length goes through the network's own embedding, positions and masks, with
hooks of other nodes, and networks that take one row at a time take part.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.utils import _python_dispatch


class _ClosedError(BaseException):
    """The evaluation is not needed any more."""


class SideEvaluation:
    """Work that pauses at places of its own choice. ``resume`` from outside, ``pause`` in it."""

    def __init__(self, work: Callable[[SideEvaluation], object]):
        self._work = work
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._error: BaseException | None = None
        self._closed = False
        self.is_over = False
        modes = _modes_now()
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run, modes), daemon=True, name="glassbox-side"
        )
        self._thread.start()

    def _run(self, modes: Callable[[ExitStack], None]) -> None:
        self._go.acquire()
        try:
            if not self._closed:
                with ExitStack() as stack:
                    modes(stack)
                    self._work(self)
        except _ClosedError:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.is_over = True
            self._back.release()

    def resume(self) -> None:
        """Go on to the next pause, or to the end. Raises what the work raises."""
        self._go.release()
        self._back.acquire()
        if self._error is not None:
            error = self._error
            self._error = None
            raise error

    def pause(self) -> None:
        """Within the work: let the other thread go on until it resumes this one."""
        self._back.release()
        self._go.acquire()
        if self._closed:
            raise _ClosedError

    def close(self) -> None:
        """Leave the work where it is."""
        self._closed = True
        if not self.is_over:
            self._go.release()
            self._back.acquire()
        self._thread.join()


@contextmanager
def closing(evaluations: list[SideEvaluation]) -> Iterator[None]:
    """The evaluations of a list are closed at the end, whatever happens."""
    try:
        yield
    finally:
        for evaluation in evaluations:
            evaluation.close()


def _modes_now() -> Callable[[ExitStack], None]:
    """What of this thread's state an evaluation depends on, to be entered in another thread."""
    gradients = torch.is_grad_enabled()
    inference = torch.is_inference_mode_enabled()
    dispatch = _python_dispatch._get_current_dispatch_mode_stack()
    device = "cuda" if torch.cuda.is_initialized() else "cpu"
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device)
    stream = torch.cuda.current_stream() if device == "cuda" else None
    kept = torch._C._autograd._top_saved_tensors_default_hooks(True)

    def enter(stack: ExitStack) -> None:
        stack.enter_context(torch.inference_mode(inference))
        stack.enter_context(torch.set_grad_enabled(gradients))
        if autocast:
            stack.enter_context(torch.autocast(device, dtype=dtype))
        if stream is not None:
            stack.enter_context(torch.cuda.device(stream.device))
            stack.enter_context(torch.cuda.stream(stream))
        if kept is not None:  # what keeps tensors for a gradient
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(*kept))
        for mode in dispatch:  # counters, and what spares activations
            _python_dispatch._push_mode(mode)
            stack.callback(_python_dispatch._pop_mode)

    return enter
