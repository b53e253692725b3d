"""Watch a network from the inside while it samples: hooks that live exactly as long as one call of the network.

Clones of a MODEL share one network, so a hook that stayed on it would fire in other people's runs. Here every hook is
put on as the network is called and taken off as it returns, whether it succeeds, fails or is interrupted.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from comfy.patcher_extension import WrappersMP
from torch import nn

_SAME = 1e-5  # relative difference of noise levels that are the same but for rounding

Receiver = Callable[[torch.Tensor], None]
#: Who gets the outputs, and who the first inputs, of submodules by their dotted path; "" is the network itself.
Receivers = tuple[Iterable[tuple[str, Receiver]], Iterable[tuple[str, Receiver]]]


@dataclass(frozen=True)
class Call:
    """One call of a network: ``parts`` says of each equal share of its rows whether it is conditional."""

    network: nn.Module
    parts: tuple[bool, ...]


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a model by a sampler, of one or more calls: its noise level, and where the run stands.

    ``step`` counts the steps of the schedule from 0. Samplers of higher order evaluate several times in a step:
    ``on_schedule`` where the noise level is the step's own. ``main``: the first evaluation of a prediction; those after
    it are of a changed network, as in Perturbed-Attention Guidance.
    """

    sigma: float
    step: int
    steps: int
    on_schedule: bool
    main: bool


class Observer(Protocol):
    """What ``observe`` tells of the runs on a MODEL, in this order, until ``finished`` or ``failed``."""

    def started(self) -> None:
        """A sampling run begins."""

    def evaluating(self, evaluation: Evaluation) -> None:
        """An evaluation begins."""

    def calling(self, call: Call) -> Receivers | None:
        """The network is about to be called: whoever is to look in, or None."""

    def evaluated(self) -> None:
        """The evaluation is over."""

    def finished(self, latent: torch.Tensor) -> None:
        """The run has ended with the latent that the sampler hands out."""

    def failed(self) -> None:
        """The run was cancelled or has failed."""


def observe(patcher, observer: Observer):
    """A clone of a MODEL whose sampling runs the observer watches; several observers do not disturb each other."""
    clone, key = patcher.clone(), f"glassbox_observer_{uuid.uuid4().hex}"

    def run(executor, *args, **kwargs):
        observer.started()
        try:
            latent = executor(*args, **kwargs)
        except BaseException:
            observer.failed()
            raise
        observer.finished(latent)
        return latent

    evaluations = None  # in the prediction that is under way; None outside of one

    def predict(executor, *args, **kwargs):
        nonlocal evaluations
        evaluations = 0
        try:
            return executor(*args, **kwargs)
        finally:
            evaluations = None

    def evaluate(executor, model, conds, x, timestep, model_options):
        nonlocal evaluations
        observer.evaluating(_evaluation(timestep, model_options, main=not evaluations))
        evaluations = None if evaluations is None else evaluations + 1
        result = executor(model, conds, x, timestep, model_options)
        observer.evaluated()
        return result

    def call(executor, *args, **kwargs):
        options = kwargs.get("transformer_options") or (args[5] if len(args) > 5 else {})
        network = executor.class_obj.diffusion_model
        receivers = observer.calling(Call(network, tuple(kind == 0 for kind in options.get("cond_or_uncond", ()))))
        if receivers is None:
            return executor(*args, **kwargs)
        with forward_hooks(network, receivers):
            return executor(*args, **kwargs)

    clone.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, key, run)
    clone.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, key, predict)
    clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, key, evaluate)
    clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, key, call)
    return clone


def refuse_compiled(patcher) -> None:
    """Raise ValueError when the MODEL runs through torch.compile, whose graphs hold no hooks."""
    names = (
        "torch_compile_kwargs" in patcher.model_options,
        "torch.compile" in patcher.wrappers.get(WrappersMP.APPLY_MODEL, {}),
        any("_orig_mod" in name for name, _ in patcher.model.diffusion_model.named_modules()),
    )
    if any(names):
        raise ValueError(
            "This MODEL runs through torch.compile, which nobody can look into: take it from before that node."
        )


@contextmanager
def forward_hooks(network: nn.Module, receivers: Receivers) -> Iterator[None]:
    """Hand tensors to the receivers while the block runs; they must copy what they keep: networks reuse tensors."""
    outputs, inputs = receivers
    handles = []
    try:
        for path, receive in outputs:
            handles.append(network.get_submodule(path).register_forward_hook(_on_output(receive)))
        for path, receive in inputs:
            handles.append(network.get_submodule(path).register_forward_pre_hook(_on_input(receive)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _on_output(receive: Receiver):
    def hook(_module, _args, output):
        receive(output)

    return hook


def _on_input(receive: Receiver):
    def hook(_module, args):
        receive(args[0])

    return hook


def _evaluation(timestep: torch.Tensor, model_options: dict, main: bool) -> Evaluation:
    sigma = float(timestep.flatten()[0])
    schedule = model_options.get("transformer_options", {}).get("sample_sigmas")
    if schedule is None or len(schedule) < 2:
        return Evaluation(sigma, 0, 1, True, main)
    begun = int((schedule[:-1] >= sigma * (1 - _SAME)).sum())  # between two steps' noise levels is in the earlier step
    step = max(begun - 1, 0)
    on_schedule = abs(float(schedule[step]) - sigma) <= _SAME * sigma
    return Evaluation(sigma, step, len(schedule) - 1, on_schedule, main)
