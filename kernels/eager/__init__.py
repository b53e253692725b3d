"""The reference of every operation in plain PyTorch."""

import torch

#: Bytes of one intermediate tensor on a GPU, where few large operations are fast.
_ON_GPU = 1 << 28


def block_bytes(device: torch.device, on_cpu: int) -> int:
    """How large an intermediate tensor may become: ``on_cpu`` is what suits the caches of a CPU."""
    return on_cpu if device.type == "cpu" else _ON_GPU
