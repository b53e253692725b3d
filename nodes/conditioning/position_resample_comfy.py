"""Positions in diffusion transformers and in their ControlNets: SD3's table, and rotary ones."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from enum import Enum, auto

import comfy.ldm.modules.diffusionmodules.mmdit
import torch
from comfy.ldm.flux.layers import EmbedND
from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel
from comfy.patcher_extension import WrappersMP

from ..host import hooks
from ..host.evaluate import evaluating, levels_of, name_of
from . import noise_rescale_comfy

_TABLE = comfy.ldm.modules.diffusionmodules.mmdit.MMDiT
_OBJECT = "diffusion_model.cropped_pos_embed"
_EMBEDDERS = ("pe_embedder", "rope_embedder")
_AXES = 3  # frame or index, rows, columns


class Kind(Enum):
    """What is changed for larger images: a table of positions, rotary positions, or the size of inner features."""

    TABLE = auto()
    ROTARY = auto()
    FEATURES = auto()


#: (table (1, side^2, width), tokens down, tokens across) -> (1, tokens, width), or None to keep stock's.
Resample = Callable[[torch.Tensor, int, int], torch.Tensor | None]


#: (positions (B, tokens), channels of the axis, theta, pixels along the axis, noise fraction) -> rotations
#: (B, tokens, channels / 2, 2, 2), or None to keep stock's.
Rotate = Callable[[torch.Tensor, int, float, int, float], torch.Tensor | None]


def kind_of(patcher) -> Kind:
    """How a MODEL can be made to generate larger images; raises ValueError for those that fit by themselves."""
    network = patcher.model.diffusion_model
    if isinstance(network, _TABLE) and network.pos_embed is not None:
        return Kind.TABLE
    if isinstance(network, UNetModel):
        return Kind.FEATURES
    if _embedder(network) is not None:
        return Kind.ROTARY
    raise ValueError(
        f"{name_of(patcher.model)} has no positions that this node can scale: connect a U-Net such as SDXL, SD3, "
        "or a model with rotary positions such as Flux, Qwen-Image or Z-Image."
    )


def resampled(patcher, resample: Resample):
    """A clone of a MODEL (SD3, SD3.5) that takes its positions from ``resample``, and its ControlNets with it.

    Raises ValueError for a compiled MODEL.
    """
    network = patcher.model.diffusion_model
    clone, inner = patcher.clone(), hooks.method_of(patcher, _OBJECT)
    clone.add_object_patch(_OBJECT, _positions(network, inner, resample))
    key = f"glassbox_positions_{uuid.uuid4().hex}"
    _refuse_compiled(patcher, clone, key)
    clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, key, _with_controlnets(resample))
    return clone


def _refuse_compiled(patcher, clone, key: str) -> None:
    """Positions that a graph was compiled with stay in it."""
    hooks.refuse_compiled(patcher)
    hooks.refuse_compiled_runs(clone, key)


def stored_table(patcher) -> torch.Tensor:
    """The position table (side, side, width) of an SD3 model."""
    network = patcher.model.diffusion_model
    return network.pos_embed[0].unflatten(0, (network.pos_embed_max_size, -1))


def _positions(network, inner: Callable, resample: Resample):
    held = weakref.ref(network)  # what is made stands on the network: no circle, in which it would outlive its MODELs
    last = (None, None)  # the size of the last call and its embedding: all steps of a run have one size

    def cropped_pos_embed(hw, device=None):
        nonlocal last
        network = held()
        patch, table = network.x_embedder.patch_size[0], network.pos_embed
        key = (*hw, table.device, table.dtype)
        if last[0] != key:
            last = (key, resample(table, (hw[0] + 1) // patch, (hw[1] + 1) // patch))
        return inner(hw, device=device) if last[1] is None else last[1]

    return cropped_pos_embed


def _with_controlnets(resample: Resample):
    def wrapper(executor, model, conds, x_in, timestep, model_options):
        tables = [
            network
            for network in _control_networks(conds)
            if isinstance(network, _TABLE) and network.pos_embed is not None
        ]
        with _patched(tables, resample):
            return executor(model, conds, x_in, timestep, model_options)

    return wrapper


def _control_networks(conds) -> list:
    """The networks of all ControlNets of a call, each once."""
    found = {}
    for entry in (entry for group in conds if group for entry in group):
        control = entry.get("control")
        while control is not None:
            network = getattr(control, "control_model", None)
            if network is not None:
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


def rotated(patcher, rotate: Rotate):
    """A clone of a MODEL that takes the rotations of rows and columns from ``rotate``, and its ControlNets with it.

    Where ``rotate`` returns None an axis keeps stock's rotations, bit for bit. Raises ValueError for a compiled MODEL.
    """
    clone, key = patcher.clone(), f"glassbox_rotary_{uuid.uuid4().hex}"
    _refuse_compiled(patcher, clone, key)
    pixels = getattr(patcher.get_model_object("latent_format"), "spacial_downscale_ratio", 8)

    def call(executor, model, conds, x_in, timestep, model_options):
        sides = [side * pixels for side in x_in.shape[-2:]]

        def replaced(module, args, output):
            parts = list(output.split([width // 2 for width in module.axes_dim], dim=-3))
            for axis, side in zip((1, 2), sides, strict=True):
                turned = rotate(args[0][..., axis], module.axes_dim[axis], float(module.theta), side, noise)
                if turned is not None:
                    parts[axis] = turned[:, None].to(output)
            return torch.cat(parts, dim=-3)

        with ExitStack() as stack:
            stack.enter_context(evaluating(timestep))
            noise = noise_rescale_comfy.noise_fraction(model.model_sampling, max(levels_of(timestep)))
            for network in (model.diffusion_model, *_control_networks(conds)):
                embedder = _embedder(network)
                if embedder is not None:
                    stack.callback(embedder.register_forward_hook(replaced).remove)
            return executor(model, conds, x_in, timestep, model_options)

    clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, key, call)
    return clone


def _embedder(network) -> EmbedND | None:
    """What turns positions on three axes into rotations in a network; None for others."""
    found = (getattr(network, name, None) for name in _EMBEDDERS)
    return next((one for one in found if isinstance(one, EmbedND) and len(one.axes_dim) == _AXES), None)
