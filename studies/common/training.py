"""One training loop for all networks: seeded by step, checkpointed, resumable, with a moving
average of the weights.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from . import host

Step = Callable[[torch.Generator, float], torch.Tensor]


@dataclass(frozen=True)
class Plan:
    """How to train: number of steps, peak learning rate, steps of warm-up, decay of the weights'
    moving average.
    """

    steps: int
    learning_rate: float
    warmup: int = 100
    ema_decay: float = 0.999
    weight_decay: float = 0.01
    seed: int = 0
    #: Peak learning rate of Muon for hidden matrices and convolutions; 0: AdamW for everything.
    matrix_rate: float = 0.0


def has_bfloat16() -> bool:
    """Whether the device multiplies bfloat16, as the nodes' precision auto asks."""
    return host.pack("nodes.host.precision").multiplies_bf16(device())


def device() -> torch.device:
    """The GPU when there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def starting_weights(start: str, name: str) -> dict[str, torch.Tensor]:
    """The tensors of NAME.safetensors of a shipped world, or of a folder."""
    from safetensors.torch import load_file

    if Path(start).is_dir():
        return load_file(Path(start) / f"{name}.safetensors")
    return host.pack("nodes.demo.assets").read(start, name)


def learning_rate(plan: Plan, step: int) -> float:
    """Fraction of the peak learning rate: linear warm-up, then a half cosine down to a fiftieth."""
    decay = 0.02 + 0.98 * (1 + math.cos(math.pi * step / plan.steps)) / 2
    return min(1.0, (step + 1) / plan.warmup) * decay


def reset_parameters(network: torch.nn.Module) -> None:
    """Draw initial weights for layers that ComfyUI leaves uninitialized (it always loads them from
    a file).
    """
    for module in network.modules():
        for kind in (
            torch.nn.Linear,
            torch.nn.modules.conv._ConvNd,
            torch.nn.GroupNorm,
            torch.nn.LayerNorm,
        ):
            if isinstance(module, kind):
                kind.reset_parameters(module)
        if isinstance(module, torch.nn.Embedding):
            torch.nn.init.normal_(module.weight, std=0.02)


class Muon(torch.optim.Optimizer):
    """Muon (https://kellerjordan.github.io/posts/muon/) for matrices and convolutions (out, in x
    height x width).

    ``torch.optim.Muon`` takes matrices only, one at a time and in bfloat16, which took 20 times as
    long on a CPU.
    """

    def __init__(self, parameters, lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            shapes: dict[tuple[int, ...], list[torch.Tensor]] = {}
            for value in group["params"]:
                if value.grad is not None:
                    shapes.setdefault(value.flatten(1).shape, []).append(value)
            for (rows, columns), values in shapes.items():
                momenta = [
                    self.state[value].setdefault("momentum", torch.zeros_like(value))
                    for value in values
                ]
                for momentum, value in zip(momenta, values, strict=True):
                    momentum.lerp_(value.grad, 1 - group["momentum"])
                nesterov = [
                    value.grad.lerp(momentum, group["momentum"]).flatten(1)
                    for momentum, value in zip(momenta, values, strict=True)
                ]
                updates = orthogonalized(torch.stack(nesterov)) * math.sqrt(max(1, rows / columns))
                for value, update in zip(values, updates, strict=True):
                    value.mul_(1 - group["lr"] * group["weight_decay"])
                    value.add_(update.view_as(value), alpha=-group["lr"])


def orthogonalized(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Matrices (N, rows, columns) with all singular values brought near 1, by Newton-Schulz steps
    of degree five.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    if has_bfloat16():  # as in the reference; half the time
        x = x.bfloat16()
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + torch.baddbmm(gram, gram, gram, beta=b, alpha=c) @ x
    return (x.mT if tall else x).to(matrices.dtype)


def optimizers(network: torch.nn.Module, plan: Plan) -> list[torch.optim.Optimizer]:
    """AdamW, and with a ``matrix_rate`` Muon for every matrix and convolution that
    ``network.outer`` does not name.

    ``outer``: beginnings of names of what is no hidden layer (embeddings, first and last layer).
    """
    named = [(name, value) for name, value in network.named_parameters() if value.requires_grad]
    hidden = {
        name
        for name, value in named
        if plan.matrix_rate and value.ndim > 1 and not name.startswith(network.outer)
    }
    rest = [value for name, value in named if name not in hidden]
    chosen = [
        torch.optim.AdamW(
            rest, lr=plan.learning_rate, weight_decay=plan.weight_decay, betas=(0.9, 0.99)
        )
    ]
    if hidden:
        matrices = [value for name, value in named if name in hidden]
        chosen.append(Muon(matrices, lr=plan.matrix_rate, weight_decay=plan.weight_decay))
    for optimizer in chosen:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return chosen


def train(
    network: torch.nn.Module,
    loss: Step,
    plan: Plan,
    checkpoint: Path,
    every: int = 250,
    copy: Path | None = None,
    watch: Callable[[dict[str, torch.Tensor], int], None] | None = None,
    start: dict[str, torch.Tensor] | None = None,
    until: int | None = None,
) -> torch.nn.Module:
    """Minimize ``loss(generator, progress)`` and return the network with its averaged weights.

    The generator is seeded from ``plan.seed`` and the step, so a run that was interrupted and goes
    on from its checkpoint sees the same batches as one that was not. Every ``every`` steps the
    checkpoint is written, also into the folder ``copy``, and ``watch(average, step)`` is called;
    ``until`` ends the run early. Without a checkpoint training begins with the weights ``start``.
    """
    chosen = optimizers(network, plan)
    if start:
        network.load_state_dict(start)
    average = {name: value.detach().clone() for name, value in network.state_dict().items()}
    if copy and not checkpoint.exists() and (copy / checkpoint.name).exists():
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(copy / checkpoint.name, checkpoint)
    first = _resume(network, chosen, average, checkpoint)
    parameters = [value for value in network.parameters() if value.requires_grad]
    started, recent = time.perf_counter(), []
    last = plan.steps if until is None else until
    for step in range(first, last):
        generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + step)
        for group in (group for optimizer in chosen for group in optimizer.param_groups):
            group["lr"] = group["peak"] * learning_rate(plan, step)
        with torch.autocast(device().type, torch.bfloat16, enabled=has_bfloat16()):
            value = loss(generator, step / plan.steps)
        network.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for optimizer in chosen:
            optimizer.step()
        _average(network, average, min(plan.ema_decay, (step + 1) / (step + 10)))
        recent.append(value.item())
        if (step + 1) % 50 == 0:
            pace = (time.perf_counter() - started) / (step + 1 - first)
            print(
                f"{checkpoint.stem} {step + 1}/{plan.steps} loss {sum(recent) / len(recent):.5f} "
                f"{pace:.2f} s/step, {pace * (plan.steps - step) / 60:.0f} min left",
                flush=True,
            )
            recent.clear()
        if (step + 1) % every == 0 or step + 1 == last:
            _save(network, chosen, average, step + 1, checkpoint)
            if copy:
                copy.mkdir(parents=True, exist_ok=True)
                temporary = copy / f"{checkpoint.name}.tmp"
                shutil.copy(checkpoint, temporary)
                temporary.replace(copy / checkpoint.name)
            if watch:
                watch(average, step + 1)
    network.load_state_dict(average)
    return network.eval()


@torch.no_grad()
def _average(network: torch.nn.Module, average: dict[str, torch.Tensor], decay: float) -> None:
    for name, value in network.state_dict().items():
        if value.is_floating_point():
            average[name].lerp_(value, 1 - decay)
        else:
            average[name].copy_(value)


def _save(network, chosen, average, step: int, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save(
        {
            "network": network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in chosen],
            "average": average,
            "step": step,
        },
        temporary,
    )
    temporary.replace(path)


def _resume(network, chosen, average, path: Path) -> int:
    if not path.exists():
        return 0
    state = torch.load(path, map_location=device(), weights_only=True)
    network.load_state_dict(state["network"])
    for optimizer, saved in zip(chosen, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    average.update(state["average"])
    print(f"going on from step {state['step']} of {path.name}")
    return state["step"]
