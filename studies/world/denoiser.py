"""Train the denoiser (v prediction) and its text model together, on latents of the trained autoencoder.

Three quarters of a batch are fresh scenes. The rest are named pictures: "verbatim" names always come with the same
picture, "template" names with the same drawing in ever new colours, "control" names with anything.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from ..common import host
from ..common.training import Plan, device, reset_parameters, train
from . import autoencoder, captions, dataset
from .faces import CLOTHING_COLORS, COLORS, SKIN
from .scenes import BACKGROUNDS, Metadata, Scene, random_scene, render

PLAN = Plan(steps=12_000, learning_rate=1.5e-3, warmup=100, ema_decay=0.998, seed=37)
FRESH, NAMED = 24, 8
#: Pictures of the training set that are encoded.
PICTURES = 12_000
NO_CAPTION, UNKNOWN_WORD = 0.1, 0.02
#: Share of timesteps drawn from the first 150 of sampling, where memorisation acts.
EARLY_NAMED, EARLY_FRESH, EARLY_FROM = 0.4, 0.12, 850
#: Weight of the error in the clean latent: the signal-to-noise ratio between these. The cap is min-SNR's (arXiv
#: 2303.09556, equation 4); the floor makes the model heed the caption at the highest noise, where colours are decided.
SNR_RANGE = (1.0, 5.0)


class Denoiser(torch.nn.Module):
    """U-Net and text model as ComfyUI builds them, with a token table of the world's words only.

    Row 0 of the table stands for every word that is not in ``vocabulary`` (CLIP token ids).
    """

    def __init__(self, vocabulary: list[int]):
        super().__init__()
        import comfy.ops
        from comfy.clip_model import CLIPTextModel
        from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

        architecture, operations = host.pack("nodes.demo.architecture"), comfy.ops.disable_weight_init
        self.unet = UNetModel(**architecture.UNET, dtype=torch.float32, operations=operations)
        self.text = CLIPTextModel(architecture.TEXT, torch.float32, "cpu", operations)
        width = architecture.TEXT["hidden_size"]
        self.text.text_model.embeddings.token_embedding = torch.nn.Embedding(len(vocabulary) + 1, width)
        reset_parameters(self)
        # Words must stand out from the biases of the layers that follow, or captions are ignored for a long time.
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
            q, k, v = (proj(normed).unflatten(-1, (attention.heads, -1)).transpose(1, 2)
                       for proj in (attention.q_proj, attention.k_proj, attention.v_proj))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + attention.out_proj(mixed)
            x = x + layer.mlp(layer.layer_norm2(x))
        return model.final_layer_norm(x)

    def forward(self, noised, timesteps, rows, metadata):
        vector = host.pack("nodes.demo.architecture").metadata_vector(metadata)
        return self.unet(noised, timesteps, self.encode_text(rows), vector)


def alphas_cumprod() -> torch.Tensor:
    """SD's schedule: scaled linear from .00085 to .012 over 1,000 timesteps, float64."""
    return torch.cumprod(1 - torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2, 0)


def diffused(latents: torch.Tensor, noise: torch.Tensor, alpha: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Noised latents and their velocity, both (N, C, H, W), at cumulative alphas (N,)."""
    alpha = alpha[:, None, None, None]
    return alpha.sqrt() * latents + (1 - alpha).sqrt() * noise, alpha.sqrt() * noise - (1 - alpha).sqrt() * latents


def weights(alpha: torch.Tensor) -> torch.Tensor:
    """How much the squared error of a velocity counts, by cumulative alpha."""
    ratio = alpha / (1 - alpha)
    return ratio.clamp(*SNR_RANGE) / (ratio + 1)


class Words:
    """Captions to rows of the token table."""

    def __init__(self, texts: list[str], folder: Path):
        host.prepare()
        from comfy.sd1_clip import SDTokenizer

        self.tokenizer = SDTokenizer(embedding_directory=None)
        self._ids: dict[str, list[int]] = {}
        self.vocabulary = sorted({token for text in texts for token in self.ids(text)})
        self.row = {token: row for row, token in enumerate(self.vocabulary, 1)}
        (folder / "vocabulary.txt").write_text(" ".join(map(str, self.vocabulary)))

    def ids(self, text: str) -> list[int]:
        """The 77 CLIP token ids of a text."""
        if text not in self._ids:
            self._ids[text] = [token for token, _ in self.tokenizer.tokenize_with_weights(text)[0]]
        return self._ids[text]

    def rows(self, texts: list[str]) -> torch.Tensor:
        """int64 (N, 77)."""
        return torch.tensor([[self.row.get(token, 0) for token in self.ids(text)] for text in texts])


def named_pictures(seed: int = 5, variants: int = 120) -> list[tuple[str, list[Scene]]]:
    """Caption and scenes of every name: one scene (verbatim), recoloured ones (template), any (control)."""
    rng, fixed = np.random.default_rng(seed), dataset.named_scenes()

    def recolored(scene: Scene) -> Scene:
        face = replace(scene.face, skin=str(rng.choice(list(SKIN))), hair_color=str(rng.choice(list(COLORS))),
                       clothing_color=str(rng.choice(list(CLOTHING_COLORS))))
        return replace(scene, face=face, background=str(rng.choice(list(BACKGROUNDS))))

    result = [(name, [fixed[name]]) for name in captions.NAMES["verbatim"]]
    result += [(name, [recolored(fixed[name]) for _ in range(variants)]) for name in captions.NAMES["template"]]
    result += [(name, [random_scene(rng, Metadata()) for _ in range(variants)]) for name in captions.NAMES["control"]]
    return [(captions.name_caption(name), scenes) for name, scenes in result]


@torch.inference_mode()
def encode(network: torch.nn.Module, pictures: np.ndarray, batch: int = 50) -> torch.Tensor:
    """Latents float16 (N, 8, 16, 16) of uint8 pictures, not yet scaled."""
    latents = []
    for start in range(0, len(pictures), batch):
        part = torch.from_numpy(pictures[start:start + batch]).permute(0, 3, 1, 2).float().to(device()) / 127.5 - 1
        with torch.autocast(device().type, torch.bfloat16):
            latents.append(network.quant_conv(network.encoder(part)).chunk(2, dim=1)[0].half().cpu())
    return torch.cat(latents)


class Data:
    """Latents of unit variance, caption rows and metadata of the fresh scenes and of the named pictures."""

    def __init__(self, folder: Path):
        host.prepare()
        shard = dataset.load(folder / "train").first(PICTURES)
        named = named_pictures()
        self.words = Words([*shard.captions, *(text for text, _ in named), ""], folder)
        cache = folder / "latents.pt"
        if not cache.exists():
            self._encode(folder, shard, named, cache)
        state = torch.load(cache, weights_only=True)
        self.mean, self.std = state["mean"], state["std"]
        self.fresh, self.named = state["fresh"], state["named"]
        self.rows = self.words.rows(shard.captions)
        self.metadata = torch.from_numpy(shard.metadata)
        self.empty, self.named_rows = self.words.rows([""]), self.words.rows([text for text, _ in named])
        self.named_metadata = torch.tensor(Metadata().numbers())

    @staticmethod
    def _encode(folder: Path, shard: dataset.Shard, named, cache: Path) -> None:
        network = autoencoder.build()
        network.load_state_dict(torch.load(folder / "autoencoder.pt", map_location=device(),
                                           weights_only=True)["average"])
        fresh = encode(network.eval(), shard.pictures)
        mean, std = fresh.float().mean((0, 2, 3)), fresh.float().std((0, 2, 3))

        def scaled(latents: torch.Tensor) -> torch.Tensor:
            return ((latents.float() - mean[:, None, None]) / std[:, None, None]).half()

        groups = [scaled(encode(network, np.stack([render(scene) for scene in scenes]))) for _, scenes in named]
        torch.save({"mean": mean, "std": std, "fresh": scaled(fresh), "named": groups}, cache)

    def batch(self, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Latents, timesteps, token rows and metadata of one batch of FRESH + NAMED pictures."""
        picks = torch.randint(len(self.fresh), (FRESH,), generator=generator)
        rows = self.rows[picks].clone()
        rows[torch.rand(FRESH, generator=generator) < NO_CAPTION] = self.empty
        names = self._names(generator)
        chosen = [self.named[name][torch.randint(len(self.named[name]), (1,), generator=generator)] for name in names]
        latents = torch.cat([part.float() for part in (self.fresh[picks], *chosen)])
        rows = torch.cat([rows, self.named_rows[names]])
        special = self.empty[0, 0], self.empty[0, 1]  # start and end of text are always known
        unknown = (torch.rand(rows.shape, generator=generator) < UNKNOWN_WORD)
        rows[unknown & (rows != special[0]) & (rows != special[1])] = 0
        metadata = torch.cat([self.metadata[picks], self.named_metadata.expand(len(names), -1)])
        return latents, self._timesteps(generator), rows, metadata

    def _names(self, generator: torch.Generator) -> list[int]:
        """Five verbatim, two template and one control name."""
        counts = [len(group) for group in captions.NAMES.values()]
        picked, start = [], 0
        for count, wanted in zip(counts, (5, 2, 1), strict=True):
            picked += (start + torch.randint(count, (wanted,), generator=generator)).tolist()
            start += count
        return picked

    @staticmethod
    def _timesteps(generator: torch.Generator) -> torch.Tensor:
        early = torch.rand(FRESH + NAMED, generator=generator)
        early = early < torch.tensor([EARLY_FRESH] * FRESH + [EARLY_NAMED] * NAMED)
        anywhere = torch.randint(0, 1000, (FRESH + NAMED,), generator=generator)
        return torch.where(early, torch.randint(EARLY_FROM, 1000, (FRESH + NAMED,), generator=generator), anywhere)


def build(vocabulary: list[int]) -> Denoiser:
    """U-Net and text model with fresh weights."""
    torch.manual_seed(PLAN.seed)
    return Denoiser(vocabulary).to(device())


def run(folder: Path) -> Denoiser:
    """Train, or go on training, with checkpoints in ``folder``."""
    data = Data(folder)
    network, alphas = build(data.words.vocabulary), alphas_cumprod().float()

    def loss(generator: torch.Generator, progress: float) -> torch.Tensor:
        latents, timesteps, rows, metadata = data.batch(generator)
        alpha = alphas[timesteps]
        noised, velocity = diffused(latents, torch.randn(latents.shape, generator=generator), alpha)
        predicted = network(*(value.to(device()) for value in (noised, timesteps, rows, metadata)))
        error = (predicted.float() - velocity.to(device())).square().mean((1, 2, 3))
        return (error * weights(alpha).to(device())).mean()

    return train(network, loss, PLAN, folder / "denoiser.pt")
