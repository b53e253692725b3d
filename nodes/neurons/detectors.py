"""Detectors of memorization beside Finding NeMo's score, one row of ``DETECTORS`` each.

Most read what the text adds to the predicted noise, d(x) = e(x, prompt) - e(x, empty prompt): in
pure noise x, from a few more evaluations of the first step, or for Bright Ending in every step of
sampling. They have no fixed thresholds: a value says something beside those of ordinary prompts of
the same model.

Another detector is a function here, its row, and the input of Memorization Score that asks for it:
tables, reports and scan files take their columns from the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from .memorization_score import PromptScore, noise_difference, pairwise_similarity

#: The third from last of 50 DDIM steps of SD, at which the official code of the anisotropy paper
#: compares directions.
LOW_NOISE_TIMESTEP = 41
#: Guidance of the images that Bright Ending samples, in its official code.
BRIGHT_ENDING_CFG = 7.5
#: Weight of the alignment beside the norm, in the official code of arXiv 2601.20642 for SD1.4.
ALIGNMENT_WEIGHT = 2.0
# length of the step along d, as in algorithm 2 of the sharpness paper; noise has the length sqrt(C
# H W)
_PROBE = 1.0

#: (x (N, C, H, W), timestep) -> predicted noise of the same shape, float32
Predict = Callable[[torch.Tensor, int], torch.Tensor]
#: steps of sampling -> d in every step (steps, N, C, H, W), and the attention to the end token in
#: the last (N, H, W)
Sampled = Callable[[int], tuple[torch.Tensor, torch.Tensor]]
#: What a person wants: the inputs of the node by name; 0, False or absent is not wanted.
Requested = Mapping[str, int]


def text_norm(difference: torch.Tensor) -> torch.Tensor:
    """Norm of what the text adds to the prediction (N, C, H, W), by row: (N,). Wen et al. (arXiv
    2407.21720).
    """
    return difference.flatten(1).norm(dim=1)


def sharpness(
    noise: torch.Tensor, difference: torch.Tensor, at: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Jeon et al. (arXiv 2412.04140): the norm of the Hessian difference times the score
    difference, by row: (N,).

    ``difference`` is d(x) in ``noise`` x (N, C, H, W), ``at`` gives d elsewhere. |J d|, J the
    Jacobian of d, by central differences along d. In units of noise; the paper's scores are d over
    -sqrt(1 - alpha_t), so its norm is this one over 1 - alpha_t, a factor that all prompts have in
    common.
    """
    noise = noise.to(difference)
    length = text_norm(difference).clamp(min=torch.finfo(torch.float32).tiny)
    step = _PROBE * difference / length.view(-1, *[1] * (difference.ndim - 1))
    forward, backward = at(torch.cat([noise + step, noise - step])).chunk(2)
    return text_norm(forward - backward) / (2 * _PROBE) * length


def alignment(unconditional: torch.Tensor, difference: torch.Tensor) -> torch.Tensor:
    """Cosine of the unconditional prediction and d over the channels, mean over positions: (N,), -1
    to 1.

    Asthana and Belagiannis (arXiv 2601.20642), both (N, C, H, W) at a low noise level in pure
    noise.
    """
    return torch.cosine_similarity(unconditional, difference, dim=1).flatten(1).mean(1)


def local_norm(differences: torch.Tensor, attention: torch.Tensor) -> torch.Tensor:
    """Chen et al. (arXiv 2410.21665): |d * m| over the mean of m, mean over the steps, by row:
    (N,).

    ``differences`` d (steps, N, C, H, W) in every step of sampling; ``attention`` m (N, H, W) to
    the end token in the last step, large where memorized patches are. With the same attention
    everywhere it is Wen's text norm.
    """
    by_channel = differences.flatten(2, -3)  # frames beside channels
    norms = (by_channel * attention[:, None]).flatten(2).norm(dim=2)
    return norms.mean(0) / attention.flatten(1).mean(1)


class Evaluations:
    """What one prompt's detectors read, evaluated when the first of them asks."""

    def __init__(
        self,
        conditional: Predict,
        unconditional: Predict,
        noise: torch.Tensor,
        timestep: int,
        requested: Requested,
        sampled: Sampled | None = None,
    ):
        self._conditional = conditional
        self._unconditional = unconditional
        self._sampled = sampled
        self.noise = noise
        self._timestep = timestep
        self._requested = requested

    @cached_property
    def predicted(self) -> torch.Tensor:
        """e(x, prompt) in pure noise."""
        return self._conditional(self.noise, self._timestep)

    @cached_property
    def difference(self) -> torch.Tensor:
        """d(x) in pure noise."""
        return self.predicted - self._unconditional(self.noise, self._timestep)

    def difference_at(self, x: torch.Tensor) -> torch.Tensor:
        """d elsewhere, at the timestep of pure noise."""
        return self._conditional(x, self._timestep) - self._unconditional(x, self._timestep)

    @cached_property
    def low_noise(self) -> tuple[torch.Tensor, torch.Tensor]:
        """e(x, empty prompt) and d(x) at a low noise level, in pure noise."""
        low = self._unconditional(self.noise, LOW_NOISE_TIMESTEP)
        return low, self._conditional(self.noise, LOW_NOISE_TIMESTEP) - low

    @cached_property
    def ending(self) -> tuple[torch.Tensor, torch.Tensor]:
        """d in every step of sampling, and the attention to the end token in the last one."""
        assert self._sampled is not None, "Bright Ending needs a sampler"
        return self._sampled(self._requested["bright_ending_steps"])


@dataclass(frozen=True)
class Detector:
    """How a detector is measured, for which inputs of the node, and what it costs.

    ``measure`` gives a value for each seed (N,), of which the mean counts. ``rows``: of the network
    for each seed of every prompt, times the value of its (last) input; ``once``: for each seed once
    for all prompts.
    """

    inputs: tuple[str, ...]
    measure: Callable[[Evaluations], torch.Tensor]
    rows: int = 0
    once: int = 0

    def requested(self, inputs: Requested) -> int:
        """The value of the first of its inputs that asks for it, 0 for none."""
        return next((int(inputs[name]) for name in self.inputs if inputs.get(name)), 0)


#: By the column of tables and scan files. The text norm is needed for the anisotropy and costs
#: nothing beside d.
DETECTORS = {
    "text_norm": Detector(
        ("text_norm", "sharpness", "anisotropy"), lambda of: text_norm(of.difference), once=1
    ),
    "sharpness": Detector(
        ("sharpness",), lambda of: sharpness(of.noise, of.difference, of.difference_at), rows=4
    ),
    "alignment": Detector(("anisotropy",), lambda of: alignment(*of.low_noise), rows=1, once=1),
    "bright_ending": Detector(
        ("bright_ending_steps",), lambda of: of.ending[1].flatten(1).mean(1), rows=2
    ),
    "local_norm": Detector(("bright_ending_steps",), lambda of: local_norm(*of.ending)),
}


#: The inputs of the node that ask for a detector.
INPUTS = tuple(dict.fromkeys(one.inputs[0] for one in DETECTORS.values()))


def with_anisotropy(values: dict[str, float]) -> dict[str, float]:
    """Measured values with the anisotropy where it can be made: the text norm and twice the
    alignment (2601.20642).
    """
    if not {"text_norm", "alignment"} <= values.keys():
        return values
    return {**values, "anisotropy": values["text_norm"] + ALIGNMENT_WEIGHT * values["alignment"]}


def network_rows(requested: Requested, seeds: int) -> tuple[int, int]:
    """Rows of the network for each prompt, its score included, and those that are evaluated once
    for all prompts.
    """
    wanted = [(one, one.requested(requested)) for one in DETECTORS.values()]
    by_prompt = 1 + sum(one.rows * value for one, value in wanted)
    return by_prompt * seeds, sum(one.once for one, value in wanted if value) * seeds


def score_with_detectors(
    conditional: Predict,
    unconditional: Predict,
    noise: torch.Tensor,
    timestep: int,
    requested: Requested,
    sampled: Sampled | None = None,
) -> PromptScore:
    """NeMo's score of a prompt over the seeds of ``noise`` (seeds, C, H, W), and the means of the
    detectors.

    ``sampled`` is needed for Bright Ending alone.
    """
    evaluations = Evaluations(
        conditional=conditional,
        unconditional=unconditional,
        noise=noise,
        timestep=timestep,
        requested=requested,
        sampled=sampled,
    )
    predicted = evaluations.predicted
    pairs = pairwise_similarity(noise_difference(predicted, noise.to(predicted.device)))
    values = {
        name: float(detector.measure(evaluations).mean())
        for name, detector in DETECTORS.items()
        if detector.requested(requested)
    }
    return PromptScore(pairs, with_anisotropy(values))
