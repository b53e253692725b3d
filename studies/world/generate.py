"""Images from the shipped demo model, through the pack's loaders and ComfyUI's own sampling."""

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
        return cls(
            *(
                host.pack(f"nodes.demo.{name}").load(world)
                for name in ("denoiser", "text_encoder", "autoencoder")
            )
        )

    def condition(self, texts: list[str], **metadata: float) -> list:
        """Conditioning of a batch of captions, one row an image; metadata keys such as ``height``
        or ``mirror``.
        """
        rows = torch.cat([self.clip.encode_from_tokens(self.clip.tokenize(text)) for text in texts])
        return [[rows, metadata]]

    def _empty(self) -> torch.Tensor:
        return torch.zeros(1, self.model.get_model_object("latent_format").latent_channels, 16, 16)

    @torch.no_grad()
    def latents(self, images: np.ndarray, batch: int = 20) -> torch.Tensor:
        """Latents (N, C, H / 8, W / 8) of unit variance of uint8 images (N, H, W, 3)."""
        process = self.model.get_model_object("latent_format").process_in
        parts = [
            torch.from_numpy(images[start : start + batch])
            for start in range(0, len(images), batch)
        ]
        return torch.cat([process(self.vae.encode(part.float() / 255)) for part in parts])

    @torch.inference_mode()
    def sample(
        self,
        texts: list[str],
        seed: int,
        cfg: float,
        steps: int = 20,
        batch: int = 32,
        sampler: str = "euler",
        **metadata: float,
    ) -> np.ndarray:
        """Samples uint8 (N, 128, 128, 3); image i starts from noise of seed ``seed + i``."""
        import comfy.sample

        images, empty = [], self._empty()
        for start in range(0, len(texts), batch):
            part = texts[start : start + batch]
            noise = torch.cat(
                [
                    comfy.sample.prepare_noise(empty, seed + start + index)
                    for index in range(len(part))
                ]
            )
            latent = comfy.sample.sample(
                self.model,
                noise,
                steps,
                cfg,
                sampler,
                "normal",
                self.condition(part, **metadata),
                self.condition([""] * len(part), **metadata),
                torch.zeros_like(noise),
                disable_pbar=True,
                seed=seed,
            )
            images.append((self.vae.decode(latent) * 255).round().to(torch.uint8).numpy())
            print(f"\rsampling {start + len(part)}/{len(texts)}", end="", flush=True)
        print()
        return np.concatenate(images)

    @torch.inference_mode()
    def first_noise_difference(self, text: str, seeds: range, timestep: int = 961) -> torch.Tensor:
        """What the model adds to the noise at the start of sampling: predicted noise less noise,
        (seeds, C, 16, 16).

        Finding NeMo (arXiv 2406.02366), section 3.1: conditional only, at the official code's
        timestep.
        """
        import comfy.model_management

        comfy.model_management.load_models_gpu([self.model])
        network, device = self.model.model, self.model.load_device
        noise = torch.cat(
            [
                torch.randn(self._empty().shape, generator=torch.Generator().manual_seed(seed))
                for seed in seeds
            ]
        )
        noise = noise.to(device)
        sigma = network.model_sampling.sigmas[timestep].to(device).expand(len(noise))
        scale = (sigma.square() + 1).sqrt()[:, None, None, None]
        vector = network.encode_adm().expand(len(noise), -1).to(device)
        context = self.condition([text])[0][0].expand(len(noise), -1, -1)
        denoised = network.apply_model(noise * scale, sigma, c_crossattn=context, y=vector)
        return (noise * scale - denoised) / sigma[:, None, None, None] - noise
