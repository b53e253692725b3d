"""SD3's transformer and its ControlNet on random weights, two blocks deep, with SD3's own position
table.
"""

from __future__ import annotations

import reduced
import torch

_CONTEXT = 4096


def model():
    """A MODEL of class SD3."""
    return reduced.checkpoint("sd3")[0]


def controlnet():
    """An SD3 ControlNet that takes a latent as its hint."""
    from comfy import controlnet, ops
    from comfy.cldm.mmdit import ControlNet

    shape = {key: value for key, value in reduced._CONFIGS["sd3"].items() if key != "out_channels"}
    with torch.inference_mode(False), torch.no_grad():
        network = ControlNet(
            num_blocks=1,
            control_latent_channels=16,
            dtype=torch.float32,
            device="cpu",
            operations=ops.disable_weight_init,
            **shape,
        )
        reduced.fill(network, torch.Generator().manual_seed(4))
        reduced.fill_positions(network)
    return controlnet.ControlNet(network, compression_ratio=1, load_device=torch.device("cpu"))


def prompt(seed: int = 0) -> list:
    """A CONDITIONING of random text."""
    generator = torch.Generator().manual_seed(200 + seed)
    return [
        [
            torch.randn(1, 9, _CONTEXT, generator=generator),
            {"pooled_output": torch.randn(1, 128, generator=generator)},
        ]
    ]
