"""Pictures from the shipped demo model, through the pack's loaders and ComfyUI's own sampling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..common import host


@dataclass
class Generator:
    """The shipped model, text model and autoencoder, ready to sample."""

    model: object
    clip: object
    vae: object

    @classmethod
    def load(cls, world: str) -> Generator:
        """Load a world's assets as the loader node does."""
        host.prepare()
        return cls(*(host.pack(f"nodes.demo.{name}").load(world) for name in ("model", "text", "autoencoder")))

    def condition(self, texts: list[str], **metadata: float) -> list:
        """Conditioning of a batch of captions, one row a picture; metadata keys such as ``height`` or ``mirror``."""
        rows = torch.cat([self.clip.encode_from_tokens(self.clip.tokenize(text)) for text in texts])
        return [[rows, metadata]]

    @torch.no_grad()
    def latents(self, pictures: np.ndarray, batch: int = 20) -> torch.Tensor:
        """Latents (N, 8, H / 8, W / 8) of unit variance of uint8 pictures (N, H, W, 3)."""
        process = self.model.get_model_object("latent_format").process_in
        parts = [torch.from_numpy(pictures[start:start + batch]) for start in range(0, len(pictures), batch)]
        return torch.cat([process(self.vae.encode(part.float() / 255)) for part in parts])

    @torch.inference_mode()
    def sample(self, texts: list[str], seed: int, cfg: float, steps: int = 20, batch: int = 32,
               **metadata: float) -> np.ndarray:
        """Euler samples uint8 (N, 128, 128, 3); picture i starts from noise of seed ``seed + i``."""
        import comfy.sample

        pictures = []
        for start in range(0, len(texts), batch):
            part = texts[start:start + batch]
            noise = torch.cat([comfy.sample.prepare_noise(torch.zeros(1, 8, 16, 16), seed + start + index)
                               for index in range(len(part))])
            latent = comfy.sample.sample(self.model, noise, steps, cfg, "euler", "normal",
                                         self.condition(part, **metadata), self.condition([""] * len(part), **metadata),
                                         torch.zeros_like(noise), disable_pbar=True, seed=seed)
            pictures.append((self.vae.decode(latent) * 255).round().to(torch.uint8).numpy())
            print(f"\rsampling {start + len(part)}/{len(texts)}", end="", flush=True)
        print()
        return np.concatenate(pictures)

    @torch.inference_mode()
    def first_noise_difference(self, text: str, seeds: range, timestep: int = 961) -> torch.Tensor:
        """What the model adds to the noise at the start of sampling: predicted noise less noise, (seeds, 8, 16, 16).

        Finding NeMo (arXiv 2406.02366), section 3.1: conditional only, at the official code's timestep.
        """
        import comfy.model_management

        comfy.model_management.load_models_gpu([self.model])
        network, device = self.model.model, self.model.load_device
        noise = torch.cat([torch.randn(1, 8, 16, 16, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
        noise = noise.to(device)
        sigma = network.model_sampling.sigmas[timestep].to(device).expand(len(noise))
        scale = (sigma.square() + 1).sqrt()[:, None, None, None]
        vector = network.encode_adm().expand(len(noise), -1).to(device)
        context = self.condition([text])[0][0].expand(len(noise), -1, -1)
        denoised = network.apply_model(noise * scale, sigma, c_crossattn=context, y=vector)
        return (noise * scale - denoised) / sigma[:, None, None, None] - noise
