"""What several kernels share."""

from __future__ import annotations

import torch
import triton

#: Programs that keep the largest of today's GPUs busy: four on each of its about 132
#: multiprocessors.
PROGRAMS = 512
#: Targets, for each of which a kernel has tiles that fit its registers: NVIDIA, and AMD's Instinct
#: and Radeon.
NVIDIA, CDNA, RDNA = TARGETS = ("nvidia", "cdna", "rdna")


@triton.jit
def _nothing():
    pass


#: Whether kernels run in Triton's interpreter; TRITON_INTERPRET=1 before the first import makes it
#: so.
INTERPRETED = not isinstance(_nothing, triton.JITFunction)


def target(tensor: torch.Tensor) -> str:
    """The target that a tensor lies on."""
    if torch.version.hip is None or INTERPRETED:
        return NVIDIA
    return (
        CDNA
        if torch.cuda.get_device_properties(tensor.device).gcnArchName.startswith("gfx9")
        else RDNA
    )


def precision(target: str) -> str:
    """How products of float32 are made: three of TF32 on NVIDIA's tensor cores; AMD's compiler has
    no TF32.
    """
    return "tf32x3" if target == NVIDIA else "ieee"


def pieces(size: int, step: int, others: int, programs: int) -> tuple[int, int]:
    """Length and number of the pieces of ``size``, in multiples of ``step``, that give about
    ``programs`` with others.

    ``others`` is the number of programs that each piece already has.
    """
    steps = triton.cdiv(size, step)
    length = step * triton.cdiv(steps, max(1, min(steps, programs // others)))
    return length, triton.cdiv(size, length)


def wide(*tensors: torch.Tensor) -> bool:
    """Whether the factors of a product must be brought to float32 in registers: they are, or they
    differ in type.
    """
    first, *others = {tensor.dtype for tensor in tensors}
    # The interpreter multiplies the bits of bfloat16 as if they were integers (Triton 3.7).
    return bool(others) or first == torch.float32 or (INTERPRETED and first == torch.bfloat16)
