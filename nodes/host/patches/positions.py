"""The position table of SD3's transformer, and of the ControlNets that go with it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import contextmanager

import comfy.ldm.modules.diffusionmodules.mmdit
import torch
from comfy.patcher_extension import WrappersMP

_TABLE = comfy.ldm.modules.diffusionmodules.mmdit.MMDiT
_OBJECT = "diffusion_model.cropped_pos_embed"
_OTHERS = {
    "PixArtMS": "fits its positions to every size by itself",
    "HunYuanDiT": "fits its positions to every size by itself",
    "MMDiT": "fits its positions to every size by itself",  # AuraFlow's, a class of the same name
    "UNetModel": "has no position table",
}

#: (table (1, side^2, width), tokens down, tokens across) -> (1, tokens, width), or None to keep stock's.
Resample = Callable[[torch.Tensor, int, int], torch.Tensor | None]


def resampled(patcher, resample: Resample):
    """A clone of a MODEL (SD3, SD3.5) that takes its positions from ``resample``, and its ControlNets with it.

    Raises ValueError for other models, with what they do instead.
    """
    network = patcher.model.diffusion_model
    if not isinstance(network, _TABLE):
        kind = type(network).__name__
        does = _OTHERS.get(kind, "takes its positions from rotations (RoPE), not from a table")
        raise ValueError(f"{type(patcher.model).__name__} {does}: this node is for SD3 and SD3.5.")
    if network.pos_embed is None:
        raise ValueError("This SD3 model stores no position table and fits its positions by itself: leave it.")
    clone, inner = patcher.clone(), patcher.get_model_object(_OBJECT)
    clone.add_object_patch(_OBJECT, _positions(network, inner, resample))
    key = f"glassbox_positions_{uuid.uuid4().hex}"
    clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, key, _with_controlnets(resample))
    return clone


def stored_table(patcher) -> torch.Tensor:
    """The position table (side, side, width) of an SD3 model."""
    network = patcher.model.diffusion_model
    return network.pos_embed[0].unflatten(0, (network.pos_embed_max_size, -1))


def _positions(network, inner: Callable, resample: Resample):
    last = (None, None)  # the size of the last call and its embedding: all steps of a run have one size

    def cropped_pos_embed(hw, device=None):
        nonlocal last
        patch, table = network.x_embedder.patch_size[0], network.pos_embed
        key = (*hw, table.device, table.dtype)
        if last[0] != key:
            last = (key, resample(table, (hw[0] + 1) // patch, (hw[1] + 1) // patch))
        return inner(hw, device=device) if last[1] is None else last[1]

    return cropped_pos_embed


def _with_controlnets(resample: Resample):
    def wrapper(executor, model, conds, x_in, timestep, model_options):
        with _patched(_controlnets(conds), resample):
            return executor(model, conds, x_in, timestep, model_options)

    return wrapper


def _controlnets(conds) -> list:
    """The networks of all ControlNets of a call that have such a table."""
    found = {}
    for entry in (entry for group in conds if group for entry in group):
        control = entry.get("control")
        while control is not None:
            network = getattr(control, "control_model", None)
            if isinstance(network, _TABLE) and network.pos_embed is not None:
                found[id(network)] = network
            control = control.previous_controlnet
    return list(found.values())


@contextmanager
def _patched(networks: list, resample: Resample):
    """Let networks take their positions from ``resample`` while the block runs, else from where they did before."""
    own = [vars(network).get("cropped_pos_embed") for network in networks]  # of another node, whose block runs too
    for network in networks:
        network.cropped_pos_embed = _positions(network, network.cropped_pos_embed, resample)
    try:
        yield
    finally:
        for network, before in zip(networks, own, strict=True):
            del network.cropped_pos_embed
            if before is not None:
                network.cropped_pos_embed = before
