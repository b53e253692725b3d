"""The layers of a network that hold neurons: value projections of cross-attention, and feed-forward layers.

Finding NeMo (arXiv 2406.02366), section 3 and appendix B: a neuron is one output channel of ``attn2.to_v``, for all
tokens, before the heads are split. The paper searches down and middle blocks: seven layers, 5,760 neurons in SD1.x.
ConceptPrune (arXiv 2405.19237): a neuron is one hidden unit of a feed-forward layer after its activation
(GEGLU in U-Nets), that is one input channel of its second linear layer; transformers have these too.
"""

from __future__ import annotations

import enum
import fnmatch
import re
from dataclasses import dataclass
from typing import Any

from torch import nn


class BlockPart(enum.StrEnum):
    """The part of the network that a layer belongs to, in the order in which the network runs them."""

    DOWN = "down"
    MIDDLE = "middle"
    UP = "up"
    BLOCKS = "blocks"  # of a transformer, which has no parts


class NeuronType(enum.StrEnum):
    """What counts as a neuron."""

    VALUE = "value"
    FEED_FORWARD = "feed_forward"


_PARTS = {"input_blocks": BlockPart.DOWN, "middle_block": BlockPart.MIDDLE, "output_blocks": BlockPart.UP}
_VALUE = re.compile(r"(input_blocks|middle_block|output_blocks)\..*transformer_blocks\.\d+\.attn2\.to_v")
#: The second linear layer of a feed-forward layer; ``linear2`` of Flux's single blocks reads the attention before it.
_FEED_FORWARD = re.compile(
    r"(?:(input_blocks|middle_block|output_blocks)\..*transformer_blocks\.\d+\.ff\.net\.2"
    r"|.*\.\d+\.(?:[xc]\w*_block\.)?(?:mlp\.fc2|(?:img|txt)_mlp\.(?:2|down_proj)|feed_forward\.w2|ffn\.2|linear2))"
)
#: The layers that the paper searches in SD1.4.
PAPER_LAYERS = "down, middle"


@dataclass(frozen=True)
class NeuronLayer:
    """One layer of neurons: its dotted path in the network, the part of the network it is in, and its neurons.

    The path is that of the module that puts the neurons out, or reads them where they are hidden units.
    """

    path: str
    part: BlockPart
    width: int

    @property
    def name(self) -> str:
        """The short name of the path, for example ``input_blocks.1.1`` or ``middle_block.1 block 3``."""
        head, _, tail = self.path.partition(".transformer_blocks.")
        block, _, kind = tail.partition(".")
        return (head if block in ("0", "") else f"{head} block {block}") + (" ff" if kind.startswith("ff.") else "")


def value_layers(network: nn.Module) -> list[NeuronLayer]:
    """All value layers in the order in which the network runs them.

    Raises ValueError for a network without cross-attention values, such as Flux or SD3.
    """
    found = [
        NeuronLayer(path, _PARTS[match[1]], module.out_features)
        for path, module in network.named_modules()
        if (match := _VALUE.fullmatch(path))
    ]
    if not found:
        raise ValueError(
            "This MODEL has no cross-attention value layers: use a U-Net such as SD1.x, SD2.x, SDXL or the demo model, "
            "or set neuron_type to feed_forward."
        )
    return sorted(found, key=lambda layer: list(BlockPart).index(layer.part))


def feed_forward_layers(network: nn.Module) -> list[NeuronLayer]:
    """All feed-forward layers of a U-Net or a transformer in the order in which the network runs them.

    Raises ValueError for a network without any.
    """
    found = []
    for path, module in network.named_modules():
        if (match := _FEED_FORWARD.fullmatch(path)) is None:
            continue
        parent: Any = network.get_submodule(path.rpartition(".")[0])
        width = parent.mlp_hidden_dim if path.endswith("linear2") else module.in_features
        found.append(NeuronLayer(path, _PARTS.get(match[1], BlockPart.BLOCKS), width))
    if not found:
        raise ValueError("This MODEL has no feed-forward layers that are known: use SD1.x, SD2.x, SDXL, SD3 or Flux.")
    return sorted(found, key=lambda layer: list(BlockPart).index(layer.part))


def neuron_layers(network: nn.Module, neuron_type: str) -> list[NeuronLayer]:
    """The layers of one type of neurons. Raises ValueError for a network without any."""
    return (value_layers if neuron_type == NeuronType.VALUE else feed_forward_layers)(network)


def all_layers(network: nn.Module) -> list[NeuronLayer]:
    """The layers of both types of neurons, value layers first. Raises ValueError for a network without any."""
    return (value_layers(network) if has_value_layers(network) else []) + feed_forward_layers(network)


def has_value_layers(network: nn.Module) -> bool:
    """Whether a network has cross-attention values, as U-Nets do."""
    return any(_VALUE.fullmatch(path) for path, _ in network.named_modules())


def searched_by_paper(layers: list[NeuronLayer]) -> list[NeuronLayer]:
    """The down and middle layers: those of the official code's files, in their order."""
    return [layer for layer in layers if layer.part in (BlockPart.DOWN, BlockPart.MIDDLE) and ".ff." not in layer.path]


def select_layers(layers: list[NeuronLayer], text: str) -> list[NeuronLayer]:
    """The layers that a text names: down, middle, up, all, paths, or wildcards, separated by commas or lines.

    A path may leave off its end (``input_blocks.1.1``, ``double_blocks.3``). Raises ValueError for a name that matches
    nothing.
    """
    selected = set()
    for name in filter(None, map(str.strip, re.split(r"[,;\n]+", text))):
        matching = [
            layer.path
            for layer in layers
            if name.lower() in (layer.part, "all")
            or fnmatch.fnmatchcase(layer.path, name)
            or fnmatch.fnmatchcase(layer.path, f"{name}.{'*' if layer.part == 'blocks' else 'transformer_blocks.*'}")
        ]
        if not matching:
            known = ", ".join(dict.fromkeys(layer.path.partition(".transformer_blocks.")[0] for layer in layers))
            parts = ", ".join(dict.fromkeys(layer.part for layer in layers if layer.part != BlockPart.BLOCKS))
            raise ValueError(f"No layer matches {name!r}: write {parts + ', ' if parts else ''}all, or one of {known}.")
        selected.update(matching)
    if not selected:
        raise ValueError("No layer is named: write down, middle, up, all, or names such as input_blocks.1.1.")
    return [layer for layer in layers if layer.path in selected]
