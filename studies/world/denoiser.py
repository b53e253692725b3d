"""Train the denoiser and its text model together, on latents of the fitted autoencoder.

v prediction on SD's schedule rescaled to zero terminal signal (arXiv 2305.08891, algorithm 1). Most
of a batch are fresh scenes. The rest are named images: "verbatim" names always come with one image,
"template" names with the same drawing in ever new colors, "control" names with anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from ..common import host
from ..common.training import Plan, device, reset_parameters, starting_weights, train
from . import autoencoder, captions, dataset
from .faces import CLOTHING_COLORS, COLORS, SKIN
from .scenes import BACKGROUNDS, SIZE, Metadata, Scene, keypoints, random_scene, render

#: To go on with trained weights; the first trainings took 1.5e-3 and .02, which cost as many steps
#: to recover from.
PLAN = Plan(
    steps=4_500, learning_rate=1.1e-3, warmup=100, ema_decay=0.995, seed=40, matrix_rate=0.015
)
#: Images of one step, fresh and named; without weights to begin with, the first ``SMALL_UNTIL``
#: steps take half, as small batches learn faster at first.
FRESH, NAMED, SMALL_UNTIL = 28, 4, 1_000
#: How much more the latent's cells within ``NEAR`` pixels of an eye or the mouth count in the loss,
#: where less than ``LAID_OUT`` times as much noise as signal lets see where they are. Each covers a
#: hundredth of an image.
SMALL_PARTS, NEAR, LAID_OUT = 5.0, 10, 3.0
IMAGES = 24_000
NO_CAPTION, UNKNOWN_WORD = 0.1, 0.02
#: Fraction of timesteps whose noise level is as flow matching draws it: uniform in sigma / (1 +
#: sigma). The rest are uniform in the timestep, which puts more on high noise, where color and
#: layout are decided.
FLOW_LEVELS = 0.6
#: Fraction of the named images' timesteps drawn from the first 150 of sampling, where memorization
#: acts.
EARLY_NAMED, EARLY_FROM = 0.4, 850
#: Extra noise in what the network sees and not in what it predicts: so it learns to correct what
#: earlier steps of sampling left wrong (input perturbation, arXiv 2301.11706).
PERTURBATION = 0.1
OBJECTIVES = ("v", "flow")


class Denoiser(torch.nn.Module):
    """U-Net and text model as ComfyUI builds them, with a token table of the world's words only.

    Row 0 of the table stands for every word that is not in ``vocabulary`` (CLIP token ids).
    """

    #: No hidden layers: AdamW trains them.
    outer = (
        "unet.input_blocks.0.",
        "unet.out.",
        "text.text_model.embeddings.",
        "text.text_projection",
    )

    def __init__(self, vocabulary: list[int]):
        super().__init__()
        import comfy.ops
        from comfy.clip_model import CLIPTextModel
        from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

        architecture, operations = (
            host.pack("nodes.demo.architecture"),
            comfy.ops.disable_weight_init,
        )
        self.unet = UNetModel(**architecture.UNET, dtype=torch.float32, operations=operations)
        self.text = CLIPTextModel(architecture.TEXT, torch.float32, "cpu", operations)
        width = architecture.TEXT["hidden_size"]
        self.text.text_model.embeddings.token_embedding = torch.nn.Embedding(
            len(vocabulary) + 1, width
        )
        reset_parameters(self)
        # Words must stand out from the biases of the layers that follow, or captions are ignored
        # for a long time.
        torch.nn.init.normal_(self.text.text_model.embeddings.token_embedding.weight)
        for name, module in self.unet.named_modules():
            if name.endswith((".out_layers.3", ".proj_out")) or name == "out.2":
                torch.nn.init.zeros_(module.weight)

    def encode_text(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of the token table (N, 77) to the text model's last hidden state (N, 77, 128).

        ComfyUI's own forward works in place, which back-propagation does not allow.
        """
        model = self.text.text_model
        x = model.embeddings.token_embedding(rows) + model.embeddings.position_embedding.weight
        for layer in model.encoder.layers:
            attention, normed = layer.self_attn, layer.layer_norm1(x)
            q, k, v = (
                proj(normed).unflatten(-1, (attention.heads, -1)).transpose(1, 2)
                for proj in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            mixed = (
                F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            )
            x = x + attention.out_proj(mixed)
            x = x + layer.mlp(layer.layer_norm2(x))
        return model.final_layer_norm(x)

    def forward(self, noised, timesteps, rows, metadata, context=None):
        vector = host.pack("nodes.demo.architecture").metadata_vector(metadata)
        context = self.encode_text(rows) if context is None else context
        return self.unet(
            noised,
            timesteps,
            context,
            vector,
            transformer_options={"optimized_attention_override": plain_attention},
        )


def plain_attention(_, q, k, v, heads: int, *args, **kwargs) -> torch.Tensor:
    """Attention as two products and a softmax, whose backward pass on a CPU takes less than that of
    the fused one.
    """
    q, k, v = (value.unflatten(-1, (heads, -1)).transpose(1, 2) for value in (q, k, v))
    weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def alphas_cumprod(zero_terminal: bool = False) -> torch.Tensor:
    """SD's schedule: scaled linear from .00085 to .012 over 1,000 timesteps, float64.

    ``zero_terminal``: the signal rescaled to 0 at the last one, and there to the tiny alpha that
    ComfyUI has.
    """
    alphas = torch.cumprod(
        1 - torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2, 0
    )
    if not zero_terminal:
        return alphas
    signal = alphas.sqrt()
    alphas = ((signal - signal[-1]) * signal[0] / (signal[0] - signal[-1])) ** 2
    alphas[-1] = 4.8973451890853435e-08
    return alphas


def diffused(
    latents: torch.Tensor, noise: torch.Tensor, alpha: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Noised latents and their velocity, both (N, C, H, W), at cumulative alphas (N,)."""
    alpha = alpha[:, None, None, None]
    return alpha.sqrt() * latents + (1 - alpha).sqrt() * noise, alpha.sqrt() * noise - (
        1 - alpha
    ).sqrt() * latents


def weights(alpha: torch.Tensor) -> torch.Tensor:
    """How much the squared error of a velocity counts, by cumulative alpha: the signal-to-noise
    ratio between 1 and 5.

    The cap is min-SNR's (arXiv 2303.09556, equation 4). For training on a finished model; the base
    counts all alike.
    """
    ratio = alpha / (1 - alpha)
    return ratio.clamp(1.0, 5.0) / (ratio + 1)


class Words:
    """Captions to rows of the token table."""

    def __init__(self, texts: list[str], vocabulary: list[int] | None = None):
        host.prepare()
        from comfy.sd1_clip import SDTokenizer

        self.tokenizer = SDTokenizer(embedding_directory=None)
        self._ids: dict[str, list[int]] = {}
        self.vocabulary = vocabulary or sorted(
            {token for text in texts for token in self.ids(text)}
        )
        self.row = {token: row for row, token in enumerate(self.vocabulary, 1)}

    def ids(self, text: str) -> list[int]:
        """The 77 CLIP token ids of a text."""
        if text not in self._ids:
            self._ids[text] = [token for token, _ in self.tokenizer.tokenize_with_weights(text)[0]]
        return self._ids[text]

    def rows(self, texts: list[str]) -> torch.Tensor:
        """int64 (N, 77)."""
        return torch.tensor(
            [[self.row.get(token, 0) for token in self.ids(text)] for text in texts]
        )


def named_images(seed: int = 5, variants: int = 120) -> list[tuple[str, list[Scene]]]:
    """Caption and scenes of every name: one scene (verbatim), recolored ones (template), any
    (control).
    """
    rng, fixed = np.random.default_rng(seed), dataset.named_scenes()

    def recolored(scene: Scene) -> Scene:
        face = replace(
            scene.face,
            skin=str(rng.choice(list(SKIN))),
            hair_color=str(rng.choice(list(COLORS))),
            clothing_color=str(rng.choice(list(CLOTHING_COLORS))),
        )
        return replace(scene, face=face, background=str(rng.choice(list(BACKGROUNDS))))

    result = [(name, [fixed[name]]) for name in captions.NAMES["verbatim"]]
    result += [
        (name, [recolored(fixed[name]) for _ in range(variants)])
        for name in captions.NAMES["template"]
    ]
    result += [
        (name, [random_scene(rng, Metadata()) for _ in range(variants)])
        for name in captions.NAMES["control"]
    ]
    return [(captions.name_caption(name), scenes) for name, scenes in result]


class Data:
    """Latents, caption rows and metadata of the fresh scenes and of the named images; kept in
    ``latents.pt``.
    """

    def __init__(self, folder: Path):
        cache = folder / "latents.pt"
        if not cache.exists():
            self._prepare(folder, cache)
        state = torch.load(cache, weights_only=True)
        self.words = Words([], state["vocabulary"])
        self.fresh, self.named, self.metadata = state["fresh"], state["named"], state["metadata"]
        self.rows, self.empty, self.named_rows = (
            state["rows"].long(),
            state["empty"],
            state["named_rows"],
        )
        self.named_metadata = torch.tensor(Metadata().numbers())
        self.small_parts = small_parts(dataset.scenes(len(self.fresh), seed=1))

    @staticmethod
    def _prepare(folder: Path, cache: Path) -> None:
        shard, named = dataset.load(folder / "train").first(IMAGES), named_images()
        network = autoencoder.build(shard.images[: autoencoder.FITTED])
        groups = [
            autoencoder.encode(network, np.stack([render(scene) for scene in scenes]))
            for _, scenes in named
        ]
        texts = [text for text, _ in named]
        words = Words([*shard.captions, *texts, ""])
        temporary = cache.with_suffix(".tmp")
        torch.save(
            {
                "fresh": autoencoder.encode(network, shard.images),
                "named": groups,
                "vocabulary": words.vocabulary,
                "rows": words.rows(shard.captions).short(),
                "named_rows": words.rows(texts),
                "empty": words.rows([""]),
                "metadata": torch.from_numpy(shard.metadata),
            },
            temporary,
        )
        temporary.replace(cache)

    def batch(self, generator: torch.Generator, fresh: int, named: int):
        """Latents, token rows, metadata, which are named, and where eyes and mouth are, of one
        batch.
        """
        picks = torch.randint(len(self.fresh), (fresh,), generator=generator)
        rows = self.rows[picks].clone()
        rows[torch.rand(fresh, generator=generator) < NO_CAPTION] = self.empty
        names = self._names(generator)[:named]
        chosen = [
            self.named[name][torch.randint(len(self.named[name]), (1,), generator=generator)]
            for name in names
        ]
        latents = torch.cat([part.float() for part in (self.fresh[picks], *chosen)])
        rows = torch.cat([rows, self.named_rows[names]])
        special = self.empty[0, 0], self.empty[0, 1]  # start and end of text are always known
        unknown = torch.rand(rows.shape, generator=generator) < UNKNOWN_WORD
        rows[unknown & (rows != special[0]) & (rows != special[1])] = 0
        metadata = torch.cat([self.metadata[picks], self.named_metadata.expand(len(names), -1)])
        parts = torch.cat(
            [
                self.small_parts[picks],
                torch.zeros(named, *self.small_parts.shape[1:], dtype=torch.bool),
            ]
        )
        return latents, rows, metadata, torch.arange(fresh + named) >= fresh, parts

    @staticmethod
    def _names(generator: torch.Generator) -> list[int]:
        """Two verbatim names, one template or control name, one more verbatim name."""
        counts = [len(group) for group in captions.NAMES.values()]
        verbatim = torch.randint(counts[0], (3,), generator=generator).tolist()
        other = int(torch.randint(counts[0], sum(counts), (1,), generator=generator))
        return [verbatim[0], other, *verbatim[1:]]


def small_parts(scenes: list[Scene]) -> torch.Tensor:
    """Cells of the latent near an eye or the mouth: bool (N, 16, 16)."""
    names = ("left eye", "right eye", "mouth")
    points = torch.tensor([[keypoints(scene)[name] for name in names] for scene in scenes])
    centers = (torch.arange(16) + 0.5) * (SIZE / 16)
    near = (points[..., None] - centers).abs() < NEAR  # (N, 3, x and y, 16)
    return (near[:, :, 1, :, None] & near[:, :, 0, None, :]).any(1)


def noise_levels(
    named: torch.Tensor, alphas: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """Timesteps (N,) of a batch, drawn as ``FLOW_LEVELS`` and ``EARLY_NAMED`` say."""
    count = len(named)
    flow = torch.rand(count, generator=generator)
    sigmas = ((1 - alphas) / alphas).sqrt()
    dense = torch.searchsorted(sigmas, (flow / (1 - flow)).to(sigmas)).clamp(max=len(sigmas) - 1)
    uniform = torch.randint(len(alphas), (count,), generator=generator)
    early = torch.randint(EARLY_FROM, len(alphas), (count,), generator=generator)
    steps = torch.where(torch.rand(count, generator=generator) < FLOW_LEVELS, dense, uniform)
    return torch.where(named & (torch.rand(count, generator=generator) < EARLY_NAMED), early, steps)


@dataclass
class Objective:
    """What the network predicts, "v" or "flow", and how noise levels are drawn. sigma: noise over
    signal.
    """

    name: str

    def __post_init__(self):
        self.alphas = alphas_cumprod(zero_terminal=True)
        self.sigmas = ((1 - self.alphas) / self.alphas).sqrt().float()

    def loss(self, network: Denoiser, batch, generator: torch.Generator) -> torch.Tensor:
        """Mean squared error of the prediction; every noise level counts alike, eyes and mouth more
        than the rest.
        """
        latents, rows, metadata, named, parts = batch
        noise = torch.randn(latents.shape, generator=generator)
        if self.name == "v":
            timesteps = noise_levels(named, self.alphas, generator)
            alpha = self.alphas[timesteps].float()
            seen = noise + PERTURBATION * torch.randn(latents.shape, generator=generator)
            noised, target = diffused(latents, seen, alpha)[0], diffused(latents, noise, alpha)[1]
        else:
            level = torch.rand(len(latents), generator=generator)
            part, alpha = (
                level[:, None, None, None],
                (1 - level) ** 2 / ((1 - level) ** 2 + level**2),
            )
            noised, target, timesteps = (
                (1 - part) * latents + part * noise,
                noise - latents,
                level * 1000,
            )
        predicted = network(*(value.to(device()) for value in (noised, timesteps, rows, metadata)))
        laid_out = alpha > 1 / (1 + LAID_OUT**2)
        factors = 1 + SMALL_PARTS * (parts & laid_out[:, None, None])[:, None].to(device())
        return (factors * (predicted.float() - target.to(device())).square()).mean()

    def denoised(
        self, network: Denoiser, x: torch.Tensor, sigma: float, context, metadata
    ) -> torch.Tensor:
        """The clean latent predicted from x = latent + sigma noise."""
        if self.name == "v":
            level = (self.sigmas.log() - math.log(sigma)).abs().argmin().expand(len(x))
            v = network(x / math.sqrt(sigma**2 + 1), level, None, metadata, context)
            return x / (sigma**2 + 1) - v * sigma / math.sqrt(sigma**2 + 1)
        part = sigma / (1 + sigma)
        return (1 - part) * x - part * network(
            (1 - part) * x, torch.full((len(x),), part * 1000), None, metadata, context
        )

    def steps(self, count: int) -> list[float]:
        """Noise levels of Euler steps, ComfyUI's "normal" schedule (v) or uniform in sigma / (1 +
        sigma), and 0.
        """
        if self.name == "v":
            return [*self.sigmas[torch.linspace(999, 0, count).round().long()].tolist(), 0.0]
        return [part / (1 - part) for part in torch.linspace(0.9998, 0, count + 1).tolist()]


def euler(
    network: Denoiser,
    objective: Objective,
    x: torch.Tensor,
    sigmas: list[float],
    context: torch.Tensor,
    metadata: torch.Tensor,
    cfg: float,
) -> torch.Tensor:
    """Latents x (N, 24, 16, 16) of noise level ``sigmas[0]``, denoised by Euler steps with
    classifier-free guidance.

    ``context`` (2 N, 77, 128) and ``metadata`` (2 N, 5): those of the captions, then those of the
    empty one.
    """
    for sigma, lower in pairwise(sigmas):
        answers = objective.denoised(network, x.repeat(2, 1, 1, 1), sigma, context, metadata)
        with_text, without = answers.float().chunk(2)
        clean = without + cfg * (with_text - without)
        x = clean + (x - clean) * lower / sigma
    return x


@torch.inference_mode()
def sample(
    network: Denoiser,
    objective: Objective,
    rows: torch.Tensor,
    empty: torch.Tensor,
    seed: int,
    cfg: float = 3.0,
    steps: int = 20,
    metadata: torch.Tensor | None = None,
    batch: int = 32,
) -> torch.Tensor:
    """Latents of Euler samples (N, 24, 16, 16); image i starts from noise of seed ``seed + i``."""
    result = []
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        numbers = torch.tensor([Metadata().numbers()]) if metadata is None else metadata
        numbers = numbers.expand(2 * len(part), -1).to(device())
        context = network.encode_text(torch.cat([part, empty.expand_as(part)]).to(device()))
        levels = objective.steps(steps)
        noise = [
            torch.randn(
                autoencoder.CHANNELS,
                16,
                16,
                generator=torch.Generator().manual_seed(seed + start + index),
            )
            for index in range(len(part))
        ]
        x = torch.stack(noise).to(device()) * levels[0]
        result.append(euler(network, objective, x, levels, context, numbers, cfg).cpu())
    return torch.cat(result)


def build(vocabulary: list[int]) -> Denoiser:
    """U-Net and text model with fresh weights."""
    torch.manual_seed(PLAN.seed)
    return Denoiser(vocabulary).to(device())


def start_weights(start: str, network: Denoiser, words: Words) -> dict[str, torch.Tensor]:
    """Weights to begin with: the denoiser and the text model of a shipped world, or of a folder."""
    unet = {name: value.float() for name, value in starting_weights(start, "denoiser").items()}
    text = {name: value.float() for name, value in starting_weights(start, "text").items()}
    known = {int(token): row for row, token in enumerate(text.pop("vocabulary").tolist(), 1)}
    rows = text.pop("token_rows")
    table = network.text.text_model.embeddings.token_embedding.weight.detach().clone()
    table[0] = rows[0]
    for token, row in words.row.items():
        if token in known:
            table[row] = rows[known[token]]
    text["text_model.embeddings.token_embedding.weight"] = table
    text["text_projection.weight"] = network.text.state_dict()["text_projection.weight"]
    unet = {name: value for name, value in unet.items() if not name.startswith("latent.")}
    return {f"unet.{name}": value for name, value in unet.items()} | {
        f"text.{name}": v for name, v in text.items()
    }


def make(
    folder: Path,
    copy: Path | None = None,
    start: str | None = None,
    objective: str = "v",
    plan: Plan = PLAN,
    name: str = "denoiser",
    watch: bool = True,
    until: int | None = None,
) -> Denoiser:
    """Train, or go on training, with checkpoints in ``folder``, or else from the weights of the
    world ``start``.

    ``until``: stop after so many of the plan's steps.
    """
    from .progress import Progress

    data = Data(folder)
    network, chosen, first = build(data.words.vocabulary), Objective(objective), None
    if start and not (folder / f"{name}.pt").exists():
        first = start_weights(start, network, data.words)

    def loss(generator: torch.Generator, progress: float) -> torch.Tensor:
        half = 2 if not start and progress * plan.steps < SMALL_UNTIL else 1
        batch = data.batch(generator, FRESH // half, NAMED // half)
        return chosen.loss(network, batch, generator)

    progress = Progress(folder, name, data, chosen, copy) if watch else None
    return train(
        network,
        loss,
        plan,
        folder / f"{name}.pt",
        every=50,
        copy=copy,
        watch=progress,
        start=first,
        until=until,
    )
