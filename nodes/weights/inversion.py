"""Inversion: the point of a space for an image (arXiv 2406.09413, section 3.4, appendix C): trained
coefficients alone.

The recipe is the paper's: coefficients from zero (the mean), Adam at 0.1 with a coupled decay of
1e-10, one timestep of all a step, the squared error of the predicted noise inside the mask. Unlike
the official code coefficients and optimizer are float32 (in bfloat16 steps of 0.1 vanish from
|beta| = 32 on), and a mask is 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from ...kernels import flat_weights
from ..common.loss_curve import SMOOTH, running_mean
from ..common.training.session import Session
from .flat_layout import CommonBasis
from .space import Space

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROWS = 64
_STRIDE = 1_000_003
_HELD_OUT = 8
_HELD_OUT_INTERVAL = 25


@dataclass(frozen=True, kw_only=True)
class InversionSettings:
    """How to train. ``components``: how many of the first coefficients; the others stay fixed."""

    steps: int = 400
    learning_rate: float = 0.1
    weight_decay: float = 1e-10
    components: int = 10_000
    seed: int = 0
    early_stop: int = (
        0  # steps without a lower loss on held-out noise after which training ends; 0: never
    )
    # what the sum of squares of the trained numbers counts in the loss; with it the rate falls
    prior: float = 0.0
    noise_samples: int = 1  # noise samples, each at a noise level of its own, in a step: their mean

    @property
    def free(self) -> tuple[str, ...]:
        """With a prior the rate falls to the last step; else nothing depends on their number."""
        return () if self.prior else ("steps",)


class TrainablePoint:
    """The weights of a point whose coefficients are trained; call ``refresh`` after each optimizer
    step.

    ``whitened``: they are trained in standard deviations of the members, so that one rate fits all.
    """

    def __init__(
        self,
        space: Space,
        start: torch.Tensor,
        components: int,
        device: torch.device | str = "cpu",
        whitened: bool = False,
    ):
        self.space = space_to(space, device)
        start = space.pad(start).to(device)
        count = min(components, space.known if whitened else space.components)
        spread = (
            space.spread[1][:count].to(device) if whitened else torch.ones(count, device=device)
        )
        self._unit = spread.clamp_min(1e-12)
        self.coefficients = torch.nn.Parameter(start[:count] / self._unit)
        self._rest = start[count:]
        self.flat = torch.empty(0)
        self.refresh()

    def refresh(self) -> None:
        """Rebuild the factors from the coefficients, so that gradients reach these."""
        self.flat = _Rebuild.apply(self.coefficients * self._unit, self._rest, self.space)

    def all_coefficients(self) -> torch.Tensor:
        """All coefficients (k,) on the CPU."""
        return torch.cat([self.coefficients.detach() * self._unit, self._rest]).cpu()

    def weight_function(
        self, layers: Sequence[tuple[str, tuple[int, int, int] | None]]
    ) -> Callable:
        """A function from a weight to the changed weight: each layer's change, on a part
        (dimension, first, count).
        """
        slots = {slot.layer: slot for slot in self.space.layout.slots}

        def changed(weight: torch.Tensor) -> torch.Tensor:
            for layer, part in layers:
                factors = self.space.layout.factors_at(slots[layer], self.flat)
                up, down = (side.to(weight.device) for side in factors.matrices())
                if part is None:
                    weight = weight + (up @ down).view(weight.shape).to(weight.dtype)
                else:
                    dimension, first, length = part
                    shape = [
                        length if side == dimension else size
                        for side, size in enumerate(weight.shape)
                    ]
                    change = torch.zeros_like(weight)
                    change.narrow(dimension, first, length).copy_((up @ down).view(shape))
                    weight = weight + change
            return weight

        return changed


def point_bytes(space: Space, components: int) -> int:
    """What a ``TrainablePoint`` and its training hold on their device: the space, the weights
    twice, Adam's numbers.

    In bytes; the weights and their gradient, the coefficients, their gradient and two moments are
    float32.
    """
    layout = space.layout
    tensors = [space.basis, space.mean, space.deviation]
    if space.basis_scale is not None:
        tensors.append(space.basis_scale)
    if isinstance(layout, CommonBasis):
        tensors += [layout.left, layout.right]
    held = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return held + 4 * (2 * layout.size + 4 * min(components, space.components))


@dataclass(kw_only=True)
class Inversion:
    """A training run: ``losses`` of the steps done, and the state to resume from.

    With early stop, ``held_out`` maps steps to the loss on noise that no step trains on, and
    ``best`` are the coefficients of the lowest one.
    """

    model: TrainablePoint
    settings: InversionSettings
    losses: list[float] = field(default_factory=list)
    held_out: dict[int, float] = field(default_factory=dict)
    best: torch.Tensor | None = None
    finished_early: bool = False  # by the person, before its end

    def __post_init__(self):
        settings = self.settings
        self.optimizer = torch.optim.Adam(
            [self.model.coefficients], lr=settings.learning_rate, weight_decay=settings.weight_decay
        )

    @property
    def done(self) -> int:
        """Number of finished steps."""
        return len(self.losses)

    @property
    def best_step(self) -> int:
        """The step of the lowest loss on held-out noise."""
        return min(self.held_out, key=lambda step: self.held_out[step])

    @property
    def converged(self) -> bool:
        """Whether early stop has ended the training."""
        patience = self.settings.early_stop
        return bool(patience and self.held_out) and self.done - self.best_step >= patience

    def run(
        self, session: Session, mask: torch.Tensor | None, on_step: Callable[[int], None]
    ) -> None:
        """Train for the number of steps of the settings, or until early stop.

        ``mask`` as ``latent_mask`` makes it. Raises ValueError when the loss is not finite.
        """
        self._evaluate(session, mask)
        while self.done < self.settings.steps and not self.converged:
            loss = self.loss(session, mask, self.done)
            self.optimizer.zero_grad()
            loss.backward()
            if self.settings.prior:
                for group in self.optimizer.param_groups:
                    group["lr"] = self.settings.learning_rate * rate_fraction(
                        self.done, self.settings.steps
                    )
            self.optimizer.step()
            self.model.refresh()
            value = loss.item()
            if not math.isfinite(value):
                raise ValueError(
                    f"The loss is not finite after {self.done} steps: use a lower learning rate, "
                    "or fp32."
                )
            self.losses.append(value)
            self._evaluate(session, mask)
            on_step(self.done)

    def take_best(self) -> None:
        """With early stop, the coefficients of the lowest loss on held-out noise; not to be trained
        further.
        """
        if self.best is not None:
            with torch.no_grad():
                self.model.coefficients.copy_(self.best)
            self.model.refresh()

    def held_out_loss(self, session: Session, mask: torch.Tensor | None) -> float:
        """The mean loss on eight fixed noise samples, at noise levels evenly spread over all
        timesteps.
        """
        generator = torch.Generator().manual_seed((self.settings.seed * _STRIDE - 1) % 2**63)
        total = 0.0
        for row in range(_HELD_OUT):
            number = row % len(session.latents)
            noise = torch.randn(session.latents[number].shape, generator=generator)
            with torch.no_grad():
                total += float(_loss(session, mask, [(number, (row + 0.5) / _HELD_OUT, noise)]))
        return total / _HELD_OUT

    def _evaluate(self, session: Session, mask: torch.Tensor | None) -> None:
        """Every 25 steps of a run with early stop: the held-out loss, and the coefficients when it
        is the lowest.
        """
        if (
            not self.settings.early_stop
            or self.done % _HELD_OUT_INTERVAL
            or self.done in self.held_out
        ):
            return
        self.held_out[self.done] = self.held_out_loss(session, mask)
        if self.best_step == self.done:
            self.best = self.model.coefficients.detach().clone()

    def loss(self, session: Session, mask: torch.Tensor | None, step: int) -> torch.Tensor:
        """mean((m * predicted noise - m * noise)^2) of one image at one noise level, sampled from
        the seed and step.

        Of several ``noise_samples`` it is the mean; the prior adds its weight times the sum of
        their squares.

        Models that predict something else are measured in that: v (SD2.x at 768) or the velocity of
        a flow (Flux).
        """
        generator = torch.Generator().manual_seed((self.settings.seed * _STRIDE + step) % 2**63)
        samples = []
        for _ in range(self.settings.noise_samples):
            number = int(torch.randint(len(session.latents), (1,), generator=generator))
            fraction = float(torch.rand(1, generator=generator))
            noise = torch.randn(
                session.latents[number].shape, generator=generator, dtype=torch.float32
            )
            samples.append((number, fraction, noise))
        loss = _loss(session, mask, samples)
        return (
            loss + self.settings.prior * self.model.coefficients.square().sum()
            if self.settings.prior
            else loss
        )


def _loss(
    session: Session, mask: torch.Tensor | None, samples: Sequence[tuple[int, float, torch.Tensor]]
) -> torch.Tensor:
    """The mean loss of samples (number of the image, fraction of the timesteps, noise); images of
    one shape at once.
    """
    shapes: dict[torch.Size, list[tuple[int, float, torch.Tensor]]] = {}
    for sample in samples:
        shapes.setdefault(sample[2].shape, []).append(sample)
    losses = []
    for alike in shapes.values():
        numbers, fractions, drawn = zip(*alike, strict=True)
        latent = torch.cat([session.latents[number] for number in numbers]).to(session.device)
        noise = torch.cat(drawn).to(latent.dtype).to(session.device)
        sigmas = torch.tensor(
            [sigma_at(session, fraction) for fraction in fractions], device=session.device
        )
        answer = session.denoised(session.noised(latent, noise, sigmas), sigmas, numbers)
        scales = torch.tensor(
            [prediction_scale(session.sampling, sigma) for sigma in sigmas.tolist()]
        )
        error = session.clean(latent).float() - answer.float()
        error = error * scales.to(error).view(-1, *[1] * (error.ndim - 1))
        if mask is not None:
            areas = torch.cat([mask[min(number, len(mask) - 1)] for number in numbers]).to(error)
            error = error * areas.view(len(areas), *[1] * (error.ndim - 3), *areas.shape[1:])
        losses.append(error.square().flatten(1).mean(dim=1))
    return torch.cat(losses).mean()


def rate_fraction(step: int, steps: int, last: float = 0.1) -> float:
    """The fraction of the highest learning rate that a step takes: up over the first ten, then down
    to ``last``.
    """
    return min(1.0, (step + 1) / 10) * (1 - (1 - last) * step / steps)


def draw_losses(figure: Figure, run: Inversion) -> None:
    """Plot the loss of each step and its running mean over 25."""
    axes = figure.add_subplot()
    steps = range(1, run.done + 1)
    axes.plot(steps, run.losses, color="tab:blue", alpha=0.3, linewidth=1, label="each step")
    axes.plot(steps, running_mean(run.losses), color="tab:blue", label=f"mean of {SMOOTH}")
    if run.held_out:
        axes.plot(
            list(run.held_out),
            list(run.held_out.values()),
            "o-",
            color="tab:orange",
            label="held-out noise",
        )
    axes.set(xlabel="step", ylabel="loss", title="Inversion")
    axes.grid(alpha=0.3)
    axes.legend()


def describe_inversion(run: Inversion, seconds: float) -> str:
    """Number of coefficients, steps, time per step, and the loss at the start and at the end."""
    first = run.losses[:SMOOTH]
    last = run.losses[-SMOOTH:]
    held_out = ""
    if run.held_out:
        held_out = (
            f" On held-out noise {next(iter(run.held_out.values())):.4f} at the start and "
            f"{run.held_out[run.best_step]:.4f} at step {run.best_step}, whose point is taken."
        )
    length = f"{run.done} steps{' (early stop)' if run.converged else ''}"
    if run.finished_early:
        length = f"finished at {run.done} of {run.settings.steps} steps"
    return (
        f"{len(run.model.coefficients):,} coefficients, {length}, {seconds:.2f} s each. Loss "
        f"{sum(first) / len(first):.4f} in the first {len(first)} steps, "
        f"{sum(last) / len(last):.4f} in the last: single steps vary with their noise "
        f"level.{held_out}"
    )


def sigma_at(session: Session, fraction: float) -> float:
    """The sigma at a fraction of all timesteps, each equally likely; flow models have times
    instead.
    """
    steps = getattr(session.sampling, "num_timesteps", None)
    if steps is None:
        return session.sigma(fraction)
    return float(session.sampling.sigma(torch.tensor(float(int(fraction * steps)))))


def prediction_scale(sampling: Any, sigma: float) -> float:
    """Factor from an error of the clean latent to the error of the prediction: noise, velocity of a
    flow, or v.
    """
    predicts_v = any(kind.__name__ == "V_PREDICTION" for kind in type(sampling).__mro__)
    return (sigma**2 + 1) ** 0.5 / sigma if predicts_v else 1 / sigma


def latent_mask(mask: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
    """A MASK (B, H, W) at the size of a latent (..., h, w), 0 or 1: (B, 1, h, w)."""
    small = torch.nn.functional.interpolate(
        mask[:, None].float(), size=latent.shape[-2:], mode="area"
    )
    binary = (small > 0.5).float()
    if not binary.any():
        raise ValueError("The mask is empty at the size of the latent: mask a larger area.")
    return binary


def space_to(space: Space, device: torch.device | str) -> Space:
    """A space whose basis, mean, deviation and common bases lie on a device.

    The common bases, which gradients cross, are copied where a node has made them in inference
    mode.
    """
    layout = space.layout
    if isinstance(layout, CommonBasis):
        layout = layout.to(device)
        left, right = (
            side.clone() if side.is_inference() else side for side in (layout.left, layout.right)
        )
        layout = replace(layout, left=left, right=right)
    scale = None if space.basis_scale is None else space.basis_scale.to(device)
    basis = space.stored_basis.to(device)
    return replace(
        space,
        layout=layout,
        file=space.file if basis is space.basis else None,
        basis=basis,
        basis_scale=scale,
        mean=space.mean.to(device),
        deviation=space.deviation.to(device),
    )


class _Rebuild(torch.autograd.Function):
    """mean + deviation * (beta @ basis), and its gradient, without a copy of the basis in
    float32.
    """

    @staticmethod
    def forward(ctx: Any, coefficients: torch.Tensor, rest: torch.Tensor, space: Space):
        ctx.space = space
        ctx.count = len(coefficients)
        full = torch.cat([coefficients.detach(), rest])
        return flat_weights(
            full,
            space.stored_basis,
            mean=space.mean,
            deviation=space.deviation,
            basis_scale=space.basis_scale,
        )

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor):
        scaled = gradient.float() * ctx.space.deviation
        blocks = range(0, ctx.count, _ROWS)
        parts = [ctx.space.rows(first, min(first + _ROWS, ctx.count)) @ scaled for first in blocks]
        return torch.cat(parts), None, None
