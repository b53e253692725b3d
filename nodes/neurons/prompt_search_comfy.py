"""The search for the neurons of one prompt on a MODEL, and what is kept on disk of the searches of
many.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..common.failures import is_out_of_memory, skipped
from ..common.resume import digest, settings_identity
from ..host import folders
from ..host.evaluate import sample_latents
from ..host.identity import clip_digest, embedding_digest, model_digest
from ..host.precision import Precision
from ..host.progress import FinishNow, Progress, Stopped
from ..host.text_encoding import encode
from . import neuron_attribution
from .first_step_comfy import (
    FirstStep,
    Result,
    at_first_step,
    embedding,
    probe_outputs,
    value_outputs,
)
from .gone_images_comfy import ImageEvaluator, ImageJudge
from .mask import NeuronMask, mask_from_search
from .memorization_score import score_prompt
from .nemo_inputs import FirstStepInputs
from .nemo_search import (
    Evaluator,
    Neurons,
    SearchResult,
    SearchSettings,
    SelectionStep,
    search,
    selection_schedule,
)
from .neuron_attribution import TIMESTEPS, Cost, Method, Ranking, StoppingRule
from .neuron_layers import depend_on_text_alone
from .neuron_reports import OTHER_STATISTICS
from .neuron_statistics import Fingerprint, Statistics, fingerprint, mean_activations, same_model
from .neuron_statistics_comfy import hidden_moments
from .scan_file import Pace, ScanFile

if TYPE_CHECKING:
    from .neuron_attribution_comfy import AnchorPredictions

#: The latent that ``multi`` adds noise to is sampled in so many steps at this CFG: any plausible
#: image serves.
_LATENT_STEPS = 12
_LATENT_CFG = 3.0
#: Noise samples that ``dot`` compares at most.
_DOT_SAMPLES = 4


@dataclass(frozen=True, kw_only=True)
class AttributionSettings:
    """How neurons are attributed; see ``neuron_attribution``. ``anchor``: a generic prompt."""

    ranking: Ranking = Ranking.DOT_Z
    stopping_rule: StoppingRule = StoppingRule.GAP
    fraction: float = 0.08
    anchor: str = ""
    precision: str = Precision.FP32  # in which gradients are computed


@dataclass(kw_only=True)
class PromptSearches:
    """What the searches of several prompts have in common. ``statistics`` may be None where no |z|
    is needed.
    """

    model: object
    clip: object
    neurons: Neurons
    step: FirstStepInputs
    settings: SearchSettings
    statistics: Statistics | None
    method: Method
    attribution: AttributionSettings
    time_budget: float
    judge: ImageJudge | None = None  # for the stopping rule gone
    checkpointing: bool = True

    def __post_init__(self):
        if self.gone and self.judge is None:
            raise ValueError("The stopping rule gone looks at images: connect the model's vae.")
        if self.statistics is None and (
            self.method == Method.SEARCH or self.attribution.ranking.needs_z
        ):
            raise ValueError(
                "statistics are needed for |z|: connect Neuron Statistics, or set method to "
                "attribution with a ranking without z."
            )
        if self.statistics is not None:
            self.statistics.check(self.neurons.layers)

    @property
    def gone(self) -> bool:
        """Whether a search ends when the image is gone."""
        return (
            self.method == Method.ATTRIBUTION
            and self.attribution.stopping_rule == StoppingRule.GONE
        )

    def fingerprint(self) -> Fingerprint:
        """What tells the MODEL from others: outputs of the layers for a fixed input."""
        return fingerprint(probe_outputs(self.model, [layer.path for layer in self.neurons.layers]))

    def remarks(self, identity: Fingerprint) -> list[str]:
        """A line where the statistics are of another model than the one of this fingerprint."""
        same = self.statistics is None or same_model(self.statistics.fingerprint, identity)
        return [] if same else [OTHER_STATISTICS]

    def saved(self, width: int, height: int) -> dict:
        """The settings as a mask's file shows them."""
        paths = [layer.path for layer in self.neurons.layers]
        found = {
            **self.step.settings,
            "layers": paths,
            "width": width,
            "height": height,
            **settings_identity(self.settings),
        }
        if self.method == Method.ATTRIBUTION:
            found |= {"method": self.method.value, **settings_identity(self.attribution)}
        return found

    def identity(self) -> dict:
        """What a search depends on beside its settings, but for the time budget: what that ended is
        searched again.
        """
        models = {"model": model_digest(self.model), "clip": clip_digest(self.clip)}
        embedding = embedding_digest(self.clip, [self.attribution.anchor])
        return {**models, "statistics": digest(self.statistics), "embedding": embedding}

    def announced(self) -> str:
        """How many rows of the network a prompt takes, for the log."""
        seeds = self.step.noise_samples
        how = self.attribution
        begins = f"each {seeds} rows of the network where it is not memorized, else"
        if self.method == Method.SEARCH:
            bound = seeds * (
                len(list(selection_schedule(self.settings))) + 2 + len(self.neurons.layers)
            )
            return f"{begins} up to {bound} and {seeds} for each selected neuron"
        dot = how.ranking in (Ranking.DOT, Ranking.DOT_Z)
        samples = min(seeds, _DOT_SAMPLES)
        # The anchor's rows, as many again, are those of the first prompt alone.
        forward, gradient = (samples, samples) if dot else (len(TIMESTEPS), len(TIMESTEPS))
        found = f"{begins} {seeds + forward} and {gradient} forward and backward, then {seeds}"
        if how.stopping_rule == StoppingRule.GONE and self.judge is not None:
            return (
                f"{begins} {seeds + forward} and {gradient} forward and backward, then "
                f"{self.judge.rows} for each set"
            )
        return (
            found
            if how.stopping_rule == StoppingRule.FRACTION
            else f"{found} for each set that is tried"
        )

    @cached_property
    def anchor(self) -> list:
        """The CONDITIONING of the generic prompt."""
        return encode(self.clip, self.attribution.anchor)[1]

    @cached_property
    def anchor_predictions(self) -> AnchorPredictions:
        """What the generic prompt predicts, for all prompts."""
        from .neuron_attribution_comfy import AnchorPredictions

        return AnchorPredictions()

    @cached_property
    def latent(self) -> torch.Tensor:
        """An image of the generic prompt, sampled once for all prompts, (1, C, H, W)."""
        blank = torch.zeros(1, *self.step.shape)
        if self.attribution.ranking in (Ranking.DOT, Ranking.DOT_Z):
            return blank
        seed = self.step.seed
        return sample_latents(
            self.model,
            self.anchor,
            negative=encode(self.clip, "")[1],
            latent=blank,
            steps=_LATENT_STEPS,
            cfg=_LATENT_CFG,
            seed=seed,
        )

    def activations(self, conditioning: list) -> list[torch.Tensor]:
        """The mean activation of every neuron for a prompt, (C,) per layer."""
        layers = self.neurons.layers
        if not depend_on_text_alone(layers):
            measured = hidden_moments(self.model, conditioning, layers, self.step.shape)
            return [measured[layer.path].mean.float() for layer in layers]
        outputs = value_outputs(
            self.model, embedding(conditioning), [layer.path for layer in layers]
        )
        return [mean_activations(outputs[layer.path][0]).cpu() for layer in layers]


@dataclass(kw_only=True)
class PromptSearch:
    """The search for one prompt; ``result`` is the best so far at any time.

    ``done``: percent of the prompts before this one. ``score`` is that of the untouched network.
    """

    common: PromptSearches
    bar: Progress
    finish: FinishNow
    done: int
    z: list[torch.Tensor] = field(default_factory=list)
    activations: list[torch.Tensor] = field(default_factory=list)
    result: SearchResult = field(default_factory=SearchResult)
    evaluator: Evaluator | ImageEvaluator | None = (
        None  # None where no pair of seeds is over the threshold
    )
    score: float = 0.0
    cost: Cost = field(default_factory=Cost)
    seconds: float = 0.0
    finished_early: bool = False
    _begun: float = field(default_factory=time.monotonic)

    def run(self, text: str) -> None:
        """Score the prompt, and search where it is memorized."""
        common = self.common
        conditioning = encode(common.clip, text)[1]
        if (statistics := common.statistics) is not None:
            self.activations = common.activations(conditioning)
            layers = zip(common.neurons.layers, self.activations, strict=True)
            self.z = [statistics.z(layer.path, values) for layer, values in layers]
        noise = common.step.noise()
        seeds = self._at_first_step(conditioning, functools.partial(self._score, noise=noise))
        if not seeds or common.method == Method.SEARCH:
            return
        values = self.values(conditioning, noise)
        if common.gone:
            self._until_gone(conditioning, values)
        else:
            shorten = functools.partial(self._shorten, noise=noise[seeds], values=values)
            self._at_first_step(conditioning, shorten)

    def _at_first_step(self, conditioning: list, work: Callable[[FirstStep], Result]) -> Result:
        """``work`` of the first step of sampling with a conditioning."""
        step = self.common.step
        return at_first_step(
            self.common.model,
            conditioning,
            shape=step.shape,
            timestep=step.timestep,
            work=work,
            rows=step.noise_samples,
        )

    def _score(self, predict: FirstStep, noise: torch.Tensor) -> list[int]:
        """The noise seeds over the threshold; the paper's search among them follows in the same
        run.
        """
        common = self.common
        score = score_prompt(predict, noise)
        self.score = score.value
        seeds = score.memorized_seeds(common.settings.threshold)
        if seeds and common.method == Method.SEARCH:
            evaluator = self._evaluator(predict, noise[seeds])
            self._follow(search(self.z, self.activations, evaluator, common.settings))
        return seeds

    def _shorten(self, predict: FirstStep, noise: torch.Tensor, values: torch.Tensor) -> None:
        """As many neurons of the ranking by ``values`` as the stopping rule takes."""
        evaluator = self._evaluator(predict, noise)
        attribution = self.common.attribution
        target = self.common.settings.target_score
        if attribution.stopping_rule == StoppingRule.FRACTION:
            fraction = attribution.fraction
            self._follow(neuron_attribution.take_fraction(values, fraction, evaluator, target))
        elif attribution.stopping_rule == StoppingRule.GAP:
            self._follow(neuron_attribution.take_before_gap(values, evaluator, target))
        else:
            self._follow(neuron_attribution.shorten(values, evaluator, target))

    def _until_gone(self, conditioning: list, values: torch.Tensor) -> None:
        """As few neurons of the ranking as leave no more of the image than the generic prompt's
        images have of it.
        """
        common = self.common
        assert common.judge is not None
        conditions = conditioning, common.anchor, encode(common.clip, "")[1]
        self.evaluator = ImageEvaluator(
            common.model,
            common.judge,
            neurons=common.neurons,
            conditions=conditions,
            shape=common.step.shape,
            seed=common.step.seed,
        )
        self._follow(neuron_attribution.shorten(values, self.evaluator, 0.0, leave_out=False))

    def values(self, conditioning: list, noise: torch.Tensor) -> torch.Tensor:
        """What the neurons are ranked by, (total,)."""
        from . import neuron_attribution_comfy

        common = self.common
        how = self.common.attribution
        found = neuron_attribution_comfy.attribution(
            common.model,
            how.ranking,
            condition=conditioning,
            anchor=common.anchor,
            kept=common.anchor_predictions,
            latents=[common.latent],
            noise=noise[:_DOT_SAMPLES],
            timestep=common.step.timestep,
            neurons=common.neurons,
            seed=common.step.seed,
            cost=self.cost,
            dtype=Precision(how.precision).dtype,
            checkpointing=common.checkpointing,
        )
        return neuron_attribution.ranked(found, torch.cat(self.z) if how.ranking.needs_z else None)

    def _evaluator(self, predict: FirstStep, noise: torch.Tensor) -> Evaluator:
        self.evaluator = Evaluator(
            predict, noise, self.common.neurons, self.common.settings.criterion
        )
        return self.evaluator

    def _follow(self, results: Iterator[SearchResult]) -> None:
        """Take the results of a search as they come, until it ends, or is ended."""
        budget = self.common.time_budget
        for result in results:
            self.result = result
            self.seconds = time.monotonic() - self._begun
            self.bar.show(self.done + round(100 * result.progress))
            self.finished_early = (
                bool(result.initial) and self.finish.pressed and not result.finished
            )
            if self.finished_early or (budget and self.seconds > budget):
                return

    def report(self, prompt: str) -> str:
        """How the search went."""
        from . import neuron_reports

        settings = self.common.settings
        if self.evaluator is None:
            return (
                f"{prompt}: not memorized (score {self.score:.3f}, threshold "
                f"{settings.threshold:.3f}), skipped."
            )
        cost = (
            f"{self.evaluator.rows + self.cost.forward} rows in {self.evaluator.calls} "
            "evaluations, "
        )
        if self.cost.gradient:
            cost += f"{self.cost.gradient} rows forward and backward, "
        cost += f"{self.seconds:.1f} s."
        if isinstance(self.evaluator, ImageEvaluator):
            refined = self.result.refined
            end = f"the image is {self.evaluator.end(refined)}"
            head = (
                f"{prompt}: {end}; {sum(map(len, refined))} neurons kept (score {self.score:.3f} "
                f"untouched). {cost}"
            )
            return "\n".join([head, *self.evaluator.report(refined)])
        return neuron_reports.search_report(
            prompt,
            self.result,
            target_score=settings.target_score,
            cost=cost,
            finished_early=self.finished_early,
        )


class MaskScan:
    """A scan of searches: a row per prompt in NAME.csv and its mask in NAME_masks; does nothing
    without a name.
    """

    def __init__(self, name: str, settings: dict, embeddings: Mapping[str, str] | None = None):
        self._rows: ScanFile | None = None
        self._folder = Path()
        if name.strip():
            path = folders.named_file(name, ".csv")
            self._folder = path.with_name(f"{path.stem}_masks")
            columns = ["score", "finished", "converged", "neurons", "mask"]
            self._rows = ScanFile(path, columns, settings, embeddings)

    def read(self, prompt: str) -> list[NeuronMask] | None:
        """The mask of a prompt from an earlier run, none for one that was not memorized; None where
        it is to do.

        A search that its time budget has ended is to do.
        """
        from . import mask_file

        row = None if self._rows is None else self._rows.done(prompt)
        if row is None or row["finished"] != str(True):
            return None
        if not row["mask"]:
            return []
        path = self._folder / Path(row["mask"]).name
        return [mask_file.read(path, [])] if path.is_file() else None

    def write(self, prompt: str, search: PromptSearch, masks: list[NeuronMask]) -> None:
        """Write the mask of a prompt, and its row."""
        from . import mask_file

        if self._rows is None:
            return
        finished = search.evaluator is None or search.result.finished
        row = {
            "score": f"{search.score:.6f}",
            "finished": str(finished),
            "converged": "",
            "neurons": "0",
            "mask": "",
        }
        for mask in masks:
            name = f"{hashlib.sha256(prompt.encode()).hexdigest()[:16]}.json"
            mask_file.write(mask, self._folder / name)
            row |= {
                "converged": str(mask.searches[0].converged),
                "neurons": str(mask.count),
                "mask": name,
            }
        self._rows.add(prompt, row)

    def fail(self, prompt: str, error: Exception) -> None:
        """Write the error of a prompt; raise it where there is no scan."""
        if self._rows is None:
            raise error
        self._rows.add(prompt, None, error)


def search_prompts(
    common: PromptSearches, texts: list[str], scan: MaskScan, saved: dict, identity: Fingerprint
) -> tuple[list[NeuronMask], dict[str, list[SelectionStep]], list[str]]:
    """The masks of prompts, the trace of each search, and a line on each; resumes a scan, and ends
    at Finish now.

    ``saved``: the settings that a mask names; ``identity``: the model's fingerprint.
    """
    masks = []
    traces = {}
    bar = Progress(100 * len(texts))
    lines = [] if texts else ["No prompt to search: the mask is empty and changes nothing."]
    pace = Pace(sum(scan.read(text) is None for text in texts))
    logging.info("NeMo Localize: %d prompts to search, %s.", pace.total, common.announced())
    with FinishNow() as finish:
        for number, text in enumerate(texts):
            if (before := scan.read(text)) is not None:
                masks += before
                lines.append(f"{text}: searched in an earlier run of this scan.")
                continue
            work = PromptSearch(common=common, bar=bar, finish=finish, done=100 * number)
            try:
                work.run(text)
            except Stopped:
                raise
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                scan.fail(text, error)
                lines.append(skipped(text, error))
                logging.info("NeMo Localize: %s.", pace.step(failed=True))
                continue
            found = []
            if work.evaluator is not None:
                traces[text] = work.result.trace
                found = [
                    mask_from_search(
                        text,
                        work.result,
                        neurons=common.neurons,
                        z=work.z,
                        activations=work.activations,
                        settings=saved,
                        fingerprint=identity,
                    )
                ]
                masks += found
            lines.append(work.report(text))
            if not work.finished_early:
                scan.write(text, work, found)
            logging.info("NeMo Localize: %s.", pace.step())
            bar.show(100 * (number + 1))
            if finish.pressed:
                lines.append(f"Finished at {number + 1} of {len(texts)} prompt(s).")
                break
    return masks, traces, lines
