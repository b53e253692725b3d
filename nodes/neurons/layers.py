"""The value layers of a U-Net's cross-attention, whose output channels are NeMo's neurons.

Finding NeMo (arXiv 2406.02366), section 3 and appendix B: a neuron is one output channel of ``attn2.to_v``, for all
tokens, before the heads are split. The paper searches down and middle blocks: seven layers, 5,760 neurons in SD1.x.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass

from torch import nn

DOWN, MIDDLE, UP = "down", "middle", "up"
_BLOCKS = {"input_blocks": DOWN, "middle_block": MIDDLE, "output_blocks": UP}
_LAYER = re.compile(r"(input_blocks|middle_block|output_blocks)\..*transformer_blocks\.\d+\.attn2\.to_v")
#: What the text for choosing layers may say; the first is the paper's.
CHOICES = ("down, middle", "up", "down, middle, up")


@dataclass(frozen=True)
class ValueLayer:
    """One value projection: its dotted path in the network, the part of the U-Net it is in, and its neurons."""

    path: str
    part: str
    width: int

    @property
    def name(self) -> str:
        """The path as people know it, for example ``input_blocks.1.1`` or ``middle_block.1 block 3``."""
        head, _, tail = self.path.partition(".transformer_blocks.")
        block = tail.split(".")[0]
        return head if block == "0" else f"{head} block {block}"


def value_layers(network: nn.Module) -> list[ValueLayer]:
    """All value layers in the order in which the network runs them.

    Raises ValueError for a network without cross-attention values, such as Flux or SD3.
    """
    found = [
        ValueLayer(path, _BLOCKS[match[1]], module.out_features)
        for path, module in network.named_modules()
        if (match := _LAYER.fullmatch(path))
    ]
    if not found:
        raise ValueError(
            "This MODEL has no cross-attention values to look at: use a U-Net such as SD1.x, SD2.x, SDXL or the demo "
            "model."
        )
    order = list(_BLOCKS.values())
    return sorted(found, key=lambda layer: order.index(layer.part))


def choose(layers: list[ValueLayer], text: str) -> list[ValueLayer]:
    """The layers that a text names: down, middle, up, paths, or wildcards, separated by commas or lines.

    A path may leave off its end (``input_blocks.1.1``). Raises ValueError for what names nothing.
    """
    wishes = [wish.strip() for wish in re.split(r"[,;\n]+", text) if wish.strip()]
    chosen = {layer.path for wish in wishes for layer in _named(layers, wish)}
    if not chosen:
        raise ValueError("No layer is named: write down, middle, up, or names such as input_blocks.1.1.")
    return [layer for layer in layers if layer.path in chosen]


def _named(layers: list[ValueLayer], wish: str) -> list[ValueLayer]:
    found = [
        layer
        for layer in layers
        if wish.lower() == layer.part
        or fnmatch.fnmatchcase(layer.path, wish)
        or fnmatch.fnmatchcase(layer.path, f"{wish}.transformer_blocks.*")
    ]
    if not found:
        known = ", ".join(dict.fromkeys(layer.path.partition(".transformer_blocks.")[0] for layer in layers))
        raise ValueError(f"No value layer is called '{wish}': write down, middle, up, or one of {known}.")
    return found
