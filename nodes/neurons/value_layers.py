"""The value projections of a U-Net's cross-attention, whose output channels are NeMo's neurons.

Finding NeMo (arXiv 2406.02366), section 3 and appendix B: a neuron is one output channel of ``attn2.to_v``, for all
tokens, before the heads are split. The paper searches down and middle blocks: seven layers, 5,760 neurons in SD1.x.
"""

from __future__ import annotations

import enum
import fnmatch
import re
from dataclasses import dataclass

from torch import nn


class BlockPart(enum.StrEnum):
    """The part of the U-Net that a layer belongs to, in the order in which the network runs them."""

    DOWN = "down"
    MIDDLE = "middle"
    UP = "up"


_PARTS = {"input_blocks": BlockPart.DOWN, "middle_block": BlockPart.MIDDLE, "output_blocks": BlockPart.UP}
_LAYER = re.compile(r"(input_blocks|middle_block|output_blocks)\..*transformer_blocks\.\d+\.attn2\.to_v")
#: The layers that the paper searches in SD1.4.
PAPER_LAYERS = "down, middle"


@dataclass(frozen=True)
class ValueLayer:
    """One value projection: its dotted path in the network, the part of the U-Net it is in, and its neurons."""

    path: str
    part: BlockPart
    width: int

    @property
    def name(self) -> str:
        """The short name of the path, for example ``input_blocks.1.1`` or ``middle_block.1 block 3``."""
        head, _, tail = self.path.partition(".transformer_blocks.")
        block = tail.split(".")[0]
        return head if block == "0" else f"{head} block {block}"


def value_layers(network: nn.Module) -> list[ValueLayer]:
    """All value layers in the order in which the network runs them.

    Raises ValueError for a network without cross-attention values, such as Flux or SD3.
    """
    found = [
        ValueLayer(path, _PARTS[match[1]], module.out_features)
        for path, module in network.named_modules()
        if (match := _LAYER.fullmatch(path))
    ]
    if not found:
        raise ValueError(
            "This MODEL has no cross-attention value layers: use a U-Net such as SD1.x, SD2.x, SDXL or the demo model."
        )
    return sorted(found, key=lambda layer: list(BlockPart).index(layer.part))


def searched_by_paper(layers: list[ValueLayer]) -> list[ValueLayer]:
    """The down and middle layers: those of the official code's files, in their order."""
    return [layer for layer in layers if layer.part != BlockPart.UP]


def select_layers(layers: list[ValueLayer], text: str) -> list[ValueLayer]:
    """The layers that a text names: down, middle, up, paths, or wildcards, separated by commas or lines.

    A path may leave off its end (``input_blocks.1.1``). Raises ValueError for a name that matches nothing.
    """
    selected = set()
    for name in filter(None, map(str.strip, re.split(r"[,;\n]+", text))):
        matching = [
            layer.path
            for layer in layers
            if name.lower() == layer.part
            or fnmatch.fnmatchcase(layer.path, name)
            or fnmatch.fnmatchcase(layer.path, f"{name}.transformer_blocks.*")
        ]
        if not matching:
            known = ", ".join(dict.fromkeys(layer.path.partition(".transformer_blocks.")[0] for layer in layers))
            raise ValueError(f"No value layer matches '{name}': write down, middle, up, or one of {known}.")
        selected.update(matching)
    if not selected:
        raise ValueError("No layer is named: write down, middle, up, or names such as input_blocks.1.1.")
    return [layer for layer in layers if layer.path in selected]
