"""What a mask costs while sampling, and how fast statistics are read."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from ..common import host, results
from . import networks


def measure(quick: bool) -> dict[str, dict]:
    """Added multiplications and the paired share of time of a mask on every searched layer; prompts a second."""
    case = networks.random_sd15(64, 32, 16, 0.9)
    mask = host.pack("nodes.neurons.mask")
    scales = mask.of_neurons((layer.path, index) for layer in case.layers for index in range(4))
    factors = mask.factors(mask.NeuronMask(scales), case.layers)
    masked = host.pack("nodes.host.value_hooks").with_scaled(case.model, factors, (float("inf"), 0.0), False)
    shares = []
    with torch.inference_mode():
        for model in (case.model, masked):
            _seconds(model, case)
        for turn in range(4 if quick else 20):
            first, second = (case.model, masked) if turn % 2 else (masked, case.model)
            times = {id(model): _seconds(model, case) for model in (first, second)}
            shares.append(times[id(masked)] / times[id(case.model)] - 1)
        with FlopCounterMode(display=False) as counter:
            _seconds(case.model, case)
    added = sum(77 * layer.width for layer in case.layers)
    total = counter.get_total_flops() / 2
    return {
        "mask: added time": results.bootstrap(100 * np.array(shares), "paired, a call with the mask over one "
                                                                      "without", "%",
                                              np.median),
        "mask: added multiplications": {"value": 100 * added / total, "low": 100 * added / total,
                                        "high": 100 * added / total, "n": 1, "unit": "%",
                                        "what": "of the network's, for one row with every searched layer masked"},
        **_statistics(case, 256 if quick else 10_000),
    }  # fmt: skip


def _seconds(model, case: networks.Case) -> float:
    begun = time.perf_counter()
    host.pack("nodes.host.first_step").at_first_step(
        model, case.conditioning, case.shape, 961, lambda predict: predict(torch.zeros(1, *case.shape))
    )
    return time.perf_counter() - begun


def _statistics(case: networks.Case, count: int) -> dict[str, dict]:
    """Reading the values of text embeddings that are there already; encoding the texts is ComfyUI's own."""
    statistics, values = host.pack("nodes.neurons.statistics"), host.pack("nodes.host.value_answers")
    paths, batch = [layer.path for layer in case.layers], torch.randn(32, 77, 768)
    merged, begun = None, time.perf_counter()
    with torch.inference_mode():
        for _ in range(max(count // 32, 1)):
            part = statistics.Statistics(32, statistics.measure(values.answers(case.model, batch, paths)))
            merged = part if merged is None else statistics.merge(merged, part)
    pace = merged.count / (time.perf_counter() - begun)
    return {"statistics: prompts a second": {"value": pace, "low": pace, "high": pace, "n": merged.count,
                                             "unit": "prompts/s", "what": "of embeddings given"}}  # fmt: skip
