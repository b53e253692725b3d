"""The activations of diffusion transformers, in the official code's scheme: ``vit-block{i}-{part}``.

The kind of a block follows from its submodules, not from the model's name. Queries, keys and values are the outputs of
their projections, before norms and rotary positions, sliced out of fused projections by layout. Blocks with joint
attention over text and image have ``q``, ``k``, ``v``; those with separate attentions have ``self-q`` and ``cross-q``.
Maps of separate attentions exist where no rotary position lies between projection and softmax. In joint attention
``cross-map`` is the attention of the image's queries to the text's keys, from a softmax over both, after norms and
rotary positions, as in the official code. No maps where the network masks its text or hands no rotary matrices out
(HunyuanVideo, LTXV, HunyuanDiT, HiDream, Lumina, OmniGen2). Blocks that refine the image before it meets the text are
``vit-refiner{i}``. Blocks are ``Any``: torch's nn.Module declares none of their attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from .activation_spec import ActivationSpec, Attention, JointAttention, Kind, UnsupportedNetworkError

_REFINER, _ROTARY = "noise_refiner", "pe_embedder"
#: Networks of ComfyUI that make no images, by class name: what they make.
_OTHER_MEDIA = {
    "Hunyuan3Dv2": "3D shapes",
    "HunYuanDiTPlain": "3D shapes",
    "AudioDiffusionTransformer": "audio",
    "ACEStepTransformer2DModel": "audio",
}


def transformer_specs(network: nn.Module) -> list[ActivationSpec]:
    """All activations of a transformer in forward order; raises UnsupportedNetworkError for any other network."""
    if type(network).__name__ in _OTHER_MEDIA:
        raise UnsupportedNetworkError(
            f"{type(network).__name__} makes {_OTHER_MEDIA[type(network).__name__]}, and activations are read on the "
            "positions of an image. Use a model for images or video."
        )
    scale, specs, number = _patch(network), [], 0
    masked = _masks_text(network)
    for index, block in enumerate(_refiners(network)):
        specs += [_placed(one, f"vit-refiner{index}", f"{_REFINER}.{index}", scale, "") for one in _block_specs(block)]
    for path, blocks in _block_lists(network):
        length_module = _image_length_module(network, blocks[0])
        for index, block in enumerate(blocks):
            specs_of_block = [
                _placed(one, f"vit-block{number}", f"{path}.{index}", scale, length_module)
                for one in _block_specs(block)
            ]
            specs += [
                one
                for one in specs_of_block
                if not _is_joint_cross_map(one) or (_has_text_boundary(one) and not masked)
            ]
            number += 1
    if not specs:
        raise UnsupportedNetworkError(
            f"{type(network).__name__} is not supported. Use a model with a U-Net (SD1.5, SD2.1, SDXL, the demo model) "
            "or a transformer like Flux, SD3, Qwen-Image, HunyuanDiT, PixArt, Lumina, HiDream, LTXV or Wan."
        )
    return specs


def _block_lists(network: nn.Module) -> Iterator[tuple[str, Any]]:
    """Lists of supported blocks directly below the network, without the refiners of Lumina and OmniGen2."""
    for name, child in network.named_children():
        if _supported(child) and "refiner" not in name:
            yield name, child


def _refiners(network: nn.Module) -> Any:
    """Blocks of Lumina and OmniGen2 that see the image alone; those of the text hold no image tokens."""
    blocks = getattr(network, _REFINER, None)
    return blocks if _supported(blocks) else []


def _supported(blocks: nn.Module | None) -> bool:
    return isinstance(blocks, nn.ModuleList) and len(blocks) > 0 and all(_block_reader(block) for block in blocks)


def _block_specs(block: nn.Module) -> Iterator[ActivationSpec]:
    return _block_reader(block)(block)


def _block_reader(block: nn.Module):
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
    """Flux, Chroma, HunyuanVideo: text and image with weights of their own; returns (image, text)."""
    width = block.img_attn.qkv.out_features // 3
    yield from _fused("", "img_attn.qkv", (width, width, width))
    yield _map(
        "cross-map",
        JointAttention("img_attn.norm", "img_attn.norm", block.num_heads, "txt_attn.norm", _ROTARY, heads_first=True),
    )
    yield _part("attn-out", "img_attn.proj", width)
    last = "img_mlp.down_proj" if _has(block, "img_mlp.down_proj") else "img_mlp.2"
    yield _part("ffn-inner", last, block.get_submodule(last).in_features, from_input=True)
    yield _part("out", "", width)


def _single(block: Any) -> Iterator[ActivationSpec]:
    """Flux, Chroma, HunyuanVideo: one sequence, and attention beside the feed-forward part."""
    width = block.hidden_size
    yield from _fused("", "linear1", (width, width, width))
    yield _map("cross-map", JointAttention("norm", "norm", block.num_heads, "", _ROTARY, heads_first=True))
    yield _part("attn-inner", "linear2", width, from_input=True)
    yield _part("ffn-inner", "linear2", block.mlp_hidden_dim, begin=width, from_input=True)
    yield _part("out", "", width)


def _joint(block: Any) -> Iterator[ActivationSpec]:
    """SD3, SD3.5: text and image with weights of their own; returns (text, image).

    Some blocks of SD3.5 Medium have a second attention beside it, of the image to itself.
    """
    part, attention = block.x_block, "x_block.attn"
    width, own = part.attn.qkv.out_features // 3, hasattr(block.x_block, "attn2")
    yield from _fused("", f"{attention}.qkv", (width, width, width))
    yield _map(
        "cross-map",
        JointAttention(f"{attention}.ln_q", f"{attention}.ln_k", part.attn.num_heads, "context_block.attn.ln_k"),
    )
    if own:
        yield from _fused("self-", f"{attention}2.qkv", (width, width, width))
        yield _map("self-map", JointAttention(f"{attention}2.ln_q", f"{attention}2.ln_k", part.attn2.num_heads))
    yield _part("attn-out", f"{attention}.proj", width)
    if own:
        yield _part("self-attn-out", f"{attention}2.proj", width)
    if hasattr(part.mlp, "fc2"):
        yield _part("ffn-inner", "x_block.mlp.fc2", part.mlp.fc2.in_features, from_input=True)
    yield _part("out", "", width, item=1)


def _pixart(block: Any) -> Iterator[ActivationSpec]:
    """PixArt-alpha and -sigma: self-attention, then cross-attention; eight activations as in the official code."""
    width, heads = block.attn.qkv.out_features // 3, block.attn.num_heads
    yield from _fused("self-", "attn.qkv", (width, width, width))
    if block.attn.sr_ratio == 1 and isinstance(block.attn.q_norm, nn.Identity):
        yield _map("self-map", Attention("attn.qkv", "attn.qkv", heads, width, 0, width))
    yield _part("cross-q", "cross_attn.q_linear", width)
    yield _map("cross-map", Attention("cross_attn.q_linear", "cross_attn.kv_linear", heads, width))
    yield _part("ffn-inner", "mlp.fc2", block.mlp.fc2.in_features, from_input=True)
    yield _part("out", "", width)


def _lumina(block: Any) -> Iterator[ActivationSpec]:
    """Lumina 2, Z-Image: one sequence; keys and values may have fewer heads than queries."""
    attention = block.attention
    keys = attention.n_local_kv_heads * attention.head_dim
    yield from _fused("", "attention.qkv", (attention.n_local_heads * attention.head_dim, keys, keys))
    yield _part("attn-out", "attention.out", attention.out.out_features)
    yield _part("ffn-inner", "feed_forward.w2", block.feed_forward.w2.in_features, from_input=True)
    yield _part("out", "", block.feed_forward.w2.out_features)


def _wan(block: Any) -> Iterator[ActivationSpec]:
    """Wan: self-attention with rotary positions, then cross-attention without."""
    for letter in "qkv":
        yield _part(f"self-{letter}", f"self_attn.{letter}", getattr(block.self_attn, letter).out_features)
    yield _part("cross-q", "cross_attn.q", block.cross_attn.q.out_features)
    yield _map("cross-map", Attention("cross_attn.norm_q", "cross_attn.norm_k", block.cross_attn.num_heads))
    yield _part("ffn-inner", "ffn.2", block.ffn[2].in_features, from_input=True)
    yield _part("out", "", block.ffn[2].out_features)


def _qwen(block: Any) -> Iterator[ActivationSpec]:
    """Qwen-Image: text and image with weights of their own; returns (text, image)."""
    for letter in "qkv":
        yield _part(letter, f"attn.to_{letter}", getattr(block.attn, f"to_{letter}").out_features)
    yield _map(
        "cross-map",
        JointAttention("attn.norm_q", "attn.norm_k", block.attn.heads, "attn.norm_added_k", _ROTARY, heads_first=True),
    )
    yield _part("attn-out", "attn.to_out.0", block.attn.to_out[0].out_features)
    yield _part("ffn-inner", "img_mlp.net.2", block.img_mlp.net[2].in_features, from_input=True)
    yield _part("out", "", block.img_mlp.net[2].out_features, item=1)


def _hydit(block: Any) -> Iterator[ActivationSpec]:
    """HunyuanDiT: self-attention, then cross-attention, both with rotary positions."""
    width = block.attn1.Wqkv.out_features // 3
    yield from _fused("self-", "attn1.Wqkv", (width, width, width))
    yield _part("cross-q", "attn2.q_proj", block.attn2.q_proj.out_features)
    yield _part("ffn-inner", "mlp.fc2", block.mlp.fc2.in_features, from_input=True)
    yield _part("out", "", block.mlp.fc2.out_features)


def _ltxv(block: Any) -> Iterator[ActivationSpec]:
    """LTXV: self-attention with rotary positions, then cross-attention to a text whose padding is masked."""
    for letter in "qkv":
        yield _part(f"self-{letter}", f"attn1.to_{letter}", getattr(block.attn1, f"to_{letter}").out_features)
    yield _part("cross-q", "attn2.to_q", block.attn2.to_q.out_features)
    yield _part("ffn-inner", "ff.net.2", block.ff.net[2].in_features, from_input=True)
    yield _part("out", "", block.ff.net[2].out_features)


def _hidream(block: Any) -> Iterator[ActivationSpec]:
    """HiDream: double blocks, which return (image, text), and single ones with the image first.

    ``ffn-inner`` is of the expert that all tokens share.
    """
    inner = block.block
    for letter in "qkv":
        yield _part(letter, f"block.attn1.to_{letter}", getattr(inner.attn1, f"to_{letter}").out_features)
    yield _part("attn-out", "block.attn1.to_out", inner.attn1.to_out.out_features)
    last = "ff_i.shared_experts.w2" if _has(inner, "ff_i.shared_experts") else "ff_i.w2"
    yield _part("ffn-inner", f"block.{last}", inner.get_submodule(last).in_features, from_input=True)
    yield _part("out", "", inner.attn1.to_out.out_features)


def _omnigen(block: Any) -> Iterator[ActivationSpec]:
    """OmniGen2: one sequence of text, reference images and image; keys and values have fewer heads than queries."""
    for letter in "qkv":
        yield _part(letter, f"attn.to_{letter}", getattr(block.attn, f"to_{letter}").out_features)
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


def _part(name: str, module: str, channels: int, **where) -> ActivationSpec:
    return ActivationSpec(name, module, Kind.TOKENS, channels, 1, **where)


def _map(name: str, attention: Attention | JointAttention) -> ActivationSpec:
    return ActivationSpec(name, attention.query.split(".")[0], Kind.MAP, None, 1, attention=attention)


def _fused(prefix: str, module: str, widths: tuple[int, int, int]) -> Iterator[ActivationSpec]:
    begins = (0, widths[0], widths[0] + widths[1])
    for letter, width, begin in zip("qkv", widths, begins, strict=True):
        yield _part(f"{prefix}{letter}", module, width, begin=begin)


def _placed(spec: ActivationSpec, name: str, path: str, scale: int, length_module: str) -> ActivationSpec:
    """A block's spec with its path in the network."""
    attention = spec.attention
    if attention is not None:
        attention = replace(attention, query=f"{path}.{attention.query}", key=f"{path}.{attention.key}")
    if isinstance(attention, JointAttention) and attention.text:
        attention = replace(attention, text=f"{path}.{attention.text}")
    module = f"{path}.{spec.module}" if spec.module else path
    return replace(
        spec, id=f"{name}-{spec.id}", module=module, scale=scale, length_module=length_module, attention=attention
    )


def _patch(network: nn.Module) -> int:
    """Latent positions a side of a token."""
    size = getattr(network, "patch_size", 1)
    return int(size if isinstance(size, int) else size[-1])


def _image_length_module(network: Any, block: nn.Module) -> str:
    """For blocks with text before the image in one sequence: a module whose output has as many tokens as the image."""
    reader = _block_reader(block)
    if reader in (_lumina, _omnigen):
        return "noise_refiner.0" if len(getattr(network, "noise_refiner", ())) else "x_embedder"
    doubles = (module for module in network.modules() if hasattr(module, "flipped_img_txt"))
    if reader is not _single or any(module.flipped_img_txt for module in doubles):
        return ""
    alone = isinstance(getattr(network, "img_in", None), nn.Module)
    return "img_in" if alone else "double_blocks.0.img_attn.qkv"


def _masks_text(network: nn.Module) -> bool:
    """HunyuanVideo masks the padding of its text, which a map does not see. It alone refines the text this way."""
    return _has(network, "txt_in.individual_token_refiner")


def _is_joint_cross_map(spec: ActivationSpec) -> bool:
    return isinstance(spec.attention, JointAttention) and spec.id.endswith("cross-map")


def _has_text_boundary(spec: ActivationSpec) -> bool:
    """Whether it is known which keys of a joint attention are the text."""
    return isinstance(spec.attention, JointAttention) and bool(spec.attention.text or spec.length_module)
