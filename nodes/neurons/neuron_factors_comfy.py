"""Scale neurons of chosen layers of a network, for exactly as long as one call of the network.

Neurons of a value projection (``to_v``) are the channels that it puts out; those of any other layer
are the channels that it reads, the last ones where it reads more (as the second linear layer of
Flux's single blocks does). The values of a transformer's block at the text's positions are scaled
where its attention is evaluated: ``v[:, :, text] *= factor``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from comfy.model_management import cast_to_device
from comfy.patcher_extension import WrappersMP
from comfy.weight_adapter import WeightAdapterBase
from torch import nn

from ..common.network_call import POSITIVE, TILED, WRITTEN, Call, for_autograd, rows_in_call
from ..common.resume import digest
from ..host.evaluate import evaluating, levels_of
from ..host.hooks import Receivers, forward_hooks, hook_calls
from .neuron_layers import block_of, is_text_values

if TYPE_CHECKING:
    from ..common.attention import AttentionCall
    from ..host.socket_types import ModelPatcher, WrapperExecutor

#: Factor of each channel by dotted path of the layer: (channels,), or (rows, channels) for factors
#: of each row.
Factors = Mapping[str, torch.Tensor]
_ROUNDING = 1e-3  # of the largest component; one other word changes an embedding by far more


def scaled(network: nn.Module, factors: Factors) -> AbstractContextManager[None]:
    """Multiply the neurons (rows, tokens, channels) of layers while the block runs; every hook goes
    with it.

    Factors of each row are repeated when the network is called with a multiple of those rows.
    Channels of factor 1 keep their bits.
    """
    return forward_hooks(network, _receivers(factors))


def neurons_are_outputs(path: str) -> bool:
    """Whether the neurons of a layer are what it puts out; otherwise they are what it reads."""
    return path.endswith(".to_v")


def with_scaled(
    patcher: ModelPatcher, factors: Factors, sigmas: tuple[float, float], conditional_only: bool
) -> ModelPatcher:
    """A clone of a MODEL whose sampling scales the layers from the first noise level of ``sigmas``
    down to the second.

    ``conditional_only`` leaves rows of the negative prompt as they are.
    """
    calling = _calling(lambda: ((), factors), sigmas, conditional_only)
    return hook_calls(patcher, calling, needs_positive=conditional_only)


def with_scaled_by_prompt(
    patcher: ModelPatcher,
    prompts: Sequence[tuple[torch.Tensor, Factors]],
    sigmas: tuple[float, float],
    conditional_only: bool,
) -> ModelPatcher:
    """``with_scaled`` with the factors of the prompt that is sampled; ``prompts``: embeddings (1,
    tokens, D), factors.

    Each image of a batch is scaled by the factors of the prompts among its positive conditionings,
    the smaller one where two of them name a channel. Images without any keep the bits of stock
    ComfyUI. A guider without a conditioning named positive raises ValueError.
    """
    key = f"glassbox_prompts_{uuid.uuid4().hex}"
    prompts = _of_one_width(prompts)
    current: tuple[tuple[frozenset[int], ...], Factors] = ((), {})

    def predict(
        executor: WrapperExecutor,
        x: torch.Tensor,
        timestep: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        nonlocal current
        with evaluating(timestep):
            sampled = _sampled_prompts(
                executor.class_obj.conds,
                prompts,
                key=key,
                images=len(x),
                sigma=levels_of(timestep)[0],
            )
            if sampled != current[0]:
                current = sampled, _of_images(sampled, [factors for _, factors in prompts])
            return executor(x, timestep, *args, **kwargs)

    clone = hook_calls(patcher, _calling(lambda: current, sigmas, conditional_only))
    clone.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, key, predict)
    return clone


def _of_one_width(
    prompts: Sequence[tuple[torch.Tensor, Factors]],
) -> list[tuple[torch.Tensor, Factors]]:
    """The prompts with factors of as many channels of a layer: those of values at the text's
    positions may end at the last one that is not 1.
    """
    widths: dict[str, int] = {}
    for _, factors in prompts:
        for path, factor in factors.items():
            widths[path] = max(widths.get(path, 0), len(factor))
    return [
        (
            embedding,
            {
                path: F.pad(factor, (0, widths[path] - len(factor)), value=1.0)
                for path, factor in factors.items()
            },
        )
        for embedding, factors in prompts
    ]


def _calling(
    current: Callable[[], tuple[tuple, Factors]],
    sigmas: tuple[float, float],
    conditional_only: bool,
) -> Callable:
    """For ``hook_calls``: the receivers of the factors that ``current`` gives with what
    distinguishes them.
    """
    highest, lowest = sigmas
    cache: dict = {}

    def calling(call: Call) -> Any:
        name, factors = current()
        if not factors or not lowest <= call.sigma <= highest:
            return None
        chosen = tuple(part.positive or not conditional_only for part in call.parts)
        if call.parts and not any(chosen):
            return None
        key = name, chosen, call.rows
        if not all(isinstance(part.rows, slice) for part in call.parts):
            return _receivers(_of_rows(factors, chosen, call), call)
        if key not in cache:
            cache.clear()
            cache[key] = _receivers(_of_rows(factors, chosen, call), call)
        return cache[key]

    return calling


def _sampled_prompts(
    conds: Mapping,
    prompts: Sequence[tuple[torch.Tensor, Factors]],
    key: str,
    images: int,
    sigma: float,
) -> tuple[frozenset[int], ...]:
    """For each image of a batch the indices of the prompts that its positive conditionings have at
    a noise level.
    """
    sampled: list[set[int]] = [set() for _ in range(images)]
    for entry in (entry for name in POSITIVE for entry in conds.get(name) or ()):
        start = entry.get("timestep_start")
        end = entry.get("timestep_end")
        if (start is not None and sigma > start) or (end is not None and sigma < end):
            continue
        if key not in entry:  # once for a run, whose entries these are
            # The copies that regions add to a side keep the text of the other one under
            # "cross_attn".
            contexts = entry.get(WRITTEN, entry["model_conds"])["c_crossattn"].cond
            entry[key] = [_matching(context, prompts) for context in contexts]
        for image, found in enumerate(sampled):
            found |= entry[key][image % len(entry[key])]
    return tuple(map(frozenset, sampled))


def _matching(context: torch.Tensor, prompts: Sequence[tuple[torch.Tensor, Factors]]) -> set[int]:
    """The prompts whose embedding is a context (tokens, D), but for the rounding of an encoder on
    another device.
    """
    return {
        index
        for index, (embedding, _) in enumerate(prompts)
        if embedding.shape[1:] == context.shape
        and torch.allclose(
            context.to(embedding),
            embedding[0],
            rtol=0.0,
            atol=_ROUNDING * float(embedding.abs().max()),
        )
    }


def _of_images(sampled: tuple[frozenset[int], ...], factors: list[Factors]) -> Factors:
    """Factors (images, channels) of the prompts of each image; (channels,) where all images have
    the same prompts.
    """
    by_image = []
    for indices in sampled if len(set(sampled)) > 1 else sampled[:1]:
        joined: dict[str, torch.Tensor] = {}
        for index in sorted(indices):
            for path, factor in factors[index].items():
                joined[path] = torch.minimum(joined[path], factor) if path in joined else factor
        by_image.append(joined)
    if len(by_image) == 1:
        return by_image[0]
    some = {path: factor for joined in by_image for path, factor in joined.items()}
    return {
        path: torch.stack([joined.get(path, torch.ones_like(factor)) for joined in by_image])
        for path, factor in some.items()
    }


def _receivers(factors: Factors, call: Call | None = None) -> Receivers:
    outputs = [
        (path, _scaling(factor, call))
        for path, factor in factors.items()
        if neurons_are_outputs(path)
    ]
    inputs = [
        (path, _scaling(factor, call))
        for path, factor in factors.items()
        if not neurons_are_outputs(path) and not is_text_values(path)
    ]
    attentions = [
        (block_of(path), _value_scaling(factor, call))
        for path, factor in factors.items()
        if is_text_values(path)
    ]
    return outputs, inputs, attentions


def values_of_text(attention: AttentionCall) -> torch.Tensor | None:
    """The values (rows, heads, tokens, d) at the text's positions of an attention in which the
    image reads the text; None of another one.

    Of a latent of several parts the image is the first one.
    """
    layout = attention.layout
    if layout is None or not layout.reads_text or not bool(layout.first_part.any()):
        return None
    return attention.value[:, :, layout.text]


def _value_scaling(factor: torch.Tensor, call: Call | None) -> Callable:
    """As ``_scaling``, of values at the text's positions."""

    def receive(attention: AttentionCall) -> torch.Tensor | None:
        nonlocal factor
        of_text = values_of_text(attention)
        if of_text is None:
            return None
        assert attention.layout is not None
        value = attention.value
        heads = value.shape[1]
        channels = heads * value.shape[3]
        if factor.shape[-1] > channels:
            raise ValueError(
                f"{attention.block} has {channels} value neurons here and the mask names number "
                f"{factor.shape[-1] - 1}: it was made for another architecture."
            )
        if factor.shape[-1] < channels:
            factor = F.pad(factor, (0, channels - factor.shape[-1]), value=1.0)
        if factor.device != value.device or factor.dtype != value.dtype:
            factor = factor.to(value)
        factor = for_autograd(factor)
        by_head = _for_rows(factor, len(value), call).unflatten(1, (heads, -1))
        changed = value.clone()
        changed[:, :, attention.layout.text] = of_text * by_head[:, :, None]
        return replace(attention, value=changed).attend()

    return receive


def _for_rows(factor: torch.Tensor, count: int, call: Call | None) -> torch.Tensor:
    """Factors (channels,) or (rows, channels) for so many rows inside the network, (1 or count,
    channels).
    """
    if factor.ndim == 1:
        return factor[None]
    if call is not None:
        call.require(count)
    return factor[rows_in_call(torch.arange(len(factor), device=factor.device), count)]


def _scaling(factor: torch.Tensor, call: Call | None) -> Callable:
    """``call``: whose rows those of a factor (rows, channels) are; they are not repeated for other
    rows then.
    """

    def receive(output: Any) -> torch.Tensor:
        nonlocal factor
        if factor.shape[-1] < output.shape[-1]:
            factor = F.pad(factor, (output.shape[-1] - factor.shape[-1], 0), value=1.0)
        if factor.device != output.device or factor.dtype != output.dtype:
            factor = factor.to(output)
        factor = for_autograd(factor)
        if factor.ndim == 1:
            return output * factor
        if output.ndim == 2:  # the tokens of the one row (MiniMax H3)
            return output * factor[0]
        rows = _for_rows(factor, len(output), call)
        return output * rows.view(len(rows), *[1] * (output.ndim - 2), -1)

    return receive


def _of_rows(factors: Factors, chosen: tuple[bool, ...], call: Call) -> Factors:
    """Factors of each row of a call, 1 in the parts that are not ``chosen``; as they are where all
    rows share them.
    """
    if not chosen or (all(chosen) and all(factor.ndim == 1 for factor in factors.values())):
        return factors
    where = call.where(chosen, call.rows)[:, None]
    result = {}
    for path, factor in factors.items():
        if factor.ndim == 1:
            result[path] = torch.where(where, factor, 1.0)
        elif len(chosen) * len(factor) == call.rows:
            result[path] = torch.where(where, factor.repeat(len(chosen), 1), 1.0)
        else:
            raise ValueError(f"{TILED}: it is not known which image a row belongs to.")
    return result


class NeuronScaling(WeightAdapterBase):
    """The patch of a weight that multiplies rows (``dimension`` 0) or columns (1) from ``first`` on
    by ``factor``.

    ``weights`` holds all that it needs, so that ComfyUI can copy a patch with its tensors on the
    device.
    """

    name = "neuron scaling"

    def __init__(self, loaded_keys: set[str], weights: tuple[torch.Tensor, int, int]):
        self.loaded_keys = loaded_keys
        self.weights = weights

    def calculate_weight(
        self, weight: torch.Tensor, key: str, *settings: object, **more: object
    ) -> torch.Tensor:
        """Scale a weight in place; the patch always has strength 1, and no other setting concerns
        it.
        """
        factor, dimension, first = self.weights
        # Not in the weight's precision: the product alone is rounded, as it is where a number is
        # multiplied.
        factor = cast_to_device(factor, weight.device, torch.float32)
        if factor.is_inference() and torch.is_grad_enabled():
            factor = factor.clone()  # no gradient crosses an inference tensor
        channels = weight.narrow(dimension, first, len(factor))
        channels *= factor.view(*(-1 if axis == dimension else 1 for axis in range(weight.ndim)))
        return weight


def neuron_scaling(factor: torch.Tensor, dimension: int, first: int) -> NeuronScaling:
    """The patch of ``factor`` (channels,), named by all of its numbers: of long tensors kept work
    reads a sample.
    """
    return NeuronScaling({digest(factor)}, (factor, dimension, first))


def bake_factors(patcher: ModelPatcher, factors: Factors) -> ModelPatcher:
    """A clone of a MODEL in which the weights of neurons are multiplied by ``factors`` (channels,)
    by dotted path.

    Rows of a value projection, columns of a layer that reads the neurons. After the LoRAs that the
    MODEL has by now; LoRAs that are added later are not scaled. One patch a layer. Raises
    ValueError for values at the text's positions.
    """
    if of_text := [path for path in factors if is_text_values(path)]:
        raise ValueError(
            f"The values at the text's positions of {block_of(of_text[0])} are scaled while the "
            "network runs, and no weight holds them alone: use NeMo Neuron Mask, or a mask of "
            "feed_forward neurons."
        )
    patches = {}
    for path, factor in factors.items():
        if not (factor != 1).any():
            continue
        dimension = 0
        first = 0
        if not neurons_are_outputs(path):
            dimension = 1
            first = patcher.model.diffusion_model.get_submodule(path).in_features - len(factor)
        patches[f"diffusion_model.{path}.weight"] = neuron_scaling(factor, dimension, first)
    clone = patcher.clone()
    clone.add_patches(patches)
    return clone
