"""Building a space of N members of the SD1.5 layout (99,648 numbers each).

Against the official way (torch.svd of the whole standardized matrix) and scikit-learn's PCA, each in a process of its
own: CPU seconds, and peak memory above that of its imports.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch

from studies.common import host, results

from .network import sd15_layout

CONTENDERS = ("this pack", "torch.svd (official)", "scikit-learn PCA")
COMPONENTS = 100


def member(number: int, size: int) -> torch.Tensor:
    """A made-up member: twenty shared directions and noise."""
    generator = torch.Generator().manual_seed(1000 + number)
    return torch.randn(20, generator=generator) @ _shared(size) + 0.5 * torch.randn(size, generator=generator)


@cache
def _shared(size: int) -> torch.Tensor:
    return torch.randn(20, size, generator=torch.Generator().manual_seed(1))


def build_with(contender: str, count: int) -> dict[str, float]:
    """CPU seconds and bytes of one contender, in this process."""
    layout = sd15_layout()
    _shared(layout.size)
    runs: dict[str, Callable] = dict(zip(CONTENDERS, (_ours, _official, _scikit), strict=True))
    import sklearn.decomposition  # noqa: F401  (its import must not count)

    building = host.pack("nodes.weights.space_builder")
    before, started = _peak(), time.process_time()
    runs[contender](layout, count, building)
    return {"seconds": time.process_time() - started, "bytes": _peak() - before}


def _ours(layout, count: int, building) -> None:
    files = host.pack("nodes.weights.lora_reader")
    header = files.LoraHeader({slot.layer: (slot.down_shape[1:], slot.up_shape[:1]) for slot in layout.slots})

    def read(number: int):
        return files.Lora(layout.unflatten(member(number, layout.size)))

    sources = [
        building.MemberSource(f"m{number:05}", "", lambda: header, lambda _=None, number=number: read(number))
        for number in range(count)
    ]
    with tempfile.TemporaryDirectory() as folder:
        settings = building.BuildSettings(form="as_trained", components=COMPONENTS)
        building.build(sources, settings, Path(folder) / "space.safetensors")


def _official(layout, count: int, _) -> None:
    data = torch.stack([member(number, layout.size) for number in range(count)])
    mean, std = data.mean(0), data.std(0)
    torch.svd((data - mean) / std)


def _scikit(layout, count: int, _) -> None:
    from sklearn.decomposition import PCA

    data = np.stack([member(number, layout.size).numpy() for number in range(count)])
    data -= data.mean(0)
    data /= data.std(0, ddof=1)
    PCA(COMPONENTS, svd_solver="full").fit(data)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(counts: dict[int, int]) -> dict[str, dict]:
    """Each contender in processes of its own, in alternation: number of members -> how many turns."""
    numbers = {}
    for count, turns in counts.items():
        found: dict[str, list] = {name: [] for name in CONTENDERS}
        for _ in range(turns):
            for name in CONTENDERS:
                found[name].append(_alone(name, count))
                print(f"{count} members, {name}: {found[name][-1]}", flush=True)
        for unit, key, scale in (("CPU s", "seconds", 1.0), ("MB", "bytes", 1e-6)):
            numbers |= _compared(found, count, unit, key, scale)
    return numbers


def measure_many(count: int) -> dict[str, dict]:
    """This pack alone on so many members, and the least that the official way holds at once, counted.

    That way keeps the standardized members (n, D), and torch.svd makes U (n, n) and V (D, n) beside them, in float32:
    its own working space, the members as read and what standardizing them makes in between are left out.
    """
    found = _alone(CONTENDERS[0], count)
    size = sd15_layout().size
    official = 4 * (2 * count * size + count * count)
    what = f"building from {count} members of 99,648 numbers"

    return {
        f"{count} members, seconds, {CONTENDERS[0]}": results.number(found["seconds"], 1, "CPU s", what),
        f"{count} members, bytes, {CONTENDERS[0]}": results.number(1e-6 * found["bytes"], 1, "MB", f"{what}: peak"),
        f"{count} members, bytes, {CONTENDERS[1]}": results.number(
            1e-6 * official, 1, "MB", "counted, at least; not run"
        ),
        f"{count} members, bytes, {CONTENDERS[1]} over ours": results.number(
            official / found["bytes"], 1, "ratio", "at least, counted over measured"
        ),
    }


def _alone(name: str, count: int) -> dict[str, float]:
    command = [sys.executable, "-P", str(host.ROOT / "run.py"), "bench", "weights", "--one", name, str(count)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(output.splitlines()[-1])


def _compared(found: dict[str, list], count: int, unit: str, key: str, scale: float) -> dict[str, dict]:
    numbers, ours = {}, np.array([run[key] for run in found[CONTENDERS[0]]])
    for name, runs in found.items():
        values = np.array([run[key] * scale for run in runs])
        what = f"building from {count} members of 99,648 numbers: {key}"
        numbers[f"{count} members, {key}, {name}"] = results.bootstrap(values, what, unit, np.median)
    for name in CONTENDERS[1:]:
        ratio = np.array([run[key] for run in found[name]]) / ours
        numbers[f"{count} members, {key}, {name} over ours"] = results.bootstrap(
            ratio, f"{name} over this pack, paired", "ratio", np.median
        )
    return numbers
