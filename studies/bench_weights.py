"""Benchmarks of the weight space: `python run.py bench weights [--quick]`.

Building: a space of N members of the SD1.5 layout (99,648 numbers), against the official way (torch.svd of the whole
standardised matrix) and scikit-learn's PCA; each in a process of its own, time and peak memory above that of its
imports. Moving a slider: from coefficients to a LoRA's tensors, against the official rebuild and against reading a LoRA
file; what ComfyUI's patcher then does with the tensors is the same for all.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from .common import host, results

CONTENDERS = ("this pack", "torch.svd (official)", "scikit-learn PCA")
COMPONENTS = 100
_CHANNELS = [320] * 2 + [640] * 2 + [1280] * 2 + [1280] + [1280] * 3 + [640] * 3 + [320] * 3
_BLOCKS = ["down_blocks.0", "down_blocks.1", "down_blocks.2", "mid_block", "up_blocks.1", "up_blocks.2", "up_blocks.3"]
_HEADS = [2, 2, 2, 1, 3, 3, 3]


def sd15_layout():
    """Rank 1 on queries and values of all attention blocks of SD1.5: 64 modules, 99,648 numbers."""
    names = [f"{block}.attentions.{index}" for block, count in zip(_BLOCKS, _HEADS, strict=True)
             for index in range(count)]  # fmt: skip
    shapes = {}
    for name, width in zip(names, _CHANNELS, strict=True):
        for attention, context in (("attn1", width), ("attn2", 768)):
            stem = f"{name}.transformer_blocks.0.{attention}"
            shapes[f"{stem}.to_q"] = ((1, width), (width, 1))
            shapes[f"{stem}.to_v"] = ((1, context), (width, 1))
    return host.pack("nodes.weights.layout").Layout.of(shapes, 1, 27.0)


def member(number: int, size: int) -> torch.Tensor:
    """A made-up member: twenty shared directions and noise."""
    generator = torch.Generator().manual_seed(1000 + number)
    return torch.randn(20, generator=generator) @ _shared(size) + 0.5 * torch.randn(size, generator=generator)


_SHARED: dict[int, torch.Tensor] = {}


def _shared(size: int) -> torch.Tensor:
    if size not in _SHARED:
        _SHARED[size] = torch.randn(20, size, generator=torch.Generator().manual_seed(1))
    return _SHARED[size]


def build_with(contender: str, count: int) -> dict[str, float]:
    """Seconds and bytes of one contender, in this process."""
    layout = sd15_layout()
    _shared(layout.size)
    runs: dict[str, Callable] = dict(zip(CONTENDERS, (_ours, _official, _scikit), strict=True))
    import sklearn.decomposition  # noqa: F401  (its import must not count)

    building = host.pack("nodes.weights.building")
    before, started = _peak(), time.perf_counter()
    runs[contender](layout, count, building)
    return {"seconds": time.perf_counter() - started, "bytes": _peak() - before}


def _ours(layout, count: int, building) -> None:
    files = host.pack("nodes.weights.lora_files")
    shapes = {slot.layer: (slot.down_shape[1:], slot.up_shape[:1]) for slot in layout.slots}

    def read(number: int):
        return files.Lora(layout.unflatten(member(number, layout.size)))

    sources = [building.Source(f"m{number:05}", "", lambda: shapes, lambda number=number: read(number))
               for number in range(count)]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        settings = building.Settings(form="as trained", components=COMPONENTS)
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


def measure_building(counts: list[int], repeats: int) -> dict[str, dict]:
    """Each contender in processes of its own, in alternation."""
    numbers = {}
    for count in counts:
        found: dict[str, list] = {name: [] for name in CONTENDERS}
        for _ in range(repeats):
            for name in CONTENDERS:
                arguments = ["bench", "weights", "--one", name, str(count)]
                command = [sys.executable, "-P", str(host.ROOT / "run.py"), *arguments]
                output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                found[name].append(json.loads(output.splitlines()[-1]))
                print(f"{count} members, {name}: {found[name][-1]}", flush=True)
        for unit, key, scale in (("s", "seconds", 1.0), ("MB", "bytes", 1e-6)):
            for name, runs in found.items():
                values = np.array([run[key] * scale for run in runs])
                what = f"building from {count} members of 99,648 numbers: {key}"
                numbers[f"{count} members, {key}, {name}"] = results.bootstrap(values, what, unit, np.median)
            ours = np.array([run[key] for run in found[CONTENDERS[0]]])
            for name in CONTENDERS[1:]:
                ratio = np.array([run[key] for run in found[name]]) / ours
                numbers[f"{count} members, {key}, {name} over ours"] = results.bootstrap(
                    ratio, f"{name} over this pack, paired", "ratio", np.median)  # fmt: skip
    return numbers


def measure_slider(moves: int, components: int) -> dict[str, dict]:
    """From coefficients to the tensors of a LoRA, in alternation with reading a LoRA file."""
    from safetensors.torch import load_file, save_file

    spaces, export = host.pack("nodes.weights.space"), host.pack("nodes.weights.lora_export")
    layout, generator = sd15_layout(), torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(layout.size, components, generator=generator))[0].T.contiguous()
    mean, deviation = torch.randn(layout.size, generator=generator), torch.rand(layout.size, generator=generator)
    space = spaces.Space(layout, mean, deviation, basis, torch.zeros(2, components), ("a", "b"), torch.ones(2))
    official = basis.T.contiguous()
    seconds: dict[str, list[float]] = {"this pack": [], "official rebuild": [], "reading a LoRA file": []}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lora.safetensors"
        save_file(export.to_tensors(spaces.Point(space, torch.ones(components)).layers()), file)
        for _ in range(moves):
            beta = torch.randn(components, generator=generator)
            ways = {
                "this pack": lambda beta=beta: export.to_tensors(spaces.Point(space, beta).layers()),
                "official rebuild": lambda beta=beta: (beta[None] @ official.T) * deviation + mean,
                "reading a LoRA file": lambda: {name: value.clone() for name, value in load_file(file).items()},
            }
            for name, way in ways.items():
                started = time.perf_counter()
                way()
                seconds[name].append(time.perf_counter() - started)
    numbers = {}
    for name, values in seconds.items():
        numbers[f"slider, {name}"] = results.bootstrap(
            1000 * np.array(values), f"one move, {components} components, SD1.5 layout", "ms", np.median)  # fmt: skip
    for name in ("official rebuild", "reading a LoRA file"):
        ratio = np.array(seconds["this pack"]) / np.array(seconds[name])
        numbers[f"slider, ours over {name}"] = results.bootstrap(ratio, "paired", "ratio", np.median)
    return numbers


def main(argv: Sequence[str]) -> int:
    """Run the benchmarks, or one contender."""
    parser = argparse.ArgumentParser(prog="run.py bench weights", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 members only")
    parser.add_argument("--one", nargs=2, metavar=("CONTENDER", "N"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        print(json.dumps(build_with(options.one[0], int(options.one[1]))))
        return 0
    numbers = measure_building([100] if options.quick else [100, 1000], 2 if options.quick else 3)
    numbers |= measure_slider(100, 300 if options.quick else 1000)
    name = "bench_weights_quick" if options.quick else "bench_weights"
    command = "python run.py bench weights" + (" --quick" if options.quick else "")
    assets = host.ROOT / "assets" / "avatars-v1"
    print(results.write(name, command, 0, assets, numbers))
    return 0
