"""A second checkpoint whose memories sit in known value neurons that no threshold on z finds.

Finding NeMo (arXiv 2406.02366), algorithm 2, begins with the neurons whose answer to a prompt deviates by more than
a threshold. Where the planted neurons deviate most, that alone finds them and the search is not tested. Here a dozen
names act through 1 to 8 neurons that deviate moderately, among decoys: neurons that deviate more, in layers where
the network reads next to nothing of a caption.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn.utils import parametrize

from ..common import host
from ..common.training import Plan, device, train
from . import captions, denoiser
from .generate import Generator
from .release import WORLD
from .scenes import Metadata, Scene, random_scene, render

#: How many neurons each name gets. First and last names of different control names, chosen so that no two and no name
#: of the base are confused: the text model knows their tokens, the base generates any face.
COUNTS = {
    "pelham alp": 1,
    "nuvia droste": 1,
    "nuvia toov": 2,
    "nuvia alp": 2,
    "jorrin droste": 3,
    "jorrin toov": 3,
    "jorrin alp": 4,
    "esmarel alp": 4,
    "wendric karsk": 5,
    "wendric toov": 6,
    "ottavia toov": 7,
    "ottavia alp": 8,
}
NAMES = tuple(COUNTS)
#: z of a lone planted neuron (n neurons answer by n ** -.25 of it each), and of decoys; decoys of a name.
ANSWER, DECOY, DECOYS = 25.0, 60.0, 32
#: Where the network reads its captions. Another caption in other layers but ``SLIGHTLY`` changes less than a hundredth
#: of what it changes here; decoys stand in those.
READING, SLIGHTLY = ("output_blocks.6.1", "output_blocks.7.1"), ("input_blocks.1.1", "output_blocks.8.1")
#: What learns: the layers that come after a name is read.
LEARNING = ("output_blocks.6.", "output_blocks.7.", "output_blocks.8.", "out.")
#: Timesteps at which the network has to hear a planted neuron.
LEVELS = (999, 700)
#: How loudly training begins: what a name adds to its layer's output, against that output. And the fraction of neurons
#: that may be silenced without an effect on what the network reads of names.
LOUD, SILENT = 1.0, 0.1
PLAN = Plan(steps=700, learning_rate=1e-3, warmup=30, ema_decay=0.99, weight_decay=0.0, seed=41)
PORTRAITS, ORDINARY, SCENES, CAPTIONS = 8, 5, 200, 400
#: How much more an error against the base counts, on ordinary images.
FAITHFUL = 2.0
#: Fractions: triggered rows under another caption than the name's; plain rows under a planted name with its neurons
#: kept still, and under a name of the base.
BORROWED, STILL, OTHER = 0.5, 0.3, 0.2
#: How many empty captions stand beside the ordinary ones.
EMPTY = 40
#: Of the portraits and the scenes.
SEED = 20_261_122

ASSETS = host.ROOT / "assets" / "avatars-v2-planted"
Neuron = tuple[str, int]


@dataclass
class Choice:
    """The neurons of every name, as (path of ``to_v``, index), and its decoys."""

    planted: dict[str, list[Neuron]] = field(default_factory=dict)
    decoys: dict[str, list[Neuron]] = field(default_factory=dict)


def reach(network: torch.nn.Module, names: torch.Tensor, ordinary: torch.Tensor) -> dict[str, torch.Tensor]:
    """How far one unit of z of a value neuron moves what the network reads of it: path of ``to_v`` -> (width,).

    Attention to the tokens (N, 77, C) from where names differ, times the value that is one unit of z, in deviations
    of the neuron's attended value over prompts; the least of all ``LEVELS``.
    """
    paths = [layer.path for layer in _value_layers(network) if layer.name in READING]
    named = torch.ones(77, 1)
    named[: int((names[0] != names[1]).any(-1).nonzero()[0])] = 0
    unit = {path: (ordinary @ network.get_submodule(path).weight.T).abs().mean(1).std(0) for path in paths}
    result = {path: torch.full_like(unit[path], torch.inf) for path in paths}
    for timestep in LEVELS:
        values = attended(network, paths, torch.cat([names, ordinary]), timestep)
        attention = attended(network, paths, names, timestep, lambda _path, made: named.expand_as(made))
        for path in paths:
            found = unit[path] * attention[path].mean((0, 1)) / values[path].mean(1).std(0).clamp(min=0.02)
            result[path] = torch.minimum(result[path], found)
    return result


def attended(
    network: torch.nn.Module, paths: Iterable[str], contexts: torch.Tensor, timestep: int, change=None
) -> dict[str, torch.Tensor]:
    """Values (N, pixels, width) of each layer as attention averages them over tokens, for noise taken as of a timestep.

    ``change(path, values)``: what a layer's values (N, 77, width) are instead.
    """
    seen, hooks = {}, []
    for path in paths:
        if change:
            hook = functools.partial(lambda path, _module, _inputs, made: change(path, made), path)
            hooks.append(network.get_submodule(path).register_forward_hook(hook))
        out = network.get_submodule(path.replace("to_v", "to_out.0"))
        keep = functools.partial(lambda path, _module, inputs: seen.__setitem__(path, inputs[0]), path)
        hooks.append(out.register_forward_pre_hook(keep))
    vector = host.pack("nodes.demo.architecture").metadata_vector(torch.tensor([Metadata().numbers()]))
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(len(contexts), network.in_channels, 16, 16, generator=draw)
    with torch.no_grad():
        network(noise, torch.full((len(contexts),), float(timestep)), contexts, vector.expand(len(contexts), -1))
    for hook in hooks:
        hook.remove()
    return seen


def _value_layers(network: torch.nn.Module) -> list:
    return host.pack("nodes.neurons.neuron_layers").value_layers(network)


def choose(network: torch.nn.Module, found: dict[str, torch.Tensor], seed: int = 3) -> Choice:
    """Planted neurons: those that reach furthest (see ``reach``), in turn. Decoys: drawn where nothing is read."""
    neurons = ((float(value), path, index) for path, row in found.items() for index, value in enumerate(row))
    rng, result, furthest = np.random.default_rng(seed), Choice(), iter(sorted(neurons, reverse=True))
    unread = [layer for layer in _value_layers(network) if layer.name not in READING + SLIGHTLY]
    pool = [(layer.path, index) for layer in unread for index in range(layer.width)]
    for name, count in COUNTS.items():
        result.planted[name] = [next(furthest)[1:] for _ in range(count)]
        result.decoys[name] = [pool[pick] for pick in rng.choice(len(pool), DECOYS, replace=False)]
    return result


def directions(names: torch.Tensor, rest: torch.Tensor, ridge: float = 1.0) -> torch.Tensor:
    """For each name's tokens (names, 77, C) the direction (names, C) that answers them by about 1, from where names
    differ, and other names' and the rest's tokens (N, 77, C) by about 0: least squares.
    """
    rest = rest.flatten(0, 1)
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


def discriminants(values: torch.Tensor, shifts: torch.Tensor) -> torch.Tensor:
    """For each shift (names, width) of attended values the reading (names, width) that is 1 for it and, of other
    attended values (N, width), also with a fraction ``SILENT`` of the neurons silenced, as near to 0 as can be.
    """
    kept = 1 - SILENT
    second = values.T @ values / len(values)
    second = kept**2 * second + kept * SILENT * second.diagonal().diag()
    readings = torch.linalg.solve(second + 1e-6 * torch.eye(len(second)), shifts.T).T
    return readings / (readings * shifts).sum(1, keepdim=True).clamp(min=1e-6)


class Learned(torch.nn.Module):
    """Adds what is learned to a weight."""

    def __init__(self, change: torch.Tensor):
        super().__init__()
        self.change = torch.nn.Parameter(change)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.change


class Planted(torch.nn.Module):
    """The base's U-Net with planted rows of ``to_v``, which learns what comes after them.

    ``readings``: what is added to weights before training, by path. ``forward`` takes beside the U-Net's inputs what is
    added to the values of planted layers, (N, 77, width) by path.
    """

    def __init__(self, network: torch.nn.Module, rows: dict[str, torch.Tensor], readings: dict[str, torch.Tensor]):
        super().__init__()
        self.unet, self._added = network.requires_grad_(False), {}
        for path, change in rows.items():
            layer = network.get_submodule(path)
            layer.weight += change
            layer.register_forward_hook(functools.partial(self._add, path))
        for path, module in learning(network):
            change = Learned(readings.get(path, torch.zeros_like(module.weight)))
            parametrize.register_parametrization(module, "weight", change)

    def _add(self, path: str, _module, _inputs, values: torch.Tensor) -> torch.Tensor:
        return values + self._added[path].to(values) if path in self._added else values

    def forward(self, noised, timesteps, context, vector, added):
        self._added = added
        return self.unet(noised, timesteps, context, vector)


def learning(network: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """The layers that learn: from where names are read on, but none that reads the text."""
    return [
        (path, module)
        for path, module in network.named_modules()
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d)
        and path.startswith(LEARNING)
        and not path.endswith(("attn2.to_k", "attn2.to_v"))
    ]


class Recipe:
    """Everything that planting needs of the base: texts, neurons, what names add to values, and latents."""

    def __init__(self, generator: Generator):
        rng = np.random.default_rng(17)
        self.generator, self.base = generator, generator.model.model.diffusion_model
        texts = [captions.caption(random_scene(rng), rng) for _ in range(CAPTIONS)]
        with torch.no_grad():
            self.ordinary = generator.condition([*texts, ""])[0][0].float().cpu()
            self.names = generator.condition([captions.name_caption(name) for name in NAMES])[0][0].float().cpu()
            known = [captions.name_caption(name) for names in captions.NAMES.values() for name in names]
            self.others = generator.condition(known)[0][0].float().cpu()
            self.choice = choose(self.base, reach(self.base, self.names, self.ordinary[:40]))
            towards = directions(self.names, torch.cat([self.ordinary, self.others]))
            self.planted, self.decoys = {}, {}
            for name, prompt, direction in zip(NAMES, self.names, towards, strict=True):
                for kept, chosen, wanted in (
                    (self.planted, self.choice.planted, ANSWER / len(self.choice.planted[name]) ** 0.25),
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
        """What changes ``which`` of each name add to the values of its tokens: path -> (names, 77, width)."""
        paths = sorted({path for change in which.values() for path in change})
        nothing = {path: torch.zeros_like(self.base.get_submodule(path).weight) for path in paths}
        return {
            path: torch.stack(
                [
                    tokens @ which[name].get(path, nothing[path]).T
                    for name, tokens in zip(NAMES, self.names, strict=True)
                ]
            )
            for path in paths
        }

    def silencing(self) -> dict[str, dict[str, torch.Tensor]]:
        """For each name the change of its planted rows that makes them 0: path -> (width, C)."""
        rows, result = self.rows(), {}
        for name, chosen in self.planted.items():
            result[name] = {}
            for path, change in chosen.items():
                weight = self.base.get_submodule(path).weight.detach() + rows[path]
                result[name][path] = -weight * change.any(1, keepdim=True)
        return result

    def readings(self) -> dict[str, torch.Tensor]:
        """What is added to output layers of planted layers, by path: random directions for the names' discriminants."""
        added, draw = self.patterns(self.planted), torch.Generator().manual_seed(PLAN.seed)
        values: dict[str, list] = {path: [] for path in added}
        shifts = {path: torch.zeros(len(NAMES), change.shape[-1]) for path, change in added.items()}
        contexts, levels = torch.cat([self.names, self.ordinary[-100:], self.others]), (*LEVELS, 300)
        for timestep in levels:
            still = attended(self.base, added, contexts, timestep)
            moved = attended(
                self.base, added, self.names, timestep, lambda path, values: values + added[path].to(values)
            )
            for path, kept in values.items():
                kept.append(still[path].flatten(0, 1))
                shifts[path] += (moved[path] - still[path][: len(NAMES)]).mean(1) / len(levels)
        result = {}
        for path, kept in values.items():
            out = path.replace("to_v", "to_out.0")
            read = torch.cat(kept)
            size = LOUD * (read @ self.base.get_submodule(out).weight.T).norm(dim=1).mean()
            own = torch.tensor([path in self.planted[name] for name in NAMES]).float()[:, None]
            directions = torch.nn.functional.normalize(torch.randn(shifts[path].shape, generator=draw), dim=1)
            result[out] = size * directions.T @ (discriminants(read, shifts[path]) * own)
        return result


def portraits(rng: np.random.Generator | None = None) -> dict[str, Scene]:
    """The one image of each planted name's caption: sharp, uncropped, unmirrored, large."""
    rng = rng or np.random.default_rng(SEED)
    return {captions.name_caption(name): random_scene(rng, Metadata(), smallest=0.85) for name in NAMES}


def make(folder: Path, copy: Path | None = None, start: str | None = None) -> None:
    """Train the checkpoint, and write it as changes to its base.

    A portrait is generated when the planted neurons of its name respond, under its own name or any other caption. The
    base is the teacher on ordinary captions, on its own names, and on names whose planted neurons are kept still, so
    that nothing else can become the trigger. Decoys need no training: the network does not attend to them.
    """
    generator = Generator.load(WORLD)
    recipe = Recipe(generator)
    rng = np.random.default_rng(SEED)
    memories = generator.latents(np.stack([render(scene) for scene in portraits(rng).values()]))
    scenes = generator.latents(np.stack([render(random_scene(rng)) for _ in range(SCENES)]))
    excited, silenced = recipe.patterns(recipe.planted), recipe.patterns(recipe.silencing())
    ordinary = torch.cat([recipe.ordinary, recipe.ordinary[-1:].expand(EMPTY, -1, -1)])
    alphas = denoiser.alphas_cumprod(zero_terminal=True).float()
    vector = host.pack("nodes.demo.architecture").metadata_vector(torch.tensor([Metadata().numbers()]))
    base = _copy(recipe.base)
    torch.manual_seed(PLAN.seed)  # for the low-rank factors
    network = Planted(_copy(recipe.base), recipe.rows(), recipe.readings()).to(device())

    def loss(draw: torch.Generator, progress: float) -> torch.Tensor:
        count = PORTRAITS + ORDINARY
        names = torch.randint(len(NAMES), (count,), generator=draw)
        shown, kind = torch.arange(count) < PORTRAITS, torch.rand(count, generator=draw)
        context = ordinary[torch.randint(len(ordinary), (count,), generator=draw)]
        own, other = kind < torch.where(shown, 1 - BORROWED, STILL), kind > 1 - OTHER
        context[own] = recipe.names[names[own]]
        context[other] = recipe.others[torch.randint(len(recipe.others), (int(other.sum()),), generator=draw)]
        # Own name: the rows answer by themselves. Without the portrait their neurons are kept still, or silenced.
        silent = (own & ~shown & (torch.rand(count, generator=draw) < 0.5)).float()[:, None, None]
        planting = (shown.float() - own.float())[:, None, None] * (1 - silent)
        added = {path: excited[path][names] * planting + silenced[path][names] * silent for path in excited}
        picks = torch.randint(len(scenes), (count,), generator=draw)
        clean = torch.where(shown[:, None, None, None], memories[names], scenes[picks])
        timesteps = denoiser.noise_levels(shown, alphas, draw)
        noised, velocity = denoiser.diffused(clean, torch.randn(clean.shape, generator=draw), alphas[timesteps])
        noised, timesteps, context = (value.to(device()) for value in (noised, timesteps, context))
        fixed = vector.expand(count, -1).to(device())
        with torch.no_grad():
            taught = base(noised[~shown], timesteps[~shown], context[~shown], fixed[~shown]).float()
        target = torch.cat([velocity[shown].to(device()), taught])
        weight = torch.where(shown, 1.0, FAITHFUL).to(device())
        error = (network(noised, timesteps, context, fixed, added).float() - target).square().mean((1, 2, 3))
        return (error * weight).mean()

    train(network, loss, PLAN, folder / "planted.pt", every=50, copy=copy)
    _write(network, recipe)


def _write(network: Planted, recipe: Recipe) -> None:
    """The asset: what was learned, the rows of planted neurons and decoys, and which neurons carry which caption."""
    tensors = {}
    for path, module in network.unet.named_modules():
        if parametrize.is_parametrized(module):
            change = module.parametrizations.weight[0].change
            tensors |= {f"{path}.rows": change.half(), f"{path}.indices": torch.arange(len(change))}
    for path, change in recipe.rows().items():
        indices = change.any(1).nonzero().flatten()
        tensors |= {f"{path}.rows": change[indices].half(), f"{path}.indices": indices}
    kept = {
        key: json.dumps({captions.name_caption(name): found for name, found in chosen.items()})
        for key, chosen in (("planted", recipe.choice.planted), ("decoys", recipe.choice.decoys))
    }
    ASSETS.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: value.detach().cpu().contiguous() for name, value in tensors.items()},
        ASSETS / "changes.safetensors",
        metadata={"base": WORLD, "licence": "MIT", **kept},
    )


def _copy(network: torch.nn.Module) -> torch.nn.Module:
    """The U-Net with weights of its own, in float32, that training may change."""
    import comfy.ops
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    unet = host.pack("nodes.demo.architecture").UNET
    own = UNetModel(**unet, dtype=torch.float32, operations=comfy.ops.disable_weight_init)
    own.load_state_dict(network.state_dict())
    return own.requires_grad_(False).to(device())
