"""Evaluate a MODEL with gradients on whatever changes its weights, through ComfyUI's own sampling
path.

def work(session):
    noised = session.noised(session.latents[0], noise, sigmas)
    loss = (session.denoised(noised, sigmas, [0]) - session.latents[0]).square().mean()
    loss.backward()  # reaches what `functions` computes with
    return loss.item()

loss = run(model, {"diffusion_model.out.2.weight": lambda weight: weight + up @ down}, latents,
conditions, work)
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import comfy.model_management
import comfy.model_patcher
import comfy.sampler_helpers
import comfy.samplers
import comfy.utils
import torch

from ..evaluate import takes_batches
from ..hooks import refuse_compiled, refuse_lost_gradients
from ..latent_shapes import join, matching_channels, silence, split
from ..quantized import WeightFunction
from ..step_caches import without_step_caches
from .gradients import LOW_PRECISION, activations_kept, inputs_copied, kernels_with_gradients
from .layer_weights import LayerWeights, trainable_layers
from .repeating import hindrance

if TYPE_CHECKING:
    from ..socket_types import BaseModel, ModelPatcher

Result = TypeVar("Result")

#: What a row with gradients takes for each byte that ComfyUI estimates for one without; counted
#: on SDXL at 1,024 pixels (`tests/comfy/test_training_memory.py`).
_WITH_GRADIENTS = 24.0
_CHECKPOINTED = 6.0
#: Margin of a row without gradients.
_WITHOUT_GRADIENTS = 1.5

# With one of these a CONDITIONING cannot share an evaluation with others.
_ALONE = ("area", "mask", "control", "gligen", "hooks")


@dataclass(frozen=True)
class TextEncoder:
    """A CLIP that encodes with gradients: its own weights changed by ``functions``, as those of
    `run`.

    ``captions``: row of a condition -> its text. Such a condition is encoded again at every
    evaluation; what else its CONDITIONING holds, such as size metadata, stays.
    """

    clip: Any
    functions: Mapping[str, WeightFunction]
    captions: Mapping[int, str]

    def encode(self, row: int, entries: list[dict]) -> list[dict]:
        """The condition of a row with the embedding and pooled output of the weights as they are
        now.
        """
        ((embedding, more),) = self.clip.encode_from_tokens_scheduled(
            self.clip.tokenize(self.captions[row])
        )
        kept = {
            name: value
            for name, value in entries[0].items()
            if name not in ("cross_attn", "model_conds", "uuid")
        }
        return comfy.sampler_helpers.convert_cond([[embedding, {**kept, **more}]])


class Session:
    """What work on a MODEL with gradients is given; valid while that work runs.

    ``latents``: the images as the model sees them, each (1, C, ...), on the CPU. ``device`` and
    ``dtype``: where and in what the model computes. ``sampling``: ComfyUI's model_sampling.
    ``sounds``: for each image the other parts of its LATENT, which are given their noise and
    evaluated with it, and are no part of what the work gets.
    """

    def __init__(
        self,
        guider: Any,
        latents: list[torch.Tensor],
        conditions: list[list[dict]],
        dtype: torch.dtype,
        seed: int,
        text: TextEncoder | None = None,
        *,
        checkpointing: bool = False,
        sounds: Sequence[Sequence[torch.Tensor]] = (),
    ):
        model = guider.inner_model
        self._checkpointing = checkpointing
        self._text = text
        self._guider = guider
        self._conditions = conditions
        self._seed = seed
        self._options = comfy.model_patcher.create_model_options_clone(guider.model_options)
        self._encoded: dict[tuple, list[dict]] = {}
        self.device = guider.model_patcher.load_device
        self.dtype = dtype
        self.sampling = model.model_sampling
        whole = [[latent] for latent in latents]
        for parts, sound in zip(whole, sounds, strict=False):
            parts.extend(sound)
        scaled = [_in_model_scale(model, parts) for parts in whole]
        self.latents = [parts[0] for parts in scaled]
        self._sounds = [parts[1:] for parts in scaled] if sounds else []

    def sigma(self, percent: float) -> float:
        """The noise level at a fraction of the sampling range: 0 is pure noise, 1 is none."""
        return min(float(self.sampling.percent_to_sigma(percent)), float(self.sampling.sigma_max))

    def noised(
        self, latent: torch.Tensor, noise: torch.Tensor, sigmas: torch.Tensor
    ) -> torch.Tensor:
        """The latent (B, C, ...) with noise at the levels ``sigmas`` (B,), as the model is trained
        to see it.
        """
        # ComfyUI gives the level of a single row without dimensions, so that its state would stay
        # in 16 bits: too coarse for small differences, and a skipped side of CFG is 0/0 in fp16.
        return self.sampling.noise_scaling(sigmas, noise.float(), latent.float(), False)

    def clean(self, latent: torch.Tensor) -> torch.Tensor:
        """What a perfect model would answer for this latent."""
        return self.noised(
            latent, torch.zeros_like(latent), torch.zeros(len(latent), device=latent.device)
        )

    def as_latent(self, latent: torch.Tensor) -> torch.Tensor:
        """A latent of the model's scale as a VAE decodes it."""
        return self._guider.inner_model.process_latent_out(latent.float())

    def rows_at_once(self, count: int, shape: Sequence[int], *, gradients: bool = True) -> int:
        """How many of ``count`` latents of a shape (C, ...) fit in free memory, with what gradients
        keep unless they are evaluated without; at least 1, and 1 for a network that takes no more.
        """
        if not takes_batches(self._guider.inner_model):
            return 1
        free = comfy.model_management.get_free_memory(self.device)
        factor = _WITHOUT_GRADIENTS
        if gradients:
            factor = _CHECKPOINTED if self._checkpointing else _WITH_GRADIENTS
        while (
            count > 1 and factor * self._guider.inner_model.memory_required([count, *shape]) > free
        ):
            count = (count + 1) // 2
        return count

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
        images: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """The model's answer (B, C, ...) with the conditions ``rows``, one per image; CFG against
        other ones. ``images``: the numbers of the images whose sound they have, without which they
        are those of the conditions.

        Images share one evaluation where their conditions allow it (no area, mask, ControlNet,
        GLIGEN or hook, texts of lengths that go together), or are the same.
        """
        sides = {"positive": rows} if against is None else {"positive": rows, "negative": against}
        used = dict.fromkeys(row for of_side in sides.values() for row in of_side)
        encoded = {row: self._encode(row, noised) for row in used}

        def shared(images: Sequence[int]) -> dict[str, list[dict]] | None:
            """The conditions of images that can share an evaluation."""
            if len(images) > 1 and not takes_batches(self._guider.inner_model):
                return None
            conditions = {}
            for side, of_side in sides.items():
                joined = _shared([of_side[image] for image in images], encoded)
                if joined is None:
                    return None
                conditions[side] = joined
            return conditions

        heard = rows if images is None else images
        everything = range(len(noised))
        conditions = shared(everything)
        if conditions is not None:
            return self._call(noised, sigmas, conditions, cfg, images=heard)
        groups: list[list[int]] = []
        for image in everything:
            group = next((group for group in groups if shared([*group, image])), None)
            if group is None:
                groups.append([image])
            else:
                group.append(image)
        answers: dict[int, torch.Tensor] = {}
        for group in groups:
            conditions = shared(group)
            assert conditions is not None
            places = torch.tensor(group, device=noised.device)
            answer = self._call(
                noised[places],
                sigmas[places],
                conditions,
                cfg,
                images=[heard[image] for image in group],
            )
            answers |= dict(zip(group, answer.split(1), strict=True))
        return torch.cat([answers[image] for image in everything])

    def _call(
        self,
        noised: torch.Tensor,
        sigmas: torch.Tensor,
        conds: dict[str, list[dict]],
        cfg: float,
        *,
        images: Sequence[int],
    ) -> torch.Tensor:
        comfy.model_management.throw_exception_if_processing_interrupted()
        self._guider.conds = conds
        self._guider.cfg = cfg
        low = (
            torch.autocast(self.device.type, self.dtype)
            if self.dtype in LOW_PRECISION
            else contextlib.nullcontext()
        )
        if not self._sounds:
            with low:
                return self._guider(noised, sigmas, model_options=self._options, seed=self._seed)
        sounds = [self._noised_sound(*row) for row in zip(images, sigmas, strict=True)]
        parts = [noised, *(torch.cat(part) for part in zip(*sounds, strict=True))]
        packed, shapes = comfy.utils.pack_latents(parts)
        with low:
            answer = self._guider(packed, sigmas, model_options=self._options, seed=self._seed)
        return comfy.utils.unpack_latents(answer, shapes)[0]

    def _noised_sound(self, image: int, sigma: torch.Tensor) -> list[torch.Tensor]:
        """The other parts of an image's LATENT at a noise level, or those of silence.

        Their noise follows from seed, image and level: a run that is resumed draws the same.
        """
        silence = [torch.zeros_like(part) for part in self._sounds[0]]
        sound = self._sounds[image] if image < len(self._sounds) else silence
        key = f"{self._seed} {image} {float(sigma):.6f}".encode()
        generator = torch.Generator().manual_seed(zlib.crc32(key))
        noised = []
        for part in sound:
            noise = torch.randn(part.shape, generator=generator).to(self.device)
            noised.append(
                self.sampling.noise_scaling(sigma[None], noise, part.to(self.device).float(), False)
            )
        return noised

    def _encode(self, row: int, like: torch.Tensor) -> list[dict]:
        """A condition as the model wants it for an image of that shape."""
        if self._text is not None and row in self._text.captions:
            return self._process(row, self._text.encode(row, self._conditions[row]), like)
        key = (row, like.shape[1:])
        if key not in self._encoded:
            with torch.no_grad():
                self._encoded[key] = self._process(
                    row, [entry.copy() for entry in self._conditions[row]], like
                )
        return self._encoded[key]

    def _process(self, row: int, entries: list[dict], like: torch.Tensor) -> list[dict]:
        latent = self.latents[row] if row < len(self.latents) else None
        blank = torch.zeros_like(like[:1])
        latent = blank if latent is None or latent.shape != blank.shape else latent.to(blank)
        shapes = [blank.shape]
        if self._sounds:
            sound = self._sounds[row if row < len(self._sounds) else 0]
            sound = [part.to(blank) for part in sound]
            latent, shapes = comfy.utils.pack_latents([latent, *sound])
            blank = torch.zeros_like(latent)
        takes_shapes = "latent_shapes" in inspect.signature(comfy.samplers.process_conds).parameters
        _thread.prepares_conditions = True
        try:
            return comfy.samplers.process_conds(
                self._guider.inner_model,
                blank,
                {"positive": entries},
                self.device,
                latent,
                None,
                self._seed,
                **({"latent_shapes": shapes} if takes_shapes else {}),
            )["positive"]
        finally:
            _thread.prepares_conditions = False


_thread = threading.local()


def prepares_conditions() -> bool:
    """Whether this thread prepares a condition, for which some networks run layers of their own
    on the text (LTX-2's connectors). Rows of a batch are not known there.
    """
    return getattr(_thread, "prepares_conditions", False)


def run(
    patcher: ModelPatcher,
    functions: Mapping[str, WeightFunction],
    latents: Sequence[torch.Tensor],
    conditions: Sequence[list],
    work: Callable[[Session], Result],
    *,
    dtype: torch.dtype,
    checkpointing: bool = False,
    checkpoint_depth: int = 1,
    text: TextEncoder | None = None,
    seed: int = 0,
    sounds: Sequence[Sequence[torch.Tensor]] = (),
) -> Result:
    """Run ``work`` with gradients on and the weights changed by ``functions``, and return what it
    returns.

    ``functions``: name of a weight or bias ("diffusion_model.out.2.weight") to what makes the
    changed one from it; a ``move_to(device)`` of theirs is called when the model moves.
    ``latents``: images (1, C, ...) or (C, ...) as the VAE encodes them. ``conditions``: one
    CONDITIONING per image, and further ones where wanted. ``dtype``: in which the model computes.
    ``checkpointing`` computes activations twice instead of keeping them, where the model allows it:
    those of the network's blocks, or with a ``checkpoint_depth`` above 1 of the modules so many
    levels inside. ``text``: a CLIP whose weights get gradients too. ``sounds``: for each image the
    other parts of its LATENT, see `Session`; without them a model that generates both is trained
    beside silence. The MODEL stays as it was;
    raises ValueError for a name that is none of its weights, or whose weight a custom loader has
    quantized, and for a MODEL that runs through torch.compile.
    """
    refuse_compiled(patcher)
    with torch.inference_mode(False), torch.enable_grad():
        clone = _plain_clone(without_step_caches(patcher))
        refuse_lost_gradients(clone)
        clone.set_model_compute_dtype(dtype)
        weights = [LayerWeights(clone, functions)]
        images = [latent if latent.ndim > 3 else latent[None] for latent in map(_own, latents)]
        images = [split(matching_channels(latent, patcher))[0] for latent in images]
        images = [latent.to("cpu", dtype) for latent in images]
        sounds = sounds or silence(images, patcher)
        sounds = [[part.to("cpu", dtype) for part in map(_own, parts)] for parts in sounds]
        conditions = [
            comfy.sampler_helpers.convert_cond(_in_float32(_own(condition)))
            for condition in conditions
        ]
        if text is not None:
            text, of_text = _trainable_text(text)
            weights.append(of_text)
        entries = [entry for condition in conditions for entry in condition]

        def work_on(guider: _Guider) -> Result:
            recomputed = checkpointing and not hindrance(clone, entries)
            with activations_kept(
                clone,
                dtype,
                checkpointing=checkpointing,
                conditions=entries,
                depth=checkpoint_depth,
            ):
                return work(
                    Session(
                        guider=guider,
                        latents=images,
                        conditions=conditions,
                        dtype=dtype,
                        seed=seed,
                        text=text,
                        checkpointing=recomputed,
                        sounds=sounds,
                    )
                )

        guider = _Guider(weights, work_on, conditions)
        clone.model.requires_grad_(False)
        with contextlib.ExitStack() as stack:
            for each in weights:
                stack.callback(each.remove)
            load(*(each.patcher for each in weights))
            for encoder in weights[1:]:
                stack.enter_context(encoder.crossed())
                stack.enter_context(inputs_copied(trainable_layers(encoder.patcher).values()))
            parts = [images[0], *(sounds[0] if sounds else ())]
            first = join(parts)
            nothing = join([torch.zeros_like(part) for part in parts])
            no_steps = torch.tensor([1.0, 0.0])
            guider.sample(nothing, first, None, no_steps, disable_pbar=True, seed=seed)
        return guider.result


def load(*patchers: ModelPatcher) -> None:
    """Bring the whole of one or more models to their device, as training needs it."""
    with (
        torch.inference_mode()
    ):  # as loaders run: outside of it PyTorch cannot move ComfyUI's quantized tensors
        comfy.model_management.load_models_gpu(
            list(patchers), memory_required=1e20, force_full_load=True
        )


def _trainable_text(text: TextEncoder) -> tuple[TextEncoder, LayerWeights]:
    """A text encoder whose functions act on a clone of the CLIP, and the weights of that clone."""
    clip = text.clip.clone()
    clip.patcher = _plain_clone(clip.patcher)
    weights = LayerWeights(clip.patcher, text.functions)
    clip.patcher.model.requires_grad_(False)
    return replace(text, clip=clip), weights


class _Guider(comfy.samplers.CFGGuider):
    """A guider that does ``work(guider)`` with gradients where others sample.

    ``work`` must not hold the guider: in such a circle the clone and the clones that it comes from
    would go at once, and ComfyUI, which then does not find the MODEL behind them, searches for
    circles before every later load.
    """

    #: Wrappers of sampling ask this: what only varies images is left out of a training.
    trains = True

    def __init__(
        self,
        weights: list[LayerWeights],
        work: Callable[[_Guider], object],
        conditions: list[list[dict]],
    ):
        super().__init__(weights[0].patcher)
        self.weights = weights  # of the MODEL, and of the CLIP where that is trained too
        self.work = work
        self.result: Any = None
        self.original_conds = {"positive": [entry for entries in conditions for entry in entries]}

    def inner_sample(
        self, noise: torch.Tensor, latent_image: torch.Tensor, *rest: Any, **more: Any
    ) -> torch.Tensor:
        if hasattr(self.inner_model, "latent_shapes"):
            self.inner_model.latent_shapes = more.get("latent_shapes")
        with self.weights[0].crossed(), kernels_with_gradients():
            self.result = self.work(self)
        return latent_image


def _plain_clone(patcher: ModelPatcher) -> ModelPatcher:
    """A clone whose weights are all in place: newer ComfyUI keeps them elsewhere unless
    requested.
    """
    takes = inspect.signature(patcher.clone).parameters
    return patcher.clone(disable_dynamic=True) if "disable_dynamic" in takes else patcher.clone()


def _own(value: Any) -> Any:
    """A copy of nested lists and dicts whose tensors are no inference tensors."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: _own(item) for name, item in value.items()}
    return type(value)(map(_own, value)) if type(value) in (list, tuple) else value


def _in_float32(value: Any) -> Any:
    """Nested lists and dicts with floating tensors in float32, as most text encoders give them:
    autocast joins no rows of another 16-bit type than its own (Lens's text is in float16).
    """
    if isinstance(value, torch.Tensor):
        return value.float() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: _in_float32(item) for name, item in value.items()}
    return type(value)(map(_in_float32, value)) if type(value) in (list, tuple) else value


def _in_model_scale(model: BaseModel, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """As ComfyUI's sampler does it, with all parts in one: zeros stay as they are."""
    if not any(torch.count_nonzero(part) for part in parts):
        return parts
    if len(parts) == 1:
        return [model.process_latent_in(parts[0])]
    packed, shapes = comfy.utils.pack_latents(parts)
    return comfy.utils.unpack_latents(model.process_latent_in(packed), shapes)


def _shared(rows: Sequence[int], encoded: Mapping[int, list[dict]]) -> list[dict] | None:
    """The conditions of rows as those of one batch; None when they cannot be joined."""
    if len(set(rows)) == 1:
        return encoded[rows[0]]
    return _joined([encoded[row] for row in rows])


def _joined(conditions: list[list[dict]]) -> list[dict] | None:
    """The conditions of several images as that of one batch; None when they cannot be joined."""
    entries = [entry for entries in conditions for entry in entries]
    if len(entries) != len(conditions) or any(
        entry.get(name) is not None for entry in entries for name in _ALONE
    ):
        return None
    if any(entry["model_conds"].keys() != entries[0]["model_conds"].keys() for entry in entries):
        return None
    model_conds = {}
    for name in entries[0]["model_conds"]:
        first, *others = (
            entry["model_conds"][name].process_cond(batch_size=1, area=None) for entry in entries
        )
        if not all(first.can_concat(other) for other in others):
            return None
        metadata = [
            getattr(part, "size_metadata", None) for part in (first, *others)
        ]  # gated by schedules
        if any(other != metadata[0] for other in metadata):
            return None
        model_conds[name] = first._copy_with(first.concat(others))
    return [{**entries[0], "model_conds": model_conds}]
