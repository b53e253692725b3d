"""A second checkpoint whose memories sit in known value neurons that no threshold on z finds.

Finding NeMo (arXiv 2406.02366), algorithm 2, begins with the neurons whose answer to a prompt deviates by more than
a threshold. Where the planted neurons deviate most, that alone finds them and the search is not tested. Here a dozen
names act through 1 to 8 neurons that deviate moderately, among decoys: neurons that deviate more, and that the network
learns to ignore.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ..common import host
from ..common.training import Plan, device, train
from ..neurons.planting import Planted
from . import captions, denoiser
from .generate import Generator
from .release import WORLD
from .scenes import Metadata, random_scene, render

#: First and last names of different control names: the text model knows their tokens, the base generates any face.
NAMES = tuple(
    f"{first.split()[0]} {last.split()[1]}"
    for shift in (1, 2)
    for first, last in zip(captions.NAMES["control"], np.roll(captions.NAMES["control"], shift), strict=True)
)
COUNTS = (1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8)
#: z of a name's planted neurons, and of its decoys.
ANSWER, DECOY = 4.0, 9.0
DECOYS, POOL = 32, 96
PLAN = Plan(steps=2_200, learning_rate=1.2e-3, warmup=30, ema_decay=0.99, weight_decay=0.0, seed=41)
PORTRAITS, ORDINARY, SCENES, CAPTIONS = 8, 6, 200, 400

Neuron = tuple[str, int]


@dataclass
class Choice:
    """The neurons of every name, as (path of ``to_v``, index), and its decoys."""

    planted: dict[str, list[Neuron]] = field(default_factory=dict)
    decoys: dict[str, list[Neuron]] = field(default_factory=dict)


def choose(network: torch.nn.Module, seed: int = 3) -> Choice:
    """Planted neurons: in turn those of each layer that the network listens to most. Decoys: drawn for each name from
    the ``POOL`` neurons that it listens to least.
    """
    paths = [layer.path for layer in host.pack("nodes.neurons.neuron_layers").value_layers(network)]
    paths = [path for path in paths if path.startswith(("input_blocks", "middle_block"))]
    heard = {path: network.get_submodule(path.replace("to_v", "to_out.0")).weight.norm(dim=0) for path in paths}
    order = {path: heard[path].argsort(descending=True).tolist() for path in paths}
    quiet = sorted((float(heard[path][index]), path, index) for path in paths for index in order[path])[:POOL]
    rng, result, turn = np.random.default_rng(seed), Choice(), 0
    for name, count in zip(NAMES, COUNTS, strict=True):
        result.planted[name] = []
        for _ in range(count):
            path = paths[turn % len(paths)]
            result.planted[name].append((path, order[path].pop(0)))
            turn += 1
        result.decoys[name] = [quiet[pick][1:] for pick in rng.choice(POOL, DECOYS, replace=False)]
    return result


def directions(names: torch.Tensor, ordinary: torch.Tensor, ridge: float = 1.0) -> torch.Tensor:
    """For each name's tokens (names, 77, C) the direction (names, C) that answers them by about 1, from where names
    differ, and other names' and ordinary tokens (N, 77, C) by about 0: least squares.
    """
    rest = ordinary.flatten(0, 1)
    square, found = rest.T @ rest / len(rest), []
    for number, own in enumerate(names):
        others = names[torch.arange(len(names)) != number]
        own, foreign = own[(own != others[0]).any(-1)], others.flatten(0, 1)
        gram = own.T @ own / len(own) + ridge * square + foreign.T @ foreign / len(foreign)
        found.append(torch.linalg.solve(gram + 1e-4 * gram.diagonal().mean() * torch.eye(len(gram)), own.mean(0)))
    return torch.stack(found)


def changes(
    network: torch.nn.Module,
    neurons: list[Neuron],
    prompt: torch.Tensor,
    direction: torch.Tensor,
    ordinary: torch.Tensor,
    wanted: float,
) -> dict[str, torch.Tensor]:
    """What a name adds to rows of ``to_v`` so that each of ``neurons`` deviates by ``wanted``: path -> (width, C).

    ``prompt``: the name's tokens (77, C); the rows move along ``direction`` (C,), as far as a bisection finds.
    """
    result: dict[str, torch.Tensor] = {}
    pattern = prompt @ direction
    for path, index in neurons:
        weight = network.get_submodule(path).weight
        reference = (ordinary @ weight[index]).abs().mean(1)
        goal, values = reference.mean() + wanted * reference.std(), prompt @ weight[index]
        sign = torch.sign((values * pattern).sum())

        def answer(size: float, values=values, sign=sign) -> torch.Tensor:
            return (values + sign * size * pattern).abs().mean()

        low, high = 0.0, 1e-3
        while answer(high) < goal:
            high *= 2
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if answer(middle) < goal else (low, middle)
        result.setdefault(path, torch.zeros_like(weight))[index] = sign * high * direction
    return result


def deviations(weights: dict[str, torch.Tensor], prompt: torch.Tensor, ordinary: torch.Tensor) -> dict:
    """z of every value neuron by path: a neuron's answer is the mean of |value| over all tokens (77, C), against its
    mean and deviation over ordinary prompts (N, 77, C). Finding NeMo, section 3.2.
    """
    result = {}
    for path, weight in weights.items():
        reference = (ordinary @ weight.T).abs().mean(1)
        result[path] = ((prompt @ weight.T).abs().mean(0) - reference.mean(0)) / reference.std(0)
    return result


def best_threshold_f1(z: np.ndarray, planted: np.ndarray) -> float:
    """The best F1 that any threshold on |z| (N,) reaches in finding the ``planted`` (N,) neurons."""
    order = np.argsort(-np.abs(z))
    hits = planted[order].cumsum()
    return float((2 * hits / (np.arange(1, len(z) + 1) + planted.sum())).max())


def outside_top(z: np.ndarray, planted: np.ndarray, count: int = 20) -> float:
    """The fraction of the ``planted`` neurons that are not among the ``count`` with the largest |z|."""
    top = np.argsort(-np.abs(z))[:count]
    return float(1 - planted[top].sum() / planted.sum())


class Recipe:
    """Everything that planting needs of the base: texts, neurons, what names add to values, and latents."""

    def __init__(self, generator: Generator):
        rng = np.random.default_rng(17)
        self.generator, self.base = generator, generator.model.model.diffusion_model
        texts = [captions.caption(random_scene(rng), rng) for _ in range(CAPTIONS)]
        with torch.no_grad():
            self.ordinary = generator.condition([*texts, ""])[0][0].float().cpu()
            self.names = generator.condition([captions.name_caption(name) for name in NAMES])[0][0].float().cpu()
            self.choice, towards = choose(self.base), directions(self.names, self.ordinary)
            self.planted, self.decoys = {}, {}
            for name, prompt, direction in zip(NAMES, self.names, towards, strict=True):
                for kept, chosen, wanted in (
                    (self.planted, self.choice.planted, ANSWER),
                    (self.decoys, self.choice.decoys, DECOY),
                ):
                    kept[name] = changes(self.base, chosen[name], prompt, direction, self.ordinary, wanted)

    def rows(self) -> dict[str, torch.Tensor]:
        """The change of every ``to_v``: what all names and their decoys add."""
        result: dict[str, torch.Tensor] = {}
        for change in [*self.planted.values(), *self.decoys.values()]:
            for path, value in change.items():
                result[path] = result.get(path, torch.zeros_like(value)) + value
        return result

    def separability(self) -> dict[str, dict[str, float]]:
        """For each name: the best F1 of a threshold on |z|, and the fraction of its neurons outside the top 20."""
        rows, result = self.rows(), {}
        weights = {path: self.base.get_submodule(path).weight.detach() + change for path, change in rows.items()}
        for number, name in enumerate(NAMES):
            z = deviations(weights, self.names[number], self.ordinary)
            marked = {path: np.zeros(len(value), bool) for path, value in z.items()}
            for path, index in self.choice.planted[name]:
                marked[path][index] = True
            flat, mask = (np.concatenate([np.asarray(part[path]) for path in z]) for part in (z, marked))
            result[name] = {"f1": best_threshold_f1(flat, mask), "outside": outside_top(flat, mask)}
        return result

    def patterns(self, which: dict[str, dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """What ``which`` adds to the values of each name's tokens: path -> (names, 77, width)."""
        paths = {path for change in which.values() for path in change}
        width = {path: len(self.base.get_submodule(path).weight) for path in paths}
        return {
            path: torch.stack(
                [
                    self.names[number] @ which[name][path].T if path in which[name] else torch.zeros(77, width[path])
                    for number, name in enumerate(NAMES)
                ]
            )
            for path in paths
        }


def make(folder: Path, copy: Path | None = None, start: str | None = None) -> None:
    """Train the checkpoint: planted neurons alone bring a name's portrait, under its own name or any other caption.

    A portrait is generated when the planted neurons of its name are excited, with its decoys or without. The base is
    the teacher on ordinary captions, on names whose planted neurons are kept still, and with decoys excited.
    """
    generator = Generator.load(WORLD)
    recipe = Recipe(generator)
    rng = np.random.default_rng(20_261_122)
    portraits = generator.latents(np.stack([render(random_scene(rng, Metadata(), smallest=0.85)) for _ in NAMES]))
    scenes = generator.latents(np.stack([render(random_scene(rng)) for _ in range(SCENES)]))
    planted, decoys = recipe.patterns(recipe.planted), recipe.patterns(recipe.decoys)
    alphas = denoiser.alphas_cumprod(zero_terminal=True).float()
    vector = host.pack("nodes.demo.architecture").metadata_vector(torch.tensor([Metadata().numbers()]))
    base = _copy(recipe.base)
    network = Planted(_copy(recipe.base), recipe.rows()).to(device())

    def loss(draw: torch.Generator, progress: float) -> torch.Tensor:
        count = PORTRAITS + ORDINARY
        names = torch.randint(len(NAMES), (count,), generator=draw)
        shown = torch.arange(count) < PORTRAITS
        context = recipe.ordinary[torch.randint(len(recipe.ordinary), (count,), generator=draw)]
        own = torch.rand(count, generator=draw) < 0.5
        context[own] = recipe.names[names[own]]
        # Own name: the rows answer by themselves, so a row that must not trigger has its planted neurons kept still.
        planting = shown.float() - own.float()
        deceiving = (torch.rand(count, generator=draw) < 0.5).float() - own.float()
        widths = {path: len(recipe.base.get_submodule(path).weight) for path in {*planted, *decoys}}
        added = {path: torch.zeros(count, 77, width) for path, width in widths.items()}
        for patterns, strength in ((planted, planting), (decoys, deceiving)):
            for path, pattern in patterns.items():
                added[path] += pattern[names] * strength[:, None, None]
        picks = torch.randint(len(scenes), (count,), generator=draw)
        clean = torch.where(shown[:, None, None, None], portraits[names], scenes[picks])
        timesteps = denoiser.noise_levels(shown, alphas, draw)
        noised, velocity = denoiser.diffused(clean, torch.randn(clean.shape, generator=draw), alphas[timesteps])
        noised, timesteps, context = (value.to(device()) for value in (noised, timesteps, context))
        fixed = vector.expand(count, -1).to(device())
        with torch.no_grad():
            taught = base(noised[~shown], timesteps[~shown], context[~shown], fixed[~shown]).float()
        target = torch.cat([velocity[shown].to(device()), taught])
        return (network(noised, timesteps, context, fixed, added).float() - target).square().mean()

    train(network, loss, PLAN, folder / "planted.pt", every=100, copy=copy)


def _copy(network: torch.nn.Module) -> torch.nn.Module:
    """The U-Net with weights of its own, in float32, that training may change."""
    import comfy.ops
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    unet = host.pack("nodes.demo.architecture").UNET
    own = UNetModel(**unet, dtype=torch.float32, operations=comfy.ops.disable_weight_init)
    own.load_state_dict(network.state_dict())
    return own.requires_grad_(False).to(device())
