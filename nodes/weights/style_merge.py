"""A point and a style LoRA as one LoRA: W + dW_identity + dW_style (arXiv 2406.09413, appendix
H).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..common.lora_reader import Factors, Lora


def merge(
    identity: Mapping[str, Factors], style: Mapping[str, Factors], strengths: tuple[float, float]
) -> dict[str, Factors]:
    """The sum of both changes, exactly: ranks add up, strengths and scales go into up.

    Raises ValueError when a layer has other sizes in the two.
    """
    merged = {}
    weighted = list(zip((identity, style), strengths, strict=True))
    for layer in [*identity, *(name for name in style if name not in identity)]:
        parts = [(one[layer], strength) for one, strength in weighted if layer in one]
        if len({(part.up.shape[0], part.down[0].numel()) for part, _ in parts}) > 1:
            raise ValueError(
                f"The two have {layer} of different sizes: they are made for different base models."
            )
        tail = parts[-1][0].down.shape[1:]
        down = torch.cat([part.down.float().flatten(1) for part, _ in parts])
        up = torch.cat(
            [part.up.float().flatten(1) * (part.scale * strength) for part, strength in parts],
            dim=1,
        )
        merged[layer] = Factors(down.view(-1, *tail), up)
    return merged


def describe(identity: dict[str, Factors], style: Lora) -> str:
    """Norms of both changes, their cosine, and what was left out of the style."""
    style = style.without_text()
    shared = [layer for layer in identity if layer in style.layers]
    sizes = [
        sum(part.squared_norm() for part in one.values()) ** 0.5 for one in (identity, style.layers)
    ]
    inner = sum(_inner(identity[layer], style.layers[layer]) for layer in shared)
    lines = [
        f"Identity |dW| {sizes[0]:.3f} in {len(identity)} layers, style |dW| {sizes[1]:.3f} in "
        f"{len(style.layers)}.",
        f"Cosine of the two changes over all layers {inner / max(sizes[0] * sizes[1], 1e-30):+.4f} "
        f"({len(shared)} layers in common); the plain sum of the paper assumes a value near 0.",
    ]
    for reason, part in style.dropped.items():
        whole = sizes[1] ** 2 + sum(style.dropped.values())
        lines.append(f"Left out of the style: {reason}, {100 * part / whole:.1f} % of its change.")
    return "\n".join(lines)


def _inner(one: Factors, other: Factors) -> float:
    """<dW, dW'> without making either."""
    up, down = one.matrices(torch.float64)
    up_other, down_other = other.matrices(torch.float64)
    return float(((up.T @ up_other) * (down @ down_other.T)).sum())
