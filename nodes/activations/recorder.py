"""Record activations while any sampler runs, and find them again by the latent that the run has made."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .entries import Entry
from .features import FRAMES, Activations, Mean
from .moments import Chooser
from .tap import Keep, Tap

#: Runs that a recorder remembers: two samplers in a row and the queue before.
RUNS = 4
_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Snapshot:
    """The activations of one step, counted from 0, of a run."""

    step: int
    activations: Activations


@dataclass(frozen=True)
class Run:
    """What a run has left: its latent, the number of its steps, and the recorded ones."""

    latent: torch.Tensor
    steps: int
    snapshots: tuple[Snapshot, ...]

    def average(self) -> Activations:
        """The mean over the recorded steps; noise level and settings are those of the last."""
        mean = Mean()
        for snapshot in self.snapshots:
            mean.add(snapshot.activations)
        return mean.result()


class Recorder:
    """Observes the runs on a MODEL and keeps one evaluation in each chosen step.

    The last at the step's own noise level, because samplers of higher order also look ahead and between the steps; if
    there is none, the first. A run that fails or is cancelled leaves nothing.
    """

    def __init__(self, entries: list[Entry], keep: Keep, choose: Chooser, timestep_of: Callable[[float], float]):
        self._entries, self._keep, self._choose, self._timestep_of = entries, keep, choose, timestep_of
        self._runs: deque[Run] = deque(maxlen=RUNS)
        self._begin()

    def _begin(self) -> None:
        self._snapshots: dict[int, Snapshot] = {}
        self._tap = self._evaluation = None
        self._steps = 0

    def started(self) -> None:
        self._begin()

    def failed(self) -> None:
        self._begin()

    def finished(self, latent: torch.Tensor) -> None:
        snapshots = tuple(self._snapshots[step] for step in sorted(self._snapshots))
        self._runs.append(Run(latent.detach().to("cpu", torch.float32, copy=True), self._steps, snapshots))
        self._begin()

    def evaluating(self, evaluation) -> None:
        self._steps, self._evaluation = evaluation.steps, evaluation
        wanted = evaluation.main and self._choose(evaluation.step, evaluation.steps)
        better = evaluation.on_schedule or evaluation.step not in self._snapshots
        self._tap = Tap(self._entries, self._keep) if wanted and better else None

    def calling(self, call):
        return self._tap.receivers(call.network, call.parts) if self._tap else None

    def evaluated(self) -> None:
        if self._tap is not None and not self._tap.empty:
            tensors, rows = self._tap.result()
            sigma, step = self._evaluation.sigma, self._evaluation.step
            settings = {"step": step, "steps": self._steps, FRAMES: self._tap.frames}
            activations = Activations(tensors, rows, sigma, self._timestep_of(sigma), settings)
            self._snapshots[step] = Snapshot(step, activations)
        self._tap = None

    @property
    def last(self) -> Run | None:
        """The latest run that has finished."""
        return self._runs[-1] if self._runs else None

    def run_of(self, latent: torch.Tensor) -> Run:
        """The run that made a latent; raises ValueError when none of the remembered ones did."""
        latent = latent.detach().to("cpu", torch.float32)
        same = [run for run in self._runs if run.latent.shape == latent.shape]
        run = min(reversed(same), key=lambda run: _distance(run.latent, latent), default=None)
        if run is None or _distance(run.latent, latent) > _TOLERANCE:
            raise ValueError(
                "No recorded run made this latent: wire the MODEL of Activation Recorder into the sampler, and that "
                "sampler's own LATENT (of SamplerCustomAdvanced: output) into Read Activations."
            )
        return run


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference: ComfyUI may hand a latent on in lower precision."""
    return float((a - b).abs().max()) / max(float(a.abs().max()), 1e-6)
