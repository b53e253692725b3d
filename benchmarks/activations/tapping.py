"""Taps against the plain evaluation, against what they must copy, and against forward hooks as
people write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch

from studies.common import host, results
from studies.common.turns import times

from .networks import Bench

_SIGMA = 0.228147  # the paper's t = 50


def plain(bench: Bench) -> None:
    """One evaluation through ComfyUI's sampling path."""
    with torch.inference_mode():
        host.pack("nodes.host.evaluate").evaluate(
            bench.model, bench.positive, bench.latent, _SIGMA, 0
        )


def tap(bench: Bench, chosen: list, dtype: torch.dtype = torch.float16):
    """The same with the pack's tap, as Layer Activation Tap makes it; returns what it kept."""
    keep = host.pack("nodes.activations.tap").TapSettings(dtype=dtype)
    with torch.inference_mode():
        draws = host.pack("nodes.activations.tap_comfy").tap_noise_samples
        return next(draws(bench.model, bench.positive, bench.latent, _SIGMA, chosen, keep, 0, 1))


def by_hooks(
    bench: Bench, chosen: list, kept: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    """The same with forward hooks that append each feature to a list; ``kept`` is what they append
    of it.
    """
    features: list[torch.Tensor] = []
    with _hooks(bench.network, chosen, lambda feature: features.append(kept(feature))):
        plain(bench)
    return features


def as_it_is(feature: torch.Tensor) -> torch.Tensor:
    """The output itself, as in most code that reads features of diffusers' U-Net: no copy on a CPU
    or GPU.
    """
    return feature.detach()


def copied(feature: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU in the network's own precision, for features that are to outlive the
    evaluation.
    """
    return feature.detach().cpu().clone()


def measure(quick: bool) -> dict[str, dict]:
    """Times over the plain evaluation, turn by turn, and the bytes that taps keep."""
    numbers = {}
    for name in sizes(quick).values():
        numbers |= _network(name, 3 if quick else 5)
    return numbers


def sizes(quick: bool) -> dict[str, str]:
    """The network that each family is measured on."""
    large = "SDXL" if torch.cuda.is_available() else "SDXL with 2 of 10 blocks"
    return {"SD1.5": "SD1.5"} if quick else {"SD1.5": "SD1.5", "SDXL": large}


def _network(name: str, turns: int) -> dict[str, dict]:
    bench, selection = Bench(name), host.pack("nodes.activations.select_ids")
    every = bench.chosen(selection.Preset.ALL_FEATURES)
    wanted = {"all but maps": every}
    if name == "SD1.5":
        wanted = {"the paper's filter": bench.chosen(selection.Preset.PAPER_FILTER), **wanted}
    wanted = {f"{label} ({len(chosen)})": chosen for label, chosen in wanted.items()}
    contenders = {"plain": partial(plain, bench)}
    contenders |= {
        f"tap of {label}": partial(tap, bench, chosen) for label, chosen in wanted.items()
    }
    whole = list(contenders)[-1]
    contenders["hooks that append"] = partial(by_hooks, bench, every, as_it_is)
    contenders["hooks that append copies"] = partial(by_hooks, bench, every, copied)
    outputs = by_hooks(bench, every, as_it_is)
    contenders["the copies alone"] = partial(copies, outputs)
    measured = times(contenders, turns, alone=True)
    what = (
        f"random weights, {8 * bench.side} pixels, float32, one evaluation at the paper's t "
        "through ComfyUI's path"
    )
    what += "" if torch.cuda.is_available() else "; processor time, 1 thread"
    kept = {f"tap of {label}": tap(bench, chosen).tensors for label, chosen in wanted.items()}
    return _numbers(name, measured, whole, what) | _bytes(name, kept)


def _numbers(name: str, measured: dict, whole: str, what: str) -> dict[str, dict]:
    base = measured["plain"]
    numbers = {f"{name}, plain evaluation": results.bootstrap(base, what, "ms", np.median)}
    fractions = {
        f"{label} over plain": (
            values / base,
            f"time over the plain evaluation, turn by turn; {what}",
        )
        for label, values in measured.items()
        if label not in ("plain", "the copies alone")
    }
    alone = measured["the copies alone"]
    fractions["the copies alone over plain"] = (
        alone / base,
        "the same bytes copied, without an evaluation",
    )
    about = "goal: at most 1.05; the cost of a tap besides copying what it keeps"
    fractions[f"{whole} minus its copies, over plain"] = ((measured[whole] - alone) / base, about)
    hooks = measured["hooks that append copies"]
    fractions[f"hooks that append copies over {whole}"] = (
        hooks / measured[whole],
        "the same features, turn by turn",
    )
    for label, (values, about) in fractions.items():
        numbers[f"{name}, {label}"] = results.bootstrap(values, about, "times", np.median)
    return numbers


def _bytes(name: str, kept: dict[str, dict[str, torch.Tensor]]) -> dict[str, dict]:
    numbers = {}
    for label, tensors in kept.items():
        size = sum(tensor.nbytes for tensor in tensors.values()) / 2**20
        numbers[f"{name}, {label}: kept"] = results.number(
            size, 1, "MiB", "counted: float16 on the CPU; hooks that copy keep float32"
        )
    return numbers


def copies(outputs: list[torch.Tensor], laid_out: bool = False) -> list[torch.Tensor]:
    """The copies that a tap makes of these outputs, and nothing else; or of tokens as images, as it
    makes them.
    """
    cpu_copy = host.pack("nodes.activations.activations").cpu_copy
    return [
        cpu_copy(output.transpose(1, 2) if laid_out and output.ndim == 3 else output, torch.float16)
        for output in outputs
    ]


@contextmanager
def _hooks(
    network: torch.nn.Module, entries: list, use: Callable[[torch.Tensor], None]
) -> Iterator[None]:
    """Forward hooks on the modules of the entries, on their inputs where those are the features."""

    def of_output(entry):
        return lambda module, given, output: use(
            output[entry.item] if isinstance(output, tuple) else output
        )

    def from_input(entry):
        return lambda module, given: use(given[0])

    handles = []
    for entry in entries:
        module = network.get_submodule(entry.module)
        inner = entry.kind == "input" or entry.from_input
        handles.append(
            module.register_forward_pre_hook(from_input(entry))
            if inner
            else module.register_forward_hook(of_output(entry))
        )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
