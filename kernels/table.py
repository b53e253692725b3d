"""Every operation: its modules, which inputs each kernel takes, and how a kernel is compared with
eager; as data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

TRITON = "triton"
CUDA = "cuda"
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_ANY_LENGTH = (1, 2**31 - 1)


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One operation's kernel of one backend; arguments go by their names in the public function.

    ``dtypes``: the types of each tensor. ``vectors``: tensors of one dimension. ``sizes``: least
    and most of (argument, dimension). ``dense``: tensors that must be contiguous; of all others
    only the last dimension must be.
    ``elsewhere``: tensors that may lie on another device. ``mixed``: tensors that are left to
    PyTorch when they are all of one type.
    """

    module: str
    dtypes: Mapping[str, tuple[torch.dtype, ...]]
    sizes: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    vectors: tuple[str, ...] = ()
    dense: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operation:
    """``module``: of eager. ``kernels``: by backend, the preferred one first.

    ``tolerance``: the largest error of a kernel, besides one rounding to the type of the result,
    over the largest number of the result, or over ``scale`` of the arguments where the result does
    not show what numbers are rounded.
    """

    module: str
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    tolerance: float = 1e-4
    scale: Callable[[Mapping], float] | None = None


def _of_products(arguments: Mapping) -> float:
    """Of all pairs of rows the largest root of the sum of squared products, on which independent
    roundings act.
    """
    data, noise = (
        arguments[name].double().nan_to_num(0, 0, 0).square() for name in ("data", "noise")
    )
    return float((data @ noise.T).max().sqrt())


_POINT = {"coefficients": FLOATS, "mean": FLOATS, "deviation": FLOATS, "basis_scale": FLOATS}
# Float32 is left to cuBLAS, which reads it once too.
_POINT_KERNELS = {
    backend: Kernel(
        module=module,
        dtypes=_POINT | {"basis": (torch.int8, torch.bfloat16, torch.float16)},
        sizes={("basis", 0): (1, 2**20), ("basis", 1): _ANY_LENGTH},
        vectors=("coefficients", "mean"),
    )
    for backend, module in ((TRITON, "low_rank"), (CUDA, "launch"))
}
_CHANGE_KERNELS = {
    backend: Kernel(
        module=module,
        dtypes={"weight": FLOATS, "up": FLOATS, "down": FLOATS},
        sizes={("down", 0): (1, 1024)},
        dense=("weight",),
        elsewhere=("up", "down"),
        mixed=("weight", "up", "down"),  # of one type cuBLAS multiplies and adds in one pass
    )
    for backend, module in ((TRITON, "low_rank"), (CUDA, "launch"))
}
_DRAWN_KERNELS = {
    backend: Kernel(
        module=module,
        dtypes={"data": FLOATS, "seeds": (torch.int64,)},
        sizes={("data", 1): (1, 2**26)},
    )
    for backend, module in ((TRITON, "nearest_drawn"), (CUDA, "launch"))
}

TABLE = {
    "nearest_drawn": Operation("nearest_drawn", _DRAWN_KERNELS),
    "assignment_cost": Operation(
        "assignment_cost",
        {
            TRITON: Kernel(
                module="assignment_cost",
                dtypes={"data": FLOATS, "noise": FLOATS},
                # Below one tile each way a launch costs more than the product.
                sizes={
                    ("data", 0): (64, 2**15),
                    ("noise", 0): (64, 2**15),
                    ("data", 1): (1, 2**24),
                },
            )
        },
        # of factors rounded to bfloat16: 2^-9 sqrt(2 / 3) each, eight deviations and a margin
        tolerance=0.02,
        scale=_of_products,
    ),
    "flat_weights": Operation("low_rank", _POINT_KERNELS),
    "low_rank_apply": Operation("low_rank", _CHANGE_KERNELS),
    "mean_attention": Operation(
        "mean_attention",
        {
            TRITON: Kernel(
                module="mean_attention",
                dtypes={"query": FLOATS, "key": FLOATS, "mask": FLOATS},
                # A grid has at most 65,535 programs along its second dimension: rows times heads
                # here.
                sizes={("query", 0): (1, 256), ("query", 1): (1, 255), ("key", 2): (1, 2**20)},
            )
        },
    ),
    "best_match": Operation("best_match"),
    "neuron_moments": Operation("neuron_moments"),
}


def unfit(kernel: Kernel, arguments: Mapping) -> str | None:
    """Why a kernel does not take these arguments, or None."""
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    for name, tensor in tensors.items():
        if reason := _unfit_tensor(kernel, name, tensor):
            return f"{name} {reason}"
    if len({tensor.device for name, tensor in tensors.items() if name not in kernel.elsewhere}) > 1:
        return "its tensors lie on several devices"
    if kernel.mixed and len({tensors[name].dtype for name in kernel.mixed}) == 1:
        return f"{', '.join(kernel.mixed)} are of one type, which PyTorch does in one pass"
    for (name, dimension), (least, most) in kernel.sizes.items():
        size = arguments[name].shape[dimension]
        if not least <= size <= most:
            return f"{name} has {size} along dimension {dimension}, outside {least} to {most}"
    return None


def _unfit_tensor(kernel: Kernel, name: str, tensor: torch.Tensor) -> str | None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"is a {type(tensor).__name__} and not a plain tensor"
    if tensor.requires_grad and torch.is_grad_enabled():
        return "needs a gradient"
    if name not in kernel.dtypes:
        return "is a tensor"
    if tensor.dtype not in kernel.dtypes[name]:
        return f"is {str(tensor.dtype).removeprefix('torch.')}"
    if not tensor.numel():
        return "is empty"
    if name in kernel.vectors and tensor.ndim != 1:
        return f"has {tensor.ndim} dimensions"
    if name in kernel.dense and not tensor.is_contiguous():
        return "is not contiguous"
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        return "is not contiguous along its last dimension"
    return None
