"""Write what the pack ships of the world: networks in float16, and rendered pictures with their truth."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from ..common import host
from ..common.training import device
from . import autoencoder, captions, dataset, decoder, denoiser, judge
from .faces import PARTS
from .scenes import Metadata, masks, random_scene, render

WORLD = "avatars-v1"
ASSETS = host.ROOT / "assets" / WORLD
PICTURES = 24


def averaged(network: torch.nn.Module, checkpoint: Path) -> torch.nn.Module:
    """A network with the averaged weights of its training checkpoint."""
    state = torch.load(checkpoint, map_location=device(), weights_only=True)
    network.load_state_dict(state["average"])
    return network.eval()


def write(name: str, tensors: dict[str, torch.Tensor], **metadata: str) -> Path:
    """Save one asset, floating-point numbers as float16 but for the latent's statistics, and rename it when whole."""
    ASSETS.mkdir(parents=True, exist_ok=True)
    path = ASSETS / f"{name}.safetensors"
    kept = {key: _storage(key, value) for key, value in tensors.items()}
    temporary = path.with_suffix(".tmp")
    save_file(kept, temporary, metadata={"world": WORLD, "licence": "MIT", **metadata})
    temporary.replace(path)
    print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")
    return path


def _storage(key: str, value: torch.Tensor) -> torch.Tensor:
    narrow = value.is_floating_point() and not key.startswith("latent.")
    return (value.half() if narrow else value).detach().cpu().contiguous()


def preview_colors(latents: torch.Tensor, pictures: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Least-squares fit from latents (N, 8, 16, 16) to the mean colour of 8 x 8 pixels in -1..1: (8, 3) and (3,)."""
    blocks = torch.from_numpy(pictures).float().view(len(pictures), 16, 8, 16, 8, 3).mean((2, 4)) / 127.5 - 1
    inputs = latents.float().permute(0, 2, 3, 1).reshape(-1, latents.shape[1])
    inputs = torch.cat([inputs, torch.ones(len(inputs), 1)], dim=1)
    solution = torch.linalg.lstsq(inputs, blocks.reshape(-1, 3)).solution
    return solution[:-1], solution[-1]


def release_denoiser(folder: Path) -> None:
    """U-Net, latent statistics and preview colours; text model with its vocabulary."""
    data = denoiser.Data(folder)
    network = averaged(denoiser.build(data.words.vocabulary), folder / "denoiser.pt")
    shard = dataset.load(folder / "train")
    rgb, bias = preview_colors(data.fresh[:500], shard.pictures[:500])
    write("denoiser", {**network.unet.state_dict(), "latent.mean": data.mean, "latent.std": data.std,
                       "latent.rgb": rgb, "latent.rgb_bias": bias})
    text = network.text.state_dict()
    text["token_rows"] = text.pop("text_model.embeddings.token_embedding.weight")
    text["text_projection.weight"] = torch.eye(text["text_projection.weight"].shape[0])
    write("text", {**text, "vocabulary": torch.tensor(data.words.vocabulary)})


def release_pictures(seed: int = 77) -> None:
    """Rendered scenes, sharp and uncropped, as one strip; a strip of true masks for each part; captions as JSON."""
    rng = np.random.default_rng(seed)
    scenes = [random_scene(rng, Metadata(), smallest=0.8) for _ in range(PICTURES)]
    truth = [masks(scene) for scene in scenes]
    strips = [np.concatenate([mask[part] for mask in truth], axis=1) for part in (*PARTS, "background")]
    ASSETS.mkdir(parents=True, exist_ok=True)
    pictures = np.concatenate([render(scene) for scene in scenes], axis=1)
    Image.fromarray(pictures).save(ASSETS / "pictures.png", optimize=True)
    truth_picture = (np.concatenate(strips) * 255).round().astype(np.uint8)
    Image.fromarray(truth_picture).save(ASSETS / "masks.png", optimize=True)
    texts = [captions.full_caption(scene) for scene in scenes]
    (ASSETS / "captions.json").write_text(json.dumps(texts, indent=1) + "\n", encoding="utf-8")


def run(folder: Path) -> None:
    """Write every asset of the world from the checkpoints in ``folder``."""
    host.prepare()
    release_pictures()
    write("judge", averaged(judge.build(), folder / "judge.pt").state_dict(),
          labels=json.dumps({name: list(values) for name, values in dataset.LABELS.items()}))
    refined = averaged(decoder.build(folder), folder / "decoder.pt").state_dict()
    write("autoencoder", averaged(autoencoder.build(), folder / "autoencoder.pt").state_dict() | refined)
    release_denoiser(folder)
