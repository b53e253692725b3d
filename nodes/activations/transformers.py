"""The activations of diffusion transformers, in the official code's scheme: ``vit-block{i}-{part}``.

The kind of a block is seen from its submodules, not from the model's name. Queries, keys and values are the outputs of
their projections, before norms and rotary positions, cut out of fused projections by layout. Blocks with joint
attention over text and picture have ``q``, ``k``, ``v``; those with separate attentions have ``self-q`` and
``cross-q``. Maps of separate attentions are offered where no rotary position lies between projection and softmax.
In joint attention ``cross-map`` is what the picture's queries pay to the text's keys, of a softmax over both, after
norms and rotary positions, as the official code cuts it. Blocks that refine the picture alone before it meets the text
are ``vit-refiner{i}``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from .entries import Attention, Entry, JointAttention, UnreadableNetworkError

_REFINER, _TURN = "noise_refiner", "pe_embedder"


def transformer_entries(network: nn.Module) -> list[Entry]:
    """All activations of a transformer in forward order; raises UnreadableNetworkError for any other network."""
    scale, entries, number = _patch(network), [], 0
    masked = _text_is_masked(network)
    for index, block in enumerate(_refiners(network)):
        entries += [_placed(one, f"vit-refiner{index}", f"{_REFINER}.{index}", scale, "") for one in _read(block)]
    for path, blocks in _block_lists(network):
        last_as = _text_comes_first(network, blocks[0])
        for index, block in enumerate(blocks):
            found = [_placed(one, f"vit-block{number}", f"{path}.{index}", scale, last_as) for one in _read(block)]
            entries += [one for one in found if not _reads_text(one) or (_text_is_known(one) and not masked)]
            number += 1
    if not entries:
        raise UnreadableNetworkError(
            f"The activations of a {type(network).__name__} cannot be named: use a model with a U-Net (SD1.5, SD2.1, "
            "SDXL, the demo model) or a transformer of the kind of Flux, SD3, PixArt, Lumina or Wan."
        )
    return entries


def _block_lists(network: nn.Module) -> Iterator[tuple[str, nn.ModuleList]]:
    """Lists of readable blocks right below the network, less the refiners of Lumina."""
    for name, child in network.named_children():
        if _readable(child) and "refiner" not in name:
            yield name, child


def _refiners(network: nn.Module) -> nn.ModuleList | list:
    """Blocks of Lumina that see the picture alone; those of the text make no pictures."""
    blocks = getattr(network, _REFINER, None)
    return blocks if _readable(blocks) else []


def _readable(blocks: nn.Module | None) -> bool:
    return isinstance(blocks, nn.ModuleList) and len(blocks) > 0 and all(_kind(block) for block in blocks)


def _read(block: nn.Module) -> Iterator[Entry]:
    return _kind(block)(block)


def _kind(block: nn.Module):
    for names, reader in _KINDS:
        if all(_has(block, name) for name in names):
            return reader
    return None


def _has(module: nn.Module, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(module, name):
            return False
        module = getattr(module, name)
    return True


def _double(block: nn.Module) -> Iterator[Entry]:
    """Flux, Chroma, HunyuanVideo: text and picture with weights of their own; returns (picture, text)."""
    width = block.img_attn.qkv.out_features // 3
    yield from _fused("", "img_attn.qkv", (width, width, width))
    yield _map("cross-map", JointAttention("img_attn.norm", "img_attn.norm", block.num_heads, "txt_attn.norm", _TURN,
                                           heads_first=True))  # fmt: skip
    yield _part("attn-out", "img_attn.proj", width)
    last = "img_mlp.down_proj" if _has(block, "img_mlp.down_proj") else "img_mlp.2"
    yield _part("ffn-inner", last, block.get_submodule(last).in_features, of_input=True)
    yield _part("out", "", width)


def _single(block: nn.Module) -> Iterator[Entry]:
    """Flux, Chroma, HunyuanVideo: one sequence, and attention beside the feed-forward part."""
    width = block.hidden_size
    yield from _fused("", "linear1", (width, width, width))
    yield _map("cross-map", JointAttention("norm", "norm", block.num_heads, "", _TURN, heads_first=True))
    yield _part("attn-inner", "linear2", width, of_input=True)
    yield _part("ffn-inner", "linear2", block.mlp_hidden_dim, begin=width, of_input=True)
    yield _part("out", "", width)


def _joint(block: nn.Module) -> Iterator[Entry]:
    """SD3, SD3.5: text and picture with weights of their own; returns (text, picture).

    Some blocks of SD3.5 Medium have a second attention beside it, of the picture to itself.
    """
    part, attention = block.x_block, "x_block.attn"
    width, own = part.attn.qkv.out_features // 3, hasattr(block.x_block, "attn2")
    yield from _fused("", f"{attention}.qkv", (width, width, width))
    yield _map("cross-map", JointAttention(f"{attention}.ln_q", f"{attention}.ln_k", part.attn.num_heads,
                                           "context_block.attn.ln_k"))  # fmt: skip
    if own:
        yield from _fused("self-", f"{attention}2.qkv", (width, width, width))
        yield _map("self-map", JointAttention(f"{attention}2.ln_q", f"{attention}2.ln_k", part.attn2.num_heads))
    yield _part("attn-out", f"{attention}.proj", width)
    if own:
        yield _part("self-attn-out", f"{attention}2.proj", width)
    if hasattr(part.mlp, "fc2"):
        yield _part("ffn-inner", "x_block.mlp.fc2", part.mlp.fc2.in_features, of_input=True)
    yield _part("out", "", width, item=1)


def _pixart(block: nn.Module) -> Iterator[Entry]:
    """PixArt-alpha and -sigma: self-attention, then cross-attention; eight activations as in the official code."""
    width, heads = block.attn.qkv.out_features // 3, block.attn.num_heads
    yield from _fused("self-", "attn.qkv", (width, width, width))
    if block.attn.sr_ratio == 1 and isinstance(block.attn.q_norm, nn.Identity):
        yield _map("self-map", Attention("attn.qkv", "attn.qkv", heads, width, 0, width))
    yield _part("cross-q", "cross_attn.q_linear", width)
    yield _map("cross-map", Attention("cross_attn.q_linear", "cross_attn.kv_linear", heads, width))
    yield _part("ffn-inner", "mlp.fc2", block.mlp.fc2.in_features, of_input=True)
    yield _part("out", "", width)


def _lumina(block: nn.Module) -> Iterator[Entry]:
    """Lumina 2, Z-Image: one sequence; keys and values may have fewer heads than queries."""
    attention = block.attention
    keys = attention.n_local_kv_heads * attention.head_dim
    yield from _fused("", "attention.qkv", (attention.n_local_heads * attention.head_dim, keys, keys))
    yield _part("attn-out", "attention.out", attention.out.out_features)
    yield _part("ffn-inner", "feed_forward.w2", block.feed_forward.w2.in_features, of_input=True)
    yield _part("out", "", block.feed_forward.w2.out_features)


def _wan(block: nn.Module) -> Iterator[Entry]:
    """Wan: self-attention with rotary positions, then cross-attention without."""
    for letter in "qkv":
        yield _part(f"self-{letter}", f"self_attn.{letter}", getattr(block.self_attn, letter).out_features)
    yield _part("cross-q", "cross_attn.q", block.cross_attn.q.out_features)
    yield _map("cross-map", Attention("cross_attn.norm_q", "cross_attn.norm_k", block.cross_attn.num_heads))
    yield _part("ffn-inner", "ffn.2", block.ffn[2].in_features, of_input=True)
    yield _part("out", "", block.ffn[2].out_features)


_KINDS = (
    (("img_attn.qkv", "txt_attn.qkv", "img_mlp"), _double),
    (("linear1", "linear2", "hidden_size", "mlp_hidden_dim"), _single),
    (("context_block", "x_block.attn.qkv"), _joint),
    (("attn.qkv", "cross_attn.q_linear", "cross_attn.kv_linear", "mlp.fc2"), _pixart),
    (("attention.qkv", "attention.n_local_kv_heads", "feed_forward.w2"), _lumina),
    (("self_attn.q", "self_attn.v", "cross_attn.norm_k", "ffn"), _wan),
)


def _part(name: str, module: str, channels: int, **where) -> Entry:
    return Entry(name, module, "tokens", channels, 1, **where)


def _map(name: str, attention: Attention | JointAttention) -> Entry:
    return Entry(name, attention.query.split(".")[0], "map", None, 1, attention=attention)


def _fused(prefix: str, module: str, widths: tuple[int, int, int]) -> Iterator[Entry]:
    begins = (0, widths[0], widths[0] + widths[1])
    for letter, width, begin in zip("qkv", widths, begins, strict=True):
        yield _part(f"{prefix}{letter}", module, width, begin=begin)


def _placed(entry: Entry, name: str, path: str, scale: int, last_as: str) -> Entry:
    """A block's entry with its place in the network."""
    attention = entry.attention
    if attention is not None:
        attention = replace(attention, query=f"{path}.{attention.query}", key=f"{path}.{attention.key}")
    if getattr(attention, "text", ""):
        attention = replace(attention, text=f"{path}.{attention.text}")
    module = f"{path}.{entry.module}" if entry.module else path
    return replace(
        entry, id=f"{name}-{entry.id}", module=module, scale=scale, last_as=last_as, attention=attention
    )


def _patch(network: nn.Module) -> int:
    """Latent positions a side of a token."""
    size = getattr(network, "patch_size", 1)
    return int(size if isinstance(size, int) else size[-1])


def _text_comes_first(network: nn.Module, block: nn.Module) -> str:
    """For blocks that see text before the picture in one sequence: a module with as many tokens as the picture."""
    kind = _kind(block)
    if kind is _lumina:
        return "noise_refiner.0" if len(getattr(network, "noise_refiner", ())) else "x_embedder"
    doubles = (module for module in network.modules() if hasattr(module, "flipped_img_txt"))
    if kind is not _single or any(module.flipped_img_txt for module in doubles):
        return ""
    alone = isinstance(getattr(network, "img_in", None), nn.Module)
    return "img_in" if alone else "double_blocks.0.img_attn.qkv"


def _text_is_masked(network: nn.Module) -> bool:
    """HunyuanVideo lets nothing read the padding of its text, which a map cannot know. It alone refines the text so."""
    return _has(network, "txt_in.individual_token_refiner")


def _reads_text(entry: Entry) -> bool:
    return isinstance(entry.attention, JointAttention) and entry.id.endswith("cross-map")


def _text_is_known(entry: Entry) -> bool:
    """Whether an attention over one sequence tells its text from its picture."""
    return bool(entry.attention.text or entry.last_as)
