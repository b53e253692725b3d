"""A device that there is not: tensors that were moved to it, and what comes of them, may not meet
those of the CPU.
"""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map_only


class SpyDevice(TorchFunctionMode):
    """In a ``with`` block ``device`` computes as the CPU does, and ``moves`` counts what went there
    and came back.

    Raises where an operation mixes tensors of both, one number alone excepted, as CUDA does.
    """

    def __init__(self):
        super().__init__()
        self.device = torch.device("meta")
        self.moves = {"there": 0, "back": 0}
        self._there: dict[int, torch.Tensor] = {}  # kept, so that no other tensor gets its memory

    def __torch_function__(self, operation, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
        there = [_memory(one) in self._there for one in tensors]
        if operation == torch.Tensor.device.__get__:
            return self.device if there[0] else operation(*args)
        if (
            operation is torch._has_compatible_shallow_copy_type
        ):  # whether a module may keep its parameter objects
            return False
        if operation is torch.Tensor.cpu:
            operation, args = torch.Tensor.to, (args[0], "cpu")
        if (
            operation is torch.Tensor.to
            and len(args) > 1
            and isinstance(args[1], torch.device | str)
        ):
            target = torch.device(args[1]) == self.device
            self.moves["there" if target else "back"] += target != there[0]
            kwargs.pop("copy", None)
            moved = args[0].clone()
            return self._keep(moved) if target else moved
        made_there = kwargs.get("device") == self.device
        if made_there:
            kwargs.pop("device")
        numbers = [one.ndim == 0 for one in tensors]
        assert not any(there) or all(a or b for a, b in zip(there, numbers, strict=True)), (
            f"{operation} mixes devices"
        )
        result = operation(*args, **kwargs)
        if any(there) or made_there:
            result = tree_map_only(torch.Tensor, self._keep, result)
        return result

    def is_there(self, tensor: torch.Tensor) -> bool:
        return _memory(tensor) in self._there

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        self._there[_memory(tensor)] = tensor
        return tensor


def _memory(tensor: torch.Tensor) -> int:
    """What tensors of one memory have in common, also where torch.func has wrapped them."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.untyped_storage().data_ptr() or id(tensor)
