"""Low-rank factors as the tensors of a LoRA file that stock loaders read, or as a PEFT adapter
folder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch

from ..common import peft_files
from ..common.atomic_write import atomic_write
from ..common.lora_keys import TEXT, base_of, keys, loadable_stem
from ..common.lora_reader import Factors
from ..common.peft_files import LARGEST_ALPHA
from .projection import difference
from .rank_reduction import reduce_rank

#: Binary exponents of the largest number of a layer's factors where the dtype cannot hold it as it
#: is: of a large change near the end of float16, so that alpha stays small; of a small one at 1.
_LARGE_EXPONENT = 14
_SMALL_EXPONENT = 0


def reduce(
    layers: Mapping[str, Factors],
    rank: int,
    tolerance: float | Mapping[str, float] = 1e-5,
    dtype: torch.dtype = torch.float32,
) -> tuple[dict[str, Factors], str]:
    """The layers at no more than a rank in a dtype, and a report of their size and of the change
    that is lost.

    Each gets the smallest rank that loses at most ``tolerance`` of |dW|, one for all or one for
    each layer; ``rank`` 0 sets no other limit. A layer that is no larger than its tolerance is left
    out. Factors are balanced; where they still leave the range of the dtype, the scale (alpha)
    takes a power of 4.

    Raises ValueError for a layer whose change float32, or alpha beside the dtype, cannot hold.
    """
    reduced = {}
    kept = 0.0
    whole = 0.0
    rounding = 0.0
    worst = (1.0, "")
    for layer, factors in layers.items():
        least = tolerance if isinstance(tolerance, float) else tolerance.get(layer, 1e-5)
        _check_range(layer, factors)
        exact, _, total = reduce_rank(factors, min(rank or factors.rank, factors.rank))
        pairs = exact.down.flatten(1).double().norm(dim=1) * exact.up.flatten(1).double().norm(
            dim=0
        )
        squares = pairs.square()
        rest = squares.flip(0).cumsum(0).flip(0)  # what goes with each pair and those after it
        count = int((rest > least**2 * total).sum())
        if not count and least >= 1 and total:
            continue
        count = max(count, 1)
        exact = Factors(exact.down[:count], exact.up[:, :count])
        part = float(squares[:count].sum())
        stored, lost = _stored(layer, exact, dtype, part)
        rounding += lost
        kept = kept + part
        whole = whole + total
        worst = min(worst, (part / total if total else 1.0, layer))
        reduced[layer] = stored
    ranks = [factors.rank for factors in reduced.values()]
    left_out = len(layers) - len(reduced)
    size = sum(one.down.nbytes + one.up.nbytes for one in reduced.values())
    rounded = (
        f"rounding to {str(dtype).removeprefix('torch.')} costs "
        f"{(rounding / max(whole, 1e-300)) ** 0.5:.1e}"
    )
    report = (
        f"{len(ranks)} layers of rank {min(ranks, default=0)} to {max(ranks, default=0)}, "
        f"{size / 1e6:.1f} MB: {100 * kept / max(whole, 1e-300):.2f} % of the change is kept"
        + (f", least in {worst[1]}: {100 * worst[0]:.2f} %" if worst[1] else "")
        + f"; {rounded} of |dW|."
        + (
            f" Left out: {left_out} layers that only rounding of the space changes."
            if left_out
            else ""
        )
    )
    return reduced, report


def _check_range(layer: str, factors: Factors) -> None:
    up, down = factors.matrices()
    bound = float(up.double().norm() * down.double().norm())
    if not bound < torch.finfo(torch.float32).max:
        raise ValueError(
            f"The change of {layer} is too large to compute with (|dW| up to {bound:.0e}): lower "
            "the strengths of the point, or check the LoRAs that it comes from."
        )


def _stored(
    layer: str, exact: Factors, dtype: torch.dtype, squares: float
) -> tuple[Factors, float]:
    """Balanced factors of scale 1 in a dtype, and |dW|^2 of what rounding loses.

    ``squares``: |dW|^2. What overflows, or loses more than one step of the dtype because it is
    subnormal there, is divided by a power of two in both factors, which the scale makes up for.
    """
    plain = Factors(exact.down.to(dtype, copy=True), exact.up.to(dtype, copy=True))
    lost = difference(exact, plain)
    if lost <= torch.finfo(dtype).eps ** 2 * squares:
        return plain, lost
    largest = max(float(exact.down.abs().amax()), float(exact.up.abs().amax()))
    goal = _LARGE_EXPONENT if largest > 1 else _SMALL_EXPONENT
    root = 2.0 ** (math.frexp(largest)[1] - goal)
    scaled = Factors((exact.down / root).to(dtype), (exact.up / root).to(dtype), root**2)
    if scaled.scale * scaled.rank > LARGEST_ALPHA:
        raise ValueError(
            f"The change of {layer} is too large for {str(dtype).removeprefix('torch.')} "
            f"(|dW| {squares**0.5:.0e}): choose fp32 or lower the strengths."
        )
    return scaled, difference(exact, scaled)


def file_stems(layers: Mapping[str, Factors], stems: Mapping[str, str]) -> dict[str, str]:
    """Each layer's name in a file where no MODEL says it; ``stems``: the names in the files that it
    comes from.

    Layers of Stable Diffusion's U-Nets have the usual names, which most programs read; the
    embeddings of its text encoders have none.
    """
    base = base_of({name: factors.down[0].numel() for name, factors in layers.items()})
    own = {
        layer: stem
        for layer, stem in stems.items()
        if layer.startswith(TEXT) and "_embeddings_" in layer
    }
    if base in ("SD1.x", "SD2.x"):  # kohya's name where there is no second one
        first = f"{TEXT}1_text_model_encoder_"
        return own | {
            one: one.replace(f"{TEXT}1", TEXT, 1) for one in layers if one.startswith(first)
        }
    if base == "SDXL":
        return own
    return {layer: loadable_stem(layer, stem, base) for layer, stem in stems.items()}


def to_tensors(
    layers: Mapping[str, Factors], stems: Mapping[str, str] | None = None
) -> dict[str, torch.Tensor]:
    """Tensors by key, alpha written for every layer: without it a loader would take a scale of 1.

    ``stems``: layers' names where they are not the usual ones; None takes those of ``file_stems``.
    Factors that are parts of larger tensors are copied, so that these can be freed; others are
    taken as they are.
    """
    tensors = {}
    stems = file_stems(layers, {}) if stems is None else stems
    for layer, factors in layers.items():
        down, up, alpha = keys(layer, stems.get(layer, ""))
        tensors[down] = _alone(factors.down)
        tensors[up] = _alone(
            factors.up.reshape(*factors.up.shape[:2], *(1,) * (factors.down.ndim - 2))
        )
        tensors[alpha] = torch.tensor(float(factors.scale * factors.rank))
    return tensors


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.contiguous()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def write(
    tensors: dict[str, torch.Tensor],
    path: Path,
    about: str,
    further: Mapping[str, str] | None = None,
) -> None:
    """Write a LoRA file, whole or not at all; ``further`` goes into its header."""
    from safetensors.torch import save_file

    header = {"format": "pt", "glassbox": about, **(further or {})}
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, header)


def write_peft(layers: dict[str, Factors], folder: Path) -> str:
    """Write the network's layers as an adapter folder of peft; returns a remark on what it leaves
    out.

    ``peft.PeftModel.from_pretrained(unet, folder)`` reads it. The weights are complete before the
    configuration is there.
    """
    from safetensors.torch import save_file

    network = {layer: factors for layer, factors in layers.items() if not layer.startswith(TEXT)}
    ranks = {layer: factors.rank for layer, factors in network.items()}
    config = peft_files.package().LoraConfig(
        r=max(ranks.values()),
        lora_alpha=max(ranks.values()),
        target_modules=list(network),
        rank_pattern=ranks,
        alpha_pattern={layer: factors.scale * factors.rank for layer, factors in network.items()},
    )
    tensors = {}
    for layer, factors in network.items():
        stem = f"base_model.model.{layer}"
        tensors[f"{stem}.lora_A.weight"] = factors.down.float().contiguous().clone()
        tensors[f"{stem}.lora_B.weight"] = (
            factors.up.float()
            .reshape(*factors.up.shape[:2], *(1,) * (factors.down.ndim - 2))
            .contiguous()
            .clone()
        )
    folder.mkdir(parents=True)
    with atomic_write(folder / "adapter_model.safetensors") as temporary:
        save_file(tensors, temporary, {"format": "pt"})
    config.save_pretrained(str(folder))
    left_out = len(layers) - len(network)
    return (
        f" {left_out} layers of text encoders are left out of the PEFT folder." if left_out else ""
    )
