"""Positions in diffusion transformers and in their ControlNets: SD3's table, and rotary ones."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import comfy.ldm.modules.diffusionmodules.mmdit
import torch
from comfy.ldm.flux.layers import EmbedND
from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel
from comfy.patcher_extension import WrappersMP
from torch import nn

from ..host import hooks
from ..host.evaluate import evaluating, levels_of, name_of
from ..host.latent_shapes import pixels_a_position
from . import noise_rescale_comfy

if TYPE_CHECKING:
    from ..host.socket_types import BaseModel, ModelPatcher, WrapperExecutor

_TABLE = comfy.ldm.modules.diffusionmodules.mmdit.MMDiT
_OBJECT = "diffusion_model.cropped_pos_embed"
_EMBEDDER = "EmbedND"  # networks of other makers have classes of this name of their own
_AXES = (3, 4)  # frame or index, rows, columns, and in FLUX.2 the text's
_GRID = "VideoRopePosition3DEmb"  # of Cosmos-Predict2 and Anima: frames, rows, columns of a grid
_GRID_THETA = 10000.0


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


class Rotate(Protocol):
    """Makes the rotations of one axis."""

    def __call__(
        self, positions: torch.Tensor, channels: int, *, theta: float, side: int, noise: float
    ) -> torch.Tensor | None:
        """Rotations (B, tokens, channels / 2, 2, 2) of positions (B, tokens), or None to keep
        stock's; ``side``: pixels along the axis, ``noise``: the fraction of noise.
        """


def kind_of(patcher: ModelPatcher) -> Kind:
    """How a MODEL can be made to generate larger images; raises ValueError for those that fit by
    themselves.
    """
    network = patcher.model.diffusion_model
    if isinstance(network, _TABLE) and network.pos_embed is not None:
        return Kind.TABLE
    if isinstance(network, UNetModel):
        return Kind.FEATURES
    if _embedders(network):
        return Kind.ROTARY
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
    _refuse_compiled(patcher, clone, key)
    clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, key, _with_controlnets(resample))
    return clone


def _refuse_compiled(patcher: ModelPatcher, clone: ModelPatcher, key: str) -> None:
    """Positions that a graph was compiled with stay in it."""
    hooks.refuse_compiled(patcher)
    hooks.refuse_compiled_runs(clone, key)


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
            for network in _control_networks(conds)
            if isinstance(network, _TABLE) and network.pos_embed is not None
        ]
        with _patched(tables, resample):
            return executor(model, conds, x_in, timestep, model_options)

    return wrapper


def _control_networks(conds: list) -> list:
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
def _patched(networks: list, resample: Resample) -> Iterator[None]:
    """Let networks take their positions from ``resample`` while the block runs, else from where
    they did before.
    """
    own = [
        vars(network).get("cropped_pos_embed") for network in networks
    ]  # of another node, whose block runs too
    for network in networks:
        network.cropped_pos_embed = _positions(network, network.cropped_pos_embed, resample)
    try:
        yield
    finally:
        for network, before in zip(networks, own, strict=True):
            del network.cropped_pos_embed
            if before is not None:
                network.cropped_pos_embed = before


def rotated(patcher: ModelPatcher, rotate: Rotate) -> ModelPatcher:
    """A clone of a MODEL that takes the rotations of rows and columns from ``rotate``, and its
    ControlNets with it.

    Where ``rotate`` returns None an axis keeps stock's rotations, bit for bit. Raises ValueError
    for a compiled MODEL.
    """
    clone = patcher.clone()
    key = f"glassbox_rotary_{uuid.uuid4().hex}"
    _refuse_compiled(patcher, clone, key)
    pixels = pixels_a_position(patcher)

    def call(
        executor: WrapperExecutor,
        model: BaseModel,
        conds: list,
        x_in: torch.Tensor,
        timestep: torch.Tensor,
        model_options: dict,
    ) -> Any:
        sides = [side * pixels for side in x_in.shape[-2:]]

        def replaced(module: Any, args: tuple, output: Any) -> torch.Tensor:
            made = _of_grid if type(module).__name__ == _GRID else _of_positions
            channels, rows, columns = made(module, args[0])
            parts = list(output.split([count // 2 for count in channels], dim=-3))
            for axis, (turning, side) in enumerate(zip((rows, columns), sides, strict=True), 1):
                turned = rotate(
                    turning.positions,
                    channels[axis],
                    theta=turning.theta,
                    side=side,
                    noise=noise,
                )
                if turned is not None:
                    parts[axis] = turned.to(output).view_as(parts[axis])
            return torch.cat(parts, dim=-3)

        with ExitStack() as stack:
            stack.enter_context(evaluating(timestep))
            noise = noise_rescale_comfy.noise_fraction(
                model.model_sampling, max(levels_of(timestep))
            )
            for network in (model.diffusion_model, *_control_networks(conds)):
                for embedder in _embedders(network):
                    stack.callback(embedder.register_forward_hook(replaced).remove)
            return executor(model, conds, x_in, timestep, model_options)

    clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, key, call)
    return clone


class _Axis(NamedTuple):
    """What an embedder turns on one axis: positions (B, tokens), at frequencies of ``theta``."""

    positions: torch.Tensor
    theta: float


def _of_positions(module: Any, positions: torch.Tensor) -> tuple[list[int], _Axis, _Axis]:
    """The channels of each axis, and the rows and columns, of EmbedND for positions (B, tokens,
    axes).
    """
    theta = float(module.theta)
    rows, columns = (_Axis(positions[..., axis], theta) for axis in (1, 2))
    return list(module.axes_dim), rows, columns


def _of_grid(module: Any, features: torch.Tensor) -> tuple[list[int], _Axis, _Axis]:
    """The same of an embedder that turns the whole grid of features (B, frames, H, W, C)."""
    frames, height, width = features.shape[1:4]
    tokens = torch.arange(frames * height * width, device=features.device)[None]
    rows = _Axis((tokens // width % height).float(), _GRID_THETA * module.h_ntk_factor)
    columns = _Axis((tokens % width).float(), _GRID_THETA * module.w_ntk_factor)
    spatial = 2 * len(module.dim_spatial_range)
    return [2 * len(module.dim_temporal_range), spatial, spatial], rows, columns


def _embedders(network: nn.Module) -> list[Any]:
    """What turns positions on three or four axes into rotations in a network."""
    embedders: list[Any] = [
        module
        for module in network.modules()
        if isinstance(module, EmbedND) or type(module).__name__ in (_EMBEDDER, _GRID)
    ]
    return [
        module
        for module in embedders
        if type(module).__name__ == _GRID or len(module.axes_dim) in _AXES
    ]
