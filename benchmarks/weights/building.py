"""Building a space of N members of the SD1.5 layout (99,648 numbers each).

Against the official way (torch.svd of the whole standardized matrix) and scikit-learn's PCA, each
in a process of its own: CPU seconds, and peak memory above that of its imports. All read members
made up before, from one file. Floors: the products without which there are no principal components,
alone.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import torch

from studies.common import host, results

from .network import sd15_layout

CONTENDERS = ("this pack", "torch.svd (official)", "scikit-learn PCA")
FLOOR = "floor"
COMPONENTS = 100


def member(number: int, size: int) -> torch.Tensor:
    """A made-up member: twenty shared directions and noise."""
    generator = torch.Generator().manual_seed(1000 + number)
    return torch.randn(20, generator=generator) @ _shared(size) + 0.5 * torch.randn(
        size, generator=generator
    )


@cache
def _shared(size: int) -> torch.Tensor:
    return torch.randn(20, size, generator=torch.Generator().manual_seed(1))


def build_with(contender: str, count: int, file: Path) -> dict[str, float]:
    """CPU seconds and bytes of one contender, in this process, from a file of members."""
    layout = sd15_layout()
    runs: dict[str, Callable] = dict(
        zip((*CONTENDERS, FLOOR), (_ours, _official, _scikit, _products), strict=True)
    )
    import scipy.linalg  # noqa: F401  (imports must not count)
    import sklearn.decomposition  # noqa: F401

    building = host.pack("nodes.weights.space_builder")
    before, started = _peak(), time.process_time()
    runs[contender](layout, count, building, lambda number: _read(file, layout.size, number))
    return {"seconds": time.process_time() - started, "bytes": _peak() - before}


def _read(file: Path, size: int, number: int) -> torch.Tensor:
    return torch.from_numpy(np.fromfile(file, np.float32, size, offset=4 * number * size))


def _ours(layout, count: int, building, member: Callable[[int], torch.Tensor]) -> None:
    files = host.pack("nodes.common.lora_reader")
    header = files.LoraHeader(
        {slot.layer: (slot.down_shape[1:], slot.up_shape[:1]) for slot in layout.slots}
    )

    def read(number: int):
        return files.Lora(layout.unflatten(member(number)))

    sources = [
        building.MemberSource(
            name=f"m{number:05}",
            stamp="",
            header=lambda: header,
            read=lambda _=None, number=number: read(number),
        )
        for number in range(count)
    ]
    with tempfile.TemporaryDirectory() as folder:
        settings = building.BuildSettings(form="as_trained", components=COMPONENTS)
        building.build(sources, settings, Path(folder) / "space.safetensors")


def _official(layout, count: int, _, member: Callable[[int], torch.Tensor]) -> None:
    data = torch.stack([member(number) for number in range(count)])
    mean, std = data.mean(0), data.std(0)
    torch.svd((data - mean) / std)


def _scikit(layout, count: int, _, member: Callable[[int], torch.Tensor]) -> None:
    from sklearn.decomposition import PCA

    data = np.stack([member(number).numpy() for number in range(count)])
    data -= data.mean(0)
    data /= data.std(0, ddof=1)
    PCA(COMPONENTS, svd_solver="full").fit(data)


def _products(layout, count: int, building, member: Callable[[int], torch.Tensor]) -> None:
    """Reading, the float64 Gram matrix, its eigenvectors, and the basis from them; nothing
    centered, nothing kept.
    """
    gram, step = np.zeros((count, count), order="F"), 2048
    for number in range(count):
        member(number)
    block = np.random.default_rng(0).standard_normal((count, step))
    for _ in range(0, layout.size, step):
        gram = building._with_products(gram, block)
    building._left_singular_vectors(gram + np.eye(count), min(COMPONENTS, count - 1))
    for _ in range(0, layout.size, step):
        torch.ones(COMPONENTS, count) @ torch.ones(count, step)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(counts: dict[int, int]) -> dict[str, dict]:
    """Each contender in processes of its own, in alternation: number of members -> how many
    turns.
    """
    numbers = {}
    for count, turns in counts.items():
        found: dict[str, list] = {name: [] for name in (*CONTENDERS, FLOOR)}
        with _members(count) as file:
            for _ in range(turns):
                for name, runs in found.items():
                    runs.append(_alone(name, count, file))
                    print(f"{count} members, {name}: {runs[-1]}", flush=True)
        floor = np.array([run["seconds"] for run in found.pop(FLOOR)])
        numbers[f"{count} members, seconds, {FLOOR}"] = results.bootstrap(
            floor, f"{_products.__doc__} 99,648 numbers each", "CPU s", np.median
        )
        for unit, key, scale in (("CPU s", "seconds", 1.0), ("MB", "bytes", 1e-6)):
            numbers |= _compared(found, count, unit, key, scale)
    return numbers


def measure_many(count: int = 5000) -> dict[str, dict]:
    """This pack alone on so many members, and the least that the official way holds at once,
    counted.

    That way keeps the standardized members (n, D), and torch.svd makes U (n, n) and V (D, n) beside
    them, in float32: its own working space, the members as read and what standardizing them makes
    in between are left out.
    """
    with _members(count) as file:
        found = _alone(CONTENDERS[0], count, file)
    size = sd15_layout().size
    official = 4 * (2 * count * size + count * count)
    what = f"building from {count} members of 99,648 numbers"

    return {
        f"{count} members, seconds, {CONTENDERS[0]}": results.number(
            found["seconds"], 1, "CPU s", what
        ),
        f"{count} members, bytes, {CONTENDERS[0]}": results.number(
            1e-6 * found["bytes"], 1, "MB", f"{what}: peak"
        ),
        f"{count} members, bytes, {CONTENDERS[1]}": results.number(
            1e-6 * official, 1, "MB", "counted, at least; not run"
        ),
        f"{count} members, bytes, {CONTENDERS[1]} over ours": results.number(
            official / found["bytes"], 1, "ratio", "at least, counted over measured"
        ),
    }


@contextmanager
def _members(count: int) -> Iterator[Path]:
    """A file of so many made-up members, 0.4 MB each, one after another."""
    with tempfile.TemporaryDirectory() as folder:
        path, size = Path(folder) / "members.f32", sd15_layout().size
        with open(path, "wb") as file:
            for number in range(count):
                file.write(member(number, size).numpy().tobytes())
        yield path


def _alone(name: str, count: int, file: Path) -> dict[str, float]:
    given = ("--one", name, str(count), str(file))
    command = [sys.executable, "-P", str(host.ROOT / "run.py"), "bench", "weights", *given]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(output.splitlines()[-1])


def _compared(
    found: dict[str, list], count: int, unit: str, key: str, scale: float
) -> dict[str, dict]:
    numbers, ours = {}, np.array([run[key] for run in found[CONTENDERS[0]]])
    for name, runs in found.items():
        values = np.array([run[key] * scale for run in runs])
        what = f"building from {count} members of 99,648 numbers: {key}"
        numbers[f"{count} members, {key}, {name}"] = results.bootstrap(
            values, what, unit, np.median
        )
    for name in CONTENDERS[1:]:
        ratio = np.array([run[key] for run in found[name]]) / ours
        numbers[f"{count} members, {key}, {name} over ours"] = results.bootstrap(
            ratio, f"{name} over this pack, paired", "ratio", np.median
        )
    return numbers
