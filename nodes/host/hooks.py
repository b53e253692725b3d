"""Watch a network from the inside while it samples: hooks that live exactly as long as one call of the network.

Clones of a MODEL share one network, so a hook that stayed on it would fire in other runs. Here every hook is
put on as the network is called and taken off as it returns, whether it succeeds, fails or is interrupted.
"""

from __future__ import annotations

import inspect
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from comfy.patcher_extension import WrappersMP
from torch import nn

from ..common.network_call import Area, Call, Part, is_on_schedule, step_of
from .evaluate import evaluating, levels_of

_ADAPTIVE = "dpm_adaptive_function"  # of ComfyUI: makes as many steps as it needs, between the ends of the schedule
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
Calling = Callable[[Call], Receivers | AbstractContextManager | None]


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a model by a sampler, of one or more calls: its noise level, and where the run stands.

    ``step`` counts the steps of the schedule from 0; of a sampler that makes as many as it needs, those that it makes,
    where ``steps`` is how many have begun. Samplers of higher order evaluate several times in a step:
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

    def run(executor, noise, latent_image, sampler, sigmas, denoise_mask=None, callback=None, *args, **kwargs):
        nonlocal compiled, done, seen
        compiled, seen = is_compiled(executor.class_obj.model_patcher), -1
        adaptive = getattr(getattr(sampler, "sampler_function", None), "__name__", "") == _ADAPTIVE
        done = 0 if adaptive else None

        def count(*step):
            nonlocal done
            assert done is not None
            done += 1
            return None if callback is None else callback(*step)

        args = (noise, latent_image, sampler, sigmas, denoise_mask, count if adaptive else callback, *args)
        observer.started()
        try:
            latent = executor(*args, **kwargs)
        except BaseException:
            observer.failed()
            raise
        observer.finished(latent)
        return latent

    compiled = False  # by a node behind this one
    done, seen = None, -1  # of an adaptive sampler: how many steps are over, and the step of the last evaluation
    evaluations = None  # in the prediction that is under way; None outside of one
    schedule = _Schedule()

    def predict(executor, *args, **kwargs):
        nonlocal evaluations
        evaluations = 0
        try:
            return executor(*args, **kwargs)
        finally:
            evaluations = None

    def evaluate(executor, model, conds, x, timestep, model_options):
        nonlocal evaluations, seen
        with evaluating(timestep):
            levels = schedule.levels(model_options.get("transformer_options", {}))
            evaluation = _evaluation(levels_of(timestep)[0], levels, main=not evaluations)
            if done is not None:
                evaluation = replace(evaluation, step=done, steps=done + 1, on_schedule=done != seen)
                seen = done
            observer.evaluating(evaluation)
            evaluations = None if evaluations is None else evaluations + 1
            result = executor(model, conds, x, timestep, model_options)
        observer.evaluated()
        return result

    clone.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, key, run)
    clone.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, key, predict)
    clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, key, evaluate)
    _hook_calls(clone, key, lambda call: observer.calling(replace(call, compiled=compiled)), False)
    return clone


def hook_calls(patcher, calling: Calling, needs_positive: bool = True):
    """A clone of a MODEL that asks before each call of its network which modules' outputs go to whom.

    What a receiver of an output returns, unless it is None, replaces the output. ``calling`` may also return a context
    in which the network is called. ``needs_positive``: see ``RowRoles``.
    A run raises ValueError before it begins when a node behind this one compiles the MODEL.
    """
    clone, key = patcher.clone(), f"glassbox_calls_{uuid.uuid4().hex}"
    refuse_compiled_runs(clone, key)
    _hook_calls(clone, key, calling, needs_positive)
    return clone


class RowRoles:
    """Which of a guider's conditionings the rows of a network call belong to, and which area of the latent they see.

    Guiders order their conditionings as they like (DualCFGGuider: negative, middle, positive), ComfyUI adds copies of
    areas to the other sides, and other nodes evaluate copies, so neither places nor identities say anything. The names
    are written into the entries of the guider's conditionings, whose copies keep them. Attach one to each clone of a
    MODEL that asks. ``needs_positive``: a guider without a conditioning named positive raises ValueError.
    """

    def __init__(self, patcher, key: str, needs_positive: bool = True):
        self._needs_positive = needs_positive
        self._latent: torch.Size | None = None  # the shape of the run's latents
        self._groups: list[list[dict]] = []
        self._evaluated: torch.Size | None = None  # the shape of the latents of the evaluation
        patcher.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, f"{key}_names", self._predict)
        patcher.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, f"{key}_roles", self._evaluate)

    def _predict(self, executor, x, *args, **kwargs):
        conds = executor.class_obj.conds
        if self._needs_positive and "positive" not in conds:
            raise ValueError(
                f"This guider's conditionings are {', '.join(conds)}, none of which is named positive, so the rows of "
                "the positive prompt are not known: use CFGGuider, DualCFGGuider or KSampler."
            )
        for name, entries in conds.items():
            for entry in entries or ():
                entry[_ROLE] = name
        before, self._latent = self._latent, x.shape
        try:
            return executor(x, *args, **kwargs)
        finally:
            self._latent = before

    def _evaluate(self, executor, model, conds, x, timestep, *args):
        before = self._groups, self._evaluated
        self._groups, self._evaluated = [group or [] for group in conds], x.shape
        try:
            with evaluating(timestep):
                return executor(model, conds, x, timestep, *args)
        finally:
            self._groups, self._evaluated = before

    @staticmethod
    def of_groups(conds: list) -> tuple[str | None, ...]:
        """The name of each conditioning of an evaluation; None for one that is not the guider's, or none."""
        return tuple(entries[0].get(_ROLE) if entries else None for entries in conds)

    def parts_of(
        self, transformer_options: dict, x: torch.Tensor, context: torch.Tensor | None = None
    ) -> tuple[Part, ...]:
        """The parts of a call with latents ``x`` and a text ``context``; empty outside of an evaluation."""
        if self._evaluated is None:
            return ()
        groups = transformer_options.get("cond_or_uncond", ())
        uuids = transformer_options.get("uuids") or [None] * len(groups)
        entries = [self._entries(group, uuid) for group, uuid in zip(groups, uuids, strict=True)]
        roles = self.of_groups([self._groups[group] for group in groups])
        rows = self._rows_of(entries, len(x), context)
        return tuple(
            Part(role, own, self._area_of(found, x), _text(context, own, len(x)))
            for role, found, own in zip(roles, entries, rows, strict=True)
        )

    def _entries(self, group: int, uuid) -> list[dict]:
        """The entry of a conditioning with this id, or all of them where another node has given it another."""
        every = self._groups[group]
        return [entry for entry in every if entry.get("uuid") == uuid] or every

    def _rows_of(self, entries: list[list[dict]], count: int, context: torch.Tensor | None):
        """The rows of each part: one part after the other, unless another node has put several tiles into the call."""
        assert self._evaluated is not None
        images = self._evaluated[0]
        if len(entries) == 1:
            return [slice(0, count)]
        if count == images * len(entries):
            return [slice(first, first + images) for first in range(0, count, images)]
        found = [one for each in entries if (one := _rows_with(each, context)) is not None]
        if len(found) < len(entries) or not bool((torch.stack(found).sum(0) == 1).all()):
            return [None] * len(entries)
        return [one.nonzero().flatten() for one in found]

    def _area_of(self, entries: list[dict], x: torch.Tensor) -> Area | None:
        """What a part sees of the latent; None for another size than that of its area, or of another evaluation."""
        assert self._evaluated is not None
        latent = self._latent or self._evaluated
        if (latent[0], latent[2:]) != (self._evaluated[0], self._evaluated[2:]):
            return None
        areas = {_bounds(entry.get("area"), latent[2:]) for entry in entries}
        begin, size = areas.pop()
        if areas or size != tuple(x.shape[2:]) or size[:-2] != latent[2:-2]:
            return None
        (top, left), (height, width) = (0, *begin)[-2:], (1, *size)[-2:]
        return Area((top, left), (height, width), (latent[-2] if len(begin) > 1 else 1, latent[-1]))


def _bounds(area, of: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Begin and size in each dimension of an entry's area, as ComfyUI reads it; all of the latent without one."""
    if area is None:
        return (0,) * len(of), tuple(of)
    count = len(area) // 2
    sizes, begins = list(area[:count]), list(area[count:])
    missing = max(len(of) - count, 0)  # the area of an image in a video is in all of its frames
    sizes, begins = [*of[:missing], *sizes][: len(of)], [*[0] * missing, *begins][: len(of)]
    return tuple(begins), tuple(min(side - begin, size) for side, begin, size in zip(of, begins, sizes, strict=True))


def _text(context: torch.Tensor | None, rows, count: int) -> torch.Tensor | None:
    return None if rows is None or context is None or len(context) != count else context[rows]


def _rows_with(entries: list[dict], context: torch.Tensor | None) -> torch.Tensor | None:
    """Which rows of a call's text (rows, tokens, channels) are that of a conditioning, bool (rows,); None without."""
    texts = [entry["model_conds"].get("c_crossattn") for entry in entries]
    if context is None or len(texts) != 1 or texts[0] is None or len(texts[0].cond) != 1:
        return None
    own = texts[0].cond.to(context)
    if own.shape[2] != context.shape[2] or context.shape[1] % own.shape[1]:
        return None
    return (context == own.repeat(1, context.shape[1] // own.shape[1], 1)).flatten(1).all(1).cpu()


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


def _hook_calls(patcher, key: str, calling: Calling, needs_positive: bool) -> None:
    roles, schedule = RowRoles(patcher, key, needs_positive), _Schedule()

    def call(executor, *args, **kwargs):
        options = kwargs.get("transformer_options") or (args[5] if len(args) > 5 else {})
        level = levels_of(options.get("sigmas", kwargs["t"] if "t" in kwargs else args[1]))[0]
        network = executor.class_obj.diffusion_model
        context = kwargs.get("c_crossattn", args[3] if len(args) > 3 else None)
        parts = roles.parts_of(options, args[0], context)
        receivers = calling(Call(network, parts, len(args[0]), level, schedule.levels(options)))
        if receivers is None:
            return executor(*args, **kwargs)
        with receivers if isinstance(receivers, AbstractContextManager) else forward_hooks(network, receivers):
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


def refuse_lost_gradients(patcher) -> None:
    """Let a clone of a MODEL raise ValueError when another node's wrapper calls the network without gradients.

    Where the prediction is made with them; what is computed from such an output fails far from its cause.
    """
    key, wanted = f"glassbox_gradients_{uuid.uuid4().hex}", False

    def predict(executor, *args, **kwargs):
        nonlocal wanted
        before, wanted = wanted, torch.is_grad_enabled()
        try:
            return executor(*args, **kwargs)
        finally:
            wanted = before

    def call(executor, *args, **kwargs):
        if wanted and not torch.is_grad_enabled():
            raise ValueError(
                "A node on the MODEL evaluates it without gradients (such as Tiled Diffusion), and this node needs "
                "them: connect the MODEL from before that node."
            )
        return executor(*args, **kwargs)

    patcher.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, key, predict)
    patcher.add_wrapper_with_key(WrappersMP.APPLY_MODEL, key, call)


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
    return Evaluation(sigma, *step_of(sigma, levels), is_on_schedule(sigma, levels), main)
