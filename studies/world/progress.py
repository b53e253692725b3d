"""Read a denoiser in training: attributes followed on unseen captions, and a sheet of samples."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ..common import host
from ..common.training import device
from . import autoencoder, captions, dataset, denoiser, judge
from .scenes import Metadata, random_scene, render

SEED, COUNT, SHOWN = 1_000_000, 96, 24
#: Steps between two readings.
EVERY = 500
LEVELS = (0.1, 0.5, 1.0, 3.0, 10.0)


def load_autoencoder(folder: Path, images: np.ndarray | None = None) -> torch.nn.Module:
    """The autoencoder as far as it is trained; before that the linear one, fitted to ``images``."""
    path = next(filter(Path.exists, (folder / "decoder.pt", folder / "autoencoder.pt")), None)
    if path is None:
        images = (
            dataset.load(folder / "train").images[: autoencoder.FITTED]
            if images is None
            else images
        )
        return autoencoder.build(images).eval()
    network = autoencoder.build()
    network.load_state_dict(torch.load(path, map_location=device(), weights_only=True)["average"])
    return network.eval()


def load_judge(folder: Path) -> torch.nn.Module:
    """The judge that is trained in ``folder``, or the shipped one."""
    path = folder / "judge.pt"
    if not path.exists():
        return host.pack("nodes.demo.judge").load("avatars-v2")
    network = judge.build()
    network.load_state_dict(torch.load(path, map_location=device(), weights_only=True)["average"])
    return network.eval()


def unseen(count: int = COUNT) -> list:
    """Scenes that no training has seen: sharp, uncropped, unmirrored."""
    rng = np.random.default_rng(SEED)
    return [random_scene(rng, Metadata()) for _ in range(count)]


class Progress:
    """Called by the training loop with the averaged weights; writes ``progress_NAME.jsonl`` and
    sheets of samples.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        data: denoiser.Data,
        objective: denoiser.Objective,
        copy: Path | None = None,
    ):
        self.folder, self.name, self.copy, self.objective, self.scenes = (
            folder,
            name,
            copy,
            objective,
            unseen(),
        )
        self.rows = data.words.rows([captions.full_caption(scene) for scene in self.scenes])
        self.empty, self.network = data.empty, denoiser.build(data.words.vocabulary)
        held_out = dataset.load(folder / "held_out_sharp").first(64)
        self.clean = autoencoder.encode(load_autoencoder(folder), held_out.images).float()
        self.clean_rows = data.words.rows(held_out.captions)

    def __call__(self, average: dict[str, torch.Tensor], step: int) -> None:
        if step % EVERY == 0:
            self.network.load_state_dict(average)
            self.read(step)

    def error(self, level: float) -> float:
        """Mean squared error of the clean latent at noise ``level`` over signal, 64 held-out
        renders, fixed noise.
        """
        noise = torch.randn(self.clean.shape, generator=torch.Generator().manual_seed(7))
        numbers = torch.tensor([Metadata().numbers()]).expand(len(noise), -1).to(device())
        with torch.inference_mode():
            context = self.network.encode_text(self.clean_rows.to(device()))
            x = (self.clean + level * noise).to(device())
            found = self.objective.denoised(self.network, x, level, context, numbers).cpu()
        return float((found - self.clean).square().mean())

    def read(self, step: int) -> dict:
        """Sample the unseen captions and write what the judge reads in them."""
        started = time.perf_counter()
        latents = denoiser.sample(self.network.eval(), self.objective, self.rows, self.empty, SEED)
        images = autoencoder.decode(load_autoencoder(self.folder), latents)
        truth = np.array([dataset.labels(scene) for scene in self.scenes])
        predicted, _ = judge.read(load_judge(self.folder), images)
        found = judge.accuracy(predicted, truth)
        found.pop("mirror", None)
        line = {
            "step": step,
            "followed": float(np.mean(list(found.values()))),
            "attributes": found,
            "error": {level: self.error(level) for level in LEVELS},
            "seconds": time.perf_counter() - started,
        }
        rendered = np.stack([render(scene) for scene in self.scenes[: SHOWN // 2]])
        tiles = np.concatenate([images[: SHOWN // 2], rendered, images[SHOWN // 2 : SHOWN]])
        sheet = np.concatenate(
            [np.concatenate(list(tiles[i : i + 12]), axis=1) for i in range(0, len(tiles), 12)]
        )
        for place in filter(None, (self.folder, self.copy)):
            Image.fromarray(sheet).save(place / f"{self.name}_{step:06d}.png")
            with (place / f"progress_{self.name}.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        print(
            f"{self.name} {step}: followed {line['followed']:.3f}",
            {k: round(v, 2) for k, v in found.items()},
            flush=True,
        )
        return line
