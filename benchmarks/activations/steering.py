"""What Activation Steering adds to an evaluation: operations and bytes, counted at full size.

The network runs on PyTorch's meta device, which knows shapes and no values, so the counts are exact and need neither
memory nor a quiet machine. Two rows in half precision, positive and negative prompt, of which the positive is steered.
"""

from __future__ import annotations

from contextlib import nullcontext
from fnmatch import fnmatch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from studies.common import host

#: Name, blueprint of the network, and the side of its latent.
NETWORKS = (("SD1.5, 512 pixels", "sd15", 64), ("SDXL, 1,024 pixels", "sdxl", 128))
STEERED = ("up-level1-repeat0-vit-out", "*-vit-out")


class Traffic(TorchDispatchMode):
    """Counts the bytes that operations read and write, and the elements that they write; views do neither."""

    def __init__(self):
        super().__init__()
        self.bytes = self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        aliases = [one.alias_info for one in func._schema.returns]
        if not any(alias is not None and not alias.is_write for alias in aliases):
            given, made = (
                [one for one in tree_leaves(part) if isinstance(one, torch.Tensor)] for part in (args, result)
            )
            self.bytes += sum(one.nbytes for one in (*given, *made))
            self.elements += sum(one.numel() for one in made)
        return result


def measure(quick: bool) -> dict[str, dict]:
    """Added operations and bytes over those of the evaluation, for one ID and for the output of every transformer."""
    numbers = {}
    for name, blueprint, side in NETWORKS[: 1 if quick else None]:
        meta = host.pack("nodes.host.meta_networks")
        network, config = meta.network("architecture", blueprint).half(), meta.ARCHITECTURES[blueprint]
        operations, plain = count(network, config, side, [])
        for pattern in STEERED:
            specs = [
                one for one in host.pack("nodes.activations.catalog_unet").catalog(network) if fnmatch(one.id, pattern)
            ]
            _, steered = count(network, config, side, specs)
            label = f"{name}, {len(specs)} steered"
            about = f"goal: below .01; {pattern}, of one evaluation of two rows in half precision"
            numbers[f"{label}: operations added"] = _exact(
                (steered.elements - plain.elements) / operations,
                f"{about}; each element that is written counts as one, against those of products and convolutions",
            )
            numbers[f"{label}: bytes added"] = _exact((steered.bytes - plain.bytes) / plain.bytes, about)
    return numbers


def count(network: torch.nn.Module, config: dict, side: int, specs: list) -> tuple[int, Traffic]:
    """Operations of products and convolutions of one evaluation, and all its traffic, with these IDs steered."""
    steering, hooks = (host.pack(f"nodes.{name}") for name in ("activations.steering", "host.hooks"))
    edit = host.pack("nodes.activations.activation_edit").CallEdit
    from comfy.ldm.modules.attention import attention_pytorch

    half = {"dtype": torch.float16, "device": "meta"}
    latent = torch.empty(2, network.in_channels, side, side, **half)
    given = {
        "timesteps": torch.empty(2, device="meta"),
        "context": torch.empty(2, 77, config["context_dim"], **half),
        "y": torch.empty(2, config["adm_in_channels"], **half) if config.get("adm_in_channels") else None,
        # ComfyUI's own choice of attention reads how much memory is free, of which the meta device has none.
        "transformer_options": {"optimized_attention_override": lambda _, *q, **kw: attention_pytorch(*q, **kw)},
    }
    direction = steering.SteeringDirection({one.id: torch.ones(one.channels, device="meta") for one in specs}, "")
    changed = edit(specs, steering.steer(direction, steering.SteeringSettings(1.0)), {True}, (True, False)).receivers()
    steered = hooks.forward_hooks(network, changed) if specs else nullcontext()
    flops, traffic = FlopCounterMode(display=False), Traffic()
    with steered, flops, traffic, torch.no_grad():
        network(latent, **given)
    return flops.get_total_flops(), traffic


def _exact(value: float, what: str) -> dict:
    return {"value": value, "low": value, "high": value, "n": 1, "unit": "fraction", "what": what}
