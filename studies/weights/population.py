"""Train the population: LoRAs of many identities of the demo world, a cohort at a time, in one
batch.

The settings is the paper's (arXiv 2406.09413, appendix E) brought to a small model: rank 1 on
queries and values, one start for all, the base model's own loss. Steps are few and learning rates
high; captions name what varies. What chance decides (scenes, noise, noise levels) is the same for
all members.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from ..common.training import device, has_bfloat16
from .grouped import Population, adapted, attention_layout, initial
from .people import Encoded, cached, people


@dataclass(frozen=True)
class Plan:
    """``cohort`` identities in one batch, ``rows`` images of each a step."""

    cohort: int = 32
    rows: int = 3
    steps: int = 90
    rank: int = 1
    alpha: float = 1.0
    learning_rate: float = 0.018
    earliest: int = 150  # timesteps below are left out: identity is settled at higher noise
    seed: int = 0


def rate_factor(step: int, steps: int) -> float:
    """The fraction of the learning rate that a step takes: up over the first ten, then down to a
    tenth.
    """
    return min(1.0, (step + 1) / 10) * (1 - 0.9 * step / steps)


class CommonAdam(torch.optim.Optimizer):
    """Adam (arXiv 1412.6980) whose second moment is the mean over the rows of a parameter (n, D).

    So rows take steps in proportion to their gradients: members that differ twice as much are moved
    twice as far apart.
    """

    def __init__(
        self, parameters, lr: float, betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-8
    ):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            (first, second), eps = group["betas"], group["eps"]
            for value in group["params"]:
                state = self.state[value]
                if not state:
                    state |= {
                        "step": 0,
                        "mean": torch.zeros_like(value),
                        "square": torch.zeros_like(value[0]),
                    }
                state["step"] += 1
                state["mean"].lerp_(value.grad, 1 - first)
                state["square"].lerp_(value.grad.square().mean(0), 1 - second)
                scale = (state["square"] / (1 - second ** state["step"])).sqrt() + eps
                value.addcdiv_(
                    state["mean"], scale, value=-group["lr"] / (1 - first ** state["step"])
                )


def descend(optimizer, loss, step: int, steps: int) -> None:
    """One step of an optimizer at its fraction of the rate it began with."""
    for group in optimizer.param_groups:
        group.setdefault("peak", group["lr"])
        group["lr"] = group["peak"] * rate_factor(step, steps)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


class Trainer:
    """The frozen network of a demo world, and a cohort's training on it."""

    def __init__(self, generator, plan: Plan):
        model = generator.model.model
        self._model = model
        self._network = model.diffusion_model.to(device()).requires_grad_(False)
        self.plan = plan
        self.layout = attention_layout(self.network, plan.rank, plan.alpha)
        self.alphas = 1 / (model.model_sampling.sigmas.float().square() + 1)
        self.predicts_v = model.model_type.name == "V_PREDICTION"
        self.vector = model.encode_adm().to(device())

    @property
    def network(self) -> torch.nn.Module:
        """The frozen network, which is the MODEL's own: without weights that a node's sampling left
        patched.
        """
        if self._model.current_weight_patches_uuid is not None:
            import comfy.model_management

            comfy.model_management.unload_all_models()
            self._network.to(device())
        return self._network

    def cohort(self, data: Encoded, checkpoint: Path, steps: int, every: int = 10) -> torch.Tensor:
        """Train identities (n) together and return their flat factors float32 (n, D); goes on from
        its checkpoint.
        """
        plan = self.plan
        population = Population(self.layout, len(data.latents), plan.seed, device())
        optimizer = CommonAdam([population.flat], lr=plan.learning_rate)
        first = _resume(population, optimizer, checkpoint)
        with adapted(self.network, population):
            for step in range(first, steps):
                loss = self.loss(
                    population, data, torch.Generator().manual_seed(plan.seed * 1_000_003 + step)
                )
                descend(optimizer, loss, step, steps)
                if (step + 1) % every == 0 or step + 1 == steps:
                    _save(population, optimizer, step + 1, checkpoint)
        return population.flat.detach().cpu()

    def loss(
        self, population: Population, data: Encoded, generator: torch.Generator
    ) -> torch.Tensor:
        """Squared error of what the network predicts (noise, or v), a mean for each identity,
        summed over them.

        So each identity's gradient is what it would be alone. Scenes, timesteps and noise of a step
        are the same for all identities: what they do to the weights is common to all members, and
        not taken for identity.
        """
        count, images = data.latents.shape[:2]
        picks = torch.randperm(images, generator=generator)[: self.plan.rows]
        latents = data.latents[:, picks].flatten(0, 1).float()
        contexts = data.contexts[:, picks].flatten(0, 1).float().to(device())
        noised, timesteps, noise, alpha = self.noised(latents, generator, count)
        target = (
            alpha.sqrt() * noise - (1 - alpha).sqrt() * latents.to(device())
            if self.predicts_v
            else noise
        )
        error = (self.predict(noised, timesteps, contexts) - target).square().mean((1, 2, 3))
        return error.view(count, len(picks)).mean(dim=1).sum()

    def noised(
        self, latents: torch.Tensor, generator: torch.Generator, groups: int = 1
    ) -> tuple[torch.Tensor, ...]:
        """Latents (n, 24, 16, 16) at random timesteps: noised, timesteps (n,), the noise, and alpha
        (n, 1, 1, 1).

        Each of ``groups`` equal parts of the batch gets the same timesteps and the same noise.
        """
        low, high, rows = self.plan.earliest, len(self.alphas), len(latents) // groups
        timesteps = (
            (low + (high - low) * torch.rand(rows, generator=generator)).long().repeat(groups)
        )
        noise = torch.randn(rows, *latents.shape[1:], generator=generator).repeat(groups, 1, 1, 1)
        alpha = self.alphas[timesteps][:, None, None, None]
        noised = alpha.sqrt() * latents + (1 - alpha).sqrt() * noise
        return tuple(part.to(device()) for part in (noised, timesteps, noise, alpha))

    def predict(
        self, noised: torch.Tensor, timesteps: torch.Tensor, contexts: torch.Tensor
    ) -> torch.Tensor:
        """What the network answers, float32: noise, or v."""
        with torch.autocast(device().type, torch.bfloat16, enabled=has_bfloat16()):
            return self.network(
                noised, timesteps, contexts, self.vector.expand(len(noised), -1)
            ).float()


def train(
    generator, count: int, folder: Path, plan: Plan, seconds: float = float("inf")
) -> tuple[list, torch.Tensor]:
    """Train cohorts until ``count`` identities are there or ``seconds`` are over; returns people
    and factors.

    A cohort that is finished is kept in ``folder`` and not trained again.
    """
    trainer, group, flats, started = (
        Trainer(generator, plan),
        people(count),
        [],
        time.perf_counter(),
    )
    for number, first in enumerate(range(0, count, plan.cohort)):
        part = group[first : first + plan.cohort]
        done = folder / f"cohort_{number:03}.done.pt"
        if not done.exists() and time.perf_counter() - started > seconds:
            break
        if not done.exists():
            begun = time.perf_counter()
            data = cached(part, generator, folder / f"cohort_{number:03}.data.pt")
            flat = trainer.cohort(data, folder / f"cohort_{number:03}.pt", plan.steps)
            torch.save(flat, done)
            (folder / f"cohort_{number:03}.pt").unlink()
            pace = (time.perf_counter() - begun) / len(part)
            print(f"identities {first} to {first + len(part) - 1}: {pace:.2f} s each", flush=True)
        flats.append(torch.load(done, weights_only=True))
    flat = torch.cat(flats) if flats else initial(trainer.layout, plan.seed)[None, :][:0]
    return group[: len(flat)], flat


def _save(population: Population, optimizer, step: int, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save(
        {"flat": population.flat.detach(), "optimizer": optimizer.state_dict(), "step": step},
        temporary,
    )
    temporary.replace(path)


def _resume(population: Population, optimizer, path: Path) -> int:
    if not path.exists():
        return 0
    state = torch.load(path, map_location=device(), weights_only=True)
    population.flat.data.copy_(state["flat"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]
