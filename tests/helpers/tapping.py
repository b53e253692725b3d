"""A model with a caption, and ways to sample, tap and record it."""

from __future__ import annotations

import torch

PATTERN = {"preset": "custom_ids", "pool_size": 1, "precision": "fp32"}


class World:
    """A loaded model in a running ComfyUI. What its methods leave open has a default that suits
    small tests.
    """

    def __init__(self, app, model, clip, vae):
        self.app, self.model, self.clip, self.vae = app, model, clip, vae
        (self.positive,) = app.run("CLIPTextEncode", clip=clip, text="portrait, red hair")
        (self.negative,) = app.run("CLIPTextEncode", clip=clip, text="")

    def latent(self, count=2, height=128, width=128, seed=0):
        channels = self.model.get_model_object("latent_format").latent_channels
        shape = (count, channels, height // 8, width // 8)
        return {"samples": torch.randn(shape, generator=torch.Generator().manual_seed(seed))}

    def sample(self, model, latent=None, **changes):
        settings = {
            "seed": 7,
            "steps": 3,
            "cfg": 3.0,
            "sampler_name": "euler",
            "scheduler": "normal",
            "denoise": 1.0,
        }
        given = {
            "positive": self.positive,
            "negative": self.negative,
            "latent_image": latent or self.latent(),
        }
        return self.app.run("KSampler", model=model, **{**settings, **given, **changes})[0]

    def tap(self, ids, **changes):
        given = {
            "model": self.model,
            "positive": self.positive,
            "latent": self.latent(),
            "seed": 3,
            "noise_samples": 1,
        }
        level = {"noise_unit": "paper_t", "level": 50.0}
        return self.app.run(
            "GBX_LayerActivationTap", **{**PATTERN, **given, **level, **changes, "ids": ids}
        )[0]

    def record(
        self, recorded_steps="all", rows="both", ids="up-level1-*-res-out", model=None, **more
    ):
        given = {**PATTERN, "ids": ids, "recorded_steps": recorded_steps, "rows": rows, **more}
        return self.app.run("GBX_ActivationRecorder", model=model or self.model, **given)

    def read(self, recording, samples, index=0):
        return self.app.run(
            "GBX_ReadActivations", recording=recording, latent=samples, step_index=index
        )


def hooks_left(model):
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks)
        for module in model.model.modules()
    )


def controlled(app, model, conditioning, value: float = 0.0):
    """A CONDITIONING with a ControlNet for a U-Net whose weights are all one value."""
    from comfy import controlnet, ops
    from comfy.cldm.cldm import ControlNet

    config = {
        key: each
        for key, each in model.model.model_config.unet_config.items()
        if key not in _DENOISER_ALONE
    }
    with torch.inference_mode(False):
        network = ControlNet(
            **config, hint_channels=3, operations=ops.manual_cast, device="cpu"
        ).requires_grad_(False)
        for parameter in network.parameters():
            parameter.data.fill_(value)
    control = controlnet.ControlNet(
        network, load_device=torch.device("cpu"), manual_cast_dtype=torch.float32
    )
    given = {
        "positive": conditioning,
        "negative": conditioning,
        "control_net": control,
        "strength": 1.0,
    }
    given |= {"image": torch.full((1, 64, 64, 3), 0.5), "start_percent": 0.0, "end_percent": 1.0}
    return app.run("ControlNetApplyAdvanced", **given)[0]


_DENOISER_ALONE = ("out_channels", "transformer_depth_output")
