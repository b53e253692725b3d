"""Factors of a MODEL's neurons learned for prompts, and what is kept of the learning on disk."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..common.resume import FinishedEarly, Identity
from ..host.compute import request_for_training, trained_bytes
from ..host.evaluate import sample_each
from ..host.precision import Precision
from ..host.progress import FinishNow, Progress
from ..host.schema import later_seed
from ..host.text_encoding import encode
from . import learning_checkpoint, neuron_attribution_comfy
from .first_step_comfy import at_first_step
from .learned_factors import FactorLearning, LearningSettings, make_examples, mean_error
from .mask import NeuronMask, SearchRecord, channel_factors, sort_scales
from .memorization_score import score_prompt
from .nemo_inputs import FirstStepInputs
from .nemo_search import Neurons
from .neuron_attribution import TIMESTEPS, Cost, by_layer

_CHECKPOINT_INTERVAL = 10
#: The latents that noise is added to are sampled in so many steps, without CFG: any plausible image
#: serves.
_LATENT_STEPS = 8
#: Noised latents of all memorized prompts at least, and of each ordinary one, over all timesteps.
_MEMORIZED = 64
_ORDINARY = 2
#: Images of the anchor. Noise is added to these as to those of ordinary prompts: sampling meets
#: them under a mask that works, and one that fits at others alone may leave a portrait without a
#: face.
_ANCHORS = 8


@dataclass(kw_only=True)
class MaskLearning:
    """Factors learned for ``prompts`` against an ``anchor``, at the price of the prompts
    ``ordinary``.

    ``path``: the file that the learning is kept in, under its ``identity``; ``inputs`` changes with
    any input of the node. ``scores``: the memorization score of each prompt in the untouched
    network, and with the factors.
    """

    model: Any
    clip: object
    prompts: list[str]
    anchor: str
    ordinary: list[str]
    neurons: Neurons
    step: FirstStepInputs
    settings: LearningSettings
    path: Path | None
    identity: Identity
    inputs: str
    checkpointing: bool = False
    precision: Precision = Precision.FP32
    cost: Cost = field(default_factory=Cost)
    finished_early: bool = False
    removed: float = 1.0  # E, of those that are left
    changed: float = 0.0  # O
    scores: dict[str, tuple[float, float]] = field(default_factory=dict)

    def run(self, start: NeuronMask | None) -> FactorLearning:
        """Learn from ``start``, or from the untouched network; goes on where the kept learning
        is.
        """
        logging.info("Optimize Neuron Mask: %s.", self._announced())
        texts = [*self.prompts, self.anchor, *self.ordinary]
        conditions = [encode(self.clip, text)[1] for text in texts]
        bar = Progress(len(self.ordinary) + _ANCHORS + self.settings.steps)
        latents = self._sample(
            [
                *conditions[len(self.prompts) + 1 :],
                *[conditions[len(self.prompts)]] * _ANCHORS,
            ],
            bar.show,
        )
        # An example is an input and its target, float32.
        numbers = 2 * self._examples * math.prod(self.step.shape)
        total = sum(layer.width for layer in self.neurons.layers)
        request_for_training(trained_bytes([torch.empty(total, device="meta")]) + 4 * numbers)
        with torch.inference_mode(False):
            initial = _initial(start, self.neurons).to(self.model.load_device)
            learning = FactorLearning(self.neurons, self.settings, initial)
        if self.path is not None:
            self.finished_early = learning_checkpoint.restore(
                learning, self.path, self.identity, self.inputs
            )
            if learning.done:
                text = "Optimize Neuron Mask: goes on at step %d of %s."
                logging.info(text, learning.done, self.path.name)
        neuron_attribution_comfy.run(
            self.model,
            latents,
            conditions,
            lambda session: self._learn(
                session, learning, lambda done: bar.show(len(latents) + done)
            ),
            dtype=self.precision.dtype,
            checkpointing=self.checkpointing,
        )
        factors = by_layer(learning.result(), self.neurons)
        noise = self.step.noise()
        for text, condition in zip(self.prompts, conditions, strict=False):
            self.scores[text] = at_first_step(
                self.model,
                condition,
                shape=self.step.shape,
                timestep=self.step.timestep,
                work=lambda predict: (
                    score_prompt(predict, noise).value,
                    self._masked_score(predict, noise, factors),
                ),
                rows=len(noise),
            )
            self.cost.forward += 2 * len(noise)
        return learning

    def _sample(self, conditions: list[list], show: Callable[[int], None]) -> list[torch.Tensor]:
        """A latent (1, C, H, W) of each conditioning: one of each ordinary prompt at the same
        seed, then those of the anchor at a seed each. Neighbors that can be joined share calls.
        """
        seeds = [
            later_seed(self.settings.seed, max(0, number - len(self.ordinary) + 1))
            for number in range(len(conditions))
        ]
        blank = {"samples": torch.zeros(1, *self.step.shape)}
        latents: list[torch.Tensor] = []
        for latent in sample_each(self.model, conditions, blank, seeds, steps=_LATENT_STEPS):
            latents.append(latent)
            self.cost.forward += _LATENT_STEPS
            show(len(latents))
        return latents

    def _masked_score(
        self, predict: Callable, noise: torch.Tensor, factors: dict[str, torch.Tensor]
    ) -> float:
        return score_prompt(lambda rows: predict(rows, factors), noise).value

    def _learn(self, session: Any, learning: FactorLearning, show: Callable[[int], None]) -> None:
        """Make the examples, and all steps that are left."""
        anchor = len(self.prompts)
        settings = self.settings
        memorized, ordinary = self._inputs(session)
        known = make_examples(session, memorized, anchor=anchor, erased=True, cost=self.cost)
        kept = make_examples(session, ordinary, anchor=anchor, erased=False, cost=self.cost)
        finish = FinishNow()
        try:
            with finish:
                while learning.done < settings.steps and not self.finished_early:
                    learning.advance(session, known, kept, self.cost)
                    show(learning.done)
                    if self.path is not None and learning.done % _CHECKPOINT_INTERVAL == 0:
                        self._save(learning)
                    finish.check()
        except FinishedEarly:
            self.finished_early = learning.done < settings.steps
        finally:
            if self.path is not None:
                self._save(learning)
        factors = by_layer(learning.result().to(session.device), self.neurons)
        self.removed = mean_error(session, known, factors, self.cost)
        self.changed = mean_error(session, kept, factors, self.cost) if kept else 0.0

    def _inputs(self, session: Any) -> tuple[list, list]:
        """What the network sees of the latents, with timestep and row: for each prompt, and for
        each ordinary one.

        The latents are those of the ordinary prompts and then those of the anchor.
        """
        generator = torch.Generator().manual_seed(self.settings.seed)
        captions = len(self.ordinary)

        def noised(latent: int, number: int, row: int) -> tuple[torch.Tensor, int, int]:
            timestep = TIMESTEPS[number % len(TIMESTEPS)]
            noise = torch.randn((1, *self.step.shape), generator=generator)
            return session.noised(latent, noise, timestep), timestep, row

        def place(number: int) -> int:
            return captions + number // 2 % _ANCHORS if number % 2 else number // 2 % captions

        levels = len(TIMESTEPS)
        each = max(_MEMORIZED // len(self.prompts), levels)
        memorized = [
            noised(place(number // levels), number, row)
            for row in range(len(self.prompts))
            for number in range(each)
        ]
        first = len(self.prompts) + 1
        half = len(TIMESTEPS) // _ORDINARY
        return memorized, [
            noised(caption, caption + half * number, first + caption)
            for caption in range(captions)
            for number in range(_ORDINARY)
        ]

    def _save(self, learning: FactorLearning) -> None:
        assert self.path is not None
        finished = self.inputs if self.finished_early else ""
        learning_checkpoint.save(learning, self.path, self.identity, finished)

    @property
    def _examples(self) -> int:
        """How many examples of both kinds there are."""
        prompts = len(self.prompts)
        memorized = prompts * max(_MEMORIZED // prompts, len(TIMESTEPS))
        return memorized + _ORDINARY * len(self.ordinary)

    def _announced(self) -> str:
        """How many rows of the network the learning takes, for the log."""
        settings = self.settings
        prompts = len(self.prompts)
        ordinary = len(self.ordinary)
        forward = (
            _LATENT_STEPS * (ordinary + _ANCHORS)
            + 3 * self._examples
            + 2 * prompts * self.step.noise_samples
        )
        return (
            f"{forward} rows of the network and {2 * settings.rows * settings.steps} forward and "
            "backward"
        )

    def report(self, mask: NeuronMask, learning: FactorLearning) -> str:
        """Neurons, sum, score of each prompt, price, and the cost."""
        of_layers = [1 - scale for of_layer in mask.scales.values() for scale in of_layer.values()]
        end = " (finished early by the user)" if self.finished_early else ""
        lines = [
            f"{learning.done} of {self.settings.steps} steps{end}: {mask.count} of "
            f"{len(learning.factors)} neurons scaled, the sum of 1 - factor is "
            f"{sum(of_layers):.1f}.",
            f"The prompts' difference from the anchor is down to {self.removed:.0%}; "
            f"{len(self.ordinary)} ordinary prompts lost {self.changed:.0%} of theirs.",
            *(
                f"Score {before:.3f} untouched, {after:.3f} with the mask: {text}"
                for text, (before, after) in self.scores.items()
            ),
            f"Cost: {self.cost.forward} rows, {self.cost.gradient} rows forward and backward.",
            "These numbers do not show that an image is gone: generate with the mask, and beside "
            "it with the anchor.",
        ]
        return "\n".join(lines)


def learned_mask(
    learning: FactorLearning,
    run: MaskLearning,
    settings: dict,
    fingerprint: dict,
    start: NeuronMask | None,
) -> NeuronMask:
    """The learned factors as a mask whose neurons belong to each of the prompts.

    Neurons of ``start`` in other layers than those that were optimized stay as they are.
    """
    optimized = {layer.path for layer in learning.neurons.layers}
    scales = (
        {}
        if start is None
        else {path: of for path, of in start.scales.items() if path not in optimized}
    )
    for path, factors in by_layer(learning.result(), learning.neurons).items():
        scales[path] = {
            index: factor for index, factor in enumerate(factors.tolist()) if factor != 1
        }
    scales = sort_scales(scales)
    found = {path: tuple(of_layer) for path, of_layer in scales.items()}
    selected = {
        path: dict.fromkeys(map(str, indices), "learned") for path, indices in found.items()
    }
    searches = []
    for text in run.prompts:
        before, after = run.scores[text]
        details: dict = {"finished": not run.finished_early, "score_untouched": before}
        details["score_after_refinement"] = after
        details |= {"z": {}, "activation": {}, "selected_by": selected, "settings": settings}
        searches.append(SearchRecord(text, found, not run.finished_early, details))
    kept = () if start is None else start.history
    return NeuronMask(scales, tuple(searches), fingerprint, (*kept, "Optimize Neuron Mask"))


def _initial(start: NeuronMask | None, neurons: Neurons) -> torch.Tensor:
    """The factors (total,) that a mask gives the neurons; ones without it."""
    layers = list(neurons.layers)
    if start is None:
        return torch.ones(sum(layer.width for layer in layers))
    here = {layer.path for layer in layers}
    given = channel_factors(
        NeuronMask({path: of for path, of in start.scales.items() if path in here}), layers
    )
    return torch.cat([given.get(layer.path, torch.ones(layer.width)) for layer in layers])
