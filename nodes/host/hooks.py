"""Watch a network from the inside while it samples: hooks that live exactly as long as one call of
the network.

Clones of a MODEL share one network, so a hook that stayed on it would fire in other runs. Here
every hook is put on as the network is called and taken off as it returns, whether it succeeds,
fails or is interrupted.
"""

from __future__ import annotations

import inspect
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from comfy.patcher_extension import WrappersMP
from torch import nn

from ..common.network_call import (
    Area,
    Call,
    Part,
    entered_text,
    evaluated_again,
    in_call,
    is_on_schedule,
    step_of,
)
from .evaluate import evaluating, levels_of

if TYPE_CHECKING:
    from ..common.attention import AttentionReceiver
    from .socket_types import BaseModel, ModelPatcher, WrapperExecutor

# of ComfyUI: makes as many steps as it needs, between the ends of the schedule
_ADAPTIVE = "dpm_adaptive_function"
_LAYERS = "glassbox_layer_evaluations"  # among the options of a MODEL
_ROLE = "glassbox_role"  # in an entry of a conditioning: its name in the guider

#: Why a MODEL that runs through torch.compile is refused.
COMPILED = (
    "This MODEL runs through torch.compile, which cannot be hooked: connect the model from before "
    "that node."
)
_COMPILED_LATER = (
    "This MODEL runs through torch.compile behind a node that hooks the network, which would be "
    "ignored without a word: leave the compiling node out."
)

Receiver = Callable[[torch.Tensor], None]
#: Who gets the outputs, and who the first inputs, of submodules by their dotted path; "" is the
#: network itself. And who gets the attentions of its blocks (``receiving_attentions``), if anybody.
Receivers: TypeAlias = (
    "tuple[Iterable[tuple[str, Receiver]], Iterable[tuple[str, Receiver]]]"
    " | tuple[Iterable[tuple[str, Receiver]], Iterable[tuple[str, Receiver]],"
    " Iterable[tuple[str, AttentionReceiver]]]"
)
#: What a call gets: receivers, or what makes a context to call the network in, a new one each time.
Calling: TypeAlias = "Callable[[Call], Receivers | Callable[[], AbstractContextManager] | None]"


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a model by a sampler, of one or more calls: its noise level, and where the
    run stands.

    ``step`` counts the steps of the schedule from 0; of a sampler that makes as many as it needs,
    those that it makes, where ``steps`` is how many have begun. Samplers of higher order evaluate
    several times in a step: ``on_schedule`` where the noise level is the step's own. ``main``: the
    first evaluation of a prediction; those after it are of a changed network, as in
    Perturbed-Attention Guidance.
    """

    sigma: float
    step: int
    steps: int
    on_schedule: bool
    main: bool


class Observer(Protocol):
    """What ``observe`` calls during the runs on a MODEL, in this order, until ``finished`` or
    ``failed``.
    """

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


def observe(patcher: ModelPatcher, observer: Observer) -> ModelPatcher:
    """A clone of a MODEL whose sampling runs the observer watches; several observers do not disturb
    each other.
    """
    clone = patcher.clone()
    key = f"glassbox_observer_{uuid.uuid4().hex}"
    runs = _ObservedRuns(observer)
    clone.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, key, runs.sample)
    clone.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, key, runs.predict)
    clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, key, runs.evaluate)
    _hook_calls(clone, key, runs.calling, False, watches=True)
    return clone


class _ObservedRuns:
    """Tells an observer of the sampling runs on a MODEL, from wrappers around the run, around each
    prediction of the sampler, and around each evaluation.
    """

    def __init__(self, observer: Observer):
        self._observer = observer
        self._schedule = RunLevels()
        self._compiled = False  # by a node behind this one
        #: Of a sampler that makes as many steps as it needs, how many are over; None for others.
        self._steps_done: int | None = None
        #: The step of such a sampler's last evaluation.
        self._step_evaluated = -1
        #: How many evaluations the prediction under way has had; None outside of one.
        self._evaluations: int | None = None

    def sample(
        self,
        executor: WrapperExecutor,
        noise: torch.Tensor,
        latent_image: torch.Tensor,
        sampler: Any,
        sigmas: torch.Tensor,
        denoise_mask: torch.Tensor | None = None,
        callback: Callable | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """The run, reported from its start to its end; ``callback`` is called after each step."""
        self._compiled = is_compiled(executor.class_obj.model_patcher)
        self._step_evaluated = -1
        self._steps_done = None
        if getattr(getattr(sampler, "sampler_function", None), "__name__", "") == _ADAPTIVE:
            self._steps_done = 0
            callback = self._counting(callback)
        self._observer.started()
        try:
            latent = executor(
                noise, latent_image, sampler, sigmas, denoise_mask, callback, *args, **kwargs
            )
        except BaseException:
            self._observer.failed()
            raise
        self._observer.finished(latent)
        return latent

    def _counting(self, callback: Callable | None) -> Callable:
        def count(*step: Any) -> Any:
            assert self._steps_done is not None
            self._steps_done += 1
            return None if callback is None else callback(*step)

        return count

    def predict(self, executor: WrapperExecutor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """A prediction of the sampler, of one or more evaluations."""
        self._evaluations = 0
        try:
            return executor(*args, **kwargs)
        finally:
            self._evaluations = None

    def evaluate(
        self,
        executor: WrapperExecutor,
        model: BaseModel,
        conds: list,
        x: torch.Tensor,
        timestep: torch.Tensor,
        model_options: dict,
    ) -> list[torch.Tensor]:
        """One evaluation, of one or more calls of the network."""
        with evaluating(timestep):
            levels = self._schedule.levels(model_options.get("transformer_options", {}))
            evaluation = _evaluation(levels_of(timestep)[0], levels, main=not self._evaluations)
            if self._steps_done is not None:
                evaluation = replace(
                    evaluation,
                    step=self._steps_done,
                    steps=self._steps_done + 1,
                    on_schedule=self._steps_done != self._step_evaluated,
                )
                self._step_evaluated = self._steps_done
            self._observer.evaluating(evaluation)
            if self._evaluations is not None:
                self._evaluations += 1
            result = executor(model, conds, x, timestep, model_options)
        self._observer.evaluated()
        return result

    def calling(self, call: Call) -> Receivers | None:
        """The observer's receivers for a call."""
        return self._observer.calling(replace(call, compiled=self._compiled))


def hook_calls(
    patcher: ModelPatcher,
    calling: Calling,
    needs_positive: bool = True,
    watches: bool = False,
    *,
    with_compiled: bool = False,
) -> ModelPatcher:
    """A clone of a MODEL that asks before each call of its network which modules' outputs go to
    whom.

    What a receiver of an output returns, unless it is None, replaces the output. ``calling`` may
    also return what makes a context in which the network is called. Both hold again where a part of
    the call is computed again for a gradient: what a receiver returns must not depend on how often
    it is called. ``needs_positive``: see ``RowRoles``. ``watches``: the receivers only look, so
    that layers that another node evaluates again (``network_call.evaluating_again``) are not
    theirs, nor what is computed again for a gradient. A run raises ValueError before it begins when
    a node behind this one compiles the MODEL, unless ``with_compiled``: what ``calling`` does
    reaches compiled layers, too.
    """
    clone = patcher.clone()
    key = f"glassbox_calls_{uuid.uuid4().hex}"
    if not with_compiled:
        refuse_compiled_runs(clone, key)
    _hook_calls(clone, key, calling=calling, needs_positive=needs_positive, watches=watches)
    return clone


def mark_layer_evaluations(patcher: ModelPatcher) -> None:
    """Note on a clone of a MODEL that a node evaluates layers by themselves, on other rows than
    those of the call.
    """
    patcher.model_options.setdefault("transformer_options", {})[_LAYERS] = True


def evaluates_layers(model_options: Mapping) -> bool:
    """Whether a node on a MODEL evaluates layers by themselves (``mark_layer_evaluations``)."""
    return _LAYERS in model_options.get("transformer_options", {})


class RowRoles:
    """Which of a guider's conditionings the rows of a network call belong to, and which area of the
    latent they see.

    Guiders order their conditionings as they like (DualCFGGuider: negative, middle, positive),
    ComfyUI adds copies of areas to the other sides, and other nodes evaluate copies, so neither
    places nor identities say anything. The names are written into the entries of the guider's
    conditionings, whose copies keep them. Attach one to each clone of a MODEL that asks.
    ``needs_positive``: a guider without a conditioning named positive raises ValueError.
    """

    def __init__(self, patcher: ModelPatcher, key: str, needs_positive: bool = True):
        self._needs_positive = needs_positive
        self._latent: torch.Size | None = None  # the shape of the run's latents
        self._groups: list[list[dict]] = []
        self._evaluated: torch.Size | None = None  # the shape of the latents of the evaluation
        patcher.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, f"{key}_names", self._predict)
        patcher.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, f"{key}_roles", self._evaluate)

    def _predict(
        self, executor: WrapperExecutor, x: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        conds = executor.class_obj.conds
        if self._needs_positive and "positive" not in conds:
            raise ValueError(
                f"This guider's conditionings are {', '.join(conds)}, none of which is named "
                "positive, so the rows of the positive prompt are not known: use CFGGuider, "
                "DualCFGGuider or KSampler."
            )
        for name, entries in conds.items():
            for entry in entries or ():
                entry[_ROLE] = name
        before = self._latent
        self._latent = x.shape
        try:
            return executor(x, *args, **kwargs)
        finally:
            self._latent = before

    def _evaluate(
        self,
        executor: WrapperExecutor,
        model: BaseModel,
        conds: list,
        x: torch.Tensor,
        timestep: torch.Tensor,
        *args: Any,
    ) -> Any:
        before = self._groups, self._evaluated
        self._groups = [group or [] for group in conds]
        self._evaluated = x.shape
        try:
            with evaluating(timestep):
                return executor(model, conds, x, timestep, *args)
        finally:
            self._groups, self._evaluated = before

    @staticmethod
    def of_groups(conds: list) -> tuple[str | None, ...]:
        """The name of each conditioning of an evaluation; None for one that is not the guider's, or
        none.
        """
        return tuple(entries[0].get(_ROLE) if entries else None for entries in conds)

    def parts_of(
        self, transformer_options: dict, x: torch.Tensor, context: torch.Tensor | None = None
    ) -> tuple[Part, ...]:
        """The parts of a call with latents ``x`` and a text ``context``; empty outside of an
        evaluation.
        """
        if self._evaluated is None:
            return ()
        groups = transformer_options.get("cond_or_uncond", ())
        uuids = transformer_options.get("uuids") or [None] * len(groups)
        entries = [self._entries(group, uuid) for group, uuid in zip(groups, uuids, strict=True)]
        roles = self.of_groups([self._groups[group] for group in groups])
        rows = self._rows_of(entries, len(x), context)
        return tuple(
            Part(
                role=role,
                rows=own,
                area=self._area_of(found, x),
                text=_text(context, own, len(x)),
                prompt=_prompt(found),
                entered=_entered(found),
            )
            for role, found, own in zip(roles, entries, rows, strict=True)
        )

    def _entries(self, group: int, uuid: Any) -> list[dict]:
        """The entry of a conditioning with this id, or all of them where another node has given it
        another.
        """
        every = self._groups[group]
        return [entry for entry in every if entry.get("uuid") == uuid] or every

    def _rows_of(self, entries: list[list[dict]], count: int, context: torch.Tensor | None) -> list:
        """The rows of each part: one part after the other, unless another node has put several
        tiles into the call.
        """
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
        """What a part sees of the latent; None for another size than that of its area, or of
        another evaluation.
        """
        assert self._evaluated is not None
        latent = self._latent or self._evaluated
        if (latent[0], latent[2:]) != (self._evaluated[0], self._evaluated[2:]):
            return None
        areas = {_bounds(entry.get("area"), latent[2:]) for entry in entries}
        begin, size = areas.pop()
        if areas or size != tuple(x.shape[2:]) or size[:-2] != latent[2:-2]:
            return None
        top, left = (0, *begin)[-2:]
        height, width = (1, *size)[-2:]
        return Area((top, left), (height, width), (latent[-2] if len(begin) > 1 else 1, latent[-1]))


def _bounds(
    area: Sequence[int] | None, of: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Begin and size in each dimension of an entry's area, as ComfyUI reads it; all of the latent
    without one.
    """
    if area is None:
        return (0,) * len(of), tuple(of)
    count = len(area) // 2
    sizes = list(area[:count])
    begins = list(area[count:])
    missing = max(len(of) - count, 0)  # the area of an image in a video is in all of its frames
    sizes = [*of[:missing], *sizes][: len(of)]
    begins = [*[0] * missing, *begins][: len(of)]
    return tuple(begins), tuple(
        min(side - begin, size) for side, begin, size in zip(of, begins, sizes, strict=True)
    )


def _text(context: torch.Tensor | None, rows: Any, count: int) -> torch.Tensor | None:
    return None if rows is None or context is None or len(context) != count else context[rows]


def _prompt(entries: list[dict]) -> torch.Tensor | None:
    """The encoded prompt of a part, as its conditioning holds it; None where it may be one of
    several.
    """
    prompts = [entry.get("model_conds", {}).get("c_crossattn") for entry in entries]
    if len(prompts) != 1 or prompts[0] is None:
        return None
    return prompts[0].cond


def _entered(entries: list[dict]) -> torch.Tensor | None:
    """What the text of a part is recognized by; None where it may be one of several."""
    text = entries[0].get("cross_attn") if len(entries) == 1 else None
    return None if text is None else entered_text(text, entries[0])


def _rows_with(entries: list[dict], context: torch.Tensor | None) -> torch.Tensor | None:
    """Which rows of a call's text (rows, tokens, channels) are that of a conditioning, bool
    (rows,); None without.
    """
    texts = [entry["model_conds"].get("c_crossattn") for entry in entries]
    if context is None or len(texts) != 1 or texts[0] is None or len(texts[0].cond) != 1:
        return None
    own = texts[0].cond.to(context)
    if own.shape[2] != context.shape[2] or context.shape[1] % own.shape[1]:
        return None
    return (context == own.repeat(1, context.shape[1] // own.shape[1], 1)).flatten(1).all(1).cpu()


class RunLevels:
    """The noise levels of a run's steps as numbers, fetched from the device once per run."""

    def __init__(self):
        self._tensor: torch.Tensor | None = None
        self._levels: tuple[float, ...] = ()

    def levels(self, transformer_options: dict) -> tuple[float, ...]:
        """The levels; empty outside of a run."""
        tensor = transformer_options.get("sample_sigmas")
        if tensor is not self._tensor:
            self._tensor = tensor
            self._levels = () if tensor is None else tuple(tensor.tolist())
        return self._levels


def _hook_calls(
    patcher: ModelPatcher, key: str, calling: Calling, needs_positive: bool, watches: bool
) -> None:
    roles = RowRoles(patcher, key, needs_positive)
    schedule = RunLevels()

    def call(executor: WrapperExecutor, *args: Any, **kwargs: Any) -> Any:
        options = kwargs.get("transformer_options") or (args[5] if len(args) > 5 else {})
        level = levels_of(options.get("sigmas", kwargs["t"] if "t" in kwargs else args[1]))[0]
        network = executor.class_obj.diffusion_model
        context = kwargs.get("c_crossattn", args[3] if len(args) > 3 else None)
        parts = roles.parts_of(options, args[0], context)
        receivers = calling(
            Call(
                network=network,
                parts=parts,
                rows=len(args[0]),
                sigma=level,
                schedule=schedule.levels(options),
            )
        )
        if receivers is None:
            return executor(*args, **kwargs)
        enter = (
            receivers
            if callable(receivers)
            else partial(forward_hooks, network, receivers, watches=watches)
        )
        with enter() if watches else in_call(enter):
            return executor(*args, **kwargs)

    patcher.add_wrapper_with_key(WrappersMP.APPLY_MODEL, key, call)


def method_of(patcher: ModelPatcher, path: str) -> Callable:
    """A method of a MODEL's network by its dotted name, for an object patch, without a reference to
    the network.

    ComfyUI puts what an object patch has replaced back on the network. The bound method there would
    be a circle, in which the network outlives its MODELs, and ComfyUI warns of a leak.
    """
    found = patcher.get_model_object(path)
    if not inspect.ismethod(found):
        return found
    bound = weakref.WeakMethod(found)
    name = path.rpartition(".")[2]

    def method(*args: Any, **kwargs: Any) -> Any:
        alive = bound()
        assert alive is not None  # the network is being called
        return alive(*args, **kwargs)

    if name not in vars(found.__self__):
        setattr(found.__self__, name, method)
    return method


def is_compiled(patcher: ModelPatcher) -> bool:
    """Whether a MODEL, or a part of it, runs through torch.compile: graphs made before hold no
    hooks of today.
    """
    return any(
        (
            "torch_compile_kwargs" in patcher.model_options,
            "torch.compile" in patcher.wrappers.get(WrappersMP.APPLY_MODEL, {}),
            any(hasattr(patched, "_orig_mod") for patched in patcher.object_patches.values()),
            any("_orig_mod" in name for name, _ in patcher.model.diffusion_model.named_modules()),
        )
    )


def refuse_compiled(patcher: ModelPatcher) -> None:
    """Raise ValueError when the MODEL runs through torch.compile, see ``is_compiled``."""
    if is_compiled(patcher):
        raise ValueError(COMPILED)


def refuse_compiled_runs(patcher: ModelPatcher, key: str) -> None:
    """Let the runs of a clone of a MODEL raise ValueError before they begin when a later node has
    compiled it.
    """

    def run(executor: WrapperExecutor, *args: Any, **kwargs: Any) -> Any:
        if is_compiled(executor.class_obj.model_patcher):
            raise ValueError(_COMPILED_LATER)
        return executor(*args, **kwargs)

    patcher.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, f"{key}_compiled", run)


def refuse_lost_gradients(patcher: ModelPatcher) -> None:
    """Let a clone of a MODEL raise ValueError when another node's wrapper calls the network without
    gradients.

    Where the prediction is made with them; what is computed from such an output fails far from its
    cause.
    """
    key = f"glassbox_gradients_{uuid.uuid4().hex}"
    wanted = False

    def predict(executor: WrapperExecutor, *args: Any, **kwargs: Any) -> Any:
        nonlocal wanted
        before = wanted
        wanted = torch.is_grad_enabled()
        try:
            return executor(*args, **kwargs)
        finally:
            wanted = before

    def call(executor: WrapperExecutor, *args: Any, **kwargs: Any) -> Any:
        if wanted and not torch.is_grad_enabled():
            raise ValueError(
                "A node on the MODEL evaluates it without gradients (such as Tiled Diffusion), "
                "and this node needs them: connect the MODEL from before that node."
            )
        return executor(*args, **kwargs)

    patcher.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, key, predict)
    patcher.add_wrapper_with_key(WrappersMP.APPLY_MODEL, key, call)


@contextmanager
def forward_hooks(
    network: nn.Module, receivers: Receivers, *, watches: bool = False
) -> Iterator[None]:
    """Hand tensors to the receivers while the block runs; they must copy what they keep: networks
    reuse tensors.

    ``watches``: they only look, so that what they compute is no part of a gradient, and get nothing
    of layers that another node evaluates again.
    """
    outputs, inputs = receivers[:2]
    attentions = receivers[2] if len(receivers) == 3 else ()
    watching = torch.no_grad if watches else nullcontext
    handles = []

    def received(receive: Receiver, tensor: torch.Tensor) -> Any:
        subset = evaluated_again()
        if subset is not None and (watches or subset.probe):
            return None
        with watching():
            return receive(tensor)

    try:
        for path, receive in outputs:
            hook = lambda _module, _args, output, receive=receive: received(receive, output)  # noqa: E731
            handles.append(network.get_submodule(path).register_forward_hook(hook))
        for path, receive in inputs:
            before = lambda _module, args, receive=receive: received(receive, args[0])  # noqa: E731
            handles.append(network.get_submodule(path).register_forward_pre_hook(before))
        with _receiving(network, attentions, watches=watches):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _receiving(
    network: nn.Module, attentions: Iterable[tuple[str, AttentionReceiver]], watches: bool
) -> AbstractContextManager:
    if not attentions:
        return nullcontext()
    from .attention.receivers import receiving_attentions

    return receiving_attentions(network, attentions, watches=watches)


def _evaluation(sigma: float, levels: tuple[float, ...], main: bool) -> Evaluation:
    return Evaluation(sigma, *step_of(sigma, levels), is_on_schedule(sigma, levels), main)
