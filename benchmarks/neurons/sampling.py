"""The cost of a mask while sampling, and the speed of Neuron Statistics."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from studies.common import host, results
from studies.world import captions
from studies.world.scenes import random_scene

from . import networks

_STEPS, _CFG = 2, 7.0
_SAMPLES = 10_000


class _Operations(TorchDispatchMode):
    """Counts the tensor operations that PyTorch runs."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def mask(quick: bool) -> dict[str, dict]:
    """Operations and time that a mask on every searched layer adds to sampling."""
    [case] = networks.random_sd15(64, 32, 16)
    pack = host.pack("nodes.neurons.mask")
    scales = pack.uniform_scales((layer.path, index) for layer in case.layers for index in range(4))
    factors = pack.channel_factors(pack.NeuronMask(scales), case.layers)
    masked = host.pack("nodes.neurons.neuron_factors_comfy").with_scaled(
        case.model, factors, (float("inf"), 0.0), False
    )
    ratios = []
    with torch.inference_mode():
        for model in (case.model, masked):
            _sample(model, case)
        for turn in range(6 if quick else 60):
            first, second = (case.model, masked) if turn % 2 else (masked, case.model)
            times = {id(model): _seconds(model, case) for model in (first, second)}
            ratios.append(times[id(masked)] / times[id(case.model)] - 1)
    return {
        "mask: added time": results.bootstrap(
            100 * np.array(ratios),
            "CPU time of KSampler, CFG 7, with the mask over without, median of pairs of runs",
            "%",
            np.median,
        ),
        **_operations(case, masked),
    }


def _operations(case: networks.Case, masked) -> dict[str, dict]:
    """Counted, so without an interval."""
    counts = []
    with torch.inference_mode():
        for model in (case.model, masked):
            with _Operations() as operations:
                _sample(model, case)
            counts.append(operations.count)
        with FlopCounterMode(display=False) as counter:
            _sample(case.model, case)
    calls = _STEPS * 2  # positive and negative rows
    multiplied = calls * sum(77 * layer.width for layer in case.layers)
    added = (counts[1] - counts[0]) / _STEPS / len(case.layers)
    return {
        "mask: added operations": results.number(
            added, 1, "operations", "PyTorch operations per masked layer and call of the network"
        ),
        "mask: added fraction of operations": results.number(
            100 * (counts[1] / counts[0] - 1), 1, "%", f"of {counts[0]} operations"
        ),
        "mask: added multiplications": results.number(
            200 * multiplied / counter.get_total_flops(), 1, "%", "of the network's own"
        ),
    }


def _sample(model, case: networks.Case) -> None:
    import comfy.sample

    noise = torch.randn(1, *case.shape, generator=torch.Generator().manual_seed(0))
    comfy.sample.sample(
        model,
        noise,
        _STEPS,
        _CFG,
        "euler",
        "normal",
        case.conditioning,
        case.negative,
        torch.zeros_like(noise),
        disable_pbar=True,
        seed=0,
    )


def _seconds(model, case: networks.Case) -> float:
    begun = time.process_time()
    _sample(model, case)
    return time.process_time() - begun


def statistics(quick: bool) -> dict[str, dict]:
    """Neuron Statistics of captions as the canvas runs it: texts encoded, values read, moments
    merged.
    """
    from studies.neurons.world import World

    world, rng = World(seeds=2, ordinary=2), np.random.default_rng(5)
    texts = [captions.caption(random_scene(rng), rng) for _ in range(256 if quick else _SAMPLES)]
    begun = time.process_time()
    found, *_ = world.run(
        "NeuronStatistics",
        model=world.model,
        clip=world.clip,
        prompts="\n".join(texts),
        prompts_file="",
        layers="down, middle, up",
        filename_prefix="",
    )
    seconds = time.process_time() - begun
    return {
        "statistics: seconds": results.number(
            seconds,
            1,
            "CPU s",
            f"Neuron Statistics of {found.count} captions, demo model, all layers",
        ),
        "statistics: prompts per second": results.number(
            found.count / seconds, 1, "prompts/s", "of that run, its text encoder included"
        ),
    }
