"""The linear layers of a network's attention modules, found by names and attributes of modules."""

from __future__ import annotations

from typing import TypeGuard

from torch import nn


def is_linear(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """ComfyUI's layers of mixed precision are linear, and no subclass of PyTorch's."""
    return isinstance(layer, nn.Linear) or hasattr(layer, "in_features")


def attention_layers(network: nn.Module) -> set[str]:
    """The paths of the linear layers by which a network attends.

    Those of its attention modules. A block that knows its number of heads and holds no attention
    module attends by layers of its own, as Flux's single-stream blocks do. HunyuanDiT's pool, which
    makes one vector of a text, is none: its tensors have tokens before rows.
    """
    attentions = {path for path, module in network.named_modules() if _attends(path, module)}
    paths = set()
    for path, module in network.named_modules():
        if not any(path.startswith(f"{attention}.") for attention in attentions):
            continue
        if is_linear(module):
            paths.add(path)
    for path, block in network.named_modules():
        heads = hasattr(block, "num_heads") or hasattr(block, "heads")
        inside = any(f"{other}.".startswith(f"{path}.") for other in attentions)
        around = any(path.startswith(f"{other}.") for other in attentions)
        pools = type(block).__name__.endswith("Pool")
        if not path or not heads or inside or around or pools:
            continue
        for name, layer in block.named_children():
            if is_linear(layer):
                paths.add(f"{path}.{name}")
    return paths


def _attends(path: str, module: nn.Module) -> bool:
    """Whether a module is one attention: it is named so, and holds linear layers."""
    name = path.rpartition(".")[2].lower()
    named = "attn" in name or "attention" in name or type(module).__name__.endswith("Attention")
    return named and any(map(is_linear, module.children()))
