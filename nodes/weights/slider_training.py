"""Sliders: LoRAs whose strength moves one concept, from two phrases or from pairs of images.

Concept Sliders (Gandikota et al., ECCV 2024, arXiv 2311.12092). From phrases, equation 7: at
strength 1 the model answers to the base prompt c_t what the frozen model e answers, moved from the
phrase c_- towards c_+,

    e(x, c_t) + eta sum_p (e(x, (c_+, p)) - e(x, (c_-, p))),

with p the concepts to preserve. Here a step draws one p for each row instead of adding all: the
mean gradient is that of the sum over p divided by their number, so eta means the same however many
they are. From pairs of images, the visual objective: at strength -1 the model predicts the noise in
the image before, at strength 1 that in the image after.

At strength -1 a slider from phrases is trained on the same difference with the other sign, in the
same noised images: the three evaluations of the frozen model serve two rows with gradients.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from ..common.network_call import rows_in_call
from ..common.training.training_loss import PairObjective
from .flat_layout import Layout, Slot
from .inversion import prediction_scale
from .resumable_training import ResumableTraining, describe_losses

if TYPE_CHECKING:
    from ..common.lora_reader import Factors
    from ..common.training.session import Session
    from .space_sliders import SpaceSliders

#: Steps whose draws no training sees, for the error that is left.
_HELD_OUT = range(-4, 0)
_STRENGTHS = (1.0, -1.0)


@dataclass(frozen=True, kw_only=True)
class SliderSettings:
    """``batch_size`` noised images (or pairs) a step; each gives a row at strength 1 and one at -1.

    ``guidance_scale``: eta of equation 7, or times the difference of a pair. ``end_percent``: the
    fraction of the sampling range that is trained, from pure noise on.
    """

    steps: int
    learning_rate: float = 0.0002
    batch_size: int = 4
    guidance_scale: float = 2.0
    end_percent: float = 1.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Concept:
    """A slider from phrases: the session's conditions of c_+ and c_-, each by scene and by
    preserved concept.
    """

    increase: Sequence[Sequence[int]]
    decrease: Sequence[Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class PhraseData:
    """Which of a session's conditions belong to which slider.

    ``scenes``: for each latent the number of its base prompt. ``neutral``: the condition c_t of
    each base prompt. ``kinds``: for each condition what is equal where two can share an evaluation.
    """

    scenes: Sequence[int]
    neutral: Sequence[int]
    concepts: Sequence[Concept]
    kinds: Sequence[Hashable]

    @property
    def sliders(self) -> int:
        """Number of sliders that are trained."""
        return len(self.concepts)

    @property
    def images(self) -> int:
        """Number of images to draw from."""
        return len(self.scenes)

    @property
    def preserved(self) -> int:
        """Number of preserved concepts; 1 without any."""
        return len(self.concepts[0].increase[0])


@dataclass(frozen=True, kw_only=True)
class PairData:
    """Pairs of a session's latents: all images before, then all after.

    ``neutral``: the condition of each pair. ``weights``: for each pair how much the error at each
    position counts, (1, 1, ..., H, W). ``kinds`` as in `PhraseData`.
    """

    images: int
    neutral: Sequence[int]
    kinds: Sequence[Hashable]
    objective: PairObjective
    weights: Sequence[torch.Tensor] | None = None
    sliders: int = 1
    preserved: int = 1


class SliderFactors:
    """The LoRA factors of ``sliders`` sliders as one parameter ``flat`` (sliders, D) in a layout.

    Rows of a batch have a slider and a strength each (``select``); after ``off`` layers are left as
    they are.
    """

    def __init__(
        self, layout: Layout, sliders: int, seed: int, device: torch.device | str = "cpu"
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        start = torch.zeros(layout.size)
        for slot in layout.slots:
            numbers = torch.rand(slot.up_offset - slot.offset, generator=generator)
            inputs = math.prod(slot.down_shape[1:])
            # uniform, as down factors start in PEFT; up factors start at zero
            start[slot.offset : slot.up_offset] = (2 * numbers - 1) / math.sqrt(inputs)
        self.layout = layout
        self.flat = torch.nn.Parameter(start.to(device).repeat(sliders, 1))
        self._sliders: torch.Tensor | None = None
        self._strengths = torch.empty(0)

    @staticmethod
    def training_bytes(layout: Layout, sliders: int) -> int:
        """What a training of such factors holds on its device, in bytes: numbers, gradients and
        Adam's two moments.
        """
        return 4 * 4 * sliders * layout.size

    def off(self, images: Sequence[int] = ()) -> None:
        """The next batch is evaluated by the frozen model, whatever its ``images``."""
        self._sliders = None

    def select(
        self,
        sliders: Sequence[int],
        strengths: Sequence[float],
        images: Sequence[int] = (),
    ) -> None:
        """The slider and the strength of each row of the next batch, whatever its ``images``."""
        device = self.flat.device
        self._sliders = torch.tensor(sliders, device=device)
        self._strengths = torch.tensor(strengths, device=device)

    def change(self, slot: Slot, x: torch.Tensor) -> torch.Tensor | None:
        """What a layer adds to its output (B, ..., out) for inputs (B, ..., in); None while off."""
        if self._sliders is None:
            return None
        sliders = rows_in_call(self._sliders, len(x))
        strengths = rows_in_call(self._strengths, len(x)) * self.layout.scale
        down = self.flat[:, slot.offset : slot.up_offset].view(-1, *slot.down_shape)
        up = self.flat[:, slot.up_offset : slot.end].view(-1, *slot.up_shape)
        strengths = strengths.view(-1, *[1] * (x.ndim - 1))
        if len(self.flat) == 1:
            return functional.linear(strengths * functional.linear(x, down[0]), up[0])
        # With all sizes named: an empty text, as Lens encodes one, has no tokens.
        tokens = x.reshape(len(x), math.prod(x.shape[1:-1]), x.shape[-1])
        hidden = torch.bmm(tokens, down[sliders].mT)
        return strengths * torch.bmm(hidden, up[sliders].mT).view(*x.shape[:-1], up.shape[1])

    @torch.no_grad()
    def layers(self, slider: int) -> dict[str, Factors]:
        """The factors of one slider, float32 on the CPU."""
        return self.layout.unflatten(self.flat[slider].detach().float().cpu().clone())


@dataclass(frozen=True, kw_only=True)
class SliderDraw:
    """A step: for each row the number of its image or pair, of its preserved concept, and the
    fraction of the sampling range; and the seed of the noise.
    """

    images: list[int]
    preserved: list[int]
    percents: list[float]
    seed: int

    def noise(self, shape: Sequence[int]) -> torch.Tensor:
        """Noise (rows, ...) for latents of a shape."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(len(self.images), *shape, generator=generator)


@dataclass(kw_only=True)
class SliderRows:
    """Rows with gradients: noised latents (R, C, ...) and for each row its noise level, condition,
    image, slider, strength, and the latent (R, C, ...) that the model shall predict.

    ``scales``: what the error of the clean latent is multiplied by. ``weights``: as in `PairData`.
    """

    noised: torch.Tensor
    levels: list[float]
    conditions: list[int]
    images: list[int]
    sliders: list[int]
    strengths: list[float]
    targets: torch.Tensor
    scales: list[float]
    weights: torch.Tensor | None = None


def slider_target(
    neutral: torch.Tensor,
    increase: torch.Tensor,
    decrease: torch.Tensor,
    *,
    guidance_scale: float,
    strength: float,
) -> torch.Tensor:
    """Equation 7 for one preserved concept: e(c_t) + strength eta (e(c_+) - e(c_-)).

    Predictions of the clean latent or of the noise: the noised latent cancels in the difference, so
    the equation is the same in both.
    """
    return neutral + strength * guidance_scale * (increase - decrease)


@dataclass
class SliderTraining(ResumableTraining):
    """A run on ``factors``; a step's loss is the mean over sliders and rows of the error of the
    model's prediction (noise, v, or velocity of a flow).
    """

    factors: SliderFactors | SpaceSliders
    data: PhraseData | PairData
    settings: SliderSettings
    losses: list[float] = field(default_factory=list)
    finished_early: bool = False

    def __post_init__(self) -> None:
        group = {"params": [self.factors.flat], "ratio": 1.0}
        self.optimizer = torch.optim.Adam(
            [group], lr=self.settings.learning_rate, betas=(0.9, 0.99)
        )

    @property
    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The factors of all sliders."""
        return {"factors": self.factors.flat}

    def draw(self, step: int) -> SliderDraw:
        """The images, noise levels and noise of a step, from its number alone.

        Noise levels are stratified: one in each of ``batch_size`` equal intervals.
        """
        settings = self.settings
        generator = self.generator(step)
        count = settings.batch_size
        images = torch.randint(self.data.images, (count,), generator=generator)
        preserved = torch.randint(self.data.preserved, (count,), generator=generator)
        fractions = (torch.arange(count) + torch.rand(count, generator=generator)) / count
        seed = int(torch.randint(2**62, (1,), generator=generator))
        return SliderDraw(
            images=images.tolist(),
            preserved=preserved.tolist(),
            percents=(settings.end_percent * fractions).tolist(),
            seed=seed,
        )

    def step_backward(self, session: Session, step: int) -> float:
        """Add the gradient of a step. Every slider trains as it would alone: the gradient is that
        of the sum over sliders.
        """
        rows = self.rows(session, self.draw(step))
        count = len(rows.noised) / self.data.sliders
        total = 0.0
        for errors in self._errors(session, rows):
            loss = errors.sum() / count
            loss.backward()
            total += loss.item()
        return total / self.data.sliders

    @torch.no_grad()
    def rows(self, session: Session, draw: SliderDraw) -> SliderRows:
        """The rows with gradients of a step, with what the model shall predict in each."""
        if isinstance(self.data, PairData):
            return self._pair_rows(session, self.data, draw)
        return self._phrase_rows(session, self.data, draw)

    @torch.no_grad()
    def error_left(self, session: Session) -> list[float]:
        """For each slider the error on noise that no step has, over that of the frozen model."""
        sums = torch.zeros(2, self.data.sliders)
        for step in _HELD_OUT:
            rows = self.rows(session, self.draw(step))
            for place, on in enumerate((True, False)):
                strengths = rows.strengths if on else [0.0] * len(rows.strengths)
                errors = torch.cat(list(self._errors(session, rows, strengths))).cpu()
                order = [row for group in self._groups(session, rows) for row in group]
                sliders = torch.tensor([rows.sliders[row] for row in order])
                sums[place].index_add_(0, sliders, errors.float())
        return (sums[0] / sums[1].clamp_min(1e-30)).tolist()

    def _phrase_rows(self, session: Session, data: PhraseData, draw: SliderDraw) -> SliderRows:
        noised, levels = self._noised(session, draw, [session.latents[i] for i in draw.images])
        scenes = [data.scenes[image] for image in draw.images]
        places = list(zip(scenes, draw.preserved, strict=True))
        neutral = [data.neutral[scene] for scene in scenes]
        conditions = list(neutral)
        for concept in data.concepts:
            conditions += [concept.increase[scene][kept] for scene, kept in places]
            conditions += [concept.decrease[scene][kept] for scene, kept in places]
        answers = self._frozen(session, draw, noised, levels=levels, conditions=conditions)
        base, *phrases = answers.split(len(noised))
        targets = []
        for number in range(data.sliders):
            increase = phrases[2 * number]
            decrease = phrases[2 * number + 1]
            for strength in _STRENGTHS:
                targets.append(
                    slider_target(
                        base,
                        increase,
                        decrease,
                        guidance_scale=self.settings.guidance_scale,
                        strength=strength,
                    )
                )
        times = len(targets)
        sliders = [number for number in range(data.sliders) for _ in range(2 * len(noised))]
        strengths = [strength for strength in _STRENGTHS for _ in range(len(noised))]
        scales = [prediction_scale(session.sampling, level) for level in levels]
        return SliderRows(
            noised=noised.repeat(times, *[1] * (noised.ndim - 1)),
            levels=levels * times,
            conditions=neutral * times,
            images=draw.images * times,
            sliders=sliders,
            strengths=strengths * data.sliders,
            targets=torch.cat(targets),
            scales=scales * times,
        )

    def _pair_rows(self, session: Session, data: PairData, draw: SliderDraw) -> SliderRows:
        before = [session.latents[pair] for pair in draw.images]
        after = [session.latents[data.images + pair] for pair in draw.images]
        noised_before, levels = self._noised(session, draw, before)
        noised_after, _ = self._noised(session, draw, after)
        noised = torch.cat([noised_before, noised_after])
        clean = session.clean(torch.cat(before + after).to(session.device))
        neutral = [data.neutral[pair] for pair in draw.images] * 2
        count = len(draw.images)
        if data.objective == PairObjective.VISUAL:
            targets = clean
            strengths = [-1.0] * count + [1.0] * count
            scales = [prediction_scale(session.sampling, level) for level in levels]
        else:
            base = self._frozen(session, draw, noised, levels=levels * 2, conditions=neutral)
            change = self.settings.guidance_scale * (clean[count:] - clean[:count])
            targets = base + torch.cat([change, -change])
            strengths = [1.0] * count + [-1.0] * count
            scales = [1.0] * count  # of the image: one of the noise is lost in low noise levels
        weights = None
        if data.weights is not None:
            weights = torch.cat([data.weights[pair] for pair in draw.images] * 2)
        return SliderRows(
            noised=noised,
            levels=levels * 2,
            conditions=neutral,
            images=draw.images * 2,
            sliders=[0] * len(noised),
            strengths=strengths,
            targets=targets,
            scales=scales * 2,
            weights=weights,
        )

    def _noised(
        self, session: Session, draw: SliderDraw, latents: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[float]]:
        """Latents with the noise of a draw, and the noise levels."""
        clean = torch.cat(latents).to(session.device)
        noise = draw.noise(clean.shape[1:]).to(clean)
        levels = [session.sigma(percent) for percent in draw.percents]
        return session.noised(clean, noise, torch.tensor(levels, device=session.device)), levels

    def _frozen(
        self,
        session: Session,
        draw: SliderDraw,
        noised: torch.Tensor,
        *,
        levels: list[float],
        conditions: list[int],
    ) -> torch.Tensor:
        """What the frozen model predicts for latents (B, C, ...), once for each B of the
        conditions.
        """
        count = len(noised)
        limit = session.rows_at_once(len(conditions), noised.shape[1:], gradients=False)
        answers = []
        for first in range(0, len(conditions), limit):
            rows = range(first, min(first + limit, len(conditions)))
            places = torch.tensor([row % count for row in rows], device=noised.device)
            sigmas = torch.tensor([levels[row % count] for row in rows], device=noised.device)
            of_rows = [conditions[row] for row in rows]
            images = [draw.images[row % len(draw.images)] for row in rows]
            self.factors.off(images)
            answer = session.denoised(noised[places], sigmas, of_rows, images=images)
            answers.append(answer.float())
        return torch.cat(answers)

    def _errors(
        self, session: Session, rows: SliderRows, strengths: Sequence[float] | None = None
    ) -> Iterator[torch.Tensor]:
        """The mean squared error of the prediction in each row (B,), in the order of
        ``_groups``.
        """
        strengths = rows.strengths if strengths is None else strengths
        for group in self._groups(session, rows):
            places = torch.tensor(group, device=rows.noised.device)
            sigmas = torch.tensor([rows.levels[row] for row in group], device=rows.noised.device)
            images = [rows.images[row] for row in group]
            self.factors.select(
                [rows.sliders[row] for row in group],
                [strengths[row] for row in group],
                images,
            )
            conditions = [rows.conditions[row] for row in group]
            answers = session.denoised(rows.noised[places], sigmas, conditions, images=images)
            errors = (answers.float() - rows.targets[places].float()).square()
            if rows.weights is not None:
                weights = rows.weights[places.cpu()].to(errors)
                mean = weights.flatten(1).mean(dim=1).clamp_min(1e-6)
                errors = errors * weights / mean.view(-1, *[1] * (errors.ndim - 1))
            scales = torch.tensor([rows.scales[row] for row in group]).to(errors)
            yield scales.square() * errors.flatten(1).mean(dim=1)

    def _groups(self, session: Session, rows: SliderRows) -> list[list[int]]:
        """Numbers of rows that can share an evaluation, as many as fit in memory."""
        alike: dict[Hashable, list[int]] = defaultdict(list)
        for row, condition in enumerate(rows.conditions):
            alike[self.data.kinds[condition]].append(row)
        groups = []
        for members in alike.values():
            limit = session.rows_at_once(len(members), rows.noised.shape[1:])
            groups += [members[first : first + limit] for first in range(0, len(members), limit)]
        return groups


def describe_slider_training(
    run: SliderTraining, names: Sequence[str], *, left: Sequence[float], seconds: float
) -> str:
    """What was trained, the losses, and how much of the error is left for each slider."""
    layout = run.factors.layout
    length = f"{run.steps_done} steps{' (finished early)' if run.finished_early else ''}"
    lines = [
        f"{len(names)} {'slider' if len(names) == 1 else 'sliders'} of rank {layout.rank} in "
        f"{len(layout.slots)} layers, {layout.size:,} numbers each. {length}, {seconds:.2f} s "
        f"each. {describe_losses(run)}"
    ]
    for name, fraction in zip(names, left, strict=True):
        lines.append(f"{name}: {100 * fraction:.0f} % of the error is left on unseen noise.")
    return "\n".join(lines)
