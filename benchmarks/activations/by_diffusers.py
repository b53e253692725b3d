"""The same features the way most people read them: forward hooks on the U-Net of diffusers, with
the same weights.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from studies.common import host, results

from . import adding, tapping
from .networks import Bench

_CONFIG = Path(__file__).with_name("sd15_diffusers.json")
_TIMESTEP = 51  # the paper's t = 50 on SD1.5
_PARTS = {
    "self-q": "attn1.to_q",
    "self-k": "attn1.to_k",
    "self-v": "attn1.to_v",
    "cross-q": "attn2.to_q",
    "ffn-inner": "ff.net.0",
}
MISSING = "diffusers is not installed, so taps cannot be measured against it: pip install diffusers"


class Diffusers:
    """diffusers' U-Net with the weights of a bench, and what it is evaluated on: what ComfyUI's own
    network sees.
    """

    def __init__(self, bench: Bench):
        from diffusers import UNet2DConditionModel

        width = bench.config["model_channels"]
        config = json.loads(_CONFIG.read_text("utf-8"))
        config["block_out_channels"] = [width * factor for factor in bench.config["channel_mult"]]
        with torch.device("meta"):
            self.network = UNet2DConditionModel(**config)
        self.network.load_state_dict(_weights(bench), assign=True)
        self.network.requires_grad_(False)
        chosen = [entry for entry in bench.entries if entry.id == "unet-in"]
        self._seen = (
            tapping.tap(bench, chosen, torch.float32)
            .tensors["unet-in"]
            .to(next(self.network.parameters()))
        )
        self._text = bench.positive[0][0].to(self._seen)
        self.version = importlib.metadata.version("diffusers")

    def plain(self) -> None:
        """One call of the network, which is less than an evaluation through ComfyUI's sampling
        path.
        """
        with torch.inference_mode():
            self.network(self._seen, _TIMESTEP, encoder_hidden_states=self._text)

    def hooked(
        self, ids: list[str], kept: Callable[[torch.Tensor], torch.Tensor]
    ) -> list[torch.Tensor]:
        """The same with forward hooks that append each feature to a list; ``kept`` is what they
        append of it.
        """
        features: list[torch.Tensor] = []

        def hook(_module, _given, output) -> None:
            features.append(kept(output[0] if isinstance(output, tuple) else output))

        modules = [self.network.get_submodule(module_of(id_)) for id_ in ids]
        handles = [module.register_forward_hook(hook) for module in modules]
        try:
            self.plain()
        finally:
            for handle in handles:
                handle.remove()
        return features


def module_of(id_: str) -> str:
    """The module of diffusers' U-Net whose output an ID names: the scheme counts levels and repeats
    as diffusers does.

    For all IDs of a U-Net but unet-in, which is an input.
    """
    if id_ in ("unet-after-conv-in", "unet-out"):
        return "conv_in" if id_ == "unet-after-conv-in" else "conv_out"
    stage, level, repeat, part = re.fullmatch(
        r"(down|mid|up)(?:-level(\d+))?(?:-repeat(\d+))?-(.+)", id_
    ).groups()
    block = f"{stage}_blocks.{level}" if level else "mid_block"
    if part.endswith("sampler-out"):
        return f"{block}.{part[:-4]}s.0"
    if part.startswith("res-"):
        return f"{block}.resnets.{repeat}" + (".conv2" if part == "res-increment" else "")
    where = f"{block}.attentions.{repeat or 0}"
    inner = re.fullmatch(r"vit-block(\d+)-(.+)", part)
    if not inner:
        return where
    return f"{where}.transformer_blocks.{inner[1]}" + (
        f".{_PARTS[inner[2]]}" if inner[2] in _PARTS else ""
    )


def measure(quick: bool) -> dict[str, dict]:
    """Hooks on diffusers' network, narrow and in SD1.5's size; ends with a sentence without
    diffusers.
    """
    if not importlib.util.find_spec("diffusers"):
        raise SystemExit(MISSING)
    return (
        against("narrow SD1.5", 8) if quick else against("narrow SD1.5", 20) | against("SD1.5", 3)
    )


def against(name: str, turns: int) -> dict[str, dict]:
    """What hooks add to diffusers' network, its time against the tap's, and how far its features
    are from the tap's.
    """
    bench = Bench(name)
    every = bench.chosen(host.pack("nodes.activations.select_ids").Preset.ALL_FEATURES)
    chosen = [entry for entry in every if entry.id != "unet-in"]
    ids, theirs = [entry.id for entry in chosen], Diffusers(bench)
    hooks = f"diffusers, hooks that append copies ({len(ids)})"
    times = adding.rounds(
        {
            "plain": theirs.plain,
            hooks: partial(theirs.hooked, ids, tapping.copied),
            "tap": partial(tapping.tap, bench, chosen),
        },
        turns,
    )
    about = f"of one call of the network in diffusers {theirs.version} with the same weights"
    numbers = adding.added_numbers(f"{name}, {hooks}", times[hooks], times["plain"], about)
    numbers[f"{name}, diffusers with these hooks over tap of {len(ids)}"] = results.bootstrap(
        times[hooks] / times["tap"],
        "turn by turn; the tap with all of ComfyUI's evaluation",
        "times",
        np.median,
    )
    errors = _errors(
        tapping.tap(bench, chosen, torch.float32).tensors, theirs.hooked(ids, tapping.copied)
    )
    numbers[f"{name}, diffusers: largest difference of a feature from the tap's"] = (
        results.bootstrap(
            errors,
            f"over the feature's largest value; {len(ids)} features in float32",
            "fraction",
            np.max,
        )
    )
    return numbers


def _weights(bench: Bench) -> dict[str, torch.Tensor]:
    """The weights of ComfyUI's network by diffusers' names; the tensors themselves."""
    import comfy.utils

    ours, names = bench.network.state_dict(), comfy.utils.unet_to_diffusers(bench.config)
    return {theirs: ours[name] for theirs, name in names.items() if name in ours}


def _errors(tapped: dict[str, torch.Tensor], hooked: list[torch.Tensor]) -> np.ndarray:
    found = []
    for ours, theirs in zip(tapped.values(), hooked, strict=True):
        if theirs.ndim == 3:
            theirs = theirs.transpose(1, 2).unflatten(2, ours.shape[-2:])
        found.append(float((ours - theirs).abs().max() / ours.abs().max()))
    return np.array(found)
