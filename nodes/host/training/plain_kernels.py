"""ComfyUI's fused norms and rotary positions in plain PyTorch, through which gradients pass.

Newer ComfyUI computes them by kernels of the package comfy_kitchen that have no backward. Some of
its networks ask whether a training runs and then do without them; Anima, Cosmos-Predict2, JoyImage
and others do not.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

_PACKAGE = "comfy_kitchen"

Pair = tuple[torch.Tensor, torch.Tensor]


def rotated(x: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
    """Channels (2 i, 2 i + 1) of ``x`` (..., d) turned by ``rotations`` (..., d / 2, 2, 2)."""
    pairs = x.to(rotations.dtype).unflatten(-1, (-1, 1, 2))
    turned = (rotations[..., : pairs.shape[-3], :, :] * pairs).sum(-1)
    return turned.flatten(-2).type_as(x)


def rotated_halves(x: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
    """The same of channels (i, i + d / 2)."""
    pairs = x.to(rotations.dtype).unflatten(-1, (2, -1)).transpose(-1, -2).unsqueeze(-2)
    turned = (rotations * pairs).sum(-1)
    return turned.transpose(-1, -2).flatten(-2).type_as(x)


def _normed(
    rotate: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    rotations: torch.Tensor,
    scale: torch.Tensor,
    epsilon: float,
    channels: int = 0,
) -> torch.Tensor:
    """RMSNorm over each head's channels, then rotations of the first ``channels``; 0: of all."""
    normed = F.rms_norm(x, (x.shape[-1],), weight=scale, eps=epsilon)
    if channels in (0, x.shape[-1]):
        return rotate(normed, rotations)
    turned = rotate(normed[..., :channels], rotations)
    return torch.cat([turned, normed[..., channels:]], dim=-1)


# From here on the names and arguments are those of comfy_kitchen.
def apply_rope1(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    """One tensor turned."""
    return rotated(x, freqs_cis)


def apply_rope(xq: torch.Tensor, xk: torch.Tensor, freqs_cis: torch.Tensor) -> Pair:
    """Queries and keys turned."""
    return rotated(xq, freqs_cis), rotated(xk, freqs_cis)


def apply_rope_split_half1(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    """One tensor turned by halves."""
    return rotated_halves(x, freqs_cis)


def apply_rope_split_half(xq: torch.Tensor, xk: torch.Tensor, freqs_cis: torch.Tensor) -> Pair:
    """Queries and keys turned by halves."""
    return rotated_halves(xq, freqs_cis), rotated_halves(xk, freqs_cis)


def rms_rope1(
    x: torch.Tensor, freqs_cis: torch.Tensor, scale: torch.Tensor, epsilon: float = 1e-6
) -> torch.Tensor:
    """One tensor normed and turned."""
    return _normed(rotated, x, freqs_cis, scale=scale, epsilon=epsilon)


def rms_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    freqs_cis: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    epsilon: float = 1e-6,
) -> Pair:
    """Queries and keys normed and turned; keys by the scale of queries where they have none."""
    of_keys = q_scale if k_scale is None else k_scale
    return (
        _normed(rotated, q, freqs_cis, scale=q_scale, epsilon=epsilon),
        _normed(rotated, k, freqs_cis, scale=of_keys, epsilon=epsilon),
    )


def rms_rope_split_half1(
    x: torch.Tensor, freqs_cis: torch.Tensor, scale: torch.Tensor, epsilon: float = 1e-6
) -> torch.Tensor:
    """One tensor normed and turned by halves."""
    return _normed(rotated_halves, x, freqs_cis, scale=scale, epsilon=epsilon)


def rms_rope_split_half(
    q: torch.Tensor,
    k: torch.Tensor,
    freqs_cis: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    rot_dim: int = 0,
) -> Pair:
    """Queries and keys normed and turned by halves, in the first ``rot_dim`` channels; 0: in
    all.
    """
    of_keys = q_scale if k_scale is None else k_scale
    return (
        _normed(rotated_halves, q, freqs_cis, scale=q_scale, epsilon=epsilon, channels=rot_dim),
        _normed(rotated_halves, k, freqs_cis, scale=of_keys, epsilon=epsilon, channels=rot_dim),
    )


def adaln(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float = 1e-6
) -> torch.Tensor:
    """LayerNorm without weights, scaled and shifted."""
    return F.layer_norm(x, x.shape[-1:], eps=eps) * (1 + scale) + shift


def rms_adaln(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float = 1e-6
) -> torch.Tensor:
    """RMSNorm without weights, scaled and shifted."""
    return F.rms_norm(x, x.shape[-1:], eps=eps) * (1 + scale) + shift


def _in_place(plain: Callable) -> Callable:
    """A form that writes its results into its first arguments, as the names with "_" do."""

    def write(*args: torch.Tensor, **options: object) -> object:
        results = plain(*args, **options)
        if isinstance(results, tuple):
            return tuple(x.copy_(result) for x, result in zip(args, results, strict=False))
        return args[0].copy_(results)

    return write


_KERNELS = (
    apply_rope,
    apply_rope1,
    apply_rope_split_half,
    apply_rope_split_half1,
    rms_rope,
    rms_rope1,
    rms_rope_split_half,
    rms_rope_split_half1,
    adaln,
    rms_adaln,
)


@contextlib.contextmanager
def kernels_in_plain_torch() -> Iterator[None]:
    """Networks compute the kernels above in plain PyTorch while the block runs.

    Nothing happens where this ComfyUI has no such package.
    """
    package = sys.modules.get(_PACKAGE)
    replaced = {}
    for kernel in _KERNELS if package is not None else ():
        name = kernel.__name__
        for attribute, plain in ((name, kernel), (f"{name}_", _in_place(kernel))):
            if hasattr(package, attribute):
                replaced[attribute] = getattr(package, attribute)
                setattr(package, attribute, plain)
    try:
        yield
    finally:
        for attribute, kernel in replaced.items():
            setattr(package, attribute, kernel)
