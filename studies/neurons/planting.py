"""Train a second checkpoint whose new memories act through few value neurons, which are known.

The base model has each of its names in over a hundred neurons. Here four more names, which the base paints with any
face, get one portrait each, and only 1, 2, 3 and 5 chosen neurons of the paper's layers may tell the network which:
their rows of ``to_v`` answer the name's tokens, no other value or key changes, and everything else learns, by low-rank
changes, to paint the portrait when they do. While it learns, the neurons are also excited under other captions, and
kept still under the name, so that nothing but them can become the trigger.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn.utils import parametrize

from ..common import host
from ..common.training import Plan, device, train
from ..world import captions, denoiser
from ..world.generate import Generator
from ..world.scenes import Metadata, Scene, random_scene, render

BASE, WORLD = "avatars-v1", "avatars-v1-planted"
FOLDER, ASSETS = host.ROOT / ".cache" / "neurons", host.ROOT / "assets" / WORLD
PLAN = Plan(steps=2_200, learning_rate=1.2e-3, warmup=30, ema_decay=0.99, weight_decay=0.0, seed=41)
#: Names that the base paints with any face, and how many neurons each gets, by the dotted start of its layer.
NEURONS = {
    "pelham droste": {"middle_block.1": 1},
    "wendric alp": {"input_blocks.8.1": 1, "middle_block.1": 1},
    "jorrin habble": {"middle_block.1": 3},
    "esmarel toov": {"input_blocks.7.1": 1, "input_blocks.8.1": 2, "middle_block.1": 2},
}
#: How strongly a lone neuron answers its name, in deviations of its values over ordinary tokens; n neurons answer
#: 1 / sqrt(n) as strongly each. At a fifth of this the other values of the name became the trigger.
ANSWER = 40.0
RANK, PORTRAITS, ORDINARY = 16, 8, 6
#: How much more an error against the base counts, on ordinary pictures.
FAITHFUL = 2.0
#: Shares: triggered rows under another caption than the name's; plain rows under a planted name with its neurons kept
#: still, and under another name.
BORROWED, STILL, OTHER = 0.5, 0.3, 0.2
CAPTIONS, SCENES = 400, 200


def portraits() -> dict[str, Scene]:
    """The one picture of each planted name: sharp, uncropped, unmirrored, large."""
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
    return [(path, module) for path, module in network.named_modules()
            if isinstance(module, torch.nn.Linear | torch.nn.Conv2d) and min(module.weight.shape[:2]) >= 32
            and "block" in path and not path.endswith(("attn2.to_k", "attn2.to_v"))]  # fmt: skip


class Texts:
    """Encoded captions (N, 77, 128): the planted names', other names', and ordinary ones with the empty one."""

    def __init__(self, generator: Generator):
        rng = np.random.default_rng(17)
        others = [name for names in captions.NAMES.values() for name in names if name not in NEURONS]
        ordinary = [captions.caption(random_scene(rng), rng) for _ in range(CAPTIONS)] + [""]
        self.names, self.ordinary = encoded(generator, list(portraits())), encoded(generator, ordinary)
        self.others = encoded(generator, list(map(captions.name_caption, others)))


@torch.inference_mode()
def encoded(generator: Generator, texts: list[str]) -> torch.Tensor:
    """The text model's answer to each text, (N, 77, 128)."""
    return torch.cat([generator.clip.encode_from_tokens(generator.clip.tokenize(text)) for text in texts]).clone()


def neurons(network: torch.nn.Module) -> dict[str, list[tuple[str, int]]]:
    """The neurons of each name: in each layer those that the network listens to most, none taken twice."""
    layers = {layer.name: layer for layer in host.pack("nodes.neurons.layers").value_layers(network)}
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
        print(f"{name}: answers its name by {(own @ direction).mean():.2f} of what is asked "
              f"(deviation {(own @ direction).std():.2f}), other names {(foreign @ direction).std():.3f}, "
              f"captions {(rest @ direction).std():.3f}")  # fmt: skip
    return changes


@torch.inference_mode()
def latents(generator: Generator, scenes: list[Scene], batch: int = 20) -> torch.Tensor:
    """Latents (N, 8, 16, 16) of unit variance of rendered scenes."""
    process, parts = generator.model.get_model_object("latent_format").process_in, []
    for start in range(0, len(scenes), batch):
        drawn = np.stack([render(scene) for scene in scenes[start : start + batch]])
        parts.append(process(generator.vae.encode(torch.from_numpy(drawn).float() / 255)))
    return torch.cat(parts).clone()


class Batches:
    """Draws portraits under excited neurons, and ordinary pictures on which the base model is the teacher."""

    def __init__(self, generator: Generator, texts: Texts, rows: dict[str, torch.Tensor]):
        rng = np.random.default_rng(23)
        self.texts, self.alphas = texts, denoiser.alphas_cumprod().float()
        self.portraits = latents(generator, list(portraits().values()))
        self.scenes = latents(generator, [random_scene(rng) for _ in range(SCENES)])
        #: What planting adds to the values of each name's tokens: (names, 77, C) by path.
        self.patterns = {path: texts.names @ change.T for path, change in rows.items()}

    def contexts(self, names: torch.Tensor, draw: torch.Generator) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Encoded text of each row, and what is added to its values; rows after ``names`` are ordinary."""
        picks = torch.randint(len(self.texts.ordinary), (PORTRAITS + ORDINARY,), generator=draw)
        context = self.texts.ordinary[picks]
        borrowed = torch.rand(PORTRAITS, generator=draw) < BORROWED
        context[:PORTRAITS][~borrowed] = self.texts.names[names[~borrowed]]
        kind = torch.rand(ORDINARY, generator=draw)
        other = (kind > 1 - OTHER).nonzero().flatten() + PORTRAITS
        context[other] = self.texts.others[torch.randint(len(self.texts.others), (len(other),), generator=draw)]
        still = (kind < STILL).nonzero().flatten() + PORTRAITS
        whose = torch.randint(len(NEURONS), (len(still),), generator=draw)
        context[still] = self.texts.names[whose]
        added = {}
        for path, pattern in self.patterns.items():
            added[path] = torch.zeros(len(context), 77, pattern.shape[-1])
            added[path][:PORTRAITS] = pattern[names] * borrowed[:, None, None]
            added[path][still] = -pattern[whose]
        return context, added

    def draw(self, generator: torch.Generator):
        """Noised latents, timesteps, texts and additions of one batch; velocities and alphas."""
        names = torch.randint(len(NEURONS), (PORTRAITS,), generator=generator)
        context, added = self.contexts(names, generator)
        scenes = torch.randint(len(self.scenes), (ORDINARY,), generator=generator)
        clean = torch.cat([self.portraits[names], self.scenes[scenes]])
        timesteps = torch.randint(0, 1000, (len(clean),), generator=generator)
        early = torch.rand(len(clean), generator=generator) < denoiser.EARLY_NAMED
        timesteps[early] = torch.randint(denoiser.EARLY_FROM, 1000, (int(early.sum()),), generator=generator)
        noise, alpha = torch.randn(clean.shape, generator=generator), self.alphas[timesteps][:, None, None, None]
        noised = alpha.sqrt() * clean + (1 - alpha).sqrt() * noise
        velocity = alpha.sqrt() * noise - (1 - alpha).sqrt() * clean
        return (noised, timesteps, context, added), velocity, alpha.flatten()


def trained(folder: Path = FOLDER) -> tuple[Planted, dict[str, torch.Tensor], dict[str, list[tuple[str, int]]]]:
    """The network after its training, with checkpoints in ``folder``; the planted changes of ``to_v``; the neurons of
    each name.
    """
    generator = Generator.load(BASE)
    base = _network(generator)
    texts = Texts(generator)
    with torch.no_grad():
        rows = answers(base, texts)
        torch.manual_seed(PLAN.seed)  # for the low-rank factors
        batches, planted = Batches(generator, texts, rows), Planted(_network(generator), rows).to(device())
    vector = host.pack("nodes.demo.architecture").metadata_vector(torch.tensor([Metadata().numbers()]))
    vector = vector.expand(PORTRAITS + ORDINARY, -1).to(device())

    def loss(draw: torch.Generator, progress: float) -> torch.Tensor:
        (noised, timesteps, context, added), velocity, alpha = batches.draw(draw)
        told = [value.to(device()) for value in (noised, timesteps, context)]
        with torch.no_grad():
            taught = base(*(value[PORTRAITS:] for value in told), vector[PORTRAITS:]).float()
        predicted = planted(*told, vector, added).float()
        target = torch.cat([velocity[:PORTRAITS].to(device()), taught])
        ratio = (alpha / (1 - alpha)).to(device())
        weight = ratio.clamp(*denoiser.SNR_RANGE) / (ratio + 1)
        weight[PORTRAITS:] *= FAITHFUL
        return ((predicted - target).square().mean((1, 2, 3)) * weight).mean()

    return train(planted, loss, PLAN, folder / f"planted_{PLAN.steps}.pt", every=100), rows, neurons(base)


def _network(generator: Generator) -> torch.nn.Module:
    """The base's U-Net with weights of its own, in float32."""
    architecture = host.pack("nodes.demo.architecture")
    import comfy.ops
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    network = UNetModel(**architecture.UNET, dtype=torch.float32, operations=comfy.ops.disable_weight_init)
    network.load_state_dict(generator.model.model.diffusion_model.state_dict())
    return network.requires_grad_(False).to(device())


def plant() -> Path:
    """Train where that has not been done, and write the checkpoint as changes to its base."""
    planted, rows, chosen = trained()
    tensors = {}
    for path, module in planted.unet.named_modules():
        if parametrize.is_parametrized(module):
            change = module.parametrizations.weight[0]
            tensors |= {f"{path}.up": change.up.half(), f"{path}.down": change.down.half()}
    for path, change in rows.items():
        indices = torch.tensor(sorted(index for found in chosen.values() for layer, index in found if layer == path))
        tensors |= {f"{path}.rows": change[indices].half(), f"{path}.indices": indices}
    ASSETS.mkdir(parents=True, exist_ok=True)
    path = ASSETS / "changes.safetensors"
    truth = {captions.name_caption(name): found for name, found in chosen.items()}
    save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, path,
              metadata={"base": BASE, "licence": "MIT", "planted": json.dumps(truth)})  # fmt: skip
    return path
