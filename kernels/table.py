"""Which inputs each Triton kernel takes, as data, and how it is proved against eager where it first runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_ANY_LENGTH = (1, 2**31 - 1)


@dataclass(frozen=True)
class Kernel:
    """One operation's kernel; arguments go by their names in the public function.

    ``dtypes``: the types of each tensor. ``sizes``: least and most of (argument, dimension). ``dense``: tensors that
    must be contiguous; of all others only the last dimension must be. ``elsewhere``: tensors that may lie on another
    device. ``cut``: dimension and length of the slice on which the kernel is checked, by argument. ``tolerance``:
    largest error there over the largest number of the result, besides one rounding to its type, or over the product of
    the longest rows of ``factors`` where the result is what is left of larger numbers. ``slack``: the argument that
    allows so much more. ``ties``: several indices can be equally right, and only numbers are compared.
    """

    file: str
    dtypes: Mapping[str, tuple[torch.dtype, ...]]
    sizes: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    dense: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    cut: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    tolerance: float = 1e-4
    factors: tuple[str, ...] = ()
    slack: str | None = None
    ties: bool = False


TABLE = {
    "pair_moments": Kernel(
        "nearest_noise",
        dtypes={"data": FLOATS, "noise": FLOATS},
        sizes={("data", 1): (1, 2**28)},
        cut={"data": (0, 16), "noise": (0, 16)},
    ),
    "blend": Kernel(
        "nearest_noise",
        dtypes={"data": FLOATS, "noise": FLOATS, "along": (*FLOATS, torch.float64), "scale": (*FLOATS, torch.float64)},
        sizes={("data", 1): (1, 2**26)},
        cut={"data": (0, 16), "noise": (0, 16), "along": (0, 16), "scale": (0, 16)},
    ),
    "nearest_drawn": Kernel(
        "nearest_drawn",
        dtypes={"data": FLOATS, "seeds": (torch.int64,)},
        sizes={("data", 1): (1, 2**26)},
        cut={"data": (0, 2), "seeds": (0, 2)},
        tolerance=1e-3,  # of a Gaussian from the sine of a float32 angle
    ),
    "assignment_cost": Kernel(
        "assignment_cost",
        dtypes={"data": FLOATS, "noise": FLOATS},
        sizes={("data", 0): (1, 2**15), ("noise", 0): (1, 2**15), ("data", 1): _ANY_LENGTH},
        cut={"data": (0, 64), "noise": (0, 64)},
        tolerance=1e-6,
        factors=("data", "noise"),
    ),
    "least_assignment": Kernel(
        "least_assignment",
        dtypes={"cost": (*FLOATS, torch.float64)},
        sizes={("cost", -1): (2, 2048)},
        dense=("cost",),
        factors=("cost",),
        slack="gap",
        ties=True,
    ),
    "best_match": Kernel(
        "best_match",
        dtypes={"queries": FLOATS, "targets": FLOATS},
        sizes={("queries", 0): (1, 2**20), ("targets", 0): (1, 2**20), ("queries", 1): (1, 8192)},
        cut={"queries": (0, 128)},
    ),
    "flat_weights": Kernel(
        "low_rank",
        dtypes={"coefficients": FLOATS, "basis": (*FLOATS, torch.int8), "mean": FLOATS, "deviation": FLOATS,
                "basis_scale": FLOATS},
        sizes={("basis", 0): (1, 2**20), ("basis", 1): _ANY_LENGTH},
        cut={"basis": (0, 64), "coefficients": (0, 64), "basis_scale": (0, 64)},
    ),
    "apply_point": Kernel(
        "low_rank",
        dtypes={"coefficients": FLOATS, "basis": (*FLOATS, torch.int8), "mean": FLOATS, "deviation": FLOATS,
                "basis_scale": FLOATS, "weights": FLOATS},
        sizes={("basis", 0): (1, 2**20), ("basis", 1): _ANY_LENGTH},
        dense=("weights",),
        cut={"weights": (0, 8), "places": (0, 8)},
    ),
    "low_rank_apply": Kernel(
        "low_rank",
        dtypes={"weight": FLOATS, "up": FLOATS, "down": FLOATS},
        sizes={("down", 0): (1, 1024)},
        dense=("weight",),
        elsewhere=("up", "down"),
        cut={"weight": (0, 64), "up": (0, 64)},
    ),
    "neuron_moments": Kernel(
        "neuron_moments",
        dtypes={"values": FLOATS},
        sizes={("values", 0): (1, 2**16 - 1)},
        cut={"values": (2, 64)},
    ),
    "mean_attention": Kernel(
        "mean_attention",
        dtypes={"query": FLOATS, "key": FLOATS},
        # A grid has at most 65,535 programs along its second dimension: rows times heads here.
        sizes={("query", 0): (1, 256), ("key", 1): (1, 2**20)},
        cut={"query": (1, 64)},
    ),
}  # fmt: skip


def unfit(operation: str, arguments: Mapping) -> str | None:
    """Why the Triton kernel does not take these arguments, or None."""
    kernel = TABLE[operation]
    tensors = [(name, tensor) for name, value in arguments.items() for tensor in tensors_of(value)]
    for name, tensor in tensors:
        if reason := _unfit_tensor(kernel, name, tensor):
            return f"{name} {reason}"
    if len({tensor.device for name, tensor in tensors if name not in kernel.elsewhere}) > 1:
        return "its tensors lie on several devices"
    for (name, dimension), (least, most) in kernel.sizes.items():
        size = arguments[name].shape[dimension]
        if not least <= size <= most:
            return f"{name} has {size} along dimension {dimension}, outside {least} to {most}"
    return None


def tensors_of(value) -> list[torch.Tensor]:
    """The tensors of an argument or a result: itself, or those of a list or tuple."""
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in tensors_of(one)]
    return [value] if isinstance(value, torch.Tensor) else []


def _unfit_tensor(kernel: Kernel, name: str, tensor: torch.Tensor) -> str | None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"is a {type(tensor).__name__} and not a plain tensor"
    if tensor.requires_grad and torch.is_grad_enabled():
        return "wants a gradient"
    if name not in kernel.dtypes:
        return "is a tensor"
    if tensor.dtype not in kernel.dtypes[name]:
        return f"is {str(tensor.dtype).removeprefix('torch.')}"
    if not tensor.numel():
        return "is empty"
    if name in kernel.dense and not tensor.is_contiguous():
        return "is not contiguous"
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        return "is not contiguous along its last dimension"
    return None
