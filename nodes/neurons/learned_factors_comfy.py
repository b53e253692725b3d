"""Factors of a MODEL's neurons learned for prompts, and what is kept of the learning on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..common.resume import FinishedEarly, Identity, damaged, load_state, save_state
from ..host.evaluate import sample_latents
from ..host.progress import FinishNow, Progress
from ..host.schema import later_seed
from ..host.text_encoding import encode
from . import neuron_attribution_comfy
from .first_step_comfy import at_first_step
from .learned_factors import FactorLearning, LearningSettings, make_examples, mean_error
from .mask import NeuronMask, SearchRecord, channel_factors, sort_scales
from .memorization_score import score_prompt
from .nemo_inputs import FirstStepInputs
from .nemo_search import Neurons
from .neuron_attribution import TIMESTEPS, Cost, by_layer

_KIND, _VERSION = "learned mask", 2
_CHECKPOINT_INTERVAL = 10
#: The latents that noise is added to are sampled in so many steps, without CFG: any plausible image serves.
_LATENT_STEPS = 8
#: Noised latents of all memorized prompts at least, and of each ordinary one, over all timesteps.
_MEMORIZED, _ORDINARY = 64, 2
#: Images of the anchor. Noise is added to these as to those of ordinary prompts: sampling meets them under a mask that
#: works, and one that fits at others alone may leave a portrait without a face.
_ANCHORS = 8


@dataclass
class MaskLearning:
    """Factors learned for ``prompts`` against an ``anchor``, at the price of the prompts ``ordinary``.

    ``path``: the file that the learning is kept in, under its ``identity``; ``inputs`` changes with any input of the
    node. ``scores``: the memorization score of each prompt in the untouched network, and with the factors.
    """

    model: object
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
    cost: Cost = field(default_factory=Cost)
    finished_early: bool = False
    removed: float = 1.0  # E, of those that are left
    changed: float = 0.0  # O
    scores: dict[str, tuple[float, float]] = field(default_factory=dict)

    def run(self, start: NeuronMask | None) -> FactorLearning:
        """Learn from ``start``, or from the untouched network; goes on where the kept learning is."""
        logging.info("Optimize Neuron Mask: %s.", self._announced())
        texts = [*self.prompts, self.anchor, *self.ordinary]
        conditions = [encode(self.clip, text)[1] for text in texts]
        sampled = [*conditions[len(self.prompts) + 1 :], *[conditions[len(self.prompts)]] * _ANCHORS]
        bar = Progress(len(sampled) + self.settings.steps)
        blank, latents = torch.zeros(1, *self.step.shape), []
        for number, positive in enumerate(sampled):
            seed = later_seed(self.settings.seed, max(0, number - len(self.ordinary) + 1))
            latents.append(sample_latents(self.model, positive, positive, blank, _LATENT_STEPS, 1.0, seed))
            self.cost.forward += _LATENT_STEPS
            bar.show(number + 1)
        with torch.inference_mode(False):
            learning = FactorLearning(self.neurons, self.settings, _initial(start, self.neurons))
        if self.path is not None:
            self.finished_early = _restore(learning, self.path, self.identity, self.inputs)
        neuron_attribution_comfy.run(
            self.model,
            latents,
            conditions,
            lambda session: self._learn(session, learning, lambda done: bar.show(len(latents) + done)),
            checkpointing=self.checkpointing,
        )
        factors = by_layer(learning.result(), self.neurons)
        noise = self.step.noise()
        for text, condition in zip(self.prompts, conditions, strict=False):
            self.scores[text] = at_first_step(
                self.model,
                condition,
                self.step.shape,
                self.step.timestep,
                lambda predict: (score_prompt(predict, noise).value, self._masked_score(predict, noise, factors)),
                len(noise),
            )
            self.cost.forward += 2 * len(noise)
        return learning

    def _masked_score(self, predict, noise: torch.Tensor, factors: dict[str, torch.Tensor]) -> float:
        return score_prompt(lambda rows: predict(rows, factors), noise).value

    def _learn(self, session, learning: FactorLearning, show: Callable[[int], None]) -> None:
        """Make the examples, and all steps that are left."""
        anchor, settings = len(self.prompts), self.settings
        memorized, ordinary = self._inputs(session)
        known = make_examples(session.predicted, memorized, anchor, True, self.cost)
        kept = make_examples(session.predicted, ordinary, anchor, False, self.cost)
        finish = FinishNow()
        try:
            with finish:
                while learning.done < settings.steps and not self.finished_early:
                    learning.advance(session.predicted, known, kept, self.cost)
                    show(learning.done)
                    if self.path is not None and learning.done % _CHECKPOINT_INTERVAL == 0:
                        self._save(learning)
                    finish.check()
        except FinishedEarly:
            self.finished_early = learning.done < settings.steps
        finally:
            if self.path is not None:
                self._save(learning)
        factors = by_layer(learning.result(), self.neurons)
        self.removed = mean_error(session.predicted, known, factors, self.cost)
        self.changed = mean_error(session.predicted, kept, factors, self.cost) if kept else 0.0

    def _inputs(self, session) -> tuple[list, list]:
        """What the network sees of the latents, with timestep and row: for each prompt, and for each ordinary one.

        The latents are those of the ordinary prompts and then those of the anchor.
        """
        generator, captions = torch.Generator().manual_seed(self.settings.seed), len(self.ordinary)

        def noised(latent: int, number: int, row: int) -> tuple[torch.Tensor, int, int]:
            timestep = TIMESTEPS[number % len(TIMESTEPS)]
            noise = torch.randn((1, *self.step.shape), generator=generator)
            return session.noised(latent, noise, timestep), timestep, row

        def place(number: int) -> int:
            return captions + number // 2 % _ANCHORS if number % 2 else number // 2 % captions

        levels = len(TIMESTEPS)
        each = max(_MEMORIZED // len(self.prompts), levels)
        memorized = [
            noised(place(number // levels), number, row) for row in range(len(self.prompts)) for number in range(each)
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
        state = learning.optimizer.state_dict()["state"].get(0, {})
        tensors = {name: torch.as_tensor(value) for name, value in state.items()}
        tensors |= {"factors": learning.factors, "losses": torch.tensor(learning.losses, dtype=torch.float64)}
        about = {"finished": self.inputs if self.finished_early else ""}
        save_state(self.path, _KIND, _VERSION, self.identity, tensors, about)

    def _announced(self) -> str:
        """How many rows of the network the learning takes, for the log."""
        settings, prompts, ordinary = self.settings, len(self.prompts), len(self.ordinary)
        examples = prompts * max(_MEMORIZED // prompts, len(TIMESTEPS)) + _ORDINARY * ordinary
        forward = _LATENT_STEPS * (ordinary + _ANCHORS) + 3 * examples + 2 * prompts * self.step.noise_samples
        return f"{forward} rows of the network and {2 * settings.rows * settings.steps} forward and backward"

    def report(self, mask: NeuronMask, learning: FactorLearning) -> str:
        """Neurons, sum, score of each prompt, price, and the cost."""
        of_layers = [1 - scale for of_layer in mask.scales.values() for scale in of_layer.values()]
        end = " (finished early by the user)" if self.finished_early else ""
        lines = [
            f"{learning.done} of {self.settings.steps} steps{end}: {mask.count} of {len(learning.factors)} neurons "
            f"scaled, the sum of 1 - factor is {sum(of_layers):.1f}.",
            f"Of what distinguishes the prompts from the anchor {self.removed:.0%} is left; the price is "
            f"{self.changed:.0%}, what {len(self.ordinary)} ordinary prompts lose of what distinguishes them.",
            *(
                f"Score {before:.3f} untouched, {after:.3f} with the mask: {text}"
                for text, (before, after) in self.scores.items()
            ),
            f"Cost: {self.cost.forward} rows, {self.cost.gradient} rows forward and backward.",
            "These numbers do not show that an image is gone: generate with the mask, and beside it with the anchor.",
        ]
        return "\n".join(lines)


def learned_mask(
    learning: FactorLearning, run: MaskLearning, settings: dict, fingerprint: dict, start: NeuronMask | None
) -> NeuronMask:
    """The learned factors as a mask whose neurons belong to each of the prompts.

    Neurons of ``start`` in other layers than those that were optimized stay as they are.
    """
    optimized = {layer.path for layer in learning.neurons.layers}
    scales = {} if start is None else {path: of for path, of in start.scales.items() if path not in optimized}
    for path, factors in by_layer(learning.result(), learning.neurons).items():
        scales[path] = {index: factor for index, factor in enumerate(factors.tolist()) if factor != 1}
    scales = sort_scales(scales)
    found = {path: tuple(of_layer) for path, of_layer in scales.items()}
    selected = {path: dict.fromkeys(map(str, indices), "learned") for path, indices in found.items()}
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
    given = channel_factors(NeuronMask({path: of for path, of in start.scales.items() if path in here}), layers)
    return torch.cat([given.get(layer.path, torch.ones(layer.width)) for layer in layers])


def _restore(learning: FactorLearning, path: Path, identity: Identity, inputs: str) -> bool:
    """Set a learning to the state in its file, if there is one; whether it was finished early, with these inputs."""
    found = load_state(path, _KIND, _VERSION, identity)
    if found is None:
        return False
    tensors, about = found
    losses, shape = tensors.get("losses", torch.zeros(())), learning.factors.shape
    shapes = {"factors": shape}
    if losses.ndim and len(losses):  # else it was stopped before its first step
        shapes |= {"exp_avg": shape, "exp_avg_sq": shape, "step": torch.Size()}
    whole = losses.ndim == 1 and len(losses) <= learning.settings.steps
    if not whole or any(
        name not in tensors or tensors[name].shape != wanted or not tensors[name].isfinite().all()
        for name, wanted in shapes.items()
    ):
        raise damaged(path.name)
    with torch.inference_mode(False):
        with torch.no_grad():
            learning.factors.copy_(tensors["factors"])
        state = {name: tensors[name].clone() for name in ("exp_avg", "exp_avg_sq", "step") if name in shapes}
        if state:
            learning.optimizer.load_state_dict({**learning.optimizer.state_dict(), "state": {0: state}})
    learning.losses[:] = losses.tolist()
    logging.info("Optimize Neuron Mask: goes on at step %d of %s.", learning.done, path.name)
    return isinstance(about, dict) and about.get("finished") == inputs
