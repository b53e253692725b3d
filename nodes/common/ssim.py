"""Structural similarity of pairs of tensors: SSIM over several scales, with its dynamic range as a
given number.

SSIM (Wang et al. 2004) with a Gaussian window of deviation 1.5, k1 = .01 and k2 = .03. Over several
scales (MS-SSIM, Wang et al. 2003) the contrast-structure terms of the finer scales are multiplied
with the SSIM of the coarsest.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

SIGMA = 1.5
K1 = 0.01
K2 = 0.03


def ssim(a: torch.Tensor, b: torch.Tensor, taps: int = 11, span: float = 1.0) -> torch.Tensor:
    """SSIM of pairs (N, C, H, W) of range ``span``, over places where the window lies inside:
    float32 (N,).

    Raises ValueError when a side is smaller than the window of ``taps``.
    """
    return _terms(a, b, taps, span)[0]


def multi_scale(
    a: torch.Tensor, b: torch.Tensor, spans: list[float], exponent: float, taps: int = 11
) -> torch.Tensor:
    """relu(CS_0)^e ... relu(SSIM_last)^e over as many scales as there are ``spans``, halved by
    averaging: float32 (N,).

    Raises ValueError when the coarsest scale is smaller than the window.
    """
    result = torch.ones(len(a), device=a.device)
    for scale, span in enumerate(spans):
        whole, contrast = _terms(a, b, taps, span)
        last = scale == len(spans) - 1
        result = result * (whole if last else contrast).relu() ** exponent
        a, b = (a, b) if last else (F.avg_pool2d(a, 2), F.avg_pool2d(b, 2))
    return result


def extremes(a: torch.Tensor, scales: int) -> torch.Tensor:
    """Smallest and largest value of each row (N, C, H, W) at each scale: float32 (N, scales, 2)."""
    found = []
    for _ in range(scales):
        flat = a.flatten(1)
        found.append(torch.stack([flat.amin(1), flat.amax(1)], dim=1))
        a = F.avg_pool2d(a, 2)
    return torch.stack(found, dim=1)


def _terms(
    a: torch.Tensor, b: torch.Tensor, taps: int, span: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """SSIM and its contrast-structure factor, averaged over channels and places."""
    if min(a.shape[-2:]) < taps:
        raise ValueError(
            f"SSIM with a window of {taps} needs {taps} x {taps} or more, not "
            f"{tuple(a.shape[-2:])}."
        )
    count = len(a)
    stacked = torch.cat([a, b, a * a, b * b, a * b]).float()
    mean_a, mean_b, square_a, square_b, product = _blur(stacked, taps).split(count)
    variance_a = (square_a - mean_a**2).clamp(min=0)
    variance_b = (square_b - mean_b**2).clamp(min=0)
    c1 = (K1 * span) ** 2
    c2 = (K2 * span) ** 2
    contrast = (2 * (product - mean_a * mean_b) + c2) / (variance_a + variance_b + c2)
    whole = contrast * (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    return whole.flatten(1).mean(1), contrast.flatten(1).mean(1)


def _blur(x: torch.Tensor, taps: int) -> torch.Tensor:
    offsets = torch.arange(taps, device=x.device, dtype=x.dtype) - (taps - 1) / 2
    window = torch.exp(-((offsets / SIGMA) ** 2) / 2)
    window = window / window.sum()
    flat = x.flatten(0, 1).unsqueeze(1)
    blurred = F.conv2d(F.conv2d(flat, window.view(1, 1, -1, 1)), window.view(1, 1, 1, -1))
    return blurred.view(*x.shape[:2], *blurred.shape[-2:])
