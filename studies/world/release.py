"""Write what the pack ships of the world: networks in float16, with what they reach in their
headers.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from ..common import host
from ..common.training import device
from . import autoencoder, captions, dataset, denoiser
from .faces import PARTS
from .progress import load_autoencoder, load_judge
from .scenes import Metadata, masks, random_scene, render

WORLD = "avatars-v2"
ASSETS = host.ROOT / "assets" / WORLD
IMAGES = 24


def averaged(network: torch.nn.Module, checkpoint: Path) -> tuple[torch.nn.Module, int]:
    """A network with the averaged weights of its training checkpoint, and the checkpoint's step."""
    state = torch.load(checkpoint, map_location=device(), weights_only=True)
    network.load_state_dict(state["average"])
    return network.eval(), state["step"]


def write(to: Path, name: str, tensors: dict[str, torch.Tensor], **metadata: str) -> Path:
    """Save one asset, floating-point numbers as float16 but for the latent's statistics, and rename
    it when whole.
    """
    to.mkdir(parents=True, exist_ok=True)
    path = to / f"{name}.safetensors"
    kept = {key: _storage(key, value) for key, value in tensors.items()}
    temporary = path.with_suffix(".tmp")
    save_file(
        kept,
        temporary,
        metadata={"world": WORLD, "license": "MIT", "format_version": "2", **metadata},
    )
    temporary.replace(path)
    print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")
    return path


def _storage(key: str, value: torch.Tensor) -> torch.Tensor:
    narrow = value.is_floating_point() and not key.startswith("latent.")
    return (value.half() if narrow else value).detach().cpu().contiguous()


def release_denoiser(folder: Path, network: torch.nn.Module, to: Path) -> None:
    """U-Net, latent statistics and preview colors; text model with its vocabulary. ``network``: the
    autoencoder.
    """
    data = denoiser.Data(folder)
    trained, step = averaged(denoiser.build(data.words.vocabulary), folder / "denoiser.pt")
    ones = torch.ones(autoencoder.CHANNELS)
    # A patch's mean color is linear in its latent.
    colors = network.expand.weight.mean((2, 3)).detach()
    latent = {
        "latent.mean": 0 * ones,
        "latent.std": ones,
        "latent.rgb": colors,
        "latent.rgb_bias": network.expand.bias,
    }
    state = (
        "trained"
        if step == denoiser.PLAN.steps
        else f"in training, step {step} of {denoiser.PLAN.steps}"
    )
    header = {"state": state, "zero_terminal_snr": "true", "prediction": "v"}
    write(to, "denoiser", {**trained.unet.state_dict(), **latent}, **header)
    text = trained.text.state_dict()
    text["token_rows"] = text.pop("text_model.embeddings.token_embedding.weight")
    text["text_projection.weight"] = torch.eye(text["text_projection.weight"].shape[0])
    write(to, "text", {**text, "vocabulary": torch.tensor(data.words.vocabulary)}, state=state)


def release_images(to: Path, seed: int = 77) -> None:
    """Rendered scenes, sharp and uncropped, as one strip; a strip of true masks for each part;
    captions as JSON.
    """
    rng = np.random.default_rng(seed)
    scenes = [random_scene(rng, Metadata(), smallest=0.8) for _ in range(IMAGES)]
    truth = [masks(scene) for scene in scenes]
    strips = [
        np.concatenate([mask[part] for mask in truth], axis=1) for part in (*PARTS, "background")
    ]
    to.mkdir(parents=True, exist_ok=True)
    images = np.concatenate([render(scene) for scene in scenes], axis=1)
    Image.fromarray(images).save(to / "images.png", optimize=True)
    truth_image = (np.concatenate(strips) * 255).round().astype(np.uint8)
    Image.fromarray(truth_image).save(to / "masks.png", optimize=True)
    texts = [captions.full_caption(scene) for scene in scenes]
    (to / "captions.json").write_text(json.dumps(texts, indent=1) + "\n", encoding="utf-8")


def run(folder: Path, to: Path = ASSETS) -> None:
    """Write every asset of the world into the folder ``to`` from the checkpoints in ``folder``."""
    host.prepare()
    release_images(to)
    labels = json.dumps({name: list(values) for name, values in dataset.LABELS.items()})
    write(to, "judge", load_judge(folder).state_dict(), labels=labels)
    network = load_autoencoder(folder)
    header = {"channels": str(autoencoder.CHANNELS), "widths": json.dumps(autoencoder.WIDTHS)}
    write(to, "autoencoder", network.state_dict(), **header)
    release_denoiser(folder, network, to)
