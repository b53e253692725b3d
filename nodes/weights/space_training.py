"""The training of a learned space (learned_space.py): rows of several members in one batch, a code
for each member.

What chance decides at a step, noise, noise levels and which captions are dropped, is the same for
all members in it, as are the scenes where members have them in common: what it does to the updates
is not taken for what tells members apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import torch

from ..common.resume import FREE, named_input
from .inversion import prediction_scale
from .learned_space import LearnedUpdates
from .resumable_training import ResumableTraining, describe_losses
from .space import Space

if TYPE_CHECKING:
    from ..common.training.session import Session


@dataclass(frozen=True, kw_only=True)
class SpaceTrainingSettings:
    """``members`` of them a step, ``images`` of each; rates are multiples of ``learning_rate``,
    that of directions.

    ``prior``: what the mean square of a code's numbers adds to its member's loss. ``end_percent``:
    the fraction of the sampling range that is trained, from pure noise on. ``batch_size``: the most
    images in one evaluation.
    """

    steps: int
    learning_rate: float = 0.004
    members: int = field(default=32, metadata=named_input("members_per_step"))
    images: int = field(default=3, metadata=named_input("images_per_member"))
    code_rate: float = 7.5
    projection_rate: float = 0.75
    prior: float = 0.0
    end_percent: float = 0.85
    caption_dropout: float = 0.0
    batch_size: int = field(default=96, metadata=FREE)
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class MemberImages:
    """Which of a session's latents belong to whom: for each member the numbers of its images.

    ``kinds``: for each image what is equal where two can share an evaluation. ``conditions``: for
    each image its condition in the session. ``empty_row``: the condition of images whose caption is
    dropped. ``weights``: for each image how much the error at each position counts, (1, 1, ..., H,
    W).
    """

    images: Sequence[Sequence[int]]
    kinds: Sequence[Hashable]
    conditions: Sequence[int]
    empty_row: int | None = None
    weights: Sequence[torch.Tensor] | None = None


@dataclass(frozen=True)
class Row:
    """An image of a step: its member, its number, its place among those of the member, and its
    caption dropped.
    """

    member: int
    image: int
    place: int
    dropped: bool


@dataclass(frozen=True)
class Draw:
    """A step: its images, and for each place the fraction of the sampling range and the seed of the
    noise.
    """

    members: list[int]
    rows: list[Row]
    percents: list[float]
    seed: int

    def noise(self, shape: Sequence[int]) -> torch.Tensor:
        """The noise (places, ...) of latents (..., ) of a shape: one for each place."""
        return torch.randn(
            len(self.percents), *shape, generator=torch.Generator().manual_seed(self.seed)
        )


@dataclass
class SpaceTraining(ResumableTraining):
    """A run on ``updates``; ``losses`` of the steps done are means over members of the error of the
    prediction.
    """

    updates: LearnedUpdates
    data: MemberImages
    settings: SpaceTrainingSettings
    losses: list[float] = field(default_factory=list)
    finished_early: bool = False

    def __post_init__(self):
        one = self.settings
        ratios = {"directions": 1.0, "codes": one.code_rate, "projections": one.projection_rate}
        groups = [
            {"params": [self.updates.parameters[name]], "ratio": ratio}
            for name, ratio in ratios.items()
        ]
        self.optimizer = torch.optim.Adam(groups, lr=one.learning_rate, betas=(0.9, 0.99))

    @property
    def trained(self) -> dict[str, torch.nn.Parameter]:
        """Directions, projections and codes."""
        return self.updates.parameters

    def step_backward(self, session: Session, step: int) -> float:
        """As ``backward``, of a step by its number."""
        return self.backward(session, self.draw(step))

    def draw(self, step: int) -> Draw:
        """The images, noise levels and noise of a step, from the seed and the number of the step
        alone.
        """
        settings = self.settings
        data = self.data
        generator = self.generator(step)
        members = torch.randperm(len(data.images), generator=generator)[: settings.members].tolist()
        order = torch.randperm(max(map(len, data.images)), generator=generator).tolist()
        percents = settings.end_percent * torch.rand(settings.images, generator=generator)
        dropped = (
            torch.rand(settings.images, generator=generator) < settings.caption_dropout
        ).tolist()
        seed = int(torch.randint(2**62, (1,), generator=generator))
        rows = []
        for member in members:
            images = [
                data.images[member][place] for place in order if place < len(data.images[member])
            ]
            rows += [
                Row(member, images[i % len(images)], i, dropped[i]) for i in range(settings.images)
            ]
        return Draw(members, rows, percents.tolist(), seed)

    def backward(self, session: Session, draw: Draw) -> float:
        """Add the gradient of one step, and return its loss without the prior."""
        total = 0.0
        for rows in self._batches(session, draw.rows):
            loss = self._errors(session, rows, draw).sum() / len(draw.rows)
            loss.backward()
            total += loss.item()
        if self.settings.prior:
            (self.settings.prior * self.updates.codes[draw.members].square().mean()).backward()
        return total

    @torch.no_grad()
    def fit(self, session: Session) -> tuple[float, float]:
        """The loss of members at random on noise that no step has: by their own codes, and by each
        other's.

        A step may have one member alone, which is compared with the next one of all.
        """
        draw = self.draw(-1)
        total = [0.0, 0.0]
        others = draw.members[1:] + draw.members[:1]
        if len(draw.members) == 1:
            others = [(draw.members[0] + 1) % len(self.data.images)]
        following = dict(zip(draw.members, others, strict=True))
        for rows in self._batches(session, draw.rows):
            exchanged = [replace(row, member=following[row.member]) for row in rows]
            for which, members in enumerate((rows, exchanged)):
                total[which] += float(self._errors(session, members, draw).sum()) / len(draw.rows)
        return total[0], total[1]

    def _batches(self, session: Session, rows: list[Row]) -> Iterator[list[Row]]:
        """Rows that can share an evaluation, ``batch_size`` at a time or what the session takes."""
        parts = defaultdict(list)
        for row in rows:
            parts[self.data.kinds[row.image], row.dropped].append(row)
        for part in parts.values():
            shape = session.latents[part[0].image].shape[1:]
            together = session.rows_at_once(min(len(part), self.settings.batch_size), shape)
            for first in range(0, len(part), together):
                yield part[first : first + together]

    def _errors(self, session: Session, rows: list[Row], draw: Draw) -> torch.Tensor:
        """The squared error of what the model predicts (noise, v, or velocity of a flow) for each
        row (B,).
        """
        latents = torch.cat([session.latents[row.image] for row in rows])
        device = session.device
        noise = (
            draw.noise(latents.shape[1:])[[row.place for row in rows]].to(latents.dtype).to(device)
        )
        latents = latents.to(device)
        levels = [session.sigma(draw.percents[row.place]) for row in rows]
        sigmas = torch.tensor(levels, device=device)
        conditions = [
            cast(int, self.data.empty_row) if row.dropped else self.data.conditions[row.image]
            for row in rows
        ]
        self.updates.select(torch.tensor([row.member for row in rows]))
        images = [row.image for row in rows]
        noised = session.noised(latents, noise, sigmas)
        answer = session.denoised(noised, sigmas, conditions, images=images)
        scale = torch.tensor(
            [prediction_scale(session.sampling, level) for level in levels], device=device
        )
        errors = (session.clean(latents).float() - answer.float()).square()
        if self.data.weights is not None:
            weights = (
                torch.cat([self.data.weights[row.image] for row in rows])
                .to(device)
                .expand(errors.shape)
            )
            errors = (
                errors * weights / weights.flatten(1).mean(dim=1).view(-1, *[1] * (errors.ndim - 1))
            )
        return scale.square() * errors.flatten(1).mean(dim=1)


def describe_training(
    run: SpaceTraining, space: Space, seconds: float, fit: tuple[float, float]
) -> str:
    """What was trained, the losses, and what the codes say of the members."""
    codes = run.updates.codes
    counts = [len(images) for images in run.data.images]
    each = f"{counts[0]}" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    shared = run.updates.directions.numel() + run.updates.projections.numel()
    own, others = fit
    visits = run.steps_done * min(run.settings.members, len(codes)) / len(codes)
    return "\n".join(
        [
            f"{len(codes)} members of {each} images: {shared:,} numbers that all share, and a code "
            f"of {codes.shape[1]} for each. {len(space.layout.slots)} layers of rank "
            f"{space.layout.rank}, {space.components} components.",
            f"{run.steps_done} steps{' (finished early)' if run.finished_early else ''}, "
            f"{seconds:.2f} s each: every member came up {visits:.0f} times on average. "
            f"{describe_losses(run)}",
            f"On noise that no step has: loss {own:.4f} by members' own codes, {others:.4f} by "
            "each other's. The difference is what the codes say of who it is.",
        ]
    )
