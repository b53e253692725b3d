"""The layers of a network that hold neurons: value projections of cross-attention, and feed-forward
layers.

Finding NeMo (arXiv 2406.02366), section 3 and appendix B: a neuron is one output channel of
``attn2.to_v``, for all tokens, before the heads are split. The paper searches down and middle
blocks: seven layers, 5,760 neurons in SD1.x. In a transformer it is one channel of a block's values
at the text's positions, wherever they stand: where text and image are one sequence, no layer puts
out those alone. ConceptPrune (arXiv 2405.19237): a neuron is one
hidden unit of a feed-forward layer after its activation (GEGLU in U-Nets), that is one input
channel of its second linear layer; transformers have these too.
"""

from __future__ import annotations

import enum
import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn


class BlockPart(enum.StrEnum):
    """The part of the network that a layer belongs to, in the order in which the network runs
    them.
    """

    DOWN = "down"
    MIDDLE = "middle"
    UP = "up"
    BLOCKS = "blocks"  # of a transformer, which has no parts


class NeuronType(enum.StrEnum):
    """What counts as a neuron."""

    VALUE = "value"
    FEED_FORWARD = "feed_forward"


_PARTS = {
    "input_blocks": BlockPart.DOWN,
    "middle_block": BlockPart.MIDDLE,
    "output_blocks": BlockPart.UP,
}
_VALUE = re.compile(
    r"(input_blocks|middle_block|output_blocks)\..*transformer_blocks\.\d+\.attn2\.to_v"
)
#: Layers that see the text alone, or sound or reference images, and experts that see some of the
#: tokens: their hidden units are none of the image's. By name, as they have the same shapes.
_NOT_THE_IMAGE = re.compile(
    r"(?:^|[._])(?:txt|text|context|token_refiner|caption|instruct|llm|audio|ref_image)"
    r"|connector|(?:^|\.)(?:ff_t|mlpC|experts)\."
)
#: Classes of feed-forward layers that are as wide inside as outside, where shapes tell nothing.
_FEED_FORWARD_CLASS = re.compile(r"mlp(?!embed)|feedforward|swiglu", re.IGNORECASE)
#: Linear layers of an attention: queries, keys, values, output.
_WHOLE_ATTENTION = 4
#: The layers that the paper searches in SD1.4.
PAPER_LAYERS = "down, middle"


#: Behind the path of a transformer's block: its values at the text's positions.
TEXT_VALUES = ".text_values"


@dataclass(frozen=True)
class NeuronLayer:
    """One layer of neurons: its dotted path in the network, the part of the network it is in, and
    its neurons.

    The path is that of the module that puts the neurons out, or reads them where they are hidden
    units; of values at the text's positions that of the block and ``TEXT_VALUES``. Their ``width``
    is 0 as long as it is not known, which takes an evaluation of the network.
    """

    path: str
    part: BlockPart
    width: int

    @property
    def name(self) -> str:
        """The short name of the path, for example ``input_blocks.1.1`` or ``middle_block.1 block
        3``.
        """
        head, _, tail = self.path.partition(".transformer_blocks.")
        block, _, kind = tail.partition(".")
        return (head if block in ("0", "") else f"{head} block {block}") + (
            " ff" if kind.startswith("ff.") else ""
        )


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
            "This MODEL has no cross-attention value layers: use a U-Net such as SD1.x, SD2.x, "
            "SDXL or the demo model."
        )
    return sorted(found, key=lambda layer: list(BlockPart).index(layer.part))


def feed_forward_layers(network: nn.Module) -> list[NeuronLayer]:
    """All feed-forward layers of a network that see its image, in the order in which it runs them.

    They are known by their shapes: in a list of blocks, a linear layer that narrows the hidden
    units to the width of the stream, beside one or two that widen it to as many (or one to twice as
    many, half of which are gates). The path is that of the narrowing one. Raises ValueError for a
    network without any.
    """
    found = []
    for path in _in_lists(network):
        width = _hidden_width(network, path)
        if width and not _NOT_THE_IMAGE.search(path):
            part = _PARTS.get(path.partition(".")[0], BlockPart.BLOCKS)
            found.append(NeuronLayer(path, part, width))
    if not found:
        raise ValueError(
            "This MODEL has no feed-forward layers in its blocks: set neuron_type to value, or use "
            "another model."
        )
    return sorted(found, key=lambda layer: list(BlockPart).index(layer.part))


def _is_linear(module: nn.Module) -> bool:
    # Quantized layers need not be PyTorch's.
    return hasattr(module, "in_features") and hasattr(module, "out_features")


def _in_lists(network: nn.Module) -> Iterator[str]:
    """The paths of the linear layers in lists of modules."""
    lists = [path for path, module in network.named_modules() if isinstance(module, nn.ModuleList)]
    above = tuple(f"{path}." for path in lists)
    for path, module in network.named_modules():
        if _is_linear(module) and path.startswith(above):
            yield path


def _hidden_width(network: nn.Module, path: str) -> int:
    """How many hidden units of a feed-forward layer a linear layer reads; 0 where it is none's."""
    narrowing: Any = network.get_submodule(path)
    hidden = narrowing.in_features
    stream = narrowing.out_features
    if hidden < stream:
        return 0
    parent = network.get_submodule(path.rpartition(".")[0])
    siblings = [module for module in parent.children() if _is_linear(module)]
    linear = siblings
    above = path
    while len(linear) < 2 and above:
        above = above.rpartition(".")[0]
        parent = network.get_submodule(above)
        linear = [module for module in parent.modules() if _is_linear(module)]
    if hidden == stream:
        is_known = _FEED_FORWARD_CLASS.search(type(parent).__name__) is not None
        return hidden if is_known and narrowing is _last(parent) else 0
    widths = [module.out_features for module in linear if module is not narrowing]
    # Flux's single blocks: queries, keys, values and hidden units are one layer's outputs, and the
    # attention and the hidden units another one's inputs.
    fused = hidden - stream
    if widths in ([3 * stream + fused], [3 * stream + 2 * fused]):
        return fused
    plain = widths.count(hidden)
    double = widths.count(2 * hidden)
    if (plain, double) not in ((1, 0), (2, 0), (0, 1)):
        return 0
    # CogVideoX's blocks hold the layers of their attention beside them. Queries that are wider than
    # the stream are none of these: they stand beside keys and values alone.
    rest = len(widths) - plain - double
    is_beside = len(siblings) > 1 and rest >= _WHOLE_ATTENTION
    return hidden if rest == 0 or is_beside else 0


def _last(parent: nn.Module) -> nn.Module:
    """The linear layer of a feed-forward layer that runs last."""
    linear = [(name, module) for name, module in parent.named_modules() if _is_linear(module)]
    second = [module for name, module in linear if name.endswith("w2")]
    return second[0] if second else linear[-1][1]


def neuron_layers(network: nn.Module, neuron_type: str) -> list[NeuronLayer]:
    """The layers of one type of neurons. Raises ValueError for a network without any."""
    return (value_layers if neuron_type == NeuronType.VALUE else feed_forward_layers)(network)


def all_layers(network: nn.Module) -> list[NeuronLayer]:
    """The layers of both types of neurons, value layers first. Raises ValueError for a network
    without any.
    """
    values = value_layers(network) if has_value_layers(network) else text_value_layers(network)
    return values + feed_forward_layers(network)


_text_value_widths: WeakKeyDictionary[nn.Module, dict[str, int]] = WeakKeyDictionary()


def keep_text_value_widths(network: nn.Module, widths: Mapping[str, int]) -> None:
    """Remember what an evaluation has shown: the values at the text's positions, by path."""
    _text_value_widths[network] = dict(widths)


def knows_text_values(network: nn.Module) -> bool:
    """Whether an evaluation has shown which values a network has at the text's positions."""
    return network in _text_value_widths


def text_value_layers(network: nn.Module) -> list[NeuronLayer]:
    """The values at the text's positions of a transformer's blocks; of all blocks, with width 0, as
    long as no evaluation has shown them.
    """
    known = _text_value_widths.get(network)
    if known is None:
        known = {f"{path}{TEXT_VALUES}": 0 for path in _outermost_blocks(network, "")}
    return [NeuronLayer(path, BlockPart.BLOCKS, width) for path, width in known.items()]


def _outermost_blocks(module: nn.Module, path: str) -> Iterator[str]:
    for name, child in module.named_children():
        place = f"{path}{name}"
        if not isinstance(child, nn.ModuleList):
            yield from _outermost_blocks(child, f"{place}.")
        elif not _NOT_THE_IMAGE.search(f"{place}."):
            yield from (f"{place}.{number}" for number in range(len(child)))


def is_text_values(path: str) -> bool:
    """Whether the neurons of a layer are a block's values at the text's positions."""
    return path.endswith(TEXT_VALUES)


def block_of(path: str) -> str:
    """The block of a layer of values at the text's positions."""
    return path.removesuffix(TEXT_VALUES)


def depend_on_text_alone(layers: Sequence[NeuronLayer]) -> bool:
    """Whether the activations of neurons follow from the encoded text, as those of a U-Net's values
    do; others take an evaluation of the network.
    """
    return all(layer.path.endswith(".to_v") for layer in layers)


def has_value_layers(network: nn.Module) -> bool:
    """Whether a network has cross-attention values, as U-Nets do."""
    return any(_VALUE.fullmatch(path) for path, _ in network.named_modules())


def searched_by_paper(layers: list[NeuronLayer]) -> list[NeuronLayer]:
    """The down and middle layers: those of the official code's files, in their order."""
    return [
        layer
        for layer in layers
        if layer.part in (BlockPart.DOWN, BlockPart.MIDDLE) and ".ff." not in layer.path
    ]


def select_layers(layers: list[NeuronLayer], text: str) -> list[NeuronLayer]:
    """The layers that a text names: down, middle, up, all, paths, or wildcards, separated by commas
    or lines.

    A path may leave off its end (``input_blocks.1.1``, ``double_blocks.3``). Raises ValueError for
    a name that matches nothing.
    """
    selected = set()
    for name in filter(None, map(str.strip, re.split(r"[,;\n]+", text))):
        matching = [
            layer.path
            for layer in layers
            if name.lower() in (layer.part, "all")
            or fnmatch.fnmatchcase(layer.path, name)
            or fnmatch.fnmatchcase(
                layer.path, f"{name}.{'*' if layer.part == 'blocks' else 'transformer_blocks.*'}"
            )
        ]
        if not matching:
            known = ", ".join(
                dict.fromkeys(layer.path.partition(".transformer_blocks.")[0] for layer in layers)
            )
            parts = ", ".join(
                dict.fromkeys(layer.part for layer in layers if layer.part != BlockPart.BLOCKS)
            )
            raise ValueError(
                f"No layer matches {name!r}: write {parts + ', ' if parts else ''}all, or one of "
                f"{known}."
            )
        selected.update(matching)
    if not selected:
        raise ValueError(
            "No layer is named: write down, middle, up, all, or names such as input_blocks.1.1."
        )
    return [layer for layer in layers if layer.path in selected]
