"""A picture as a point of a space (arXiv 2406.09413, section 3.4 and appendix C): only coefficients are trained.

The recipe is the paper's: coefficients from zero (the mean), Adam at 0.1 with a coupled decay of 1e-10, one timestep of
all a step, the squared error of the predicted noise inside the mask. Unlike the official code coefficients and
optimizer are float32 (in bfloat16 steps of 0.1 vanish from |beta| = 32 on), and a mask is 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from ...kernels import flat_weights
from .space import Space

_ROWS = 64
_STRIDE = 1_000_003


@dataclass(frozen=True)
class Recipe:
    """How to train. ``components``: how many first coefficients, the others stay as they are."""

    steps: int = 400
    learning_rate: float = 0.1
    weight_decay: float = 1e-10
    components: int = 10_000
    seed: int = 0


class Model:
    """The weights of a point whose coefficients are being trained; ``refresh`` after each of their steps."""

    def __init__(self, space: Space, start: torch.Tensor, components: int, device: torch.device | str = "cpu"):
        self.space = on_device(space, device)
        start = space.padded(start).to(device)
        count = min(components, space.components)
        self.coefficients = torch.nn.Parameter(start[:count].clone())
        self._rest = start[count:]
        self.flat = torch.empty(0)
        self.refresh()

    def refresh(self) -> None:
        """Rebuild the factors from the coefficients, so that gradients reach these."""
        self.flat = _Rebuild.apply(self.coefficients, self._rest, self.space)

    def whole(self) -> torch.Tensor:
        """All coefficients (k,) on the CPU."""
        return torch.cat([self.coefficients.detach(), self._rest]).cpu()

    def function(self, layers: Sequence[tuple[str, tuple[int, int, int] | None]]) -> Callable:
        """What makes a changed weight from a weight: each layer's change, on a part (dimension, first, count) of it."""
        slots = {slot.layer: slot for slot in self.space.layout.slots}

        def changed(weight: torch.Tensor) -> torch.Tensor:
            for layer, part in layers:
                factors = self.space.layout.at(slots[layer], self.flat)
                up, down = (side.to(weight.device) for side in factors.matrices())
                if part is None:
                    weight = weight + (up @ down).view(weight.shape).to(weight.dtype)
                else:
                    dimension, first, length = part
                    shape = [length if side == dimension else size for side, size in enumerate(weight.shape)]
                    change = torch.zeros_like(weight)
                    change.narrow(dimension, first, length).copy_((up @ down).view(shape))
                    weight = weight + change
            return weight

        return changed


@dataclass
class Inversion:
    """A run: ``losses`` of the steps done, and all that going on needs."""

    model: Model
    recipe: Recipe
    losses: list[float] = field(default_factory=list)
    stopped: bool = False

    def __post_init__(self):
        recipe = self.recipe
        self.optimizer = torch.optim.Adam([self.model.coefficients], lr=recipe.learning_rate,
                                          weight_decay=recipe.weight_decay)  # fmt: skip

    @property
    def done(self) -> int:
        """Steps that were made."""
        return len(self.losses)

    def run(self, session, mask: torch.Tensor | None, tell: Callable[[int], None]) -> None:
        """Train to the recipe's end; ``session`` evaluates the model (see `Session` of nodes/host/train.py).

        ``mask`` as ``latent_mask`` makes it. Raises ValueError when the loss is no longer a number.
        """
        while self.done < self.recipe.steps:
            loss = self.loss(session, mask, self.done)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.model.refresh()
            value = loss.item()
            if not math.isfinite(value):
                raise ValueError(f"The loss is no longer a number after {self.done} steps: take a lower learning rate, "
                                 "or fp32.")  # fmt: skip
            self.losses.append(value)
            tell(self.done)

    def loss(self, session, mask: torch.Tensor | None, step: int) -> torch.Tensor:
        """mean((m * predicted noise - m * noise)^2) of one picture at one noise level, drawn from the seed and step.

        Models that predict something else are measured in that: v (SD2.x at 768) or the velocity of a flow (Flux).
        """
        generator = torch.Generator().manual_seed((self.recipe.seed * _STRIDE + step) % 2**63)
        number = int(torch.randint(len(session.latents), (1,), generator=generator))
        latent = session.latents[number]
        share = float(torch.rand(1, generator=generator))
        noise = torch.randn(latent.shape, generator=generator, dtype=torch.float32).to(latent.dtype)
        latent, noise = latent.to(session.device), noise.to(session.device)
        sigmas = torch.tensor([noise_level(session, share)], device=session.device)
        answer = session.denoised(session.noised(latent, noise, sigmas), sigmas, [number])
        error = (session.clean(latent).float() - answer.float()) * prediction_scale(session.sampling, float(sigmas))
        if mask is not None:
            error = error * mask[min(number, len(mask) - 1)].to(error)
        return error.square().mean()


def noise_level(session, share: float) -> float:
    """The sigma of a timestep drawn from all with equal chance; flow models have times instead."""
    steps = getattr(session.sampling, "num_timesteps", None)
    if steps is None:
        return session.sigma(share)
    return float(session.sampling.sigma(torch.tensor(float(int(share * steps)))))


def prediction_scale(sampling, sigma: float) -> float:
    """From an error of the clean picture to that of what the network predicts: noise, velocity of a flow, or v."""
    predicts_v = any(kind.__name__ == "V_PREDICTION" for kind in type(sampling).__mro__)
    return (sigma**2 + 1) ** 0.5 / sigma if predicts_v else 1 / sigma


def latent_mask(mask: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
    """A MASK (B, H, W) at the size of a latent (..., h, w), 0 or 1: (B, 1, h, w)."""
    small = torch.nn.functional.interpolate(mask[:, None].float(), size=latent.shape[-2:], mode="area")
    chosen = (small > 0.5).float()
    if not chosen.any():
        raise ValueError("The mask is empty at the size of the latent: paint a larger area.")
    return chosen


def on_device(space: Space, device: torch.device | str) -> Space:
    """A space whose basis, mean and deviation lie on a device."""
    scale = None if space.basis_scale is None else space.basis_scale.to(device)
    return replace(space, basis=space.basis.to(device), basis_scale=scale, mean=space.mean.to(device),
                   deviation=space.deviation.to(device))  # fmt: skip


class _Rebuild(torch.autograd.Function):
    """mean + deviation * (beta @ basis), and its gradient, without a copy of the basis in float32."""

    @staticmethod
    def forward(ctx, coefficients, rest, space: Space):
        ctx.space, ctx.count = space, len(coefficients)
        whole = torch.cat([coefficients.detach(), rest])
        return flat_weights(whole, space.basis, space.mean, space.deviation, space.basis_scale)

    @staticmethod
    def backward(ctx, gradient):
        scaled = gradient.float() * ctx.space.deviation
        blocks = range(0, ctx.count, _ROWS)
        parts = [ctx.space.rows(first, min(first + _ROWS, ctx.count)) @ scaled for first in blocks]
        return torch.cat(parts), None, None
