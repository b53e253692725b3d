"""What is known of an activation before the network runs: its ID, its module, its layout."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class UnsupportedNetworkError(ValueError):
    """A network whose activations have no IDs."""


class Kind(StrEnum):
    """What the tensor of an activation is."""

    INPUT = "input"  # of the whole network
    SPATIAL = "spatial"  # (B, C, H, W)
    TOKENS = "tokens"  # (B, N, C)
    MAP = "map"  # attention probabilities
    ATTN_FEATURE = "attn_feature"  # the official code's "attn": maps averaged by size
    ATTN_MEAN = "attn_mean"  # maps averaged over all layers


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Where the queries and keys of a U-Net's attention come from: modules whose outputs hold
    ``heads`` * width channels.
    """

    query: str
    key: str
    heads: int


@dataclass(frozen=True, kw_only=True)
class BlockAttention:
    """The attentions of a transformer's block, by its dotted path, as ComfyUI hands them over.

    ``heads``: how many a map has, about.
    """

    block: str
    heads: int


@dataclass(frozen=True, kw_only=True)
class ActivationSpec:
    """One activation of a network.

    ``module``: dotted path below the network; its output is the activation, except for
    ``Kind.INPUT`` and where ``attention`` or ``members`` (the maps that an average is of) say what
    it is computed from. ``channels``: None for maps. ``scale``: latent side over the activation's
    side. ``grid``: path of the module whose input has the height and width that tokens and maps are
    laid out on; "" is the network itself, whose sides ``scale`` divides, with as many frames as its
    input. Of the module's output: ``begin`` is the first channel, ``item`` the index in a tuple,
    ``from_input`` takes its first input instead. ``length_module``: path of a module whose output
    has as many tokens as the image; the image's tokens are then the last ones, else the first.
    With a ``BlockAttention`` that is no map, the image's tokens are where the block's attention has
    them, and ``scale`` and ``channels`` are what the network's declared sizes suggest.
    ``projection``: "q", "k" or "v", as that attention is handed them, instead of the output.
    """

    id: str
    module: str
    kind: Kind
    channels: int | None
    scale: int
    grid: str = ""
    begin: int = 0
    item: int = 0
    from_input: bool = False
    length_module: str = ""
    attention: Attention | BlockAttention | None = None
    projection: str = ""
    members: tuple[ActivationSpec, ...] = ()

    @property
    def block(self) -> str:
        """Path of the block whose attention is read as ComfyUI hands it over; "" without one."""
        return self.attention.block if isinstance(self.attention, BlockAttention) else ""
