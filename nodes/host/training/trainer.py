"""Evaluate a MODEL with gradients on whatever changes its weights, through ComfyUI's own sampling path.

def work(session):
    noised = session.noised(session.latents[0], noise, sigmas)
    loss = (session.denoised(noised, sigmas, [0]) - session.latents[0]).square().mean()
    loss.backward()  # reaches what `functions` computes with
    return loss.item()

loss = run(model, {"diffusion_model.out.2.weight": lambda weight: weight + up @ down}, latents, conditions, work)
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import comfy.model_management
import comfy.model_patcher
import comfy.sampler_helpers
import comfy.samplers
import torch

from ..hooks import refuse_compiled, refuse_lost_gradients
from ..latent_shapes import matching_channels
from ..quantized import WeightFunction
from .gradients import LOW_PRECISION, activations_kept, inputs_copied, kernels_with_gradients
from .layer_weights import LayerWeights, trainable_layers

Result = TypeVar("Result")

# With one of these a CONDITIONING cannot share an evaluation with others.
_ALONE = ("area", "mask", "control", "gligen", "hooks")


@dataclass(frozen=True)
class TextEncoder:
    """A CLIP that encodes with gradients: its own weights changed by ``functions``, as those of `run`.

    ``captions``: row of a condition -> its text. Such a condition is encoded again at every evaluation; what else its
    CONDITIONING holds, such as size metadata, stays.
    """

    clip: Any
    functions: Mapping[str, WeightFunction]
    captions: Mapping[int, str]

    def encode(self, row: int, entries: list[dict]) -> list[dict]:
        """The condition of a row with the embedding and pooled output of the weights as they are now."""
        ((embedding, more),) = self.clip.encode_from_tokens_scheduled(self.clip.tokenize(self.captions[row]))
        kept = {name: value for name, value in entries[0].items() if name not in ("cross_attn", "model_conds", "uuid")}
        return comfy.sampler_helpers.convert_cond([[embedding, {**kept, **more}]])


class Session:
    """What work on a MODEL with gradients is given; valid while that work runs.

    ``latents``: the images as the model sees them, each (1, C, ...), on the CPU. ``device`` and ``dtype``: where and
    in what the model computes. ``sampling``: ComfyUI's model_sampling.
    """

    def __init__(
        self,
        guider,
        latents: list[torch.Tensor],
        conditions: list[list[dict]],
        dtype: torch.dtype,
        seed: int,
        text: TextEncoder | None = None,
    ):
        model = guider.inner_model
        self._text = text
        self._guider, self._conditions, self._seed = guider, conditions, seed
        self._options = comfy.model_patcher.create_model_options_clone(guider.model_options)
        self._encoded: dict[tuple, list[dict]] = {}
        self.device, self.dtype, self.sampling = guider.model_patcher.load_device, dtype, model.model_sampling
        self.latents = [_in_model_scale(model, latent) for latent in latents]

    def sigma(self, percent: float) -> float:
        """The noise level at a fraction of the sampling range: 0 is pure noise, 1 is none."""
        return min(float(self.sampling.percent_to_sigma(percent)), float(self.sampling.sigma_max))

    def noised(self, latent: torch.Tensor, noise: torch.Tensor, sigmas: torch.Tensor) -> torch.Tensor:
        """The latent (B, C, ...) with noise at the levels ``sigmas`` (B,), as the model is trained to see it."""
        return self.sampling.noise_scaling(sigmas, noise, latent, False)

    def clean(self, latent: torch.Tensor) -> torch.Tensor:
        """What a perfect model would answer for this latent."""
        return self.noised(latent, torch.zeros_like(latent), torch.zeros(len(latent), device=latent.device))

    def as_latent(self, latent: torch.Tensor) -> torch.Tensor:
        """A latent of the model's scale as a VAE decodes it."""
        return self._guider.inner_model.process_latent_out(latent.float())

    def reload(self) -> None:
        """Bring the model back to its device after another model, such as a VAE, has run."""
        load(*(weights.patcher for weights in self._guider.weights))
        for weights in self._guider.weights:
            weights.renew()

    def denoised(
        self,
        noised: torch.Tensor,
        sigmas: torch.Tensor,
        rows: Sequence[int],
        against: Sequence[int] | None = None,
        cfg: float = 1.0,
    ) -> torch.Tensor:
        """The model's answer (B, C, ...) with the conditions ``rows``, one per image; CFG against other ones.

        Images share one evaluation where their conditions allow it (no area, mask, ControlNet, GLIGEN or hook).
        """
        given = {"positive": rows} if against is None else {"positive": rows, "negative": against}
        sides = {side: self._entries(which, noised) for side, which in given.items()}
        if all(len(entries) == 1 for entries in sides.values()):
            return self._call(noised, sigmas, {side: entries[0] for side, entries in sides.items()}, cfg)
        singles = {side: [self._encode(row, noised) for row in which] for side, which in given.items()}
        return torch.cat(
            [
                self._call(
                    noised[i : i + 1], sigmas[i : i + 1], {side: found[i] for side, found in singles.items()}, cfg
                )
                for i in range(len(noised))
            ]
        )

    def _call(self, noised: torch.Tensor, sigmas: torch.Tensor, conds: dict[str, list[dict]], cfg: float):
        comfy.model_management.throw_exception_if_processing_interrupted()
        self._guider.conds, self._guider.cfg = conds, cfg
        low = torch.autocast(self.device.type, self.dtype) if self.dtype in LOW_PRECISION else contextlib.nullcontext()
        with low:
            return self._guider(noised, sigmas, model_options=self._options, seed=self._seed)

    def _entries(self, rows: Sequence[int], like: torch.Tensor) -> list[list[dict]]:
        """The conditions of a batch as one list of entries where they can be joined, else one list per image."""
        each = {row: self._encode(row, like) for row in dict.fromkeys(rows)}
        encoded = [each[row] for row in rows]
        joined = encoded[0] if len(set(rows)) == 1 else _joined(encoded)
        return encoded if joined is None else [joined]

    def _encode(self, row: int, like: torch.Tensor) -> list[dict]:
        """A condition as the model wants it for an image of that shape."""
        if self._text is not None and row in self._text.captions:
            return self._process(row, self._text.encode(row, self._conditions[row]), like)
        key = (row, like.shape[1:])
        if key not in self._encoded:
            with torch.no_grad():
                self._encoded[key] = self._process(row, [entry.copy() for entry in self._conditions[row]], like)
        return self._encoded[key]

    def _process(self, row: int, entries: list[dict], like: torch.Tensor) -> list[dict]:
        latent = self.latents[row] if row < len(self.latents) else None
        blank = torch.zeros_like(like[:1])
        latent = blank if latent is None or latent.shape != blank.shape else latent.to(blank)
        return comfy.samplers.process_conds(
            self._guider.inner_model, blank, {"positive": entries}, self.device, latent, None, self._seed
        )["positive"]


def run(
    patcher,
    functions: Mapping[str, WeightFunction],
    latents: Sequence[torch.Tensor],
    conditions: Sequence[list],
    work: Callable[[Session], Result],
    *,
    dtype: torch.dtype = torch.bfloat16,
    checkpointing: bool = False,
    checkpoint_depth: int = 1,
    text: TextEncoder | None = None,
    seed: int = 0,
) -> Result:
    """Run ``work`` with gradients on and the weights changed by ``functions``, and return what it returns.

    ``functions``: name of a weight or bias ("diffusion_model.out.2.weight") to what makes the changed one from it; a
    ``move_to(device)`` of theirs is called when the model moves. ``latents``: images (1, C, ...) or (C, ...) as the
    VAE encodes them. ``conditions``: one CONDITIONING per image, and further ones where wanted. ``dtype``: in which the
    model computes. ``checkpointing`` computes activations twice instead of keeping them, where the model allows it:
    those of the network's blocks, or with a ``checkpoint_depth`` above 1 of the modules so many levels inside.
    ``text``: a CLIP whose weights get gradients too.
    The MODEL stays as it was; raises ValueError for a name that is none of its weights, or whose weight a
    custom loader has quantized, and for a MODEL that runs through torch.compile.
    """
    refuse_compiled(patcher)
    with torch.inference_mode(False), torch.enable_grad():
        clone = _plain_clone(patcher)
        refuse_lost_gradients(clone)
        clone.set_model_compute_dtype(dtype)
        weights = [LayerWeights(clone, functions)]
        images = [latent if latent.ndim > 3 else latent[None] for latent in map(_own, latents)]
        images = [matching_channels(latent, patcher).to("cpu", dtype) for latent in images]
        conditions = [comfy.sampler_helpers.convert_cond(_own(condition)) for condition in conditions]
        if text is not None:
            text, of_text = _trainable_text(text)
            weights.append(of_text)
        controlled = any("control" in entry for entries in conditions for entry in entries)

        def work_on(guider: _Guider) -> Result:
            with activations_kept(clone, dtype, checkpointing, controlled, checkpoint_depth):
                return work(Session(guider, images, conditions, dtype, seed, text))

        guider = _Guider(weights, work_on, conditions)
        clone.model.requires_grad_(False)
        with contextlib.ExitStack() as stack:
            for each in weights:
                stack.callback(each.remove)
            load(*(each.patcher for each in weights))
            for encoder in weights[1:]:
                stack.enter_context(encoder.crossed())
                stack.enter_context(inputs_copied(trainable_layers(encoder.patcher).values()))
            first = images[0]
            no_steps = torch.tensor([1.0, 0.0])
            guider.sample(torch.zeros_like(first), first, None, no_steps, disable_pbar=True, seed=seed)
        return guider.result


def load(*patchers) -> None:
    """Bring the whole of one or more models to their device, as training needs it."""
    with torch.inference_mode():  # as loaders run: outside of it PyTorch cannot move ComfyUI's quantized tensors
        comfy.model_management.load_models_gpu(list(patchers), memory_required=1e20, force_full_load=True)


def _trainable_text(text: TextEncoder) -> tuple[TextEncoder, LayerWeights]:
    """A text encoder whose functions act on a clone of the CLIP, and the weights of that clone."""
    clip = text.clip.clone()
    clip.patcher = _plain_clone(clip.patcher)
    weights = LayerWeights(clip.patcher, text.functions)
    clip.patcher.model.requires_grad_(False)
    return replace(text, clip=clip), weights


class _Guider(comfy.samplers.CFGGuider):
    """A guider that does ``work(guider)`` with gradients where others sample.

    ``work`` must not hold the guider: in such a circle the clone and the clones that it comes from would go at once,
    and ComfyUI, which then does not find the MODEL behind them, searches for circles before every later load.
    """

    def __init__(self, weights: list[LayerWeights], work: Callable[[_Guider], object], conditions: list[list[dict]]):
        super().__init__(weights[0].patcher)
        self.weights = weights  # of the MODEL, and of the CLIP where that is trained too
        self.work = work
        self.result: Any = None
        self.original_conds = {"positive": [entry for entries in conditions for entry in entries]}

    def inner_sample(self, noise, latent_image, *rest, **more):
        with self.weights[0].crossed(), kernels_with_gradients():
            self.result = self.work(self)
        return latent_image


def _plain_clone(patcher):
    """A clone whose weights are all in place: newer ComfyUI keeps them elsewhere unless requested."""
    takes = inspect.signature(patcher.clone).parameters
    return patcher.clone(disable_dynamic=True) if "disable_dynamic" in takes else patcher.clone()


def _own(value):
    """A copy of nested lists and dicts whose tensors are no inference tensors."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: _own(item) for name, item in value.items()}
    return type(value)(map(_own, value)) if type(value) in (list, tuple) else value


def _in_model_scale(model, latent: torch.Tensor) -> torch.Tensor:
    """As ComfyUI's sampler does it: an image of zeros stays as it is."""
    return model.process_latent_in(latent) if torch.count_nonzero(latent) else latent


def _joined(conditions: list[list[dict]]) -> list[dict] | None:
    """The conditions of several images as that of one batch; None when they cannot be joined."""
    entries = [entry for entries in conditions for entry in entries]
    if len(entries) != len(conditions) or any(entry.get(name) is not None for entry in entries for name in _ALONE):
        return None
    if any(entry["model_conds"].keys() != entries[0]["model_conds"].keys() for entry in entries):
        return None
    model_conds = {}
    for name in entries[0]["model_conds"]:
        first, *others = (entry["model_conds"][name].process_cond(batch_size=1, area=None) for entry in entries)
        if not all(first.can_concat(other) for other in others):
            return None
        metadata = [getattr(part, "size_metadata", None) for part in (first, *others)]  # gated by schedules
        if any(other != metadata[0] for other in metadata):
            return None
        model_conds[name] = first._copy_with(first.concat(others))
    return [{**entries[0], "model_conds": model_conds}]
