"""Scale neurons of chosen layers of a network, for exactly as long as one call of the network.

Neurons of a value projection (``to_v``) are the channels that it puts out; those of any other layer are the channels
that it reads, the last ones where it reads more (as the second linear layer of Flux's single blocks does).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from comfy.patcher_extension import WrappersMP
from torch import nn

from ..common.network_call import POSITIVE, TILED, Call
from ..host.evaluate import evaluating, levels_of
from ..host.hooks import Receivers, forward_hooks, hook_calls

#: Factor of each channel by dotted path of the layer: (channels,), or (rows, channels) for factors of each row.
Factors = Mapping[str, torch.Tensor]
_ROUNDING = 1e-3  # of the largest component; one other word changes an embedding by far more


def scaled(network: nn.Module, factors: Factors) -> AbstractContextManager[None]:
    """Multiply the neurons (rows, tokens, channels) of layers while the block runs; every hook goes with it.

    Factors of each row are repeated when the network is called with a multiple of those rows. Channels of factor 1
    keep their bits.
    """
    return forward_hooks(network, _receivers(factors))


def neurons_are_outputs(path: str) -> bool:
    """Whether the neurons of a layer are what it puts out; otherwise they are what it reads."""
    return path.endswith(".to_v")


def with_scaled(patcher, factors: Factors, sigmas: tuple[float, float], conditional_only: bool):
    """A clone of a MODEL whose sampling scales the layers from the first noise level of ``sigmas`` down to the second.

    ``conditional_only`` leaves rows of the negative prompt as they are.
    """
    calling = _calling(lambda: ((), factors), sigmas, conditional_only)
    return hook_calls(patcher, calling, needs_positive=conditional_only)


def with_scaled_by_prompt(
    patcher, prompts: Sequence[tuple[torch.Tensor, Factors]], sigmas: tuple[float, float], conditional_only: bool
):
    """``with_scaled`` with the factors of the prompt that is sampled; ``prompts``: embeddings (1, tokens, D), factors.

    Each image of a batch is scaled by the factors of the prompts among its positive conditionings, the smaller one
    where two of them name a channel. Images without any keep the bits of stock ComfyUI. A guider without a conditioning
    named positive raises ValueError.
    """
    key = f"glassbox_prompts_{uuid.uuid4().hex}"
    current: tuple[tuple[frozenset[int], ...], Factors] = ((), {})

    def predict(executor, x, timestep, *args, **kwargs):
        nonlocal current
        with evaluating(timestep):
            sampled = _sampled_prompts(executor.class_obj.conds, prompts, key, len(x), levels_of(timestep)[0])
            if sampled != current[0]:
                current = sampled, _of_images(sampled, [factors for _, factors in prompts])
            return executor(x, timestep, *args, **kwargs)

    clone = hook_calls(patcher, _calling(lambda: current, sigmas, conditional_only))
    clone.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, key, predict)
    return clone


def _calling(current: Callable[[], tuple[tuple, Factors]], sigmas: tuple[float, float], conditional_only: bool):
    """For ``hook_calls``: the receivers of the factors that ``current`` gives with what distinguishes them."""
    highest, lowest = sigmas
    cache: dict = {}

    def calling(call: Call):
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
    conds: Mapping, prompts: Sequence[tuple[torch.Tensor, Factors]], key: str, images: int, sigma: float
) -> tuple[frozenset[int], ...]:
    """For each image of a batch the indices of the prompts that its positive conditionings have at a noise level."""
    sampled: list[set[int]] = [set() for _ in range(images)]
    for entry in (entry for name in POSITIVE for entry in conds.get(name) or ()):
        start, end = entry.get("timestep_start"), entry.get("timestep_end")
        if (start is not None and sigma > start) or (end is not None and sigma < end):
            continue
        if key not in entry:  # once for a run, whose entries these are
            # The copies that regions add to a side keep the text of the other one under "cross_attn".
            contexts = entry["model_conds"]["c_crossattn"].cond
            entry[key] = [_matching(context, prompts) for context in contexts]
        for image, found in enumerate(sampled):
            found |= entry[key][image % len(entry[key])]
    return tuple(map(frozenset, sampled))


def _matching(context: torch.Tensor, prompts: Sequence[tuple[torch.Tensor, Factors]]) -> set[int]:
    """The prompts whose embedding is a context (tokens, D), but for the rounding of an encoder on another device."""
    return {
        index
        for index, (embedding, _) in enumerate(prompts)
        if embedding.shape[1:] == context.shape
        and torch.allclose(context.to(embedding), embedding[0], rtol=0.0, atol=_ROUNDING * float(embedding.abs().max()))
    }


def _of_images(sampled: tuple[frozenset[int], ...], factors: list[Factors]) -> Factors:
    """Factors (images, channels) of the prompts of each image; (channels,) where all images have the same prompts."""
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
    outputs = [(path, _scaling(factor, call)) for path, factor in factors.items() if neurons_are_outputs(path)]
    inputs = [(path, _scaling(factor, call)) for path, factor in factors.items() if not neurons_are_outputs(path)]
    return outputs, inputs


def _scaling(factor: torch.Tensor, call: Call | None):
    """``call``: whose rows those of a factor (rows, channels) are; they are not repeated for other rows then."""

    def receive(output):
        nonlocal factor
        if factor.shape[-1] < output.shape[-1]:
            factor = F.pad(factor, (output.shape[-1] - factor.shape[-1], 0), value=1.0)
        if factor.device != output.device or factor.dtype != output.dtype:
            factor = factor.to(output)
        if factor.is_inference() and torch.is_grad_enabled():
            factor = factor.clone()  # no gradient crosses an inference tensor
        if factor.ndim == 1:
            return output * factor
        if call is not None:
            call.require(len(output))
        rows = factor.repeat(len(output) // len(factor), 1)
        return output * rows[:, None]

    return receive


def _of_rows(factors: Factors, chosen: tuple[bool, ...], call: Call) -> Factors:
    """Factors of each row of a call, 1 in the parts that are not ``chosen``; as they are where all rows share them."""
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


def bake_factors(patcher, factors: Factors):
    """A clone of a MODEL in which the weights of neurons are multiplied by ``factors`` (channels,) by dotted path.

    Rows of a value projection, columns of a layer that reads the neurons. After the LoRAs that the MODEL has by now;
    LoRAs that are added later are not scaled.
    """
    clone, nothing = patcher.clone(), ("diff", (torch.zeros(1),))
    patches: dict[float, dict] = {}  # those of one factor together: each call lists every weight of the model
    for path, factor in factors.items():
        key, dimension, first = f"diffusion_model.{path}.weight", 0, 0
        if not neurons_are_outputs(path):
            dimension, first = 1, patcher.model.diffusion_model.get_submodule(path).in_features - len(factor)
        for neuron in (factor != 1).nonzero().flatten().tolist():
            place = dimension, first + neuron, 1
            patches.setdefault(float(factor[neuron]), {})[key, place] = nothing
    for value, places in patches.items():
        # ComfyUI multiplies the part of the weight that an offset names by the model's strength.
        clone.add_patches(places, strength_patch=0.0, strength_model=value)
    return clone
