"""Watch a network from the inside while it samples: hooks that live exactly as long as one call of the network.

Clones of a MODEL share one network, so a hook that stayed on it would fire in other runs. Here every hook is
put on as the network is called and taken off as it returns, whether it succeeds, fails or is interrupted.
"""

from __future__ import annotations

import inspect
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from comfy.patcher_extension import WrappersMP
from torch import nn

_SAME = 1e-5  # relative difference of noise levels that are the same but for rounding
#: Conditionings of guiders that hold the positive prompt (reference: the same prompt with other size metadata).
POSITIVE = ("positive", "reference")
_ROLE = "glassbox_role"  # in an entry of a conditioning: its name in the guider

#: Why a MODEL that runs through torch.compile is refused.
COMPILED = "This MODEL runs through torch.compile, which cannot be hooked: connect the model from before that node."
_COMPILED_LATER = (
    "This MODEL runs through torch.compile behind a node that hooks the network, which would be ignored without a "
    "word: leave the compiling node out."
)

Receiver = Callable[[torch.Tensor], None]
#: Who gets the outputs, and who the first inputs, of submodules by their dotted path; "" is the network itself.
Receivers = tuple[Iterable[tuple[str, Receiver]], Iterable[tuple[str, Receiver]]]


@dataclass(frozen=True)
class Call:
    """One call of a network at a noise level.

    ``roles``: for each equal part of its rows the name of its conditioning in the guider, see ``RowRoles``.
    ``schedule``: the noise levels of the sampling run, empty outside of one. ``compiled``: whether the network runs
    through torch.compile, where hooks are ignored or not as its graphs were made before.
    """

    network: nn.Module
    roles: tuple[str | None, ...]
    rows: int
    sigma: float
    schedule: tuple[float, ...]
    compiled: bool = False

    @property
    def step(self) -> tuple[int, int]:
        """The step of the schedule that the call is in, from 0, and how many there are; (0, 1) without a schedule."""
        return _step_of(self.sigma, self.schedule)

    @property
    def parts(self) -> tuple[bool | None, ...]:
        """For each part whether its conditioning is the guider's positive (True) or negative (False) one.

        None for any other, such as DualCFGGuider's second one.
        """
        return tuple({"positive": True, "negative": False}.get(role or "") for role in self.roles)

    @property
    def positive(self) -> tuple[bool, ...]:
        """For each part whether it is of the positive prompt, with whatever metadata."""
        return tuple(role in POSITIVE for role in self.roles)


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
    """What ``observe`` calls during the runs on a MODEL, in this order, until ``finished`` or ``failed``."""

    def started(self) -> None:
        """A sampling run begins."""

    def evaluating(self, evaluation: Evaluation) -> None:
        """An evaluation begins."""

    def calling(self, call: Call) -> Receivers | None:
        """The network is about to be called: the receivers of its activations, or None."""

    def evaluated(self) -> None:
        """The evaluation is over."""

    def finished(self, latent: torch.Tensor) -> None:
        """The run has ended with the latent that the sampler hands out."""

    def failed(self) -> None:
        """The run was canceled or has failed."""


def observe(patcher, observer: Observer):
    """A clone of a MODEL whose sampling runs the observer watches; several observers do not disturb each other."""
    clone, key = patcher.clone(), f"glassbox_observer_{uuid.uuid4().hex}"

    def run(executor, *args, **kwargs):
        nonlocal compiled
        compiled = is_compiled(executor.class_obj.model_patcher)
        observer.started()
        try:
            latent = executor(*args, **kwargs)
        except BaseException:
            observer.failed()
            raise
        observer.finished(latent)
        return latent

    compiled = False  # by a node behind this one
    evaluations = None  # in the prediction that is under way; None outside of one
    sigma, schedule = None, _Schedule()  # sigma: of the evaluation that is under way; None outside of one

    def predict(executor, *args, **kwargs):
        nonlocal evaluations
        evaluations = 0
        try:
            return executor(*args, **kwargs)
        finally:
            evaluations = None

    def evaluate(executor, model, conds, x, timestep, model_options):
        nonlocal evaluations, sigma
        before, sigma = sigma, float(timestep.flatten()[0])  # waits for the device: once per evaluation
        levels = schedule.levels(model_options.get("transformer_options", {}))
        observer.evaluating(_evaluation(sigma, levels, main=not evaluations))
        evaluations = None if evaluations is None else evaluations + 1
        try:
            result = executor(model, conds, x, timestep, model_options)
        finally:
            sigma = before
        observer.evaluated()
        return result

    clone.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, key, run)
    clone.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, key, predict)
    clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, key, evaluate)
    _hook_calls(clone, key, lambda call: observer.calling(replace(call, compiled=compiled)), False, lambda: sigma)
    return clone


def hook_calls(patcher, calling: Callable[[Call], Receivers | None], needs_positive: bool = True):
    """A clone of a MODEL that asks before each call of its network which modules' outputs go to whom.

    What a receiver of an output returns, unless it is None, replaces the output. ``needs_positive``: see ``RowRoles``.
    A run raises ValueError before it begins when a node behind this one compiles the MODEL.
    """
    clone, key = patcher.clone(), f"glassbox_calls_{uuid.uuid4().hex}"
    refuse_compiled_runs(clone, key)
    _hook_calls(clone, key, calling, needs_positive, lambda: None)
    return clone


class RowRoles:
    """Which of a guider's conditionings the rows of a network call belong to, by their names in the guider.

    Guiders order their conditionings as they like (DualCFGGuider: negative, middle, positive), ComfyUI adds copies of
    areas to the other sides, and other nodes evaluate copies, so neither places nor identities say anything. The names
    are written into the entries of the guider's conditionings, whose copies keep them. Attach one to each clone of a
    MODEL that asks. ``needs_positive``: a guider without a conditioning named positive raises ValueError.
    """

    def __init__(self, patcher, key: str, needs_positive: bool = True):
        self._needs_positive = needs_positive
        self._roles: tuple[str | None, ...] = ()
        patcher.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, f"{key}_names", self._predict)
        patcher.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, f"{key}_roles", self._evaluate)

    def _predict(self, executor, *args, **kwargs):
        conds = executor.class_obj.conds
        if self._needs_positive and "positive" not in conds:
            raise ValueError(
                f"This guider's conditionings are {', '.join(conds)}, none of which is named positive, so the rows of "
                "the positive prompt are not known: use CFGGuider, DualCFGGuider or KSampler."
            )
        for name, entries in conds.items():
            for entry in entries or ():
                entry[_ROLE] = name
        return executor(*args, **kwargs)

    def _evaluate(self, executor, model, conds, *args):
        before, self._roles = self._roles, self.of_groups(conds)
        try:
            return executor(model, conds, *args)
        finally:
            self._roles = before

    @staticmethod
    def of_groups(conds: list) -> tuple[str | None, ...]:
        """The name of each conditioning of an evaluation; None for one that is not the guider's, or none."""
        return tuple(entries[0].get(_ROLE) if entries else None for entries in conds)

    def of_parts(self, transformer_options: dict) -> tuple[str | None, ...]:
        """The name for each equal part of a call's rows; empty outside of an evaluation."""
        if not self._roles:
            return ()
        return tuple(self._roles[index] for index in transformer_options.get("cond_or_uncond", ()))


class _Schedule:
    """The noise levels of a run's steps as numbers, fetched from the device once per run."""

    def __init__(self):
        self._tensor: torch.Tensor | None = None
        self._levels: tuple[float, ...] = ()

    def levels(self, transformer_options: dict) -> tuple[float, ...]:
        """The levels; empty outside of a run."""
        tensor = transformer_options.get("sample_sigmas")
        if tensor is not self._tensor:
            self._tensor, self._levels = tensor, () if tensor is None else tuple(tensor.tolist())
        return self._levels


def _hook_calls(
    patcher,
    key: str,
    calling: Callable[[Call], Receivers | None],
    needs_positive: bool,
    known_sigma: Callable[[], float | None],
) -> None:
    """``known_sigma`` returns the noise level of a call, or None where it is to be fetched from the device."""
    roles, schedule = RowRoles(patcher, key, needs_positive), _Schedule()

    def call(executor, *args, **kwargs):
        options = kwargs.get("transformer_options") or (args[5] if len(args) > 5 else {})
        network, level = executor.class_obj.diffusion_model, known_sigma()
        if level is None:
            level = float((kwargs["t"] if "t" in kwargs else args[1]).flatten()[0])
        receivers = calling(Call(network, roles.of_parts(options), len(args[0]), level, schedule.levels(options)))
        if receivers is None:
            return executor(*args, **kwargs)
        with forward_hooks(network, receivers):
            return executor(*args, **kwargs)

    patcher.add_wrapper_with_key(WrappersMP.APPLY_MODEL, key, call)


def method_of(patcher, path: str) -> Callable:
    """A method of a MODEL's network by its dotted name, for an object patch, without a reference to the network.

    ComfyUI puts what an object patch has replaced back on the network. The bound method there would be a circle, in
    which the network outlives its MODELs, and ComfyUI warns of a leak.
    """
    found = patcher.get_model_object(path)
    if not inspect.ismethod(found):
        return found
    bound, name = weakref.WeakMethod(found), path.rpartition(".")[2]

    def method(*args, **kwargs):
        return bound()(*args, **kwargs)

    if name not in vars(found.__self__):
        setattr(found.__self__, name, method)
    return method


def is_compiled(patcher) -> bool:
    """Whether a MODEL, or a part of it, runs through torch.compile: graphs made before hold no hooks of today."""
    return any(
        (
            "torch_compile_kwargs" in patcher.model_options,
            "torch.compile" in patcher.wrappers.get(WrappersMP.APPLY_MODEL, {}),
            any(hasattr(patched, "_orig_mod") for patched in patcher.object_patches.values()),
            any("_orig_mod" in name for name, _ in patcher.model.diffusion_model.named_modules()),
        )
    )


def refuse_compiled(patcher) -> None:
    """Raise ValueError when the MODEL runs through torch.compile, see ``is_compiled``."""
    if is_compiled(patcher):
        raise ValueError(COMPILED)


def refuse_compiled_runs(patcher, key: str) -> None:
    """Let the runs of a clone of a MODEL raise ValueError before they begin when a later node has compiled it."""

    def run(executor, *args, **kwargs):
        if is_compiled(executor.class_obj.model_patcher):
            raise ValueError(_COMPILED_LATER)
        return executor(*args, **kwargs)

    patcher.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, f"{key}_compiled", run)


@contextmanager
def forward_hooks(network: nn.Module, receivers: Receivers) -> Iterator[None]:
    """Hand tensors to the receivers while the block runs; they must copy what they keep: networks reuse tensors."""
    outputs, inputs = receivers
    handles = []
    try:
        for path, receive in outputs:
            hook = lambda _module, _args, output, receive=receive: receive(output)  # noqa: E731
            handles.append(network.get_submodule(path).register_forward_hook(hook))
        for path, receive in inputs:
            before = lambda _module, args, receive=receive: receive(args[0])  # noqa: E731
            handles.append(network.get_submodule(path).register_forward_pre_hook(before))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _evaluation(sigma: float, levels: tuple[float, ...], main: bool) -> Evaluation:
    step, steps = _step_of(sigma, levels)
    on_schedule = len(levels) < 2 or abs(levels[step] - sigma) <= _SAME * sigma
    return Evaluation(sigma, step, steps, on_schedule, main)


def _step_of(sigma: float, levels: tuple[float, ...]) -> tuple[int, int]:
    """The step that a noise level is in, from 0, and how many steps the schedule has; (0, 1) without one."""
    if len(levels) < 2:
        return 0, 1
    begun = sum(level >= sigma * (1 - _SAME) for level in levels[:-1])  # between two steps is in the earlier one
    return max(begun - 1, 0), len(levels) - 1
