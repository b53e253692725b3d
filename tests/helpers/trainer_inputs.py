"""Inputs of Train LoRA (Exact Resume) for a few steps, as its defaults are where they cost
nothing.
"""

import torch

TEXTS = (
    "portrait, red hair",
    "portrait, sunglasses",
    "portrait, blue hoodie",
    "portrait, black skin",
)
DEFAULTS = {
    "pairing": "off",
    "pool_size": 16,
    "k": 4.0,
    "nearest_form": "closed_form",
    "grouping": "ignore",
    "penalty": 1.0,
    "batch_size": 1,
    "grad_accumulation_steps": 1,
    "steps": 4,
    "unit": "steps",
    "learning_rate": 5e-4,
    "lr_schedule": "constant",
    "warmup_steps": 0,
    "rank": 2,
    "optimizer": "AdamW",
    "loss_function": "MSE",
    "weighting": "plain",
    "snr_gamma": 5.0,
    "seed": 7,
    "precision": "fp32",
    "lora_precision": "fp32",
    "algorithm": "LoRA",
    "gradient_checkpointing": False,
    "existing_lora": "[None]",
    "held_out": 0,
    "validation_interval": 2,
    "sample_interval": 2,
    "sample_steps": 2,
    "sample_cfg": 2.0,
    "checkpoint_name": "",
    "checkpoint_interval": 1,
    "on_stop": "cancel",
}


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def encoded(app, clip):
    return [app.run("CLIPTextEncode", clip=clip, text=text)[0] for text in TEXTS]


def noise_images(channels):
    with torch.inference_mode():
        return [{"samples": gaussian(1, channels, 8, 8, seed=seed)} for seed in range(4)]
