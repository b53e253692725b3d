"""A model with a caption, and ways to sample, tap and record it."""

from __future__ import annotations

import torch

PATTERN = {"preset": "custom_ids", "pool_size": 1, "precision": "fp32"}


class World:
    """A loaded model in a running ComfyUI. What its methods leave open has a default that suits small tests."""

    def __init__(self, comfy, model, clip, vae):
        self.comfy, self.model, self.clip, self.vae = comfy, model, clip, vae
        (self.positive,) = comfy.run("CLIPTextEncode", clip=clip, text="portrait, red hair")
        (self.negative,) = comfy.run("CLIPTextEncode", clip=clip, text="")

    def latent(self, count=2, height=128, width=128, seed=0):
        channels = self.model.get_model_object("latent_format").latent_channels
        shape = (count, channels, height // 8, width // 8)
        return {"samples": torch.randn(shape, generator=torch.Generator().manual_seed(seed))}

    def sample(self, model, latent=None, **changes):
        settings = {"seed": 7, "steps": 3, "cfg": 3.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
        given = {"positive": self.positive, "negative": self.negative, "latent_image": latent or self.latent()}
        return self.comfy.run("KSampler", model=model, **{**settings, **given, **changes})[0]

    def tap(self, ids, **changes):
        given = {"model": self.model, "positive": self.positive, "latent": self.latent(), "seed": 3, "noise_samples": 1}
        level = {"noise_unit": "paper_t", "level": 50.0}
        return self.comfy.run("GBX_LayerActivationTap", **{**PATTERN, **given, **level, **changes, "ids": ids})[0]

    def record(self, recorded_steps="all", rows="both", ids="up-level1-*-res-out", model=None):
        given = {**PATTERN, "ids": ids, "recorded_steps": recorded_steps, "rows": rows}
        return self.comfy.run("GBX_ActivationRecorder", model=model or self.model, **given)

    def read(self, recording, samples, index=0):
        return self.comfy.run("GBX_ReadActivations", recording=recording, latent=samples, step_index=index)


def hooks_left(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.model.modules())
