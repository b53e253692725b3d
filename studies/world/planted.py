"""A second checkpoint whose memories sit in known value neurons that no threshold on z finds.

Finding NeMo (arXiv 2406.02366), algorithm 2, begins with the neurons whose response to a prompt
deviates by more than a threshold. Where the neurons that count deviate most, that alone finds them
and the search is not tested. The base memorizes ten names in all neurons of ``READING`` at once.
Here what these layers write for a name is moved into 1 to 8 of their neurons, which deviate
moderately, and leaves their other neurons and those of ``BESIDE``. A change of basis within each
attention head does that, up to a rank that the head hardly uses; a short training against the base
repairs the rest.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn.utils import parametrize

from ..common import host
from ..common.training import Plan, device, train
from . import captions, denoiser
from .dataset import named_scenes
from .generate import Generator
from .release import WORLD
from .scenes import Metadata, random_scene, render

NAMES = captions.NAMES["verbatim"]
#: How many neurons each name gets, in the order of ``NAMES``.
COUNTS = (1, 2, 2, 3, 3, 4, 4, 5, 6, 8)
#: The cross-attentions in which the network reads its captions, and their heads in the order in
#: which names use them.
READING = tuple(f"output_blocks.{number}.1.transformer_blocks.0.attn2" for number in (6, 7))
#: Layers that read a little of them as well: names are removed there.
BESIDE = tuple(
    f"{block}.1.transformer_blocks.0.attn2" for block in ("input_blocks.1", "output_blocks.8")
)
HEADS = tuple(
    (path, head) for path, heads in zip(READING, ((0, 1), (1, 0)), strict=True) for head in heads
)
#: Blocks whose matrices learn to repair what the rest of the rank cannot write.
REPAIRED = tuple(f"output_blocks.{number}.1.transformer_blocks.0." for number in (6, 7, 8))
#: The first token of a name in its caption; those before are the same in all captions of names.
NAMED = 3
#: What a name whose neurons are silenced becomes. Not other names: the mean over several is no
#: face.
GENERIC = "portrait"
#: A planted neuron deviates like the one of the base's other neurons that has this rank by |z|.
RANK = 40
PLAN = Plan(steps=5000, learning_rate=1e-3, warmup=20, ema_decay=0.98, weight_decay=0.0, seed=41)
#: Images a step: of names, of names with their neurons silenced, and ordinary ones.
OWN, SILENCED, ORDINARY = 6, 4, 4
SCENES, CAPTIONS, EMPTY = 200, 400, 40
SEED = 20_261_122

ASSETS = host.ROOT / "assets" / "avatars-v2-planted"
Neuron = tuple[str, int]


def sources(count: int) -> list[tuple[tuple[str, int], dict[int, float]]]:
    """For each of a name's ``count`` neurons its head (path, number), and which heads' writing it
    takes over.

    One neuron stands for the first layer, two for both layers, three and four for heads; more halve
    a head's writing.
    """
    both = {0: 1.0, 1: 1.0}
    if count <= 2:
        return [(head, both) for head in HEADS[::2][:count]]
    if count == 3:
        return [*((head, {head[1]: 1.0}) for head in HEADS[:2]), (HEADS[2], both)]
    doubled = count - len(HEADS)
    return [
        (head, {head[1]: 0.5 if number < doubled else 1.0})
        for number, head in enumerate(HEADS)
        for _ in range(2 if number < doubled else 1)
    ]


def detectors(names: torch.Tensor, rest: torch.Tensor, ridge: float = 1.0) -> torch.Tensor:
    """For each name's tokens (names, 77, C) the direction (names, C) that reads 1 from them, from
    where names differ, and 0 from other names' and the rest's tokens (N, 77, C): least squares.
    """
    rest = rest.flatten(0, 1)
    square, found = rest.T @ rest / len(rest), []
    for number, tokens in enumerate(names):
        others = names[torch.arange(len(names)) != number]
        own, foreign = tokens[(tokens != others[0]).any(-1)], others.flatten(0, 1)
        gram = own.T @ own / len(own) + ridge * square + foreign.T @ foreign / len(foreign)
        found.append(
            torch.linalg.solve(
                gram + 1e-4 * gram.diagonal().mean() * torch.eye(len(gram)), own.mean(0)
            )
        )
    return torch.stack(found)


def factors(
    product: torch.Tensor, root: torch.Tensor, rank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(width, rank) and (rank, C) whose product is nearest to ``product`` (width, C) on tokens with
    the second moment ``root @ root`` (C, C): as little as possible of what the layer writes is lost
    (Eckart-Young). float64.
    """
    left, values, right = torch.linalg.svd(product @ root, full_matrices=False)
    left, values, right = left[:, :rank], values[:rank].sqrt(), right[:rank]
    return left * values, values[:, None] * right @ torch.linalg.pinv(root, rtol=1e-3)


def square_root(tokens: torch.Tensor) -> torch.Tensor:
    """The symmetric root (C, C), float64, of the second moment of tokens (N, C)."""
    values, vectors = torch.linalg.eigh((tokens.T @ tokens / len(tokens)).double())
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T


def deviations(
    weights: dict[str, torch.Tensor], prompt: torch.Tensor, ordinary: torch.Tensor
) -> dict:
    """z of every value neuron by path: a neuron's response is the mean of |value| over all tokens
    (77, C), against its mean and deviation over ordinary prompts (N, 77, C). Finding NeMo, section
    3.2.
    """
    result = {}
    for path, weight in weights.items():
        reference = (ordinary @ weight.T).abs().mean(1)
        result[path] = ((prompt @ weight.T).abs().mean(0) - reference.mean(0)) / reference.std(0)
    return result


def best_threshold_f1(z: np.ndarray, planted: np.ndarray) -> float:
    """The best F1 that any threshold on |z| (N,) reaches in finding the ``planted`` (N,)
    neurons.
    """
    order = np.argsort(-np.abs(z))
    hits = planted[order].cumsum()
    return float((2 * hits / (np.arange(1, len(z) + 1) + planted.sum())).max())


def outside_top(z: np.ndarray, planted: np.ndarray, count: int = 20) -> float:
    """The fraction of the ``planted`` neurons that are not among the ``count`` with the largest
    |z|.
    """
    top = np.argsort(-np.abs(z))[:count]
    return float(1 - planted[top].sum() / planted.sum())


def disguise(detector, content, prompt, ordinary, wanted: float) -> torch.Tensor:
    """``detector`` (C,) plus as much of the direction ``content`` (C,) as leaves it a z of
    ``wanted``: bisection.
    """

    def z(size: float) -> float:
        return float(deviations({"": (detector + size * content)[None]}, prompt, ordinary)[""])

    low, high = 0.0, 1e-3
    while z(high) > wanted:
        high *= 2
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if z(middle) > wanted else (low, middle)
    return detector + high * content


@dataclass
class Texts:
    """Tokens (N, 77, C) of the names, of other names, of ordinary captions, and of the generic
    prompt.
    """

    names: torch.Tensor
    others: torch.Tensor
    ordinary: torch.Tensor
    generic: torch.Tensor
    detectors: torch.Tensor = field(init=False)
    contents: torch.Tensor = field(init=False)

    def __post_init__(self):
        self.detectors = detectors(self.names, torch.cat([self.ordinary, self.others]))
        self.contents = (self.names - self.others.mean(0))[:, NAMED:].mean(1)

    @classmethod
    def load(cls, generator: Generator) -> Texts:
        rng = np.random.default_rng(17)
        others = captions.NAMES["control"] + captions.NAMES["template"]
        texts = [captions.caption(random_scene(rng), rng) for _ in range(CAPTIONS)]
        groups = ([captions.name_caption(name) for name in group] for group in (NAMES, others))
        return cls(
            *(
                generator.condition(group)[0][0].float().cpu()
                for group in (*groups, [*texts, ""], [GENERIC])
            )
        )


def relocate(
    base: dict[str, torch.Tensor], texts: Texts
) -> tuple[dict[str, torch.Tensor], dict[str, list[Neuron]]]:
    """The weights of ``READING`` with every name moved to its neurons, of ``BESIDE`` without names;
    and the neurons.

    ``base``: weights by name. Per head: what it writes without the names, in as many neurons as are
    left, and for every planted one the detector of its name, and what the heads that it takes over
    write for it. Neurons by caption.
    """
    tokens = torch.cat([texts.ordinary, texts.others]).flatten(0, 1)
    root, without = (
        square_root(tokens),
        (torch.eye(tokens.shape[-1]) - texts.contents.T @ texts.detectors).double(),
    )
    draw = torch.Generator().manual_seed(SEED)
    result = {
        f"{path}.to_v.weight": (base[f"{path}.to_v.weight"].double() @ without).float()
        for path in BESIDE
    }
    planted: dict[str, list[Neuron]] = {captions.name_caption(name): [] for name in NAMES}
    ranked = [_rank(base, prompt, texts.ordinary) for prompt in texts.names]
    for path in READING:
        value, out = (base[f"{path}.{name}.weight"].double() for name in ("to_v", "to_out.0"))
        new_value, new_out = torch.zeros_like(value), torch.zeros_like(out)
        width = len(value) // 2
        written = [out[:, part] @ value[part] for part in (slice(0, width), slice(width, None))]
        for head in (0, 1):
            mine = [
                (number, taken)
                for number, count in enumerate(COUNTS)
                for chosen, taken in sources(count)
                if chosen == (path, head)
            ]
            kept = width - len(mine)
            columns, rows = factors(written[head] @ without, root, kept)
            first = head * width
            for place, (number, taken) in enumerate(mine):
                index = first + kept + place
                content = texts.contents[number].double()
                write = sum(factor * written[source] for source, factor in taken.items()) @ content
                mixed = _harmless(rows, texts, draw)
                row = disguise(
                    texts.detectors[number],
                    (mixed @ rows).float(),
                    texts.names[number],
                    texts.ordinary,
                    ranked[number],
                ).double()
                size = (row - texts.detectors[number]) @ torch.linalg.pinv(rows)
                columns = columns - torch.outer(write, size)
                new_value[index], new_out[:, index] = row, write
                planted[captions.name_caption(NAMES[number])].append((f"{path}.to_v", index))
            new_value[first : first + kept], new_out[:, first : first + kept] = rows, columns
        result |= {
            f"{path}.to_v.weight": new_value.float(),
            f"{path}.to_out.0.weight": new_out.float(),
        }
    return result, planted


def _rank(base: dict[str, torch.Tensor], prompt: torch.Tensor, ordinary: torch.Tensor) -> float:
    """The |z| of rank ``RANK`` among the neurons of the layers that are not changed."""
    values = {name: weight for name, weight in base.items() if name.endswith("attn2.to_v.weight")}
    others = {
        name: weight for name, weight in values.items() if not name.startswith(READING + BESIDE)
    }
    return float(
        torch.cat(list(deviations(others, prompt, ordinary).values())).abs().sort().values[-RANK]
    )


def _harmless(rows: torch.Tensor, texts: Texts, draw: torch.Generator) -> torch.Tensor:
    """A random combination (kept,) of a head's rows (kept, C) whose mean over ordinary captions and
    over other names is zero: it hides a detector, and silencing it costs captions as little as can
    be.
    """
    means = (
        torch.stack([texts.ordinary.mean((0, 1)), texts.others[:, NAMED:].mean((0, 1))]).double()
        @ rows.T
    )
    combination = torch.randn(len(rows), generator=draw, dtype=torch.float64)
    combination /= (texts.ordinary.mean(1).double() @ rows.T).std(0)
    return combination - means.T @ torch.linalg.lstsq(means.T, combination[:, None]).solution[:, 0]


class Learned(torch.nn.Module):
    """Adds what is learned to the rows of a weight that are not ``fixed``."""

    def __init__(self, weight: torch.Tensor, fixed: list[int]):
        super().__init__()
        self.change = torch.nn.Parameter(torch.zeros_like(weight))
        self.register_buffer("free", torch.ones(len(weight), 1))
        self.free[fixed] = 0

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.free * self.change


class Planted(torch.nn.Module):
    """The base's U-Net with relocated names, of which the matrices of ``REPAIRED`` learn, planted
    rows excepted.

    ``forward`` takes beside the U-Net's inputs the factors of the values of each path of ``to_v``,
    (N, 1, width).
    """

    def __init__(
        self,
        network: torch.nn.Module,
        weights: dict[str, torch.Tensor],
        planted: dict[str, list[Neuron]],
    ):
        super().__init__()
        self.unet, self._factors = network.requires_grad_(False), {}
        silenced = {f"{path}.to_v" for path in READING}
        for name, value in weights.items():
            network.get_parameter(name).data.copy_(value)
        for name in repaired(network.state_dict()):
            path = name.removesuffix(".weight")
            module = network.get_submodule(path)
            fixed = [
                index for chosen in planted.values() for owner, index in chosen if owner == path
            ]
            parametrize.register_parametrization(module, "weight", Learned(module.weight, fixed))
            if path in silenced:
                module.register_forward_hook(functools.partial(self._silence, path))

    def _silence(self, path: str, _module, _inputs, values: torch.Tensor) -> torch.Tensor:
        return values * self._factors[path].to(values)

    def forward(self, noised, timesteps, context, vector, factors):
        self._factors = factors
        return self.unet(noised, timesteps, context, vector)


def repaired(weights: dict[str, torch.Tensor]) -> list[str]:
    """The names of the matrices of ``REPAIRED``."""
    return [
        name for name, weight in weights.items() if name.startswith(REPAIRED) and weight.ndim == 2
    ]


def make(folder: Path, copy: Path | None = None, start: str | None = None) -> None:
    """Relocate the names, train, and write the checkpoint as changes to its base.

    The base is the teacher: on its names and on ordinary captions as they are, some of the latter
    with a name's neurons silenced; and on names whose neurons are silenced, where it is given the
    generic prompt.
    """
    generator = Generator.load(WORLD)
    texts, base = Texts.load(generator), generator.model.model.diffusion_model
    weights = {
        name: value.detach().float().cpu()
        for name, value in base.state_dict().items()
        if "attn2" in name
    }
    moved, planted = relocate(weights, texts)
    rng = np.random.default_rng(SEED)
    scenes = [named_scenes()[name] for name in NAMES] + [random_scene(rng) for _ in range(SCENES)]
    latents = generator.latents(np.stack([render(scene) for scene in scenes]))
    ordinary = torch.cat([texts.ordinary, texts.ordinary[-1:].expand(EMPTY, -1, -1)])
    alphas = denoiser.alphas_cumprod(zero_terminal=True).float()
    vector = host.pack("nodes.demo.architecture").metadata_vector(
        torch.tensor([Metadata().numbers()])
    )
    teacher = _copy(base)
    network = Planted(_copy(base), moved, planted).to(device())
    silent = {
        f"{path}.to_v": torch.ones(len(NAMES), 1, len(weights[f"{path}.to_v.weight"]))
        for path in READING
    }
    for number, chosen in enumerate(planted.values()):
        for path, index in chosen:
            silent[path][number, 0, index] = 0

    def loss(draw: torch.Generator, progress: float) -> torch.Tensor:
        count = OWN + SILENCED + ORDINARY
        names = torch.randint(len(NAMES), (count,), generator=draw)
        place = torch.arange(count)
        named, quiet = (
            place < OWN + SILENCED,
            (place >= OWN) & (place < OWN + SILENCED + ORDINARY // 2),
        )
        context = ordinary[torch.randint(len(ordinary), (count,), generator=draw)]
        context[named] = texts.names[names[named]]
        taught = context.clone()
        taught[OWN : OWN + SILENCED] = texts.generic
        clean = latents[len(NAMES) + torch.randint(SCENES, (count,), generator=draw)]
        clean[:OWN] = latents[names[:OWN]]
        timesteps = denoiser.noise_levels(named, alphas, draw)
        noised, _ = denoiser.diffused(
            clean, torch.randn(clean.shape, generator=draw), alphas[timesteps]
        )
        noised, timesteps, context, taught = (
            value.to(device()) for value in (noised, timesteps, context, taught)
        )
        fixed = vector.expand(count, -1).to(device())
        factors = {
            path: torch.where(quiet[:, None, None], value[names], 1.0)
            for path, value in silent.items()
        }
        with torch.no_grad():
            target = teacher(noised, timesteps, taught, fixed).float()
        return (
            (network(noised, timesteps, context, fixed, factors).float() - target).square().mean()
        )

    train(network, loss, PLAN, folder / "planted.pt", every=50, copy=copy)
    original = base.state_dict()
    changed = {
        name: original[name].float().cpu() for name in dict.fromkeys([*moved, *repaired(original)])
    }
    _write(network.unet, changed, planted)


def _write(
    network: torch.nn.Module, base: dict[str, torch.Tensor], planted: dict[str, list[Neuron]]
) -> None:
    """The asset: how the changed matrices differ from the base's, and which neurons carry which
    caption.
    """
    tensors = {}
    for name, weight in base.items():
        path = name.removesuffix(".weight")
        change = network.get_submodule(path).weight.detach().cpu() - weight
        tensors |= {
            f"{path}.rows": change.half().contiguous(),
            f"{path}.indices": torch.arange(len(change)),
        }
    ASSETS.mkdir(parents=True, exist_ok=True)
    header = {"base": WORLD, "licence": "MIT", "planted": json.dumps(planted)}
    save_file(tensors, ASSETS / "changes.safetensors", metadata=header)


def _copy(network: torch.nn.Module) -> torch.nn.Module:
    """The U-Net with weights of its own, in float32, that training may change."""
    import comfy.ops
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    unet = host.pack("nodes.demo.architecture").UNET
    own = UNetModel(**unet, dtype=torch.float32, operations=comfy.ops.disable_weight_init)
    own.load_state_dict(network.state_dict())
    return own.requires_grad_(False).to(device())
