"""Gradients of a small network behind nodes, with what is kept and with what is computed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

#: Layers of a U-Net whose gradients are compared: before, in and after attention, and one behind
#: all blocks.
UNET_LAYERS = (
    "attn2.to_q",
    "attn2.to_k",
    "attn2.to_v",
    "attn1.to_out.0",
    "ff.net.2",
    "in_layers.2",
)
SIGMA, CFG = 2.0, 2.0


def layers_with(patcher, endings: Sequence[str]) -> list[str]:
    """The weights of a MODEL's layers whose names end so, two of each ending: an early one and a
    late one.
    """
    names = [
        name for name, module in patcher.model.named_modules() if hasattr(module, "weight_function")
    ]
    chosen = []
    for ending in endings:
        matching = [name for name in names if name.endswith(ending)]
        assert matching, f"no layer ends with {ending}"
        chosen += sorted({matching[0], matching[-1]})
    return [f"{name}.weight" for name in chosen]


def gradients(
    app, patcher, positive, negative, weights: Sequence[str], *, checkpointing: bool, **how
):
    """The gradients of a loss of two images to a change of each weight, by name, and the loss.

    Two evaluations at other noise levels before a single backward pass, each with both sides of
    CFG.
    """
    trainer = app.module("nodes.host.training.trainer")
    channels = patcher.get_model_object("latent_format").latent_channels
    generator = torch.Generator().manual_seed(3)
    latents = [torch.randn(1, channels, 8, 12, generator=generator) for _ in range(2)]
    noise = torch.randn(2, channels, 8, 12, generator=generator)
    with torch.inference_mode(False):
        changes = {name: _change(patcher, name) for name in weights}

    def work(session):
        sampling, loss = session.sampling, 0.0
        for sigma in (sampling.percent_to_sigma(0.3), sampling.percent_to_sigma(0.6)):
            sigmas = torch.full((2,), float(sigma))
            noised = session.noised(torch.cat(session.latents), noise, sigmas)
            denoised = session.denoised(noised, sigmas, [0, 1], [2, 2], CFG)
            loss = loss + (denoised - torch.cat(session.latents)).square().mean()
        loss.backward()
        return float(loss.detach())

    functions = {
        name: (lambda weight, change=change: weight + change) for name, change in changes.items()
    }
    conditions = [positive, positive, negative]
    with torch.inference_mode():
        loss = trainer.run(
            patcher,
            functions,
            latents,
            conditions,
            work,
            dtype=torch.float32,
            checkpointing=checkpointing,
            **how,
        )
    return {name: change.grad for name, change in changes.items()}, loss


def _change(patcher, name: str) -> torch.Tensor:
    path, _, kind = name.rpartition(".")
    weight = getattr(patcher.model.get_submodule(path), kind)
    return torch.zeros(weight.shape, requires_grad=True)


def difference(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest difference of any gradient, relative to the norm of all of that weight's."""
    worst = 0.0
    for name, gradient in expected.items():
        if gradient is None or found[name] is None:
            assert gradient is found[name], f"{name} has a gradient on one side only"
            continue
        worst = max(
            worst, float((found[name] - gradient).norm() / gradient.norm().clamp_min(1e-12))
        )
    return worst


@contextmanager
def segments_counted(app) -> Iterator[list[None]]:
    """A list that grows by one for each block that is computed again."""
    segment = app.module("nodes.host.training.checkpointing")._Segment
    run_again, count = segment._run_again, []

    def counted(self):
        count.append(None)
        return run_again(self)

    segment._run_again = counted
    try:
        yield count
    finally:
        segment._run_again = run_again
