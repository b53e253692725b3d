"""The activations of a network, named as in the paper's code (arXiv 2410.03558), read from its module tree.

An ID is stage, level, repeat, module and what of the module is meant: ``up-level1-repeat0-vit-block0-cross-q``. Levels
and repeats count from 0 in forward order within a stage, so ``up-level0`` is the lowest resolution of the up-stage.
Transformers have no stages: ``vit-block3-out`` (``transformers.py``). Outside the scheme there are two attention maps
averaged over layers: ``attn``, the official code's, and ``attn-mean``, DAAM's (``attention.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from .entries import Attention, Entry, UnreadableNetworkError
from .transformers import transformer_entries

#: What a transformer block holds, in forward order: name, submodule, kind.
_BLOCK_PARTS = (
    ("self-q", "attn1.to_q", "tokens"),
    ("self-k", "attn1.to_k", "tokens"),
    ("self-v", "attn1.to_v", "tokens"),
    ("self-map", "attn1", "map"),
    ("cross-q", "attn2.to_q", "tokens"),
    ("cross-map", "attn2", "map"),
    ("ffn-inner", "ff.net.0", "tokens"),
    ("out", "", "tokens"),
)
_VIDEO = {"VideoResBlock", "SpatialVideoTransformer"}
#: Scales of the maps in ``attn``: a sixteenth and a 32nd of the picture's side, at eight pixels a latent position.
_ATTN_SCALES = (2, 4)


def catalog(network: nn.Module) -> list[Entry]:
    """All activations of a network in forward order; raises UnreadableNetworkError for one that cannot be read."""
    if not all(hasattr(network, name) for name in ("input_blocks", "middle_block", "output_blocks", "out")):
        entries = transformer_entries(network)
        return [*entries, *_averages(entries, paper=False)]
    if any(type(module).__name__ in _VIDEO for module in network.modules()):
        raise UnreadableNetworkError(
            "This is a U-Net for video, whose activations the paper does not name: use one for pictures."
        )
    entries = list(_entries(network))
    return [*entries, *_averages(entries, paper=True)]


def _averages(entries: list[Entry], paper: bool) -> Iterator[Entry]:
    """The attention maps over many layers: the paper's, of the up-stage of a U-Net, and DAAM's, of all layers."""
    crossed = [entry for entry in entries if entry.kind == "map" and entry.id.endswith("cross-map")]
    members = tuple(entry for entry in crossed if entry.id.startswith("up-") and entry.scale in _ATTN_SCALES)
    if paper and members:
        yield Entry("attn", "", "sides", None, 1, members=members)
    if crossed:
        yield Entry("attn-mean", "", "mean", None, min(entry.scale for entry in crossed), members=tuple(crossed))


def _entries(network: nn.Module) -> Iterator[Entry]:
    yield Entry("unet-in", "", "input", network.in_channels, 1)
    yield Entry("unet-after-conv-in", "input_blocks.0.0", "spatial", network.input_blocks[0][0].out_channels, 1)
    scale = yield from _stage("down", network.input_blocks, "input_blocks", 1, first=1)
    if network.middle_block is not None:
        repeats = (f"mid-repeat{repeat}" for repeat in range(2))
        for index, module in enumerate(network.middle_block):
            name = next(repeats) if _is_residual(module) else "mid"
            yield from _module_entries(name, module, f"middle_block.{index}", scale)
    yield from _stage("up", network.output_blocks, "output_blocks", scale)
    yield Entry("unet-out", "out", "spatial", network.out_channels, 1)


def _stage(stage: str, blocks: nn.ModuleList, path: str, scale: int, first: int = 0) -> Iterator[Entry]:
    """Entries of a stage; returns the scale that it ends at."""
    level = repeat = 0
    for number in range(first, len(blocks)):
        resampled = False
        for index, module in enumerate(blocks[number]):
            where = f"{path}.{number}.{index}"
            if _is_resampler(module):
                resampled = True
                scale = scale * 2 if stage == "down" else scale // 2
                kind = "downsampler" if stage == "down" else "upsampler"
                yield Entry(f"{stage}-level{level}-{kind}-out", where, "spatial", module.out_channels, scale)
            else:
                yield from _module_entries(f"{stage}-level{level}-repeat{repeat}", module, where, scale)
        level, repeat = (level + 1, 0) if resampled else (level, repeat + 1)
    return scale


def _module_entries(name: str, module: nn.Module, path: str, scale: int) -> Iterator[Entry]:
    if _is_residual(module):
        yield Entry(f"{name}-res-increment", f"{path}.out_layers", "spatial", module.out_channels, scale)
        yield Entry(f"{name}-res-out", path, "spatial", module.out_channels, scale)
    elif _is_transformer(module):
        for number, block in enumerate(module.transformer_blocks):
            yield from _block_entries(
                f"{name}-vit-block{number}", block, f"{path}.transformer_blocks.{number}", scale, path
            )
        yield Entry(f"{name}-vit-out", path, "spatial", module.in_channels, scale)


def _block_entries(name: str, block: nn.Module, path: str, scale: int, grid: str) -> Iterator[Entry]:
    for part, submodule, kind in _BLOCK_PARTS:
        if submodule.startswith("attn2") and block.attn2 is None:
            continue
        where = f"{path}.{submodule}" if submodule else path
        attention = None
        if kind == "map":
            attention = Attention(f"{where}.to_q", f"{where}.to_k", getattr(block, submodule).heads)
        yield Entry(f"{name}-{part}", where, kind, _channels(block, part), scale, grid, attention=attention)


def _channels(block: nn.Module, part: str) -> int | None:
    """Channels of a transformer block's part, from declared sizes: the weights may be elsewhere or quantised."""
    if part.endswith("map"):
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
