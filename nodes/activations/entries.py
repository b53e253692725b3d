"""What is known of an activation before the network runs."""

from __future__ import annotations

from dataclasses import dataclass


class UnreadableNetworkError(ValueError):
    """A network whose activations cannot be named."""


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
    """Where the queries and keys of an attention over text and picture come from: modules that give them by head.

    Or over the picture alone, where ``key`` has no other tokens. Normed, (rows, tokens, heads, d), or with
    ``heads_first`` (rows, heads, tokens, d); a module that gives a tuple gives queries and keys. ``text``: the module
    of the text's keys, "" when ``key`` has text and picture in one sequence, text first. ``turn``: the module whose
    output are the rotary matrices of the whole sequence, if any.
    """

    query: str
    key: str
    heads: int
    text: str = ""
    turn: str = ""
    heads_first: bool = False


@dataclass(frozen=True)
class Entry:
    """One activation of a network.

    ``kind``: "input" (of the whole network), "spatial" (B, C, H, W), "tokens" (B, N, C), "map" (attention
    probabilities), "sides" and "mean" (maps averaged over ``members``). ``module``: dotted path below the network; its
    output is the activation, except for "input" and where ``attention`` or ``members`` say from where it is made.
    ``channels``: None for maps. ``scale``: latent side over the activation's side. ``grid``: path of the module whose
    input has the height and width that tokens and maps are laid out on; "" is the network, whose sides ``scale``
    divides, with as many frames as its input. Of the module's output: ``begin`` is the first channel, ``item`` the
    place in a tuple, ``of_input`` takes its first input instead. ``last_as``: path of a module whose output has as many
    tokens as the picture; these are then the last ones, else the first.
    """

    id: str
    module: str
    kind: str
    channels: int | None
    scale: int
    grid: str = ""
    begin: int = 0
    item: int = 0
    of_input: bool = False
    last_as: str = ""
    attention: Attention | JointAttention | None = None
    members: tuple[Entry, ...] = ()
