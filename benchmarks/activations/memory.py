"""The most memory that an evaluation takes, with a tap of the paper's set and without: Ours-XL at
1,024 pixels.

PyTorch's allocator on the CPU keeps no peak, so the bytes of all tensors that operations make are
counted as long as they live. What an operation takes for itself alone, such as the columns of a
convolution, is not seen.
"""

from __future__ import annotations

import gc
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .networks import Bench
from .tapping import plain, tap

_NETWORK, _PRESET, _SIDE = "narrow SDXL", "ours_xl", 128


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operations have made and that live, now and at most."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._watch((args, kwargs), made=False)
        result = func(*args, **(kwargs or {}))
        self._watch(result, made=True)
        return result

    def _watch(self, tensors, made: bool) -> None:
        """Count the storages that are new, with their bytes when an operation has ``made`` them."""
        for tensor in tree_leaves(tensors):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage._cdata in self._known:
                continue
            size = storage.nbytes() if made else 0
            self._known.add(storage._cdata)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._free, storage._cdata, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def measure(quick: bool) -> dict[str, dict]:
    """Peaks of live bytes, exact."""
    bench = Bench(_NETWORK, _SIDE)
    chosen = bench.chosen(_PRESET)
    what = (
        f"{_NETWORK} (a fifth of its width), {8 * _SIDE} pixels, float32, random weights, one "
        "evaluation; counted"
    )
    peak, _ = counted(lambda: plain(bench))
    with_tap, kept = counted(lambda: tap(bench, chosen))
    values = {
        "plain: peak of memory": peak,
        f"tap of {_PRESET}: kept": kept,
        f"tap of {_PRESET}: added to the peak": with_tap - peak,
    }
    about = {"n": 1, "unit": "MB", "what": what}
    return {name: {"value": value / 1e6, **about} for name, value in values.items()}


def counted(call) -> tuple[int, int]:
    """Bytes that ``call`` holds at most, and those of its result afterwards."""
    gc.collect()
    with LiveBytes() as memory:
        result = call()
        gc.collect()
        kept = memory.live
    del result
    return memory.peak, kept
