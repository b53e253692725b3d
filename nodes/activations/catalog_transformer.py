"""The activations of diffusion transformers, in the official code's scheme:
``vit-block{i}-{part}``.

The kind of a block follows from its submodules, not from the model's name. Queries, keys and values
are the outputs of their projections, before norms and rotary positions, sliced out of fused
projections by layout. Blocks with joint attention over text and image have ``q``, ``k``, ``v``;
those with separate attentions have ``self-q`` and ``cross-q``. ``cross-map`` is the attention of
the image's queries to the tokens of the prompt, from a softmax over all keys, after norms and
rotary positions, as in the official code. Blocks that refine the image before it meets the text are
``vit-refiner{i}``. Of a network none of whose blocks is known, ``q``, ``k``, ``v`` are what ComfyUI
hands to the attention, after norms and rotary positions. Blocks are ``Any``: torch's nn.Module
declares none of their attributes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from .activation_spec import ActivationSpec, BlockAttention, Kind, UnsupportedNetworkError

_REFINER = "noise_refiner"
#: Lists of blocks that see the text alone, or refine what the blocks see.
_BESIDE = ("text", "txt", "context", "caption", "refiner")
_HEADS = ("num_heads", "heads", "n_heads", "num_attention_heads", "n_local_heads")
#: Networks of ComfyUI that make no images, by class name: what they make.
_OTHER_MEDIA = {
    "Hunyuan3Dv2": "3D shapes",
    "HunYuanDiTPlain": "3D shapes",
    "AudioDiffusionTransformer": "audio",
    "ACEStepTransformer2DModel": "audio",
}


def transformer_specs(network: nn.Module) -> list[ActivationSpec]:
    """All activations of a transformer in forward order; raises UnsupportedNetworkError for any
    other network.
    """
    if type(network).__name__ in _OTHER_MEDIA:
        raise UnsupportedNetworkError(
            f"{type(network).__name__} makes {_OTHER_MEDIA[type(network).__name__]}, and "
            "activations are read on the positions of an image. Use a model for images or video."
        )
    scale = _patch(network)
    specs = []
    number = 0
    for index, block in enumerate(_refiners(network)):
        specs += [
            _placed(
                one,
                f"vit-refiner{index}",
                path=f"{_REFINER}.{index}",
                scale=scale,
                length_module="",
            )
            for one in _block_specs(block)
            if one.kind != Kind.MAP
        ]
    lists = list(_block_lists(network, _supported)) or list(_block_lists(network, _has_attention))
    for path, blocks in lists:
        length_module = _image_length_module(network, blocks[0])
        for index, block in enumerate(blocks):
            specs += [
                _placed(
                    one,
                    f"vit-block{number}",
                    path=f"{path}.{index}",
                    scale=scale,
                    length_module=length_module,
                )
                for one in _block_specs(block)
            ]
            number += 1
    if not specs:
        raise UnsupportedNetworkError(
            f"{type(network).__name__} is not supported. Use a model with a U-Net (SD1.5, SD2.1, "
            "SDXL, the demo model) or a transformer like Flux, SD3, Qwen-Image, HunyuanDiT, "
            "PixArt, Lumina, HiDream, LTXV or Wan."
        )
    return specs


def _block_lists(
    network: nn.Module, is_list: Callable[[nn.Module], bool]
) -> Iterator[tuple[str, Any]]:
    """Lists of blocks directly below the network that see image and text."""
    for name, child in network.named_children():
        if is_list(child) and not any(word in name for word in _BESIDE):
            yield name, child


def _refiners(network: nn.Module) -> Any:
    """Blocks of Lumina and OmniGen2 that see the image alone; those of the text hold no image
    tokens.
    """
    blocks = getattr(network, _REFINER, None)
    return blocks if _supported(blocks) else []


def _supported(blocks: nn.Module | None) -> bool:
    return (
        isinstance(blocks, nn.ModuleList)
        and len(blocks) > 0
        and all(_block_reader(block) for block in blocks)
    )


def _has_attention(blocks: nn.Module) -> bool:
    """Whether that is a list of blocks of one class, with attention."""
    return (
        isinstance(blocks, nn.ModuleList)
        and len({type(block) for block in blocks}) == 1
        and not isinstance(blocks[0], nn.ModuleList)
        and _heads_of(blocks[0]) > 0
    )


def _heads_of(block: nn.Module) -> int:
    """The number of heads that a block declares; 0 of one without attention."""
    for module in block.modules():
        for name in _HEADS:
            if isinstance(getattr(module, name, None), int):
                return getattr(module, name)
    return 0


def _block_specs(block: nn.Module) -> Iterator[ActivationSpec]:
    return (_block_reader(block) or _any_block)(block)


def _any_block(block: Any) -> Iterator[ActivationSpec]:
    """A block of a class that is not known, by its attention."""
    attention = BlockAttention(block="", heads=_heads_of(block))
    inputs = (getattr(layer, "in_features", None) for layer in block.modules())
    ((width, _),) = Counter(size for size in inputs if size).most_common(1)
    for letter in "qkv":
        yield _part(letter, "", width, attention=attention, projection=letter)
    yield _map("cross-map", attention.heads)
    yield _part("out", "", width, attention=attention)


def _block_reader(block: nn.Module) -> Callable | None:
    for names, reader in _BLOCK_READERS:
        if all(_has(block, name) for name in names):
            return reader
    return None


def _has(module: nn.Module, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(module, name):
            return False
        module = getattr(module, name)
    return True


def _double(block: Any) -> Iterator[ActivationSpec]:
    """Flux, Chroma, HunyuanVideo: text and image with weights of their own; returns (image,
    text).
    """
    width = block.img_attn.qkv.out_features // 3
    yield from _fused("", "img_attn.qkv", (width, width, width))
    yield _map("cross-map", block.num_heads)
    yield _part("attn-out", "img_attn.proj", width)
    last = "img_mlp.down_proj" if _has(block, "img_mlp.down_proj") else "img_mlp.2"
    yield _part("ffn-inner", last, block.get_submodule(last).in_features, from_input=True)
    yield _part("out", "", width)


def _single(block: Any) -> Iterator[ActivationSpec]:
    """Flux, Chroma, HunyuanVideo: one sequence, and attention beside the feed-forward part."""
    width = block.hidden_size
    yield from _fused("", "linear1", (width, width, width))
    yield _map("cross-map", block.num_heads)
    yield _part("attn-inner", "linear2", width, from_input=True)
    yield _part("ffn-inner", "linear2", block.mlp_hidden_dim, begin=width, from_input=True)
    yield _part("out", "", width)


def _joint(block: Any) -> Iterator[ActivationSpec]:
    """SD3, SD3.5: text and image with weights of their own; returns (text, image).

    Some blocks of SD3.5 Medium have a second attention beside it, of the image to itself.
    """
    part = block.x_block
    attention = "x_block.attn"
    width = part.attn.qkv.out_features // 3
    own = hasattr(block.x_block, "attn2")
    yield from _fused("", f"{attention}.qkv", (width, width, width))
    yield _map("cross-map", part.attn.num_heads)
    if own:
        yield from _fused("self-", f"{attention}2.qkv", (width, width, width))
        yield _map("self-map", part.attn2.num_heads)
    yield _part("attn-out", f"{attention}.proj", width)
    if own:
        yield _part("self-attn-out", f"{attention}2.proj", width)
    if hasattr(part.mlp, "fc2"):
        yield _part("ffn-inner", "x_block.mlp.fc2", part.mlp.fc2.in_features, from_input=True)
    yield _part("out", "", width, item=1)


def _pixart(block: Any) -> Iterator[ActivationSpec]:
    """PixArt-alpha and -sigma: self-attention, then cross-attention; eight activations as in the
    official code.
    """
    width = block.attn.qkv.out_features // 3
    heads = block.attn.num_heads
    yield from _fused("self-", "attn.qkv", (width, width, width))
    if block.attn.sr_ratio == 1:
        yield _map("self-map", heads)
    yield _part("cross-q", "cross_attn.q_linear", width)
    yield _map("cross-map", heads)
    yield _part("ffn-inner", "mlp.fc2", block.mlp.fc2.in_features, from_input=True)
    yield _part("out", "", width)


def _lumina(block: Any) -> Iterator[ActivationSpec]:
    """Lumina 2, Z-Image: one sequence; keys and values may have fewer heads than queries."""
    attention = block.attention
    keys = attention.n_local_kv_heads * attention.head_dim
    yield from _fused(
        "", "attention.qkv", (attention.n_local_heads * attention.head_dim, keys, keys)
    )
    yield _map("cross-map", attention.n_local_heads)
    yield _part("attn-out", "attention.out", attention.out.out_features)
    yield _part("ffn-inner", "feed_forward.w2", block.feed_forward.w2.in_features, from_input=True)
    yield _part("out", "", block.feed_forward.w2.out_features)


def _wan(block: Any) -> Iterator[ActivationSpec]:
    """Wan: self-attention, then cross-attention."""
    for letter in "qkv":
        yield _part(
            f"self-{letter}", f"self_attn.{letter}", getattr(block.self_attn, letter).out_features
        )
    yield _part("cross-q", "cross_attn.q", block.cross_attn.q.out_features)
    yield _map("cross-map", block.cross_attn.num_heads)
    yield _part("ffn-inner", "ffn.2", block.ffn[2].in_features, from_input=True)
    yield _part("out", "", block.ffn[2].out_features)


def _qwen(block: Any) -> Iterator[ActivationSpec]:
    """Qwen-Image: text and image with weights of their own; returns (text, image)."""
    for letter in "qkv":
        yield _part(letter, f"attn.to_{letter}", getattr(block.attn, f"to_{letter}").out_features)
    yield _map("cross-map", block.attn.heads)
    yield _part("attn-out", "attn.to_out.0", block.attn.to_out[0].out_features)
    yield _part("ffn-inner", "img_mlp.net.2", block.img_mlp.net[2].in_features, from_input=True)
    yield _part("out", "", block.img_mlp.net[2].out_features, item=1)


def _hydit(block: Any) -> Iterator[ActivationSpec]:
    """HunyuanDiT: self-attention, then cross-attention."""
    width = block.attn1.Wqkv.out_features // 3
    yield from _fused("self-", "attn1.Wqkv", (width, width, width))
    yield _part("cross-q", "attn2.q_proj", block.attn2.q_proj.out_features)
    yield _map("cross-map", block.attn2.num_heads)
    yield _part("ffn-inner", "mlp.fc2", block.mlp.fc2.in_features, from_input=True)
    yield _part("out", "", block.mlp.fc2.out_features)


def _ltxv(block: Any) -> Iterator[ActivationSpec]:
    """LTXV, LTX-2: self-attention, then cross-attention."""
    for letter in "qkv":
        yield _part(
            f"self-{letter}",
            f"attn1.to_{letter}",
            getattr(block.attn1, f"to_{letter}").out_features,
        )
    yield _part("cross-q", "attn2.to_q", block.attn2.to_q.out_features)
    yield _map("cross-map", block.attn2.heads)
    yield _part("ffn-inner", "ff.net.2", block.ff.net[2].in_features, from_input=True)
    yield _part("out", "", block.ff.net[2].out_features)


def _hidream(block: Any) -> Iterator[ActivationSpec]:
    """HiDream: double blocks, which return (image, text), and single ones with the image first.

    ``ffn-inner`` is of the expert that all tokens share.
    """
    inner = block.block
    for letter in "qkv":
        yield _part(
            letter, f"block.attn1.to_{letter}", getattr(inner.attn1, f"to_{letter}").out_features
        )
    yield _map("cross-map", inner.attn1.heads)
    yield _part("attn-out", "block.attn1.to_out", inner.attn1.to_out.out_features)
    last = "ff_i.shared_experts.w2" if _has(inner, "ff_i.shared_experts") else "ff_i.w2"
    yield _part(
        "ffn-inner", f"block.{last}", inner.get_submodule(last).in_features, from_input=True
    )
    yield _part("out", "", inner.attn1.to_out.out_features)


def _omnigen(block: Any) -> Iterator[ActivationSpec]:
    """OmniGen2: one sequence of text, reference images and image; keys and values have fewer heads
    than queries.
    """
    for letter in "qkv":
        yield _part(letter, f"attn.to_{letter}", getattr(block.attn, f"to_{letter}").out_features)
    yield _map("cross-map", block.attn.heads)
    yield _part("attn-out", "attn.to_out.0", block.attn.to_out[0].out_features)
    last = block.feed_forward.linear_2
    yield _part("ffn-inner", "feed_forward.linear_2", last.in_features, from_input=True)
    yield _part("out", "", last.out_features)


_BLOCK_READERS = (
    (("img_attn.qkv", "txt_attn.qkv", "img_mlp"), _double),
    (("linear1", "linear2", "hidden_size", "mlp_hidden_dim"), _single),
    (("context_block", "x_block.attn.qkv"), _joint),
    (("attn.qkv", "cross_attn.q_linear", "cross_attn.kv_linear", "mlp.fc2"), _pixart),
    (("attention.qkv", "attention.n_local_kv_heads", "feed_forward.w2"), _lumina),
    (("self_attn.q", "self_attn.v", "cross_attn.norm_k", "ffn"), _wan),
    (("attn.to_q", "attn.norm_added_k", "img_mlp.net"), _qwen),
    (("attn1.Wqkv", "attn2.q_proj", "mlp.fc2"), _hydit),
    (("attn1.to_q", "attn2.to_q", "attn2.q_norm", "ff.net"), _ltxv),
    (("block.attn1.to_q", "block.ff_i"), _hidream),
    (("attn.to_q", "attn.to_out", "feed_forward.linear_2"), _omnigen),
)


def _part(name: str, module: str, channels: int, **where: Any) -> ActivationSpec:
    return ActivationSpec(
        id=name, module=module, kind=Kind.TOKENS, channels=channels, scale=1, **where
    )


def _map(name: str, heads: int) -> ActivationSpec:
    return ActivationSpec(
        id=name,
        module="",
        kind=Kind.MAP,
        channels=None,
        scale=1,
        attention=BlockAttention(block="", heads=heads),
    )


def _fused(prefix: str, module: str, widths: tuple[int, int, int]) -> Iterator[ActivationSpec]:
    begins = (0, widths[0], widths[0] + widths[1])
    for letter, width, begin in zip("qkv", widths, begins, strict=True):
        yield _part(f"{prefix}{letter}", module, width, begin=begin)


def _placed(
    spec: ActivationSpec, name: str, path: str, scale: int, length_module: str
) -> ActivationSpec:
    """A block's spec with its path in the network."""
    attention = spec.attention
    if isinstance(attention, BlockAttention):
        attention = replace(attention, block=path)
    module = f"{path}.{spec.module}" if spec.module else path
    return replace(
        spec,
        id=f"{name}-{spec.id}",
        module=module,
        scale=scale,
        length_module=length_module,
        attention=attention,
    )


def _patch(network: nn.Module) -> int:
    """Latent positions a side of a token, as declared."""
    sizes = (getattr(network, name, None) for name in ("patch_size", "patch_spatial", "patch"))
    size = next((size for size in sizes if size is not None), 1)
    return int(size if isinstance(size, int) else size[-1])


def _image_length_module(network: Any, block: nn.Module) -> str:
    """For blocks with text before the image in one sequence: a module whose output has as many
    tokens as the image.
    """
    reader = _block_reader(block)
    if reader in (_lumina, _omnigen):
        return "noise_refiner.0" if len(getattr(network, "noise_refiner", ())) else "x_embedder"
    doubles = (module for module in network.modules() if hasattr(module, "flipped_img_txt"))
    if reader is not _single or any(module.flipped_img_txt for module in doubles):
        return ""
    alone = isinstance(getattr(network, "img_in", None), nn.Module)
    return "img_in" if alone else "double_blocks.0.img_attn.qkv"
