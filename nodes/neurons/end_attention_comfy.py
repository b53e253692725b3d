"""Sample images and keep what Bright Ending reads: the attention to a token in the last step, and CFG's differences."""

from __future__ import annotations

import functools

import comfy.sample
import torch

from ... import kernels
from ..common.network_call import TILED, Call
from ..host.hooks import Receivers, hook_calls


def sample_with_attention(
    patcher,
    positive: list,
    negative: list,
    noise: torch.Tensor,
    steps: int,
    cfg: float,
    paths: list[str],
    token: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the text adds to the predicted noise in every step, and the attention to one token of it in the last step.

    Sampled with DDIM from ``noise`` (N, C, H, W). ``paths``: cross-attention modules, of which those with the most
    positions count, averaged over heads and modules for the positive prompt. Returns float32 (steps, N, C, H, W) and
    (N, H, W), smoothly enlarged where these modules have fewer positions than the latents.
    """
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
        receivers = [(f"{path}.to_q", functools.partial(keep_query, path, rows, call)) for path in paths]
        return [*receivers, *((f"{path}.to_k", functools.partial(keep_map, path, rows)) for path in paths)], ()

    def keep_query(path: str, rows: torch.Tensor, call: Call, query: torch.Tensor) -> None:
        call.require(len(query))
        queries[path] = query[rows.to(query.device)]

    def keep_map(path: str, rows: torch.Tensor, key: torch.Tensor) -> None:
        heads = patcher.model.diffusion_model.get_submodule(path).heads
        found = kernels.mean_attention(queries.pop(path), key[rows.to(key.device)], heads)
        maps[path] = found[..., token::tokens].sum(-1)  # ComfyUI may repeat a prompt in a longer batch

    def keep_difference(args: dict) -> torch.Tensor:
        added = (args["uncond_denoised"] - args["cond_denoised"]) / args["sigma"].view(-1, 1, 1, 1)
        differences.append(added.float())
        return args["denoised"]

    watched = hook_calls(patcher, calling)
    watched.set_model_sampler_post_cfg_function(keep_difference)
    comfy.sample.sample(
        watched,
        noise,
        steps,
        cfg,
        "ddim",
        "ddim_uniform",
        positive,
        negative,
        torch.zeros_like(noise),
        disable_pbar=True,
        seed=0,
    )
    most = max(found.shape[1] for found in maps.values())
    mean = torch.stack([found for found in maps.values() if found.shape[1] == most]).mean(0)
    height, width = noise.shape[2:]
    scale = round((height * width / most) ** 0.5)
    grid = mean.unflatten(1, (-(-height // scale), -(-width // scale)))[:, None]
    if scale > 1:
        grid = torch.nn.functional.interpolate(grid, (height, width), mode="bilinear")
    return torch.stack(differences), grid[:, 0].to(differences[0].device)
