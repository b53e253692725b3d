"""The table of positions of SD3 and of its ControlNets, and which positions a MODEL has."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import comfy.ldm.modules.diffusionmodules.mmdit
import torch
from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel
from comfy.patcher_extension import WrappersMP

from ..host import hooks
from ..host.evaluate import name_of
from . import rotary_positions_comfy

if TYPE_CHECKING:
    from ..host.socket_types import BaseModel, ModelPatcher, WrapperExecutor

_TABLE = comfy.ldm.modules.diffusionmodules.mmdit.MMDiT
_OBJECT = "diffusion_model.cropped_pos_embed"
_BY_AREA = ("MiniMaxH3Model",)


class Kind(Enum):
    """What is changed for larger images: a table of positions, rotary positions, or the size of
    inner features.
    """

    TABLE = auto()
    ROTARY = auto()
    FEATURES = auto()


#: (table (1, side^2, width), tokens down, tokens across) -> (1, tokens, width), or None to keep
#: stock's.
Resample = Callable[[torch.Tensor, int, int], torch.Tensor | None]


def kind_of(patcher: ModelPatcher) -> Kind:
    """How a MODEL can be made to generate larger images; raises ValueError for those that fit by
    themselves.
    """
    network = patcher.model.diffusion_model
    if isinstance(network, _TABLE) and network.pos_embed is not None:
        return Kind.TABLE
    if isinstance(network, UNetModel):
        return Kind.FEATURES
    if rotary_positions_comfy.sources(network):
        return Kind.ROTARY
    if type(network).__name__ in _BY_AREA:
        raise ValueError(
            f"{name_of(patcher.model)} measures positions in units of the image's own area: they "
            "stay in the trained range at any size, so this node has nothing to scale."
        )
    raise ValueError(
        f"{name_of(patcher.model)} has no positions that this node can scale: connect a U-Net such "
        "as SDXL, SD3, or a model with rotary positions such as FLUX.2, Qwen-Image or Z-Image."
    )


def resampled(patcher: ModelPatcher, resample: Resample) -> ModelPatcher:
    """A clone of a MODEL (SD3, SD3.5) that takes its positions from ``resample``, and its
    ControlNets with it.

    Raises ValueError for a compiled MODEL.
    """
    network = patcher.model.diffusion_model
    clone = patcher.clone()
    inner = hooks.method_of(patcher, _OBJECT)
    clone.add_object_patch(_OBJECT, _positions(network, inner, resample))
    key = f"glassbox_positions_{uuid.uuid4().hex}"
    hooks.refuse_compiled(patcher)
    hooks.refuse_compiled_runs(clone, key)
    clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, key, _with_controlnets(resample))
    return clone


def stored_table(patcher: ModelPatcher) -> torch.Tensor:
    """The position table (side, side, width) of an SD3 model."""
    network = patcher.model.diffusion_model
    return network.pos_embed[0].unflatten(0, (network.pos_embed_max_size, -1))


def _positions(network: Any, inner: Callable, resample: Resample) -> Callable:
    # What is made stands on the network: no circle, in which it would outlive its MODELs.
    held = weakref.ref(network)
    # The size of the last call and its embedding: all steps of a run have one size.
    last: tuple[tuple | None, torch.Tensor | None] = (None, None)

    def cropped_pos_embed(hw: tuple[int, int], device: torch.device | None = None) -> torch.Tensor:
        nonlocal last
        network: Any = held()
        patch = network.x_embedder.patch_size[0]
        table = network.pos_embed
        key = (*hw, table.device, table.dtype)
        if last[0] != key:
            last = (key, resample(table, (hw[0] + 1) // patch, (hw[1] + 1) // patch))
        return inner(hw, device=device) if last[1] is None else last[1]

    return cropped_pos_embed


def _with_controlnets(resample: Resample) -> Callable:
    def wrapper(
        executor: WrapperExecutor,
        model: BaseModel,
        conds: list,
        x_in: torch.Tensor,
        timestep: torch.Tensor,
        model_options: dict,
    ) -> Any:
        tables = [
            network
            for network in rotary_positions_comfy.control_networks(conds)
            if isinstance(network, _TABLE) and network.pos_embed is not None
        ]
        with _patched(tables, resample):
            return executor(model, conds, x_in, timestep, model_options)

    return wrapper


@contextmanager
def _patched(networks: list, resample: Resample) -> Iterator[None]:
    """Let networks take their positions from ``resample`` while the block runs, else from where
    they did before.
    """
    with ExitStack() as stack:
        for network in networks:
            method = _positions(network, network.cropped_pos_embed, resample)
            stack.enter_context(
                rotary_positions_comfy.replace_method(network, "cropped_pos_embed", method)
            )
        yield
