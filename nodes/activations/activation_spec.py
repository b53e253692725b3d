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


@dataclass(frozen=True)
class Attention:
    """Where an attention's queries and keys come from: modules whose outputs hold ``heads`` * width channels.

    In a fused projection they begin at channel ``query_begin`` and ``key_begin`` and have ``width`` channels; None is
    the whole output.
    """

    query: str
    key: str
    heads: int
    width: int | None = None
    query_begin: int = 0
    key_begin: int = 0


@dataclass(frozen=True)
class JointAttention:
    """Where the queries and keys of a joint attention over text and image come from: modules that return them by head.

    Or of an attention over the image alone, where ``key`` has no other tokens. After the norms, (rows, tokens, heads,
    d), or with ``heads_first`` (rows, heads, tokens, d); a module that returns a tuple returns queries and keys.
    ``text``: the module of the text's keys, "" when ``key`` has text and image in one sequence, text first.
    ``rotary``: the module whose output is the rotary matrices of the whole sequence, if any.
    """

    query: str
    key: str
    heads: int
    text: str = ""
    rotary: str = ""
    heads_first: bool = False


@dataclass(frozen=True)
class ActivationSpec:
    """One activation of a network.

    ``module``: dotted path below the network; its output is the activation, except for ``Kind.INPUT`` and where
    ``attention`` or ``members`` (the maps that an average is of) say what it is computed from. ``channels``: None for
    maps. ``scale``: latent side over the activation's side. ``grid``: path of the module whose input has the height and
    width that tokens and maps are laid out on; "" is the network itself, whose sides ``scale`` divides, with as many
    frames as its input. Of the module's output: ``begin`` is the first channel, ``item`` the index in a tuple,
    ``from_input`` takes its first input instead. ``length_module``: path of a module whose output has as many tokens as
    the image; the image's tokens are then the last ones, else the first.
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
    attention: Attention | JointAttention | None = None
    members: tuple[ActivationSpec, ...] = ()

    @property
    def queries_and_keys(self) -> Attention | JointAttention:
        """The attention of a map's spec."""
        assert self.attention is not None
        return self.attention
