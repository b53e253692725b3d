"""One training loop for all networks: seeded by step, checkpointed, resumable, with a moving average of the weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

Step = Callable[[torch.Generator, float], torch.Tensor]


@dataclass(frozen=True)
class Plan:
    """How to train: number of steps, peak learning rate, steps of warm-up, decay of the weights' moving average."""

    steps: int
    learning_rate: float
    warmup: int = 100
    ema_decay: float = 0.999
    weight_decay: float = 0.01
    seed: int = 0


def device() -> torch.device:
    """The GPU when there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def learning_rate(plan: Plan, step: int) -> float:
    """Linear warm-up, then a half cosine down to a fiftieth."""
    progress = step / plan.steps
    decay = 0.02 + 0.98 * (1 + math.cos(math.pi * progress)) / 2
    return plan.learning_rate * min(1.0, (step + 1) / plan.warmup) * decay


def reset_parameters(network: torch.nn.Module) -> None:
    """Draw initial weights for layers that ComfyUI leaves uninitialised (it always loads them from a file)."""
    for module in network.modules():
        for kind in (torch.nn.Linear, torch.nn.modules.conv._ConvNd, torch.nn.GroupNorm, torch.nn.LayerNorm):
            if isinstance(module, kind):
                kind.reset_parameters(module)
        if isinstance(module, torch.nn.Embedding):
            torch.nn.init.normal_(module.weight, std=0.02)


def train(network: torch.nn.Module, loss: Step, plan: Plan, checkpoint: Path, every: int = 250) -> torch.nn.Module:
    """Minimise ``loss(generator, progress)`` and return the network with its averaged weights.

    The generator is seeded from ``plan.seed`` and the step, so a run that was interrupted and goes on from its
    checkpoint sees the same batches as one that was not.
    """
    parameters = [value for value in network.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=plan.learning_rate, weight_decay=plan.weight_decay, betas=(0.9, 0.99))
    average = {name: value.detach().clone() for name, value in network.state_dict().items()}
    first = _resume(network, optimizer, average, checkpoint)
    started, recent = time.perf_counter(), []
    for step in range(first, plan.steps):
        generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + step)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(plan, step)
        with torch.autocast(device().type, torch.bfloat16):
            value = loss(generator, step / plan.steps)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        _average(network, average, min(plan.ema_decay, (step + 1) / (step + 10)))
        recent.append(value.item())
        if (step + 1) % 50 == 0:
            pace = (time.perf_counter() - started) / (step + 1 - first)
            print(f"{checkpoint.stem} {step + 1}/{plan.steps} loss {sum(recent) / len(recent):.5f} "
                  f"{pace:.2f} s/step, {pace * (plan.steps - step) / 60:.0f} min left", flush=True)
            recent.clear()
        if (step + 1) % every == 0 or step + 1 == plan.steps:
            _save(network, optimizer, average, step + 1, checkpoint)
    network.load_state_dict(average)
    return network.eval()


@torch.no_grad()
def _average(network: torch.nn.Module, average: dict[str, torch.Tensor], decay: float) -> None:
    for name, value in network.state_dict().items():
        if value.is_floating_point():
            average[name].lerp_(value, 1 - decay)
        else:
            average[name].copy_(value)


def _save(network, optimizer, average, step: int, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save({"network": network.state_dict(), "optimizer": optimizer.state_dict(), "average": average, "step": step},
               temporary)
    temporary.replace(path)


def _resume(network, optimizer, average, path: Path) -> int:
    if not path.exists():
        return 0
    state = torch.load(path, map_location=device(), weights_only=True)
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    average.update(state["average"])
    print(f"going on from step {state['step']} of {path.name}")
    return state["step"]
