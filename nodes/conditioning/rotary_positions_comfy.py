"""Rotary positions of diffusion transformers and of their ControlNets, at other frequencies.

A network turns channel pair d of a token at position p by the angle p θ_d, on an axis for frames,
one for rows and one for columns. Networks make these rotations in different places and lay them out
in different orders; here each gives the positions and frequencies of its rows and columns, and
takes the rotations of lower frequencies instead.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from comfy.ldm.flux.layers import EmbedND
from comfy.patcher_extension import WrappersMP
from torch import nn

from ..host import hooks
from ..host.evaluate import evaluating, levels_of
from ..host.latent_shapes import pixels_a_position
from . import noise_rescale_comfy
from .rotary_scaling import rotations

if TYPE_CHECKING:
    from ..host.socket_types import BaseModel, ModelPatcher, WrapperExecutor

_EMBEDDER = "EmbedND"  # networks of other makers have classes of this name of their own
_ERNIE = "ErnieImageEmbedND3"
_GRID = "VideoRopePosition3DEmb"  # of Cosmos-Predict2 and Anima: frames, rows, columns of a grid
_GRID_THETA = 10000.0
#: Rows and columns among the axes: HunyuanImage has these two alone, the others a frame or an index
#: before them, and FLUX.2 the text's place behind.
_SPATIAL = {2: (0, 1), 3: (1, 2), 4: (1, 2)}
_RANGE_METHOD = "_get_rotary_pos_embed_for_range"  # of JoyImage
_PIXELS_METHOD = "_precompute_freqs_cis"  # of LTX-Video and LTX-2


class Lower(Protocol):
    """Lowers the frequencies of one axis."""

    def __call__(
        self, frequencies: torch.Tensor, *, side: int, noise: float, unit: float
    ) -> torch.Tensor | None:
        """Frequencies (D / 2,) in place of those of training, fastest first, or None to keep them.

        ``side``: pixels along the axis, ``noise``: the fraction of noise, ``unit``: the pixels that
        one step of the positions stands for.
        """


class _Axis(NamedTuple):
    """Positions (..., tokens) along rows or columns, and the frequencies (D / 2,) float64 that turn
    them, fastest first; ``place`` of the axis among those of the network. ``unit``: the pixels that
    one step of the positions stands for where that is no token.
    """

    place: int
    positions: torch.Tensor
    frequencies: torch.Tensor
    unit: float | None = None


class _Run(NamedTuple):
    """A call of a network: how frequencies are lowered, the pixels of rows and columns of the
    latent, the pixels of a token, and the fraction of noise.
    """

    lower: Lower
    sides: tuple[int, int]
    unit: float
    noise: float

    def rotations(self, rows: _Axis, columns: _Axis) -> dict[int, torch.Tensor]:
        """Rotations (..., tokens, D / 2, 2, 2) float32 of the axes whose frequencies change."""
        turned = {}
        for axis, side in zip((rows, columns), self.sides, strict=True):
            unit = axis.unit or self.unit
            lowered = self.lower(axis.frequencies, side=side, noise=self.noise, unit=unit)
            if lowered is not None:
                turned[axis.place] = rotations(axis.positions.double()[..., None] * lowered)
        return turned


#: Replaces rotations during a run, in a ``with`` block.
_Source = Callable[[_Run], AbstractContextManager[None]]


def sources(network: nn.Module) -> list[_Source]:
    """How the rotations of a network are replaced: for each place that makes some, a function whose
    ``with`` replaces them during a run. Empty without such a place.
    """
    found: list[_Source] = [_of_module(module) for module in network.modules() if _embeds(module)]
    for name, replacement in ((_RANGE_METHOD, _of_range), (_PIXELS_METHOD, _of_pixels)):
        if hasattr(network, name):
            found.append(_of_method(network, name, replacement))
    return found


def rotated(patcher: ModelPatcher, lower: Lower) -> ModelPatcher:
    """A clone of a MODEL that turns rows and columns by the frequencies of ``lower``, and its
    ControlNets with it.

    Where ``lower`` returns None an axis keeps stock's rotations, bit for bit. Raises ValueError for
    a compiled MODEL.
    """
    clone = patcher.clone()
    key = f"glassbox_rotary_{uuid.uuid4().hex}"
    # Rotations that a graph was compiled with stay in it.
    hooks.refuse_compiled(patcher)
    hooks.refuse_compiled_runs(clone, key)
    pixels = pixels_a_position(patcher)

    def call(
        executor: WrapperExecutor,
        model: BaseModel,
        conds: list,
        x_in: torch.Tensor,
        timestep: torch.Tensor,
        model_options: dict,
    ) -> Any:
        with ExitStack() as stack:
            stack.enter_context(evaluating(timestep))
            height, width = _size_of(x_in, conds)
            run = _Run(
                lower,
                sides=(height * pixels, width * pixels),
                unit=pixels * _patch_side(model.diffusion_model),
                noise=noise_rescale_comfy.noise_fraction(
                    model.model_sampling, max(levels_of(timestep))
                ),
            )
            for network in (model.diffusion_model, *control_networks(conds)):
                for replace in sources(network):
                    stack.enter_context(replace(run))
            return executor(model, conds, x_in, timestep, model_options)

    clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, key, call)
    return clone


def control_networks(conds: list) -> list:
    """The networks of all ControlNets of a call, each once."""
    found = {}
    for entry in _entries(conds):
        control = entry.get("control")
        while control is not None:
            network = getattr(control, "control_model", None)
            if network is not None:
                found[id(network)] = network
            control = control.previous_controlnet
    return list(found.values())


def _entries(conds: list) -> Iterator[dict]:
    """The conditions of all sides of a call."""
    for group in conds:
        yield from group or ()


def _size_of(latent: torch.Tensor, conds: list) -> tuple[int, int]:
    """Rows and columns of a call's latent; of a video that ComfyUI packs with its sound, as the
    conditions name them.
    """
    shape = latent.shape
    for entry in _entries(conds):
        packed = entry.get("model_conds", {}).get("latent_shapes")
        if packed is not None:
            shape = packed.cond[0]
    height, width = shape[-2:]
    return height, width


def _patch_side(network: Any) -> int:
    """Latent positions a side of a token."""
    side: Any = getattr(network, "patch_size", None) or getattr(network, "patch_spatial", 2)
    return int(side[-1] if isinstance(side, Sequence) else side)


def _embeds(module: Any) -> bool:
    """Whether a module turns rows and columns into rotations."""
    name = type(module).__name__
    if name == _GRID:
        return True
    return (isinstance(module, EmbedND) or name in (_EMBEDDER, _ERNIE)) and (
        len(module.axes_dim) in _SPATIAL
    )


def _of_module(module: Any) -> _Source:
    """Replaces what an embedding module returns, by a hook behind it."""
    axes_of = _axes_of_grid if type(module).__name__ == _GRID else _axes_of_positions
    replaced_in = _replaced_in_ernie if type(module).__name__ == _ERNIE else _replaced

    @contextmanager
    def replace(run: _Run) -> Iterator[None]:
        def hook(_module: Any, args: tuple, output: torch.Tensor) -> torch.Tensor:
            widths, rows, columns = axes_of(module, args[0])
            return replaced_in(output, widths, run.rotations(rows, columns))

        with module.register_forward_hook(hook):
            yield

    return replace


def _axes_of_positions(module: Any, positions: torch.Tensor) -> tuple[list[int], _Axis, _Axis]:
    """The channel pairs of each axis, and rows and columns, of EmbedND for positions (B, tokens,
    axes).
    """
    widths = [channels // 2 for channels in module.axes_dim]
    rows, columns = (
        _Axis(axis, positions[..., axis], _powers(module.theta, widths[axis], positions.device))
        for axis in _SPATIAL[len(widths)]
    )
    return widths, rows, columns


def _axes_of_grid(module: Any, features: torch.Tensor) -> tuple[list[int], _Axis, _Axis]:
    """The same of an embedder that turns the whole grid of features (B, frames, H, W, C)."""
    frames, height, width = features.shape[1:4]
    device = features.device
    tokens = torch.arange(frames * height * width, device=device)[None]
    pairs = len(module.dim_spatial_range)
    rows = _Axis(
        1, tokens // width % height, _powers(_GRID_THETA * module.h_ntk_factor, pairs, device)
    )
    columns = _Axis(2, tokens % width, _powers(_GRID_THETA * module.w_ntk_factor, pairs, device))
    return [len(module.dim_temporal_range), pairs, pairs], rows, columns


def _powers(theta: float, pairs: int, device: torch.device) -> torch.Tensor:
    """The usual frequencies θ^(-2d / D) (D / 2,) float64 of an axis of D / 2 channel pairs."""
    steps = torch.arange(pairs, dtype=torch.float64, device=device)
    return float(theta) ** -(steps / pairs)


def _replaced(
    output: torch.Tensor, widths: list[int], turned: dict[int, torch.Tensor]
) -> torch.Tensor:
    """Rotations (..., tokens, pairs, 2, 2), one axis after the other, with some axes replaced."""
    if not turned:
        return output
    axes = list(output.split(widths, dim=-3))
    for index, rotation in turned.items():
        axes[index] = rotation.to(output).view_as(axes[index])
    return torch.cat(axes, dim=-3)


def _replaced_in_ernie(
    output: torch.Tensor, widths: list[int], turned: dict[int, torch.Tensor]
) -> torch.Tensor:
    """The same for ERNIE-Image's rotations (B, tokens, 1, pairs, 2, 2).

    Channel j and its partner half a head away are turned by different angles: of all pairs in the
    order of the axes, the first half stands in the upper rows of the matrices and the second in the
    lower ones, each twice in a row.
    """
    if not turned:
        return output
    cosine = torch.cat([output[..., ::2, 0, 0], output[..., ::2, 1, 1]], dim=-1)
    sine = torch.cat([-output[..., ::2, 0, 1], output[..., ::2, 1, 0]], dim=-1)
    in_order = torch.stack([cosine, -sine, sine, cosine], dim=-1).unflatten(-1, (2, 2))
    made = _replaced(in_order, widths, turned)
    upper, lower = made.chunk(2, dim=-3)
    return torch.stack([upper[..., 0, :], lower[..., 1, :]], dim=-2).repeat_interleave(2, dim=-3)


def _of_method(
    network: Any, name: str, replacement: Callable[[Any, Callable, _Run], Callable]
) -> _Source:
    """Replaces what a method of the network returns."""

    def replace(run: _Run) -> AbstractContextManager[None]:
        return replace_method(network, name, replacement(network, getattr(network, name), run))

    return replace


@contextmanager
def replace_method(network: Any, name: str, method: Callable) -> Iterator[None]:
    """Let an object have another method while the block runs, then the one before: it may be that
    of another node whose call is not over.
    """
    before = vars(network).get(name)
    try:
        setattr(network, name, method)
        yield
    finally:
        vars(network).pop(name, None)
        if before is not None:
            setattr(network, name, before)


def _of_range(network: Any, stock: Callable, run: _Run) -> Callable:
    """JoyImage's rotations (tokens, pairs, 2, 2) of a range of frames, rows and columns."""

    def embed(start: tuple, stop: tuple, device: torch.device | None = None) -> torch.Tensor:
        output = stock(start, stop, device=device)
        widths = [channels // 2 for channels in network.rope_dim_list]
        grid = torch.meshgrid(
            *(
                torch.arange(first, last, device=output.device)
                for first, last in zip(start, stop, strict=True)
            ),
            indexing="ij",
        )
        rows, columns = (
            _Axis(
                axis,
                grid[axis].flatten(),
                _powers(network.theta, widths[axis], output.device),
            )
            for axis in (1, 2)
        )
        return _replaced(output, widths, run.rotations(rows, columns))

    return embed


def _of_pixels(network: Any, stock: Callable, run: _Run) -> Callable:
    """The rotations (B, tokens, heads, pairs / heads, 2, 2) of LTX, over all heads together.

    Positions are pixels over the longest side of training, from -1 to 1; frequencies go from the
    slowest to the fastest, and pairs take turns among the axes, behind some that are never turned.
    """

    def embed(grid: torch.Tensor, *args: Any, **settings: Any) -> tuple[torch.Tensor, bool]:
        output, split = stock(grid, *args, **settings)
        axes = grid.shape[1]
        if axes != 3:  # sound, and its attention with the video, stand on the axis of time alone
            return output, split
        places = grid.double()
        if grid.ndim == 4:  # from where to where each token reaches
            middle = settings.get("use_middle_indices_grid", False)
            places = places.mean(-1) if middle else places[..., 0]
        pairs = output.shape[-4] * output.shape[-3]
        count = pairs // axes
        frequencies = network.freq_grid_generator(
            settings.get("theta", 10000.0), axes, settings["dim"], grid.device
        )
        longest = settings["max_pos"]
        rows, columns = (
            _Axis(
                axis,
                2 * places[:, axis] / longest[axis] - 1,
                frequencies.to(grid.device).double().flip(0),
                unit=longest[axis] / 2,
            )
            for axis in (1, 2)
        )
        turned = run.rotations(rows, columns)
        if not turned:
            return output, split
        together = output.flatten(-4, -3).clone()
        for index, rotation in turned.items():
            together[..., pairs - count * axes + index :: axes, :, :] = rotation.flip(-3).to(output)
        return together.view_as(output), split

    return embed
