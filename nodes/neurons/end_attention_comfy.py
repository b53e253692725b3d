"""Sample images and keep what Bright Ending reads: the attention to a token in the last step, and
CFG's differences.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

import comfy.sample
import comfy.utils
import torch

from ... import kernels
from ..common.attention import AttentionCall, Positions, logits, positions
from ..common.network_call import TILED, Call
from ..host.attention.reader import blocks_of
from ..host.evaluate import takes_batches
from ..host.hooks import Receivers, hook_calls
from ..host.latent_shapes import join, split, with_silence

if TYPE_CHECKING:
    from ..host.socket_types import ModelPatcher


def sample_with_attention(
    patcher: ModelPatcher,
    positive: list,
    negative: list,
    noise: torch.Tensor,
    steps: int,
    cfg: float,
    paths: list[str],
    token: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the text adds to the predicted noise in every step, and the attention to one token of it
    in the last step.

    Sampled with DDIM from ``noise`` (N, C, ..., H, W). ``paths``: cross-attention modules of a
    U-Net, of which those with the most positions count, averaged over heads and modules for the
    positive prompt; without any, each attention of a block in which the image reads the text.
    Returns float32 (steps, N, C, ..., H, W) and (N, H, W), smoothly enlarged where there are fewer
    positions than the latents have. The sound that a network makes beside images has no part in
    either. Raises ValueError where the network reads other tokens than those of the encoded prompt.
    """
    if len(noise) > 1 and not takes_batches(patcher.model):
        alone = [
            sample_with_attention(
                patcher,
                positive,
                negative=negative,
                noise=row,
                steps=steps,
                cfg=cfg,
                paths=paths,
                token=token,
            )
            for row in noise.split(1)
        ]
        added, attended = zip(*alone, strict=True)
        return torch.cat(added, dim=1), torch.cat(attended)
    blank = with_silence(torch.zeros_like(noise), patcher)
    generator = torch.Generator().manual_seed(0)
    sounds = [torch.randn(part.shape, generator=generator) for part in split(blank)[1:]]
    shapes = [part.shape for part in split(blank)]
    differences: list[torch.Tensor] = []
    queries: dict[str, torch.Tensor] = {}
    maps: dict[str, torch.Tensor] = {}
    tokens = positive[0][0].shape[1]

    def calling(call: Call) -> Receivers | None:
        step, count = call.step
        positive = [part.positive for part in call.parts]
        if step < count - 1 or not any(positive):
            return None
        if any(part.positive and (part.area is None or not part.area.whole) for part in call.parts):
            raise ValueError(f"{TILED}: the attention in the last step has no one map.")
        rows = call.where(positive, call.rows)
        if not paths:
            keep = functools.partial(keep_attention, rows, call)
            return (), (), [(block, keep) for block, _ in blocks_of(call.network)]
        receivers = [
            (f"{path}.to_q", functools.partial(keep_query, path, rows, call)) for path in paths
        ]
        return [
            *receivers,
            *((f"{path}.to_k", functools.partial(keep_map, path, rows)) for path in paths),
        ], ()

    def keep_attention(rows: torch.Tensor, call: Call, attention: AttentionCall) -> None:
        layout = attention.layout
        if layout is None or not layout.reads_text or not bool(layout.first_part.any()):
            return
        call.require(len(attention.query))
        chosen = rows.nonzero().flatten().to(attention.query.device)
        count = int(layout.text_keys.sum())
        if count % tokens:
            raise ValueError(
                f"The text encoder makes {tokens} tokens and the MODEL reads {count}, so which is "
                "the end token is not known: set bright_ending_steps to 0."
            )
        places = layout.text_keys.nonzero().flatten()[token::tokens].to(chosen)
        found = attention_to(_rows_of(attention, chosen), positions(layout.first_part), places)
        maps[f"{attention.block}.{attention.number}"] = found

    def keep_query(path: str, rows: torch.Tensor, call: Call, query: torch.Tensor) -> None:
        call.require(len(query))
        queries[path] = query[rows.to(query.device)]

    def keep_map(path: str, rows: torch.Tensor, key: torch.Tensor) -> None:
        heads = patcher.model.diffusion_model.get_submodule(path).heads
        query, key = (
            tensor.unflatten(2, (heads, -1)).transpose(1, 2)
            for tensor in (queries.pop(path), key[rows.to(key.device)])
        )
        found = kernels.mean_attention(query, key)
        maps[path] = found[..., token::tokens].sum(
            -1
        )  # ComfyUI may repeat a prompt in a longer batch

    def keep_difference(args: dict) -> torch.Tensor:
        added = args["uncond_denoised"] - args["cond_denoised"]
        if sounds:
            added = comfy.utils.unpack_latents(added, shapes)[0]
        added = added / args["sigma"].view(-1, *[1] * (added.ndim - 1))
        differences.append(added.float())
        return args["denoised"]

    watched = hook_calls(patcher, calling, watches=True)
    watched.set_model_sampler_post_cfg_function(keep_difference)
    comfy.sample.sample(
        watched,
        join([noise, *sounds]),
        steps,
        cfg,
        "ddim",
        "ddim_uniform",
        positive,
        negative,
        blank,
        disable_pbar=True,
        seed=0,
    )
    if not maps:
        raise ValueError(
            "How this MODEL reads its text cannot be seen, so there is no attention to the end "
            "token: set bright_ending_steps to 0."
        )
    most = max(found.shape[1] for found in maps.values())
    mean = torch.stack([found for found in maps.values() if found.shape[1] == most]).mean(0)
    height, width = noise.shape[-2:]
    scale = round((height * width / most) ** 0.5)
    grid = mean.unflatten(1, (-(-height // scale), -(-width // scale)))[:, None]
    if scale > 1:
        grid = torch.nn.functional.interpolate(grid, (height, width), mode="bilinear")
    return torch.stack(differences), grid[:, 0].to(differences[0].device)


#: Queries whose attention to all keys is held at once.
_QUERIES = 256


def _rows_of(attention: AttentionCall, rows: torch.Tensor) -> AttentionCall:
    """Some rows of an attention."""
    mask = attention.mask
    if mask is not None and len(mask) == len(attention.query):
        mask = mask[rows]
    tensors = {name: getattr(attention, name)[rows] for name in ("query", "key", "value")}
    return replace(attention, mask=mask, **tensors)


def attention_to(attention: AttentionCall, queries: Positions, keys: torch.Tensor) -> torch.Tensor:
    """The attention of some queries to some keys together, a mean over heads: float32 (rows,
    queries).
    """
    numbers = torch.arange(attention.query.shape[2], device=attention.query.device)[queries]
    found = [
        logits(attention, some).softmax(-1)[..., keys].sum(-1).mean(1)
        for some in numbers.split(_QUERIES)
    ]
    return torch.cat(found, 1)
