"""The most memory that an evaluation takes, with a tap of the paper's set and without: Ours-XL at 1,024 pixels."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import torch

from studies.common import results

from .networks import Bench
from .tapping import plain, tap

_NETWORK, _PRESET, _SIDE = "narrow SDXL", "ours_xl", 128
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measure(quick: bool) -> dict[str, dict]:
    """Peak of resident memory, turn by turn; Linux alone reports it of a part of a process."""
    if not _CLEAR.exists():
        print("The peak of memory is not measured: this system does not report it.")
        return {}
    bench = Bench(_NETWORK)
    generator = torch.Generator().manual_seed(0)
    bench.latent = {"samples": torch.randn(1, 4, _SIDE, _SIDE, generator=generator)}
    chosen = bench.chosen(_PRESET)
    kept = sum(feature.nbytes for feature in tap(bench, chosen).tensors.values()) / 1e6  # and everything is warm
    turns = range(2 if quick else 5)
    without = np.array([_peak(lambda: plain(bench)) for _ in turns])
    with_tap = np.array([_peak(lambda: tap(bench, chosen)) for _ in turns])
    what = f"{_NETWORK} (a fifth of its width), {8 * _SIDE} pixels, float32, random weights, one evaluation on the CPU"
    return {
        "plain: peak of memory": results.bootstrap(without, what, "MB", np.median),
        f"tap of {_PRESET}: kept": results.bootstrap(np.array([kept]), f"{what}, half precision", "MB"),
        f"tap of {_PRESET}: added to the peak": results.bootstrap(with_tap - without, what, "MB", np.median),
    }


def _peak(call) -> float:
    """Megabytes that ``call`` takes at its highest above what the process holds before; its result is kept till then.

    Which freed blocks the allocator still holds differs from turn to turn by tens of megabytes.
    """
    gc.collect()
    _CLEAR.write_text("5")  # begins the peak again
    before = _numbers("VmRSS")
    result = call()
    peak = _numbers("VmHWM") - before
    del result
    return peak


def _numbers(name: str) -> float:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024 / 1e6
