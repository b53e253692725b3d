"""The activations of a network, with the IDs of the paper's code (arXiv 2410.03558), read from its
module tree.

An ID is stage, level, repeat, module and part: ``up-level1-repeat0-vit-block0-cross-q``. Levels and
repeats count from 0 in forward order within a stage, so ``up-level0`` is the lowest resolution of
the up-stage. Transformers have no stages: ``vit-block3-out`` (``catalog_transformer.py``). Two more
IDs are attention maps averaged over layers: ``attn``, the official code's feature, and
``attn-mean`` (``attention_maps.py``). Networks and blocks are ``Any``: torch's nn.Module declares
none of their attributes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from .activation_spec import ActivationSpec, Attention, Kind, UnsupportedNetworkError
from .catalog_transformer import transformer_specs

#: Parts of a transformer block, in forward order: name, submodule, kind.
_BLOCK_PARTS = (
    ("self-q", "attn1.to_q", Kind.TOKENS),
    ("self-k", "attn1.to_k", Kind.TOKENS),
    ("self-v", "attn1.to_v", Kind.TOKENS),
    ("self-map", "attn1", Kind.MAP),
    ("cross-q", "attn2.to_q", Kind.TOKENS),
    ("cross-map", "attn2", Kind.MAP),
    ("ffn-inner", "ff.net.0", Kind.TOKENS),
    ("out", "", Kind.TOKENS),
)
_VIDEO = {"VideoResBlock", "SpatialVideoTransformer"}
#: Scales of the maps in ``attn``: a sixteenth and a 32nd of the image's side, at eight pixels a
#: latent position.
_ATTN_SCALES = (2, 4)


def catalog(network: nn.Module) -> list[ActivationSpec]:
    """All activations of a network in forward order; raises UnsupportedNetworkError for other
    networks.
    """
    if not all(
        hasattr(network, name) for name in ("input_blocks", "middle_block", "output_blocks", "out")
    ):
        specs = transformer_specs(network)
        return [*specs, *_attention_averages(specs, with_feature=False)]
    if any(type(module).__name__ in _VIDEO for module in network.modules()):
        raise UnsupportedNetworkError(
            "U-Nets for video are not supported, because the paper defines no IDs for them. Use "
            "an image model."
        )
    specs = list(_unet_specs(network))
    return [*specs, *_attention_averages(specs, with_feature=True)]


def transformer_update(spec: ActivationSpec, network: nn.Module) -> ActivationSpec:
    """What a U-Net's transformer adds to its input: the output of its last projection. ``spec``:
    its ``*-vit-out``.
    """
    path = f"{spec.module}.proj_out"
    if hasattr(network.get_submodule(path), "out_features"):
        return replace(spec, module=path, kind=Kind.TOKENS, grid=spec.module)
    return replace(spec, module=path)


def _attention_averages(
    specs: list[ActivationSpec], with_feature: bool
) -> Iterator[ActivationSpec]:
    """Attention maps averaged over layers: the paper's feature (up-stage of a U-Net) and the mean
    of all layers.
    """
    cross_maps = [spec for spec in specs if spec.kind == Kind.MAP and spec.id.endswith("cross-map")]
    members = tuple(
        spec for spec in cross_maps if spec.id.startswith("up-") and spec.scale in _ATTN_SCALES
    )
    if with_feature and members:
        yield ActivationSpec(
            id="attn", module="", kind=Kind.ATTN_FEATURE, channels=None, scale=1, members=members
        )
    if cross_maps:
        yield ActivationSpec(
            id="attn-mean",
            module="",
            kind=Kind.ATTN_MEAN,
            channels=None,
            scale=min(spec.scale for spec in cross_maps),
            members=tuple(cross_maps),
        )


def _unet_specs(network: Any) -> Iterator[ActivationSpec]:
    yield ActivationSpec(
        id="unet-in", module="", kind=Kind.INPUT, channels=network.in_channels, scale=1
    )
    yield ActivationSpec(
        id="unet-after-conv-in",
        module="input_blocks.0.0",
        kind=Kind.SPATIAL,
        channels=network.input_blocks[0][0].out_channels,
        scale=1,
    )
    scale = yield from _stage("down", network.input_blocks, "input_blocks", 1, first=1)
    if network.middle_block is not None:
        repeats = (f"mid-repeat{repeat}" for repeat in range(2))
        for index, module in enumerate(network.middle_block):
            name = next(repeats) if _is_residual(module) else "mid"
            yield from _module_specs(name, module, f"middle_block.{index}", scale)
    yield from _stage("up", network.output_blocks, "output_blocks", scale)
    yield ActivationSpec(
        id="unet-out", module="out", kind=Kind.SPATIAL, channels=network.out_channels, scale=1
    )


def _stage(
    stage: str, blocks: Any, path: str, scale: int, first: int = 0
) -> Generator[ActivationSpec, None, int]:
    """Specs of a stage; returns the scale at its end."""
    level = repeat = 0
    for number in range(first, len(blocks)):
        resampled = False
        for index, module in enumerate(blocks[number]):
            where = f"{path}.{number}.{index}"
            if _is_resampler(module):
                resampled = True
                scale = scale * 2 if stage == "down" else scale // 2
                kind = "downsampler" if stage == "down" else "upsampler"
                yield ActivationSpec(
                    id=f"{stage}-level{level}-{kind}-out",
                    module=where,
                    kind=Kind.SPATIAL,
                    channels=module.out_channels,
                    scale=scale,
                )
            else:
                yield from _module_specs(
                    f"{stage}-level{level}-repeat{repeat}", module, where, scale
                )
        level, repeat = (level + 1, 0) if resampled else (level, repeat + 1)
    return scale


def _module_specs(name: str, module: Any, path: str, scale: int) -> Iterator[ActivationSpec]:
    if _is_residual(module):
        yield ActivationSpec(
            id=f"{name}-res-increment",
            module=f"{path}.out_layers",
            kind=Kind.SPATIAL,
            channels=module.out_channels,
            scale=scale,
        )
        yield ActivationSpec(
            id=f"{name}-res-out",
            module=path,
            kind=Kind.SPATIAL,
            channels=module.out_channels,
            scale=scale,
        )
    elif _is_transformer(module):
        for number, block in enumerate(module.transformer_blocks):
            yield from _block_specs(
                f"{name}-vit-block{number}",
                block,
                path=f"{path}.transformer_blocks.{number}",
                scale=scale,
                grid=path,
            )
        yield ActivationSpec(
            id=f"{name}-vit-out",
            module=path,
            kind=Kind.SPATIAL,
            channels=module.in_channels,
            scale=scale,
        )


def _block_specs(
    name: str, block: Any, path: str, scale: int, grid: str
) -> Iterator[ActivationSpec]:
    for part, submodule, kind in _BLOCK_PARTS:
        if submodule.startswith("attn2") and block.attn2 is None:
            continue
        where = f"{path}.{submodule}" if submodule else path
        attention = None
        if kind == Kind.MAP:
            attention = Attention(
                query=f"{where}.to_q", key=f"{where}.to_k", heads=getattr(block, submodule).heads
            )
        yield ActivationSpec(
            id=f"{name}-{part}",
            module=where,
            kind=kind,
            channels=_channels(block, part),
            scale=scale,
            grid=grid,
            attention=attention,
        )


def _channels(block: Any, part: str) -> int | None:
    """Channels of a transformer block's part, from declared sizes: the weights may be offloaded or
    quantized.
    """
    if part.endswith(Kind.MAP):
        return None
    if part == "ffn-inner":
        return block.ff.net[2].in_features
    if part == "out":
        return block.ff.net[2].out_features
    attention = block.attn1 if part.startswith("self") else block.attn2
    return getattr(attention, f"to_{part[-1]}").out_features


def _is_residual(module: nn.Module) -> bool:
    return hasattr(module, "out_layers") and hasattr(module, "skip_connection")


def _is_transformer(module: nn.Module) -> bool:
    return hasattr(module, "transformer_blocks")


def _is_resampler(module: nn.Module) -> bool:
    return type(module).__name__ in ("Downsample", "Upsample") or getattr(module, "updown", False)
