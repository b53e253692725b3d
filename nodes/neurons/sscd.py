"""The SSCD copy-detection network (Pizzi et al., arXiv 2202.10261), from a state dict that the user
supplies.

A torchvision ResNet-50 with generalized-mean pooling (p = 3) whose last layer gives 512 channels,
normalized to length 1: the official sscd_disc_mixup. Finding NeMo counts an image as replicated
from a cosine of .7 on.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from ..common.failures import is_out_of_memory

_SIDE = 320
_MEAN = (0.485, 0.456, 0.406)
_DEVIATION = (0.229, 0.224, 0.225)


class GeneralizedMean(nn.Module):
    """Generalized-mean pooling over all places, (N, C, H, W) -> (N, C, 1, 1)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(min=1e-6).pow(3).mean((2, 3), keepdim=True).pow(1 / 3)


class Sscd:
    """Embeds images (N, H, W, 3) of 0..1 at 320 x 320: (N, 512) of length 1."""

    def __init__(self, state: dict[str, torch.Tensor]):
        from torchvision.models import resnet50

        self.network = resnet50(num_classes=len(state["fc.bias"]))
        self.network.avgpool = GeneralizedMean()
        self.network.load_state_dict(state)
        self.network.eval()

    @torch.inference_mode()
    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        x = F.interpolate(
            images.movedim(-1, 1).float().cpu(), (_SIDE, _SIDE), mode="bilinear", antialias=True
        )
        mean, deviation = (torch.tensor(values)[:, None, None] for values in (_MEAN, _DEVIATION))
        return F.normalize(self.network((x - mean) / deviation))


def load_sscd(path: Path) -> Sscd:
    """Read a state dict, .safetensors or .pt (read without executing any pickle); raises ValueError
    for other files.
    """
    try:
        if path.suffix.lower() == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
        return Sscd({name.removeprefix("backbone."): value for name, value in state.items()})
    except Exception as error:  # a damaged file makes the unpickler raise nearly anything
        if is_out_of_memory(error):
            raise
        raise ValueError(
            f"{path.name} holds no SSCD weights ({type(error).__name__}): convert the official "
            "TorchScript file with "
            "torch.save(torch.jit.load('sscd_disc_mixup.torchscript.pt').state_dict(), 'sscd.pt')."
        ) from None
