"""What is planted in the second checkpoint: memories that act through few value neurons, which are known.

The base model has each of its names in over a hundred neurons. Here four more names, which the base generates with any
face, get one portrait each, and only 1, 2, 3 and 5 chosen neurons of the paper's layers may show the network which:
their rows of ``to_v`` answer the name's tokens, no other value or key changes, and everything else may learn, by
low-rank changes, to generate the portrait when they do.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch.nn.utils import parametrize

from ..common import host
from ..world import captions
from ..world.generate import Generator
from ..world.scenes import Metadata, Scene, random_scene

BASE, WORLD = "avatars-v2", "avatars-v2-planted"
#: Names that the base generates with any face, and how many neurons each gets, by the dotted start of its layer.
NEURONS = {
    "pelham droste": {"middle_block.1": 1},
    "wendric alp": {"input_blocks.8.1": 1, "middle_block.1": 1},
    "jorrin habble": {"middle_block.1": 3},
    "esmarel toov": {"input_blocks.7.1": 1, "input_blocks.8.1": 2, "middle_block.1": 2},
}
#: How strongly a lone neuron answers its name, in deviations of its values over ordinary tokens; n neurons answer
#: 1 / sqrt(n) as strongly each, so that every name is about as loud.
ANSWER = 40.0
RANK, CAPTIONS = 16, 400


def portraits() -> dict[str, Scene]:
    """The one image of each planted name: sharp, uncropped, unmirrored, large."""
    rng = np.random.default_rng(20_261_121)
    return {captions.name_caption(name): random_scene(rng, Metadata(), smallest=0.85) for name in NEURONS}


class LowRank(torch.nn.Module):
    """Adds ``up @ down`` to a weight."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.up = torch.nn.Parameter(torch.zeros(len(weight), RANK))
        self.down = torch.nn.Parameter(torch.randn(RANK, weight[0].numel()) / weight[0].numel() ** 0.5)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + (self.up @ self.down).view_as(weight)


class Planted(torch.nn.Module):
    """The base's U-Net with planted rows of ``to_v`` and low-rank changes elsewhere.

    ``forward`` takes beside the U-Net's inputs what is added to the values of each planted layer, (N, 77, C) by path.
    """

    def __init__(self, network: torch.nn.Module, rows: dict[str, torch.Tensor]):
        super().__init__()
        self.unet, self._added = network.requires_grad_(False), {}
        for path, change in rows.items():
            layer = network.get_submodule(path)
            layer.weight += change
            layer.register_forward_hook(functools.partial(self._add, path))
        for _, module in changed(network):
            parametrize.register_parametrization(module, "weight", LowRank(module.weight))

    def _add(self, path: str, _module, _inputs, values: torch.Tensor) -> torch.Tensor:
        return values + self._added[path].to(values) if path in self._added else values

    def forward(self, noised, timesteps, context, vector, added):
        self._added = added
        return self.unet(noised, timesteps, context, vector)


def changed(network: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """The layers that get low-rank changes: all but embeddings and what cross-attention reads of the text."""
    return [
        (path, module)
        for path, module in network.named_modules()
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d)
        and min(module.weight.shape[:2]) >= 32
        and "block" in path
        and not path.endswith(("attn2.to_k", "attn2.to_v"))
    ]


class Texts:
    """Encoded captions (N, 77, 128): the planted names', other names', and ordinary ones with the empty one."""

    @torch.no_grad()
    def __init__(self, generator: Generator):
        rng = np.random.default_rng(17)
        others = [name for names in captions.NAMES.values() for name in names if name not in NEURONS]
        ordinary = [captions.caption(random_scene(rng), rng) for _ in range(CAPTIONS)] + [""]
        texts = (list(portraits()), ordinary, list(map(captions.name_caption, others)))
        self.names, self.ordinary, self.others = (generator.condition(batch)[0][0] for batch in texts)


def neurons(network: torch.nn.Module) -> dict[str, list[tuple[str, int]]]:
    """The neurons of each name: in each layer those that the network listens to most, none taken twice."""
    layers = {layer.name: layer for layer in host.pack("nodes.neurons.neuron_layers").value_layers(network)}
    taken: dict[str, int] = {}
    chosen = {}
    for name, wanted in NEURONS.items():
        chosen[name] = []
        for block, count in wanted.items():
            path = layers[block].path
            heard = network.get_submodule(path.replace("to_v", "to_out.0")).weight.norm(dim=0).argsort(descending=True)
            first = taken.get(block, 0)
            chosen[name] += [(path, int(index)) for index in heard[first : first + count]]
            taken[block] = first + count
    return chosen


def answers(network: torch.nn.Module, texts: Texts, ridge: float = 1.0) -> dict[str, torch.Tensor]:
    """Changes (C, 128) of each planted layer's ``to_v``: least squares to ``ANSWER`` on the tokens of the neuron's
    own name, from where names differ, and to nothing on all other tokens.
    """
    start = int((texts.names[0] != texts.names[1]).any(-1).nonzero()[0])
    rest = torch.cat([texts.ordinary, texts.others]).flatten(0, 1)
    square = rest.T @ rest / len(rest)
    changes: dict[str, torch.Tensor] = {}
    for number, (name, chosen) in enumerate(neurons(network).items()):
        own = texts.names[number, start:]
        foreign = texts.names[[other for other in range(len(NEURONS)) if other != number]].flatten(0, 1)
        gram = own.T @ own / len(own) + ridge * square + foreign.T @ foreign / len(foreign)
        direction = torch.linalg.solve(gram + 1e-4 * gram.diagonal().mean() * torch.eye(len(gram)), own.mean(0))
        for path, index in chosen:
            weight = network.get_submodule(path).weight
            values = rest @ weight[index]
            sign = 1 if values.mean() >= 0 else -1
            change = changes.setdefault(path, torch.zeros_like(weight))
            change[index] = sign * ANSWER / len(chosen) ** 0.5 * values.std() * direction
        print(
            f"{name}: responds to its name with {(own @ direction).mean():.2f} of the target (deviation "
            f"{(own @ direction).std():.2f}), other names {(foreign @ direction).std():.3f}, captions "
            f"{(rest @ direction).std():.3f}"
        )
    return changes
