"""Record activations while any sampler runs, and find them again by the latent of the run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from .activation_spec import ActivationSpec
from .activations import Activations, CpuCopies, DeviceCopies, cpu_copy, mean
from .select_ids import StepPredicate
from .tap import CallTap, EvaluatedTexts, TapSettings, call_settings, merge

if TYPE_CHECKING:
    from ..common.network_call import Call

#: Bytes of activations that a recorder keeps: of a list of results, or of samplers in a row, the
#: last ones that fit.
KEPT_BYTES = 4 * 2**30
_MUCH = 2**30
_TOLERANCE = 1e-2
#: Of a step that the sampler or another node has left out.
NOT_EVALUATED = "The network was not evaluated."
#: Latents that samplers have handed out -> the runs on them with what was recorded, as long as
#: something keeps the latent: with --cache-lru ComfyUI may keep a result and make its recorder
#: again.
_results: WeakIdKeyDictionary = WeakIdKeyDictionary()
_COMPILED = (
    "The MODEL ran through torch.compile, which cannot be hooked: leave the compiling node out."
)


@dataclass(frozen=True)
class Snapshot:
    """The activations of one step, counted from 0, of a run."""

    step: int
    activations: Activations


@dataclass
class Run:
    """A finished run: its latent, the number of its steps, the recorded ones, and why others were
    not recorded.

    ``snapshots``: one per recorded step, or the mean over them; ``evicted``: given up for those of
    later runs.
    """

    latent: torch.Tensor
    steps: int
    recorded: tuple[int, ...]
    snapshots: tuple[Snapshot, ...]
    skipped: dict[int, str]
    evicted: bool = False

    @property
    def bytes(self) -> int:
        """How much memory the activations take."""
        tensors = [
            one for snapshot in self.snapshots for one in snapshot.activations.tensors.values()
        ]
        return sum(tensor.nbytes for tensor in tensors)

    def average(self) -> Activations:
        """The mean over the recorded steps; noise level and settings are those of the last."""
        return mean(snapshot.activations for snapshot in self.snapshots)

    def require_recorded(self, remedy: str) -> None:
        """Raise ValueError with ``remedy``, a sentence, if no step was recorded."""
        if self.evicted:
            raise ValueError(
                "The activations of this run were given up: a recorder keeps "
                f"{KEPT_BYTES / 2**30:.0f} GiB, and later runs filled them. Record fewer steps or "
                "IDs, set mean_only or a larger pool_size, or queue again with fewer results."
            )
        if not self.snapshots:
            raise ValueError(
                f"Nothing was recorded in this run of {self.steps} steps (0 to {self.steps - 1}). "
                f"{remedy} {self.skipped_report()}".strip()
            )

    def skipped_report(self) -> str:
        """One line per reason: the steps that were selected but not recorded."""
        reasons: dict[str, list[int]] = {}
        for step, reason in sorted(self.skipped.items()):
            reasons.setdefault(reason, []).append(step)
        return "\n".join(
            f"Not recorded: steps {', '.join(map(str, steps))}. {why}"
            for why, steps in reasons.items()
        )


class Recorder:
    """Observes the runs on a MODEL and keeps one evaluation of each selected step.

    The last at the step's own noise level, because samplers of higher order also evaluate ahead and
    between the steps; if there is none, the first. Whatever cannot be recorded is skipped with its
    reason, and the run goes on. A run that fails or is canceled leaves nothing.
    """

    def __init__(
        self,
        specs: list[ActivationSpec],
        settings: TapSettings,
        selects: StepPredicate,
        timestep_of: Callable[[float], float],
        mean_only: bool = False,
    ):
        self._specs = specs
        self._settings = settings
        self._selects = selects
        self._timestep_of = timestep_of
        self._mean_only = mean_only
        self._what = (specs, settings, mean_only)
        self._runs: list[Run] = []
        self._reset()

    def _reset(self) -> None:
        self._snapshots: dict[int, Snapshot] = {}
        self._recorded: list[int] = []
        self._sum: Activations | None = None
        self._texts: dict[
            int, EvaluatedTexts
        ] = {}  # by step, of the snapshots and of the last step in the sum
        self._skipped: dict[int, str] = {}
        self._calls: list[CallTap] | None = None
        self._pending: list[CallTap] | None = None
        self._evaluation: Any = None
        self._problem: str | None = None
        self._steps = 0

    def started(self) -> None:
        self._reset()

    def failed(self) -> None:
        self._reset()

    def finished(self, latent: torch.Tensor) -> None:
        result = latent
        latent = _packed(latent).detach().to("cpu", torch.float32, copy=True)
        try:
            run = self._finished(latent)
        except Exception as error:  # a watcher never ends a run
            run = Run(
                latent=latent,
                steps=self._steps,
                recorded=(),
                snapshots=(),
                skipped=dict.fromkeys(range(self._steps), str(error)),
            )
        self._runs.append(run)
        _results.setdefault(result, []).append((self._what, run))
        self._reset()
        total = 0
        for run in reversed(self._runs):
            total += run.bytes
            if total > KEPT_BYTES and run is not self._runs[-1] and run.snapshots:
                run.snapshots = ()
                run.evicted = True

    def _finished(self, latent: torch.Tensor) -> Run:
        self._keep_pending()
        self._drop_unselected()
        recorded = tuple(sorted({*self._recorded, *self._snapshots}))
        for step in range(self._steps):
            if self._selects(step, self._steps) and step not in recorded:
                self._skipped.setdefault(step, NOT_EVALUATED)
        if self._mean_only and self._snapshots:
            step = max(self._snapshots)
            self._fold()
            assert self._sum is not None
            tensors = {
                id_: cpu_copy(value / len(recorded), self._settings.dtype)
                for id_, value in self._sum.tensors.items()
            }
            self._snapshots = {step: Snapshot(step, replace(self._sum, tensors=tensors))}
        snapshots = tuple(self._timed(self._snapshots[step]) for step in sorted(self._snapshots))
        skipped = {step: reason for step, reason in self._skipped.items() if step not in recorded}
        return Run(
            latent=latent,
            steps=self._steps,
            recorded=recorded,
            snapshots=snapshots,
            skipped=skipped,
        )

    def _timed(self, snapshot: Snapshot) -> Snapshot:
        """With timestep and marks of texts, which are on the device: read when the run is over, to
        wait only then.
        """
        timestep = self._timestep_of(snapshot.activations.sigma)
        settings = snapshot.activations.settings | self._texts[snapshot.step].setting()
        return replace(
            snapshot,
            activations=replace(snapshot.activations, timestep=timestep, settings=settings),
        )

    def evaluating(self, evaluation: Any) -> None:
        self._keep_pending()
        self._steps = evaluation.steps
        self._evaluation = evaluation
        self._problem = None
        selected = evaluation.main and self._selects(evaluation.step, evaluation.steps)
        better = evaluation.on_schedule or evaluation.step not in self._snapshots
        self._calls = [] if selected and better else None

    def calling(self, call: Call) -> tuple | None:
        if self._calls is None or self._problem is not None:
            return None
        if call.compiled:
            self._problem = _COMPILED
            return None
        try:
            # A mean is summed where the network is, and copied once, at the end of the run.
            tap = CallTap(
                self._specs,
                self._settings,
                call,
                DeviceCopies() if self._mean_only else CpuCopies(),
            )
            outputs, inputs, attentions = tap.receivers()
            for path, _ in (*outputs, *inputs, *attentions):
                call.network.get_submodule(path)
        except Exception as error:  # a watcher never ends a run
            self._problem = str(error)
            return None
        if not tap.tensors:
            return None
        self._calls.append(tap)
        return self._guarded(outputs), self._guarded(inputs), self._guarded(attentions)

    def _guarded(self, receivers: list[tuple[str, Callable]]) -> list[tuple[str, Callable]]:
        return [(path, self._guard(receive)) for path, receive in receivers]

    def _guard(self, receive: Callable) -> Callable:
        """The receiver, without the exceptions that it raises: the step is then not recorded."""

        def guarded(tensor: Any) -> None:
            if self._problem is None:
                try:
                    receive(tensor)
                except Exception as error:  # a watcher never ends a run
                    self._problem = str(error)

        return guarded

    def evaluated(self) -> None:
        self._pending = self._calls
        self._calls = None

    def _keep_pending(self) -> None:
        """Keep the evaluation before. By now the device was waited for anyway, so its copies are
        there.
        """
        calls = self._pending
        self._pending = None
        if calls is None:
            return
        step = self._evaluation.step
        sigma = self._evaluation.sigma
        if self._problem is None and not calls:
            self._problem = "No row of that conditioning was evaluated."
        if self._problem is None:
            try:
                tensors, rows = merge(calls, self._specs)
            except Exception as error:  # a watcher never ends a run
                self._problem = str(error)
        if self._problem is not None:
            self._skipped.setdefault(step, self._problem)
            return
        settings = {"step": step, "steps": self._steps, **call_settings(calls, self._specs)}
        activations = Activations(
            tensors=tensors, rows=rows, sigma=sigma, timestep=math.nan, settings=settings
        )  # finished() knows the timestep
        self._drop_unselected()
        if self._mean_only and step not in self._snapshots:
            before = self._sum or next((one.activations for one in self._snapshots.values()), None)
            texts = EvaluatedTexts.of(calls)
            if before is not None and _shapes(before) != _shapes(activations):
                self._skipped.setdefault(step, "It has other rows or sizes than the steps before.")
                return
            if not all(texts.same_as(others) for others in self._texts.values()):
                self._skipped.setdefault(
                    step, "Its prompt is another one than that of the steps before."
                )
                return
            self._fold()
        if not self._snapshots and not self._recorded:
            self._announce(activations)
        if self._mean_only:
            self._texts = {
                recorded: texts
                for recorded, texts in self._texts.items()
                if recorded in self._snapshots
            }
        self._texts[step] = EvaluatedTexts.of(calls)
        self._snapshots[step] = Snapshot(step, activations)

    def _announce(self, first: Activations) -> None:
        """Say what a run will take, where it is much; after its first recorded step, which shows
        the sizes.
        """
        steps = (
            1
            if self._mean_only
            else sum(self._selects(step, self._steps) for step in range(self._steps))
        )
        bytes_ = steps * sum(tensor.nbytes for tensor in first.tensors.values())
        if bytes_ > _MUCH:
            what = (
                f"{steps} steps; with mean_only it is one"
                if steps > 1
                else "one step: set pool_size for less"
            )
            logging.warning("Activation Recorder will keep %.1f GiB, of %s.", bytes_ / 2**30, what)

    def _drop_unselected(self) -> None:
        """Drop what was selected as the last step so far, of a sampler whose number of steps is
        known at the end.
        """
        self._snapshots = {
            step: snapshot
            for step, snapshot in self._snapshots.items()
            if self._selects(step, self._steps)
        }

    def _fold(self) -> None:
        """Add the snapshot of the step before to the sum, so that one step is in memory and not
        all.
        """
        for step, snapshot in self._snapshots.items():
            tensors = {id_: value.float() for id_, value in snapshot.activations.tensors.items()}
            if self._sum is not None:
                tensors = {
                    id_: self._sum.tensors[id_].add_(value) for id_, value in tensors.items()
                }
            self._sum = replace(snapshot.activations, tensors=tensors)
            self._recorded.append(step)
        self._snapshots = {}

    def run_of(self, latent: torch.Tensor) -> Run:
        """The run with this final latent; raises ValueError when none of the kept runs has it."""
        runs = self._runs or [
            run for what, run in _results.get(latent, ()) if what == self._what and self._fits(run)
        ]
        if not runs:
            raise ValueError(
                "This recording has no run: connect the MODEL of Activation Recorder to the "
                "sampler. If that is done, ComfyUI has kept the sampler's result and not the "
                "recorder (--cache-lru): change the sampler's seed."
            )
        latent = _packed(latent).detach().to("cpu", torch.float32)
        same_shape = [run for run in runs if run.latent.shape == latent.shape]
        run = min(reversed(same_shape), key=lambda run: _distance(run.latent, latent), default=None)
        if run is None or _distance(run.latent, latent) > _TOLERANCE:
            raise ValueError(
                "No recorded run produced this latent. Connect the MODEL of Activation Recorder "
                "to the sampler, and that sampler's own LATENT (output of SamplerCustomAdvanced) "
                "to Get Recorded Activations."
            )
        return run

    def _fits(self, run: Run) -> bool:
        """Whether the steps of a run that were to be recorded are those of this recorder."""
        return {*run.recorded, *run.skipped} == {
            step for step in range(run.steps) if self._selects(step, run.steps)
        }


def _packed(latent: Any) -> torch.Tensor:
    """A latent, or one of several parts (video with sound) in a row, as ComfyUI samples them."""
    if not getattr(latent, "is_nested", False):
        return latent
    return torch.cat([part.flatten(1)[:, None] for part in latent.unbind()], dim=-1)


def _shapes(activations: Activations) -> tuple:
    return activations.rows, {id_: value.shape for id_, value in activations.tensors.items()}


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest relative difference: ComfyUI may hand a latent on in lower precision."""
    return float((a - b).abs().max()) / max(float(a.abs().max()), 1e-6)
