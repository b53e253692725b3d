"""The training of a learned space (learned_space.py): rows of several members in one batch, a code for each member.

What chance decides at a step, noise, noise levels and which captions are dropped, is the same for all members in it, as
are the scenes where members have them in common: what it does to the updates is not taken for what tells members apart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from ..common.loss_curve import SMOOTH, running_mean
from .inversion import prediction_scale, rate_fraction
from .learned_space import LearnedUpdates
from .space import Space

_STRIDE = 1_000_003


@dataclass(frozen=True)
class SpaceTrainingSettings:
    """``members`` of them a step, ``images`` of each; rates are multiples of ``learning_rate``, that of directions.

    ``prior``: what the mean square of a code's numbers adds to its member's loss. ``end_percent``: the fraction of the
    sampling range that is trained, from pure noise on. ``batch_size``: the most images in one evaluation.
    """

    steps: int
    learning_rate: float = 0.004
    members: int = 32
    images: int = 3
    code_rate: float = 7.5
    projection_rate: float = 0.75
    prior: float = 0.0
    end_percent: float = 0.85
    caption_dropout: float = 0.0
    batch_size: int = 96
    seed: int = 0


@dataclass(frozen=True)
class MemberImages:
    """Which of a session's latents belong to whom: for each member the numbers of its images.

    ``kinds``: for each image what is equal where two can share an evaluation. ``conditions``: for each image its
    condition in the session. ``empty_row``: the condition of images whose caption is dropped. ``weights``: for each
    image how much the error at each position counts, (1, 1, ..., H, W).
    """

    images: Sequence[Sequence[int]]
    kinds: Sequence[Hashable]
    conditions: Sequence[int]
    empty_row: int | None = None
    weights: Sequence[torch.Tensor] | None = None


@dataclass(frozen=True)
class Row:
    """An image of a step: its member, its number, its place among those of the member, and its caption dropped."""

    member: int
    image: int
    place: int
    dropped: bool


@dataclass(frozen=True)
class Draw:
    """A step: its images, and for each place the fraction of the sampling range and the seed of the noise."""

    members: list[int]
    rows: list[Row]
    percents: list[float]
    seed: int

    def noise(self, shape: Sequence[int]) -> torch.Tensor:
        """The noise (places, ...) of latents (..., ) of a shape: one for each place."""
        return torch.randn(len(self.percents), *shape, generator=torch.Generator().manual_seed(self.seed))


@dataclass
class SpaceTraining:
    """A run on ``updates``; ``losses`` of the steps done are means over members of the error of the prediction."""

    updates: LearnedUpdates
    data: MemberImages
    settings: SpaceTrainingSettings
    losses: list[float] = field(default_factory=list)
    finished_early: bool = False

    def __post_init__(self):
        one = self.settings
        ratios = {"directions": 1.0, "codes": one.code_rate, "projections": one.projection_rate}
        groups = [{"params": [self.updates.parameters[name]], "ratio": ratio} for name, ratio in ratios.items()]
        self.optimizer = torch.optim.Adam(groups, lr=one.learning_rate, betas=(0.9, 0.99))

    @property
    def steps_done(self) -> int:
        """Number of finished steps."""
        return len(self.losses)

    def state(self) -> dict[str, torch.Tensor]:
        """All that the run has made: what ``restore`` needs to go on as if nothing had happened."""
        moments = self.optimizer.state_dict()["state"]
        tensors = {f"adam.{row}.{name}": value for row, one in moments.items() for name, value in one.items()}
        tensors |= {name: value.detach() for name, value in self.updates.parameters.items()}
        return {**tensors, "losses": torch.tensor(self.losses, dtype=torch.float64)}

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Take up a ``state``; raises KeyError, ValueError or RuntimeError for one that is damaged."""
        moments: dict[int, dict[str, torch.Tensor]] = defaultdict(dict)
        for name, value in tensors.items():
            if name.startswith("adam."):
                _, row, kind = name.split(".")
                moments[int(row)][kind] = value
        if not all(bool(value.isfinite().all()) for value in tensors.values()):
            raise ValueError("a tensor holds values that are not finite")
        with torch.no_grad():
            for name, value in self.updates.parameters.items():
                value.copy_(tensors[name])
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": dict(moments)})
        self.losses[:] = tensors["losses"].tolist()

    def run(self, session, on_step: Callable[[int], None]) -> None:
        """Train to the end of the settings from where the run is.

        ``session`` evaluates the model (`Session` of nodes/host/training/trainer.py) with ``updates.change`` in its
        layers. Raises ValueError when the loss is not finite.
        """
        while self.steps_done < self.settings.steps:
            self.optimizer.zero_grad(set_to_none=True)
            value = self.backward(session, self.draw(self.steps_done))
            if not math.isfinite(value):
                raise ValueError(
                    f"The loss is no longer a finite number after {self.steps_done} steps: use a lower learning rate, "
                    "or fp32."
                )
            fraction = rate_fraction(self.steps_done, self.settings.steps)
            for group in self.optimizer.param_groups:
                group["lr"] = self.settings.learning_rate * group["ratio"] * fraction
            self.optimizer.step()
            self.losses.append(value)
            on_step(self.steps_done)

    def draw(self, step: int) -> Draw:
        """The images, noise levels and noise of a step, from the seed and the number of the step alone."""
        settings, data = self.settings, self.data
        generator = torch.Generator().manual_seed((settings.seed * _STRIDE + step) % 2**63)
        members = torch.randperm(len(data.images), generator=generator)[: settings.members].tolist()
        order = torch.randperm(max(map(len, data.images)), generator=generator).tolist()
        percents = settings.end_percent * torch.rand(settings.images, generator=generator)
        dropped = (torch.rand(settings.images, generator=generator) < settings.caption_dropout).tolist()
        seed = int(torch.randint(2**62, (1,), generator=generator))
        rows = []
        for member in members:
            images = [data.images[member][place] for place in order if place < len(data.images[member])]
            rows += [Row(member, images[i % len(images)], i, dropped[i]) for i in range(settings.images)]
        return Draw(members, rows, percents.tolist(), seed)

    def backward(self, session, draw: Draw) -> float:
        """Add the gradient of one step, and return its loss without the prior."""
        total = 0.0
        for rows in self._batches(draw.rows):
            loss = self._errors(session, rows, draw).sum() / len(draw.rows)
            loss.backward()
            total += loss.item()
        if self.settings.prior:
            (self.settings.prior * self.updates.codes[draw.members].square().mean()).backward()
        return total

    @torch.no_grad()
    def fit(self, session) -> tuple[float, float]:
        """The loss of members at random on noise that no step has: by their own codes, and by each other's."""
        draw, total = self.draw(-1), [0.0, 0.0]
        following = dict(zip(draw.members, draw.members[1:] + draw.members[:1], strict=True))
        for rows in self._batches(draw.rows):
            others = [replace(row, member=following[row.member]) for row in rows]
            for which, members in enumerate((rows, others)):
                total[which] += float(self._errors(session, members, draw).sum()) / len(draw.rows)
        return total[0], total[1]

    def _batches(self, rows: list[Row]) -> Iterator[list[Row]]:
        """Rows that can share an evaluation, ``batch_size`` at a time."""
        parts = defaultdict(list)
        for row in rows:
            parts[self.data.kinds[row.image], row.dropped].append(row)
        for part in parts.values():
            for first in range(0, len(part), self.settings.batch_size):
                yield part[first : first + self.settings.batch_size]

    def _errors(self, session, rows: list[Row], draw: Draw) -> torch.Tensor:
        """The squared error of what the model predicts (noise, v, or velocity of a flow) for each row (B,)."""
        latents, device = torch.cat([session.latents[row.image] for row in rows]), session.device
        noise = draw.noise(latents.shape[1:])[[row.place for row in rows]].to(latents.dtype).to(device)
        latents, levels = latents.to(device), [session.sigma(draw.percents[row.place]) for row in rows]
        sigmas = torch.tensor(levels, device=device)
        conditions = [self.data.empty_row if row.dropped else self.data.conditions[row.image] for row in rows]
        self.updates.select(torch.tensor([row.member for row in rows]))
        answer = session.denoised(session.noised(latents, noise, sigmas), sigmas, conditions)
        scale = torch.tensor([prediction_scale(session.sampling, level) for level in levels], device=device)
        errors = (session.clean(latents).float() - answer.float()).square()
        if self.data.weights is not None:
            weights = torch.cat([self.data.weights[row.image] for row in rows]).to(device).expand(errors.shape)
            errors = errors * weights / weights.flatten(1).mean(dim=1).view(-1, *[1] * (errors.ndim - 1))
        return scale.square() * errors.flatten(1).mean(dim=1)


def draw_losses(figure, run: SpaceTraining) -> None:
    """Plot the loss of each step and its running mean."""
    axes, losses = figure.add_subplot(), run.losses
    steps = range(1, len(losses) + 1)
    axes.plot(steps, losses, color="tab:blue", alpha=0.3, linewidth=1, label="each step")
    axes.plot(steps, running_mean(losses), color="tab:blue", label=f"mean of {SMOOTH}")
    axes.set(xlabel="step", ylabel="loss", title="Learning a space")
    axes.grid(alpha=0.3)
    axes.legend()


def describe_training(run: SpaceTraining, space: Space, seconds: float, fit: tuple[float, float]) -> str:
    """What was trained, the losses, and what the codes say of the members."""
    losses, codes = run.losses, run.updates.codes
    counts = [len(images) for images in run.data.images]
    each = f"{counts[0]}" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    shared = run.updates.directions.numel() + run.updates.projections.numel()
    own, others = fit
    visits = run.steps_done * min(run.settings.members, len(codes)) / len(codes)
    return "\n".join(
        [
            f"{len(codes)} members of {each} images: {shared:,} numbers that all share, and a code of {codes.shape[1]} "
            f"for each. {len(space.layout.slots)} layers of rank {space.layout.rank}, {space.components} components.",
            f"{run.steps_done} steps{' (finished early)' if run.finished_early else ''}, {seconds:.2f} s each: every "
            f"member came up {visits:.0f} times on average. Loss {sum(losses[:SMOOTH]) / len(losses[:SMOOTH]):.4f} in "
            f"the first steps, {sum(losses[-SMOOTH:]) / len(losses[-SMOOTH:]):.4f} in the last.",
            f"On noise that no step has: loss {own:.4f} by members' own codes, {others:.4f} by each other's. The "
            "difference is what the codes say of who it is.",
        ]
    )
